//! The user's identity, as the API server's aggregator sends it.
//!
//! The aggregator calls with a client certificate and sends the user's name in headers. The CA of that
//! certificate and its permitted names are in the config map
//! `kube-system/extension-apiserver-authentication`, which is watched. Headers without such a certificate
//! prove nothing: the request is answered with 401.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use barevirt_qmp::quiet::{self, Quiet};
use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Namespace and name of the config map, which every API server maintains.
pub const CONFIG_MAP: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

/// A user, a person or a program, as the API server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// User name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes, by key in lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why a request has no [`User`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// The config map has not been read yet or is not usable.
    #[error("the front-proxy configuration is not known yet")]
    NotConfigured,
    /// No client certificate.
    #[error("no client certificate")]
    NoCertificate,
    /// A certificate of a CA other than the front proxy's, or one that is not valid now.
    #[error("client certificate is not trusted: {0}")]
    NotTrusted(String),
    /// A certificate of the right CA with a name that is not on the list.
    #[error("client certificate name {0:?} is not an allowed one")]
    NameNotAllowed(String),
    /// No user name in the headers.
    #[error("no user name in the request's headers")]
    NoUser,
    /// An identity header that is not text. If it were ignored, a missing group could bypass a rule that
    /// denies access to the group.
    #[error("header {0} is not UTF-8")]
    NotText(String),
}

impl Refused {
    /// Logs that a request has no identity. Every client that reaches a port can cause this, as often as it likes and
    /// with any path or certificate.
    pub fn log(&self, path: &str) {
        static LINES: Quiet = Quiet::new(8);
        if let Some((path, refused, left_out)) = self.line(path, &LINES) {
            tracing::info!(path, refused, left_out, "request without identity");
        }
    }

    /// What is logged of the path and of the reason, and how many lines were left out before; `None` if there are too many.
    /// Only the first part of the path is logged, because it cannot contain a seal.
    fn line(&self, path: &str, lines: &Quiet) -> Option<(String, String, u64)> {
        let left_out = lines.line()?;
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        Some((quiet::start(first, 64), quiet::start(&self.to_string(), 256), left_out))
    }
}

/// The configuration from the config map.
#[derive(Debug)]
pub struct FrontProxy {
    verifier: Arc<dyn ClientCertVerifier>,
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// The current configuration, replaced whenever the config map changes.
pub type Current = ArcSwapOption<FrontProxy>;

/// Why a config map is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key is missing.
    #[error("config map has no {0}")]
    Missing(&'static str),
    /// A list is not a JSON list of strings.
    #[error("{key} is not a list of strings")]
    NotAList {
        /// The key.
        key: &'static str,
        /// The fault.
        source: serde_json::Error,
    },
    /// The CA is not PEM, or no certificate in it can be used.
    #[error("requestheader-client-ca-file is not usable: {0}")]
    Ca(String),
}

impl FrontProxy {
    /// Reads the config map.
    ///
    /// # Errors
    /// Names the key that is missing or wrong.
    pub fn from_config_map(map: &ConfigMap) -> Result<Self, ConfigError> {
        let data = map.data.as_ref();
        let text = |key: &'static str| {
            data.and_then(|data| data.get(key)).ok_or(ConfigError::Missing(key)).map(String::as_str)
        };
        let list = |key: &'static str| {
            let lower = |words: Vec<String>| words.iter().map(|word| word.to_lowercase()).collect();
            serde_json::from_str::<Vec<String>>(text(key)?)
                .map(lower)
                .map_err(|source| ConfigError::NotAList { key, source })
        };
        let names = "requestheader-allowed-names";
        let allowed_names = serde_json::from_str(text(names)?)
            .map_err(|source| ConfigError::NotAList { key: names, source })?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text("requestheader-client-ca-file")?.as_bytes()) {
            let certificate = certificate.map_err(|error| ConfigError::Ca(error.to_string()))?;
            roots.add(certificate).map_err(|error| ConfigError::Ca(error.to_string()))?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
                .build()
                .map_err(|error| ConfigError::Ca(error.to_string()))?;
        Ok(Self {
            verifier,
            allowed_names,
            username_headers: list("requestheader-username-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        })
    }

    /// Whether the certificates that a client showed in the handshake are the aggregator's.
    ///
    /// # Errors
    /// The reason why they are not.
    pub fn trusts(&self, shown: &[CertificateDer<'_>]) -> Result<(), Refused> {
        let (leaf, rest) = shown.split_first().ok_or(Refused::NoCertificate)?;
        self.verifier
            .verify_client_cert(leaf, rest, UnixTime::now())
            .map_err(|error| Refused::NotTrusted(error.to_string()))?;
        let name = common_name(leaf);
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&name) {
            return Err(Refused::NameNotAllowed(name));
        }
        Ok(())
    }

    /// The user of a request, given the certificates that the client showed in the handshake.
    ///
    /// # Errors
    /// [`Refused`]: the request is answered with 401.
    pub fn user(&self, shown: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<User, Refused> {
        self.trusts(shown)?;
        let mut names = self.username_headers.iter().map(|header| texts(headers, header));
        let name = names.find_map(|texts| texts.map(|texts| texts.into_iter().next()).transpose());
        let name = name.ok_or(Refused::NoUser)??;
        let groups = self.group_headers.iter().map(|header| texts(headers, header));
        let groups = groups.collect::<Result<Vec<_>, _>>()?.concat();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for header in headers.keys().map(http::HeaderName::as_str) {
            for prefix in &self.extra_prefixes {
                if let Some(key) = header.strip_prefix(prefix.as_str()) {
                    extra.entry(unescape(key)).or_default().append(&mut texts(headers, header)?);
                }
            }
        }
        Ok(User { name, groups, extra })
    }
}

/// The values of a header that are not empty.
fn texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Refused> {
    let values = headers.get_all(name).iter().filter(|value| !value.is_empty());
    let text = |value: &http::HeaderValue| String::from_utf8(value.as_bytes().to_vec());
    values.map(|value| text(value).map_err(|_| Refused::NotText(name.to_owned()))).collect()
}

/// The key of an extra attribute, from which characters are unescaped that a header's name cannot hold
/// (`%2f`). An invalid escape is left unchanged, as in the API server.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        // `from_str_radix` would accept a sign.
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            return key.to_owned();
        };
        bytes.push(byte);
        rest = after.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

/// The subject's common name; empty if there is none.
fn common_name(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .ok()
        .and_then(|(_, parsed)| {
            let name = parsed.subject().iter_common_name().next()?;
            name.as_str().ok().map(str::to_owned)
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    struct Ca {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    fn ca() -> Ca {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { issuer: Issuer::new(params, key), pem }
    }

    fn leaf(
        ca: &Ca,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &ca.issuer).unwrap().der().clone()]
    }

    fn front_proxy(ca: &Ca, names: &str) -> FrontProxy {
        let data = [
            ("requestheader-client-ca-file", ca.pem.as_str()),
            ("requestheader-allowed-names", names),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        FrontProxy::from_config_map(&ConfigMap { data: Some(data), ..ConfigMap::default() }).unwrap()
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", "ann".parse().unwrap());
        headers.append("x-remote-group", "dev".parse().unwrap());
        headers.append("x-remote-group", "system:authenticated".parse().unwrap());
        headers.insert("x-remote-extra-scopes", "a".parse().unwrap());
        headers
    }

    #[test]
    fn the_aggregator_names_the_user() {
        let ca = ca();
        let user = front_proxy(&ca, r#"["front-proxy-client"]"#)
            .user(&leaf(&ca, "front-proxy-client", |_| {}), &headers())
            .unwrap();
        assert_eq!(user.name, "ann");
        assert_eq!(user.groups, ["dev", "system:authenticated"]);
        assert_eq!(user.extra["scopes"], ["a"]);
    }

    #[test]
    fn headers_without_a_certificate_prove_nothing() {
        assert_eq!(front_proxy(&ca(), "[]").user(&[], &headers()), Err(Refused::NoCertificate));
    }

    #[test]
    fn another_ca_is_refused() {
        let refused = front_proxy(&ca(), "[]").user(&leaf(&ca(), "front-proxy-client", |_| {}), &headers());
        assert!(matches!(refused, Err(Refused::NotTrusted(_))), "{refused:?}");
    }

    #[test]
    fn another_name_is_refused() {
        let ca = ca();
        let refused =
            front_proxy(&ca, r#"["front-proxy-client"]"#).user(&leaf(&ca, "mallory", |_| {}), &headers());
        assert_eq!(refused, Err(Refused::NameNotAllowed("mallory".into())));
    }

    #[test]
    fn an_expired_certificate_is_refused() {
        let ca = ca();
        let old = leaf(&ca, "front-proxy-client", |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        });
        assert!(matches!(front_proxy(&ca, "[]").user(&old, &headers()), Err(Refused::NotTrusted(_))));
    }

    /// The keys of extra attributes of service account tokens contain a slash, which no header's name can
    /// have.
    #[test]
    fn keys_of_extra_attributes_are_unescaped() {
        let ca = ca();
        let mut headers = headers();
        headers.insert("x-remote-extra-authentication.kubernetes.io%2fnode-name", "node01".parse().unwrap());
        headers.insert("x-remote-extra-odd%2", "b".parse().unwrap());
        let user = front_proxy(&ca, "[]").user(&leaf(&ca, "x", |_| {}), &headers).unwrap();
        assert_eq!(user.extra["authentication.kubernetes.io/node-name"], ["node01"]);
        assert_eq!(user.extra["odd%2"], ["b"]);
        for odd in ["%", "%2", "%+1", "%zz", "%ff", "a%c3"] {
            assert_eq!(unescape(odd), odd);
        }
        assert_eq!(unescape("%c3%a4%2F"), "ä/");
    }

    #[test]
    fn a_name_beyond_ascii_is_a_name() {
        let ca = ca();
        let mut headers = headers();
        headers.insert("x-remote-user", http::HeaderValue::from_bytes("zoë".as_bytes()).unwrap());
        let front_proxy = front_proxy(&ca, "[]");
        assert_eq!(front_proxy.user(&leaf(&ca, "x", |_| {}), &headers).unwrap().name, "zoë");
        headers.append("x-remote-group", http::HeaderValue::from_bytes(&[0xff]).unwrap());
        let refused = front_proxy.user(&leaf(&ca, "x", |_| {}), &headers);
        assert_eq!(refused, Err(Refused::NotText("x-remote-group".into())));
    }

    #[test]
    fn an_empty_user_header_is_refused() {
        let ca = ca();
        let mut headers = headers();
        headers.insert("x-remote-user", "".parse().unwrap());
        assert_eq!(front_proxy(&ca, "[]").user(&leaf(&ca, "x", |_| {}), &headers), Err(Refused::NoUser));
    }

    #[test]
    fn no_user_header_is_refused() {
        let ca = ca();
        let refused = front_proxy(&ca, "[]").user(&leaf(&ca, "x", |_| {}), &HeaderMap::new());
        assert_eq!(refused, Err(Refused::NoUser));
    }

    #[test]
    fn requests_without_identity_cause_few_and_short_lines_without_a_seal() {
        let lines = Quiet::new(8);
        let name = "\u{1b}[2J\u{202e}".repeat(10_000);
        let refused = Refused::NameNotAllowed(name.clone());
        let logged: Vec<_> = (0..1000).filter_map(|_| refused.line(&name, &lines)).collect();
        assert_eq!(logged.len(), 8);
        let (path, refused, _) = &logged[0];
        assert!(path.len() < 1000 && refused.len() < 3000, "{path} {refused}");
        assert!(!path.contains(['\u{1b}', '\u{202e}']) && !refused.contains('\u{1b}'), "{path} {refused}");
        let (path, refused, _) =
            Refused::NoCertificate.line("//pod-eviction-evacuate/0123", &Quiet::new(1)).unwrap();
        assert_eq!((path.as_str(), refused.as_str()), ("pod-eviction-evacuate", "no client certificate"));
    }

    #[test]
    fn a_config_map_without_a_ca_is_named() {
        let error = FrontProxy::from_config_map(&ConfigMap::default()).unwrap_err();
        assert_eq!(error.to_string(), "config map has no requestheader-allowed-names");
    }
}
