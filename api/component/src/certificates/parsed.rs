//! Fields of a certificate.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A parsed certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedCertificate {
    /// The certificate, PEM.
    pub pem: String,
    /// Its subject's common name; empty if it has none or several.
    pub common_name: String,
    /// Start of its validity, seconds since 1970.
    pub not_before: i64,
    /// End of its validity, seconds since 1970.
    pub not_after: i64,
    /// Identifier of its key.
    pub key_id: Vec<u8>,
    /// Identifier of its issuer's key.
    pub issuer_key_id: Vec<u8>,
    /// Names of the server, sorted.
    pub dns_names: Vec<String>,
    /// Whether it may be shown by a server.
    pub for_servers: bool,
    /// Whether it may be shown by a client.
    pub for_clients: bool,
}

impl ParsedCertificate {
    /// Parses all certificates of a PEM text; those that cannot be parsed are left out.
    pub fn all(pem: &[u8]) -> Vec<ParsedCertificate> {
        CertificateDer::pem_slice_iter(pem)
            .map_while(Result::ok)
            .filter_map(|certificate| Self::read(&certificate))
            .collect()
    }

    /// Parses the first certificate of a PEM text.
    pub fn first(pem: &[u8]) -> Option<ParsedCertificate> {
        Self::all(pem).into_iter().next()
    }

    /// Parses a certificate; `None` if it is not one.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<ParsedCertificate> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let mut names = parsed.subject().iter_common_name().map(|name| name.as_str());
        let common_name = match (names.next(), names.next()) {
            (Some(Ok(name)), None) => name.to_owned(),
            _ => String::new(),
        };
        let mut seen = ParsedCertificate {
            pem: pem(certificate),
            common_name,
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            ..ParsedCertificate::default()
        };
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => seen.key_id = id.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(authority) => {
                    seen.issuer_key_id =
                        authority.key_identifier.as_ref().map(|id| id.0.to_vec()).unwrap_or_default();
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    seen.dns_names = names
                        .general_names
                        .iter()
                        .filter_map(|name| match name {
                            GeneralName::DNSName(name) => Some((*name).to_owned()),
                            _ => None,
                        })
                        .collect();
                    seen.dns_names.sort();
                }
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    seen.for_servers = usage.server_auth || usage.any;
                    seen.for_clients = usage.client_auth || usage.any;
                }
                _ => {}
            }
        }
        Some(seen)
    }

    /// Whether the certificate is valid at this time.
    pub fn is_valid(&self, now: i64) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// When the last fifth of its lifetime begins.
    pub fn last_fifth(&self) -> i64 {
        let life = self.not_after.saturating_sub(self.not_before);
        self.not_after.saturating_sub(life / 5)
    }
}

fn pem(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = next;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

    #[test]
    fn a_certificate_is_parsed() {
        let mut params = CertificateParams::new(vec!["b".to_owned(), "a".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "somebody");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(1970, 1, 2);
        params.not_after = date_time_ymd(1970, 1, 12);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let seen = ParsedCertificate::first(certificate.pem().as_bytes()).unwrap();
        assert_eq!(seen.common_name, "somebody");
        assert_eq!(seen.dns_names, ["a", "b"]);
        assert_eq!((seen.for_servers, seen.for_clients), (true, false));
        let day = 24 * 3600;
        assert_eq!((seen.not_before, seen.last_fifth(), seen.not_after), (day, 9 * day, 11 * day));
        assert!(!seen.is_valid(day - 1) && seen.is_valid(day) && !seen.is_valid(11 * day));
        // The PEM text of a parsed certificate is parsed to the same value.
        assert_eq!(ParsedCertificate::all(format!("{0}{0}", seen.pem).as_bytes()), [seen.clone(), seen]);
        assert!(ParsedCertificate::all(b"-----BEGIN CERTIFICATE-----\nnope\n").is_empty());
    }
}
