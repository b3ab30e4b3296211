//! Making certificates and reading what matters of existing ones.

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Life of the authority.
const AUTHORITY_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Life of the other certificates.
const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Certificates are valid from a little before they are made, for peers whose clocks are behind.
const SKEW: Duration = Duration::from_secs(300);

/// Failure to make or read a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It could not be made.
    #[error("cannot issue a certificate for {subject}")]
    Issue {
        /// Its common name.
        subject: String,
        /// What the library says.
        #[source]
        source: rcgen::Error,
    },
    /// The authority's stored certificate or key cannot be used.
    #[error("cannot use the stored authority")]
    Authority(#[source] rcgen::Error),
}

/// A certificate that we issue, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaf {
    /// Serving certificate of virt-api.
    Api,
    /// Serving certificate of virt-handler.
    HandlerServer,
    /// What virt-api shows to virt-handler.
    HandlerClient,
}

impl Leaf {
    /// All of them.
    pub const ALL: [Leaf; 3] = [Leaf::Api, Leaf::HandlerServer, Leaf::HandlerClient];

    /// The secret that it is kept in.
    pub fn secret(self) -> &'static str {
        match self {
            Leaf::Api => "kubevirt-virt-api-certs",
            Leaf::HandlerServer => "kubevirt-virt-handler-server-certs",
            Leaf::HandlerClient => "kubevirt-virt-handler-client-certs",
        }
    }

    /// Its subject's common name.
    pub fn common_name(self, namespace: &str) -> String {
        match self {
            Leaf::Api => format!("virt-api.{namespace}.svc"),
            Leaf::HandlerServer => "virt-handler".to_owned(),
            Leaf::HandlerClient => "kubevirt.io:system:client:virt-handler".to_owned(),
        }
    }

    /// The names that a client may know the server by.
    pub fn dns_names(self, namespace: &str) -> Vec<String> {
        match self {
            Leaf::Api => vec![
                "virt-api".to_owned(),
                format!("virt-api.{namespace}"),
                format!("virt-api.{namespace}.svc"),
                format!("virt-api.{namespace}.svc.cluster.local"),
            ],
            Leaf::HandlerServer => vec!["virt-handler".to_owned()],
            Leaf::HandlerClient => vec![],
        }
    }
}

/// A certificate with its key, both PEM.
#[derive(Clone, Debug, PartialEq)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key, PKCS #8.
    pub key: String,
}

/// What decides about a certificate's renewal.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The certificate, PEM.
    pub pem: String,
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
}

impl Seen {
    /// Reads all certificates of a PEM text; what cannot be read is left out.
    pub fn all(pem: &[u8]) -> Vec<Seen> {
        use rustls_pki_types::pem::PemObject;
        rustls_pki_types::CertificateDer::pem_slice_iter(pem)
            .map_while(Result::ok)
            .filter_map(|der| Self::read(&der))
            .collect()
    }

    /// Reads the first certificate of a PEM text.
    pub fn first(pem: &[u8]) -> Option<Seen> {
        Self::all(pem).into_iter().next()
    }

    fn read(der: &[u8]) -> Option<Seen> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let mut seen = Seen {
            pem: pem_of(der),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            key_id: vec![],
            issuer_key_id: vec![],
            dns_names: vec![],
        };
        for extension in certificate.extensions() {
            use x509_parser::extensions::{GeneralName, ParsedExtension};
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
                _ => {}
            }
        }
        Some(seen)
    }

    /// Whether it is in force.
    pub fn is_valid(&self, now: i64) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Whether the last fifth of its life has begun.
    pub fn is_ageing(&self, now: i64) -> bool {
        let life = self.not_after.saturating_sub(self.not_before);
        now >= self.not_after.saturating_sub(life / 5)
    }
}

fn pem_of(der: &[u8]) -> String {
    use std::fmt::Write;
    let encoded = k8s_openapi::ByteString(der.to_vec());
    // The base64 of the API's byte strings is the one of PEM, on one line.
    let encoded = serde_json::to_value(encoded).ok();
    let encoded = encoded.as_ref().and_then(|value| value.as_str()).unwrap_or_default();
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded;
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        let _ = writeln!(pem, "{line}");
        rest = next;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// The certificate authority.
pub struct Authority {
    /// Its certificate and key.
    pub issued: Issued,
    /// What decides about its renewal.
    pub seen: Seen,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new one.
    pub fn generate(now: Timestamp) -> Result<Self, CertificateError> {
        let failed = |source| CertificateError::Issue { subject: "kubevirt.io".to_owned(), source };
        let mut params = parameters("kubevirt.io", vec![], now, AUTHORITY_LIFE).map_err(failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Self::load(&certificate.pem(), &key.serialize_pem())
    }

    /// Takes up a stored one.
    pub fn load(certificate: &str, key: &str) -> Result<Self, CertificateError> {
        let pair = KeyPair::from_pem(key).map_err(CertificateError::Authority)?;
        let seen = Seen::first(certificate.as_bytes())
            .ok_or(CertificateError::Authority(rcgen::Error::CouldNotParseCertificate))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair).map_err(CertificateError::Authority)?;
        let issued = Issued { certificate: certificate.to_owned(), key: key.to_owned() };
        Ok(Authority { issued, seen, issuer })
    }

    /// Signs a new certificate and key.
    pub fn issue(&self, leaf: Leaf, namespace: &str, now: Timestamp) -> Result<Issued, CertificateError> {
        let name = leaf.common_name(namespace);
        let failed = |source| CertificateError::Issue { subject: name.clone(), source };
        let mut params = parameters(&name, leaf.dns_names(namespace), now, LEAF_LIFE).map_err(failed)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match leaf {
            Leaf::Api | Leaf::HandlerServer => ExtendedKeyUsagePurpose::ServerAuth,
            Leaf::HandlerClient => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn parameters(
    common_name: &str,
    dns_names: Vec<String>,
    now: Timestamp,
    life: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(dns_names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(seconds.saturating_sub(SKEW.as_secs()));
    params.not_after = epoch + Duration::from_secs(seconds) + life;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[test]
    fn a_leaf_names_its_issuer_and_its_servers() {
        let authority = Authority::generate(now()).unwrap();
        let leaf = authority.issue(Leaf::Api, "kubevirt", now()).unwrap();
        let seen = Seen::first(leaf.certificate.as_bytes()).unwrap();
        assert_eq!(seen.issuer_key_id, authority.seen.key_id);
        assert!(!seen.issuer_key_id.is_empty());
        assert!(seen.dns_names.contains(&"virt-api.kubevirt.svc".to_owned()));
        assert_eq!(seen.not_after, 1_800_000_000 + 24 * 3600);
    }

    #[test]
    fn a_stored_authority_signs_like_the_new_one() {
        let made = Authority::generate(now()).unwrap();
        let loaded = Authority::load(&made.issued.certificate, &made.issued.key).unwrap();
        let leaf = loaded.issue(Leaf::HandlerClient, "kubevirt", now()).unwrap();
        assert_eq!(Seen::first(leaf.certificate.as_bytes()).unwrap().issuer_key_id, made.seen.key_id);
        assert!(Authority::load("nonsense", &made.issued.key).is_err());
    }

    #[test]
    fn bundles_are_read_and_written_alike() {
        let (a, b) = (Authority::generate(now()).unwrap(), Authority::generate(now()).unwrap());
        let bundle = format!("{}{}", a.issued.certificate, b.issued.certificate);
        let seen = Seen::all(bundle.as_bytes());
        assert_eq!(
            seen.iter().map(|seen| &seen.key_id).collect::<Vec<_>>(),
            [&a.seen.key_id, &b.seen.key_id]
        );
        assert_eq!(Seen::all(seen[1].pem.as_bytes()), [b.seen]);
        assert!(Seen::all(b"-----BEGIN CERTIFICATE-----\nnope\n").is_empty());
    }

    #[test]
    fn the_last_fifth_is_for_renewal() {
        let seen = Authority::generate(now()).unwrap().seen;
        assert!(!seen.is_ageing(seen.not_after - 7 * 24 * 3600 / 5 - 3600));
        assert!(seen.is_ageing(seen.not_after - 7 * 24 * 3600 / 5 + 3600));
        assert!(!seen.is_valid(seen.not_after));
    }
}
