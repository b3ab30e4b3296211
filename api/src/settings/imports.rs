//! How importers reach their servers.
//!
//! KubeVirt has no fields for that, so annotations of the `KubeVirt` object say it.

use crate::names::{
    IMPORT_ADDRESSES_ANNOTATION, IMPORT_AUTHORITIES_ANNOTATION, IMPORT_HTTP_PROXY_ANNOTATION,
    IMPORT_HTTPS_PROXY_ANNOTATION, IMPORT_NO_PROXY_ANNOTATION,
};
use std::collections::BTreeMap;

/// Values of [`IMPORT_ADDRESSES_ANNOTATION`].
const ANY: &str = "any";
const PUBLIC: &str = "public";
/// Most certificates, in bytes: an importer gets them in a variable.
const MOST_AUTHORITIES: usize = 64 << 10;
/// Longest list of hosts, in bytes.
const LONGEST_LIST: usize = 8 << 10;

/// The settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imports {
    /// Proxy for addresses with `http`: `http://[user:password@]host[:port]`.
    pub http_proxy: Option<String>,
    /// Proxy for addresses with `https`, in the same form.
    pub https_proxy: Option<String>,
    /// Hosts that are reached without a proxy, with commas between them.
    pub no_proxy: Option<String>,
    /// Certificates of authorities that every importer trusts, PEM.
    pub authorities: Option<String>,
    /// Whether only public addresses may be connected to.
    pub public_only: bool,
}

impl Imports {
    /// The settings in the object's annotations; a proxy, list or certificate that cannot be used counts as not given, and what
    /// does not permit all addresses permits the public ones alone.
    pub(super) fn of_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let given = |name: &str| annotations.and_then(|all| all.get(name));
        let good = |name: &str| given(name).filter(|text| import_problem(name, text).is_none()).cloned();
        Imports {
            http_proxy: good(IMPORT_HTTP_PROXY_ANNOTATION),
            https_proxy: good(IMPORT_HTTPS_PROXY_ANNOTATION),
            no_proxy: good(IMPORT_NO_PROXY_ANNOTATION),
            authorities: good(IMPORT_AUTHORITIES_ANNOTATION),
            public_only: given(IMPORT_ADDRESSES_ANNOTATION).is_some_and(|text| text != ANY),
        }
    }
}

/// The annotations that are read.
pub(crate) const IMPORT_ANNOTATIONS: [&str; 5] = [
    IMPORT_HTTP_PROXY_ANNOTATION,
    IMPORT_HTTPS_PROXY_ANNOTATION,
    IMPORT_NO_PROXY_ANNOTATION,
    IMPORT_AUTHORITIES_ANNOTATION,
    IMPORT_ADDRESSES_ANNOTATION,
];

/// What is wrong with the value of one of these annotations. The message does not repeat the value, which may contain a
/// password.
pub(crate) fn import_problem(name: &str, text: &str) -> Option<&'static str> {
    match name {
        IMPORT_HTTP_PROXY_ANNOTATION | IMPORT_HTTPS_PROXY_ANNOTATION => {
            (!is_proxy(text)).then_some("is not the address of a proxy, http://[user:password@]host[:port]")
        }
        IMPORT_NO_PROXY_ANNOTATION => {
            let is_list = text.len() <= LONGEST_LIST
                && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            (!is_list).then_some("is not a list of hosts with commas between them")
        }
        IMPORT_AUTHORITIES_ANNOTATION => {
            let is_pem = text.len() <= MOST_AUTHORITIES
                && text.contains("-----BEGIN CERTIFICATE-----")
                && text.contains("-----END CERTIFICATE-----");
            (!is_pem).then_some("has no certificates (PEM) of at most 64 KiB")
        }
        IMPORT_ADDRESSES_ANNOTATION => {
            (![ANY, PUBLIC].contains(&text)).then_some("is neither any nor public")
        }
        _ => None,
    }
}

/// Whether a text is `http://[user:password@]host[:port]`.
fn is_proxy(text: &str) -> bool {
    let Some(authority) = text.strip_prefix("http://") else { return false };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.rsplit_once(':') {
        // The colons of an IPv6 address are within brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (place, None),
    };
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#');
    !host.is_empty()
        && authority.bytes().all(is_plain)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";

    #[test]
    fn proxies_are_addresses_of_proxies() {
        for good in
            ["http://p", "http://p.example:3128/", "http://me:a%40b@10.0.0.1:80", "http://[fd00::1]:3128"]
        {
            assert!(is_proxy(good), "{good}");
        }
        for bad in [
            "",
            "p:3128",
            "https://p",
            "socks5://p",
            "http://",
            "http://p:x",
            "http://p:0",
            "http://p/x",
            "http://a b",
        ] {
            assert!(!is_proxy(bad), "{bad}");
        }
    }

    #[test]
    fn values_out_of_range_count_as_not_given_and_never_permit_more() {
        let of = |values: [&str; 5]| {
            let all = IMPORT_ANNOTATIONS.into_iter().zip(values);
            let all = all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Imports::of_annotations(Some(&all))
        };
        let given = of(["http://p", "http://s", ".svc,10.0.0.0/8", PEM, "public"]);
        let text = |text: &str| Some(text.to_owned());
        let expected = Imports {
            http_proxy: text("http://p"),
            https_proxy: text("http://s"),
            no_proxy: text(".svc,10.0.0.0/8"),
            authorities: text(PEM),
            public_only: true,
        };
        assert_eq!(given, expected);
        assert_eq!(of(["p", "ftp://s", "\n", "PEM", "any"]), Imports::default());
        assert!(of(["", "", "", "", "privat"]).public_only);
        assert_eq!(Imports::of_annotations(None), Imports::default());
        assert!(import_problem(IMPORT_AUTHORITIES_ANNOTATION, &PEM.repeat(2000)).is_some());
    }
}
