//! Parses `WWW-Authenticate`, by which a registry asks for credentials (RFC 9110, 11.6.1).

/// The credentials that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User name and password.
    Basic,
    /// A token from another server.
    Bearer {
        /// Its address.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
    },
}

impl Challenge {
    /// Parses a header line; `None` where it has another scheme.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (scheme, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        let mut rest = rest.trim_start();
        while let Some((name, after)) = rest.split_once('=') {
            let (value, next) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').unwrap_or((after, "")),
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                // The scope is set by the request.
                _ => {}
            }
            rest = next.trim_start_matches([',', ' ']);
        }
        Some(Challenge::Bearer { realm: realm?, service })
    }
}

/// The address for a token request.
#[must_use]
pub fn with_query(realm: &str, service: Option<&str>, scope: &str) -> String {
    let mut address = realm.to_owned();
    let mut separator = if realm.contains('?') { '&' } else { '?' };
    for (name, value) in [("service", service), ("scope", Some(scope))] {
        if let Some(value) = value {
            address.push(separator);
            address.push_str(name);
            address.push('=');
            for byte in value.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'/' => {
                        address.push(byte.into());
                    }
                    _ => address.push_str(&format!("%{byte:02X}")),
                }
            }
            separator = '&';
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_as_registries_write_it() {
        let line = r#"Bearer realm="https://auth.example/token?x=1",service="registry, of ours",scope="repository:a/b:pull""#;
        let Some(Challenge::Bearer { realm, service }) = Challenge::parse(line) else { panic!() };
        assert_eq!(realm, "https://auth.example/token?x=1");
        assert_eq!(service.as_deref(), Some("registry, of ours"));
        assert_eq!(
            with_query(&realm, service.as_deref(), "repository:a/b:pull"),
            "https://auth.example/token?x=1&service=registry%2C%20of%20ours&scope=repository:a/b:pull"
        );
        assert_eq!(Challenge::parse("basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Bearer service=x"), None);
        assert_eq!(Challenge::parse("Bearer realm=\"x"), None);
        assert_eq!(Challenge::parse("Negotiate"), None);
    }
}
