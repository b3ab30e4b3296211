//! Permitted versions of TLS and cipher suites, from the `KubeVirt` object.

use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};
use std::sync::Arc;

/// A setting that is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Only TLS 1.2 and 1.3 are supported.
    #[error("minTLSVersion {0} is not supported: only VersionTLS12 and VersionTLS13 are")]
    Version(String),
    /// The suite is not supported, or is no cipher suite at all.
    #[error("cipher {0} is not supported")]
    Cipher(String),
}

static NEWER: [&SupportedProtocolVersion; 1] = [&TLS13];
static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// The permitted versions and suites. They may change while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Whether TLS 1.2 is permitted.
    older: bool,
    /// Suites of TLS 1.2 by name; all if empty. The suites of TLS 1.3 cannot be chosen, as in Go.
    ciphers: Vec<String>,
}

impl Default for TlsPolicy {
    fn default() -> Self {
        TlsPolicy { older: true, ciphers: vec![] }
    }
}

impl TlsPolicy {
    /// From `minTLSVersion` (`VersionTLS12` if it is empty) and `ciphers`, by their IANA names or Go's.
    ///
    /// # Errors
    /// Names the first value that is not available.
    pub fn new(least: Option<&str>, ciphers: &[String]) -> Result<Self, PolicyError> {
        let older = match least.unwrap_or_default() {
            "" | "VersionTLS12" => true,
            "VersionTLS13" => false,
            other => return Err(PolicyError::Version(other.to_owned())),
        };
        let known = |cipher: &String| {
            let suite = older_suites().find(|suite| is_named(suite, cipher));
            suite.and_then(name).ok_or_else(|| PolicyError::Cipher(cipher.clone()))
        };
        Ok(TlsPolicy { older, ciphers: ciphers.iter().map(known).collect::<Result<_, _>>()? })
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.older { &BOTH } else { &NEWER }
    }

    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        let allowed = |suite: &SupportedCipherSuite| {
            is_newer(suite)
                || self.ciphers.is_empty()
                || name(*suite).is_some_and(|name| self.ciphers.contains(&name))
        };
        provider.cipher_suites.retain(allowed);
        Arc::new(provider)
    }
}

fn is_newer(suite: &SupportedCipherSuite) -> bool {
    suite.version().version == ProtocolVersion::TLSv1_3
}

fn older_suites() -> impl Iterator<Item = SupportedCipherSuite> {
    ring::ALL_CIPHER_SUITES.iter().copied().filter(|suite| !is_newer(suite))
}

/// The IANA name of a suite.
fn name(suite: SupportedCipherSuite) -> Option<String> {
    suite.suite().as_str().map(str::to_owned)
}

/// Go's older names of two suites lack the hash.
fn is_named(suite: &SupportedCipherSuite, wanted: &str) -> bool {
    name(*suite).is_some_and(|name| {
        name == wanted
            || wanted.ends_with("_CHACHA20_POLY1305") && name.strip_suffix("_SHA256") == Some(wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(policy: &TlsPolicy) -> Vec<String> {
        let provider = policy.provider();
        provider.cipher_suites.iter().filter(|suite| !is_newer(suite)).copied().filter_map(name).collect()
    }

    #[test]
    fn versions_and_suites_by_name() {
        let default = TlsPolicy::new(None, &[]).unwrap();
        assert_eq!(default, TlsPolicy::default());
        assert_eq!((default.versions().len(), suites(&default).len()), (2, 6));
        assert_eq!(TlsPolicy::new(Some("VersionTLS13"), &[]).unwrap().versions(), &[&TLS13]);
        let chosen = [
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384".to_owned(),
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".to_owned(),
        ];
        let mut named = suites(&TlsPolicy::new(Some("VersionTLS12"), &chosen).unwrap());
        named.sort();
        assert_eq!(
            named,
            ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]
        );
        // The suites of TLS 1.3 stay.
        assert_eq!(
            TlsPolicy::new(None, &chosen)
                .unwrap()
                .provider()
                .cipher_suites
                .iter()
                .filter(|s| is_newer(s))
                .count(),
            3
        );
    }

    #[test]
    fn unsupported_tls_versions_and_ciphers_are_named() {
        for version in ["VersionTLS10", "VersionTLS11", "VersionSSL30", "tls"] {
            let error = TlsPolicy::new(Some(version), &[]).unwrap_err();
            assert_eq!(error, PolicyError::Version(version.to_owned()));
        }
        for cipher in ["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS13_AES_128_GCM_SHA256", ""] {
            let error = TlsPolicy::new(Some("VersionTLS12"), &[cipher.to_owned()]).unwrap_err();
            assert_eq!(error, PolicyError::Cipher(cipher.to_owned()));
        }
    }
}
