//! Makes authorities, and certificates that they sign.

use barevirt_api::names::HANDLER_CLIENT_COMMON_NAME;
use barevirt_component::certificates::ParsedCertificate;
use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use std::time::Duration;

/// Certificates are valid from some time before they are made, for peers whose clocks are slow.
const SKEW: Duration = Duration::from_secs(300);

/// Failure to make or read a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A certificate could not be made.
    #[error("cannot issue a certificate for {subject}")]
    Issue {
        /// Its common name.
        subject: String,
        /// The library's error.
        #[source]
        source: rcgen::Error,
    },
    /// The authority's stored certificate or key cannot be used.
    #[error("cannot use the stored authority")]
    Authority(#[source] rcgen::Error),
}

/// The use of a certificate: one of these, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// For servers.
    Server,
    /// For clients.
    Client,
}

/// A certificate that we keep in a secret, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaf {
    /// Serving certificate of virt-api.
    Api,
    /// Serving certificate of virt-controller.
    Controller,
    /// Serving certificate of virt-operator.
    Operator,
    /// Client certificate of virt-api for virt-handler.
    HandlerClient,
}

impl Leaf {
    /// All of these certificates.
    pub const ALL: [Leaf; 4] = [Leaf::Api, Leaf::Controller, Leaf::Operator, Leaf::HandlerClient];

    /// The secret that contains it.
    pub fn secret(self) -> &'static str {
        match self {
            Leaf::Api => "kubevirt-virt-api-certs",
            Leaf::Controller => "kubevirt-controller-certs",
            Leaf::Operator => "kubevirt-operator-certs",
            Leaf::HandlerClient => "kubevirt-virt-handler-certs",
        }
    }

    /// The profile of the certificate.
    pub fn profile(self, namespace: &str) -> Profile {
        match self {
            Leaf::Api => Profile::of_service("virt-api", namespace),
            Leaf::Controller => Profile::of_service("virt-controller", namespace),
            Leaf::Operator => Profile::of_service("kubevirt-operator-webhook", namespace),
            Leaf::HandlerClient => Profile {
                common_name: HANDLER_CLIENT_COMMON_NAME.to_owned(),
                dns_names: vec![],
                role: Role::Client,
            },
        }
    }
}

/// The contents of a certificate that identify its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its subject's common name.
    pub common_name: String,
    /// The server's names, sorted.
    pub dns_names: Vec<String>,
    /// Its use.
    pub role: Role,
}

impl Profile {
    fn of_service(service: &str, namespace: &str) -> Self {
        Profile {
            common_name: format!("{service}.{namespace}.pod.cluster.local"),
            dns_names: vec![
                service.to_owned(),
                format!("{service}.{namespace}"),
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
            ],
            role: Role::Server,
        }
    }

    /// Whether a certificate has exactly this profile.
    pub fn is_of(&self, seen: &ParsedCertificate) -> bool {
        seen.common_name == self.common_name
            && seen.dns_names == self.dns_names
            && seen.for_servers == (self.role == Role::Server)
            && seen.for_clients == (self.role == Role::Client)
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

/// When the certificate was made.
pub(super) fn made(seen: &ParsedCertificate) -> i64 {
    seen.not_before.saturating_add(seconds(SKEW))
}

pub(super) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// The certificate authority.
pub struct Authority {
    /// Its certificate and key.
    pub issued: Issued,
    /// The fields that decide about its renewal.
    pub seen: ParsedCertificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority.
    pub fn generate(now: Timestamp, life: Duration) -> Result<Self, CertificateError> {
        let failed = |source| CertificateError::Issue { subject: "kubevirt.io".to_owned(), source };
        let ends = now.as_second().saturating_add(seconds(life));
        let mut params = parameters("kubevirt.io", vec![], now, ends).map_err(failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = key().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Self::load(&certificate.pem(), &key.serialize_pem())
    }

    /// Loads a stored authority.
    pub fn load(certificate: &str, key: &str) -> Result<Self, CertificateError> {
        let pair = KeyPair::from_pem(key).map_err(CertificateError::Authority)?;
        let seen = ParsedCertificate::first(certificate.as_bytes())
            .ok_or(CertificateError::Authority(rcgen::Error::CouldNotParseCertificate))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair).map_err(CertificateError::Authority)?;
        let issued = Issued { certificate: certificate.to_owned(), key: key.to_owned() };
        Ok(Authority { issued, seen, issuer })
    }

    /// Makes a new key, and signs a certificate for it.
    pub fn issue(
        &self,
        profile: &Profile,
        now: Timestamp,
        life: Duration,
    ) -> Result<Issued, CertificateError> {
        let failed = |source| CertificateError::Issue { subject: profile.common_name.clone(), source };
        let key = key().map_err(failed)?;
        let ends = now.as_second().saturating_add(seconds(life));
        let certificate = self.certify(profile, &key, now, ends)?;
        Ok(Issued { certificate, key: key.serialize_pem() })
    }

    /// Signs a certificate for a key that only its holder knows. It ends no later than this authority: only its holder can
    /// renew it.
    pub fn sign(
        &self,
        profile: &Profile,
        key: &impl PublicKeyData,
        now: Timestamp,
        life: Duration,
    ) -> Result<String, CertificateError> {
        let ends = now.as_second().saturating_add(seconds(life)).min(self.seen.not_after);
        self.certify(profile, key, now, ends)
    }

    fn certify(
        &self,
        profile: &Profile,
        key: &impl PublicKeyData,
        now: Timestamp,
        ends: i64,
    ) -> Result<String, CertificateError> {
        let Profile { common_name, dns_names, role } = profile;
        let failed = |source| CertificateError::Issue { subject: common_name.clone(), source };
        let mut params = parameters(common_name, dns_names.clone(), now, ends).map_err(failed)?;
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match role {
            Role::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Role::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        Ok(params.signed_by(key, &self.issuer).map_err(failed)?.pem())
    }
}

fn key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
}

fn parameters(
    common_name: &str,
    dns_names: Vec<String>,
    now: Timestamp,
    ends: i64,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(dns_names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let after = |seconds: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    params.not_before = after(now.as_second().saturating_sub(seconds(SKEW)));
    params.not_after = after(ends);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;
    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        Timestamp::from_second(START).unwrap()
    }

    fn authority() -> Authority {
        Authority::generate(now(), 7 * 24 * HOUR).unwrap()
    }

    #[test]
    fn each_certificate_has_one_role_and_its_name() {
        let authority = authority();
        for leaf in Leaf::ALL {
            let profile = leaf.profile("kubevirt");
            let issued = authority.issue(&profile, now(), 24 * HOUR).unwrap();
            let seen = ParsedCertificate::first(issued.certificate.as_bytes()).unwrap();
            assert!(profile.is_of(&seen), "{leaf:?}: {seen:?}");
            let others = Leaf::ALL.into_iter().filter(|other| *other != leaf);
            assert!(others.into_iter().all(|other| !other.profile("kubevirt").is_of(&seen)), "{leaf:?}");
            assert!(!leaf.profile("other").is_of(&seen) || leaf == Leaf::HandlerClient);
            assert_ne!(seen.for_servers, seen.for_clients);
            assert_eq!(seen.issuer_key_id, authority.seen.key_id);
            assert!(!seen.issuer_key_id.is_empty());
            assert_eq!((made(&seen), seen.not_after), (START, START + 24 * 3600));
        }
        let names = Leaf::Operator.profile("kubevirt").dns_names;
        assert!(names.contains(&"kubevirt-operator-webhook.kubevirt.svc".to_owned()));
    }

    #[test]
    fn leaves_are_for_signatures_and_sign_nothing_else() {
        use x509_parser::prelude::{FromDer, X509Certificate};
        let authority = authority();
        let issued = authority.issue(&Leaf::Api.profile("kubevirt"), now(), HOUR).unwrap();
        let read = |pem: &str| {
            use rustls_pki_types::pem::PemObject;
            rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
        };
        let der = read(&issued.certificate);
        let (_, leaf) = X509Certificate::from_der(&der).unwrap();
        let usage = leaf.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign() && !usage.key_encipherment());
        assert!(!leaf.is_ca());
        // ECDSA over P-256: an uncompressed point.
        assert_eq!(leaf.public_key().subject_public_key.data.len(), 65);
        let der = read(&authority.issued.certificate);
        let (_, own) = X509Certificate::from_der(&der).unwrap();
        assert!(own.is_ca() && own.key_usage().unwrap().unwrap().value.key_cert_sign());
    }

    #[test]
    fn a_stored_authority_signs_like_the_new_one() {
        let made = authority();
        let loaded = Authority::load(&made.issued.certificate, &made.issued.key).unwrap();
        let leaf = loaded.issue(&Leaf::HandlerClient.profile("kubevirt"), now(), HOUR).unwrap();
        assert_eq!(
            ParsedCertificate::first(leaf.certificate.as_bytes()).unwrap().issuer_key_id,
            made.seen.key_id
        );
        assert!(Authority::load("nonsense", &made.issued.key).is_err());
    }

    #[test]
    fn a_certificate_does_not_outlive_its_authority() {
        let authority = Authority::generate(now(), HOUR).unwrap();
        let later = Timestamp::from_second(START + 3000).unwrap();
        let key = KeyPair::generate().unwrap();
        let profile = Leaf::Api.profile("kubevirt");
        for (life, ends) in [(HOUR, START + 3600), (HOUR / 10, START + 3360)] {
            let certificate = authority.sign(&profile, &key, later, life).unwrap();
            assert_eq!(ParsedCertificate::first(certificate.as_bytes()).unwrap().not_after, ends);
        }
    }
}
