//! Web addresses and the targets of redirects.

use crate::failure::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::{PathAndQuery, Scheme};

/// Longest address, in bytes.
const LONGEST: usize = 8192;

/// An `http` or `https` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether it is `https`.
    pub tls: bool,
    /// Name or address of the host, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// `user:password` in the address.
    pub login: Option<String>,
}

impl Url {
    /// Parses an address that a user or a server wrote.
    ///
    /// # Errors
    /// It is not an address, or has another scheme.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::Final(format!("address {:?} cannot be used: {why}", shown(text)));
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let uri: Uri = text.trim().parse().map_err(|error| wrong(&format!("{error}")))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) => return Err(wrong(&format!("scheme {scheme} is neither http nor https"))),
            None => return Err(wrong("it has no scheme")),
        };
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let login = uri.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
        Ok(Url {
            tls,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned(),
            login: login.map(|(login, _)| login.to_owned()),
        })
    }

    /// The target of a `Location` header, relative to this address.
    ///
    /// # Errors
    /// The target is invalid.
    pub fn follow(&self, location: &str) -> Result<Self, Failure> {
        let absolute = if location.starts_with("//") {
            format!("{}:{location}", if self.tls { "https" } else { "http" })
        } else if location.split(['/', '?', '#']).next().is_some_and(|first| first.contains(':')) {
            location.to_owned()
        } else {
            let path = self.path.split('?').next().unwrap_or("/");
            let path = match location {
                _ if location.starts_with('/') => location.to_owned(),
                _ if location.starts_with('?') => format!("{path}{location}"),
                _ => format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
            };
            format!("{}{path}", self.origin())
        };
        Self::parse(absolute.split('#').next().unwrap_or_default())
    }

    /// `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Scheme, host and port: secrets are for one origin.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// The address for messages: without login and query, which may be secret.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{}{}", self.origin(), self.path.split('?').next().unwrap_or_default())
    }
}

/// An address in a message: without secrets, and bounded.
fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let text = match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => text.to_owned(),
    };
    text.chars().take(256).collect()
}

/// The value of an `Authorization` header.
#[must_use]
pub fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_from_where_it_was_said() {
        let from = Url::parse("https://a.example:8443/x/y.img?z=1").unwrap();
        for (location, to) in [
            ("/q", "https://a.example:8443/q"),
            ("q?r=/s:1", "https://a.example:8443/x/q"),
            ("?r", "https://a.example:8443/x/y.img"),
            ("//b.example/q", "https://b.example/q"),
            ("http://b.example:81/q#part", "http://b.example:81/q"),
        ] {
            assert_eq!(from.follow(location).unwrap().shown(), to, "{location}");
        }
        for bad in ["ftp://a.example/x", "file:///etc/passwd", "http://", "javascript:x"] {
            assert!(from.follow(bad).unwrap_err().is_final(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_in_no_message() {
        let url = Url::parse("http://me:pass@[fd00::1]/x?token=1").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("fd00::1", 80));
        assert_eq!(url.login.as_deref(), Some("me:pass"));
        assert_eq!(url.shown(), "http://[fd00::1]/x");
        let wrong = Url::parse("ftp://me:pass@a.example/x?token=1").unwrap_err().to_string();
        assert!(
            wrong.contains("ftp://a.example/x") && !wrong.contains("pass") && !wrong.contains("token"),
            "{wrong}"
        );
    }
}
