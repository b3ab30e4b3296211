//! A certificate with its key, and a bundle of authorities, read from PEM.

use super::tag::Secret;
use super::{CertificateError, Seal};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// A certificate with its chain to the authority, and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    key: CertifiedKey,
    seal: Seal,
    secret: Secret,
}

impl Pair {
    /// Parses both.
    ///
    /// # Errors
    /// If a text is not PEM, or the key does not belong to the certificate.
    pub fn read(certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain = certificates("the certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| CertificateError::Pem { what: "the key", source })?;
        let (seal, secret) = (Seal::of(key.secret_der()), Secret::of(key.secret_der()));
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|source| CertificateError::Use { what: "the certificate with its key", source })?;
        Ok(Pair { key, seal, secret })
    }

    /// The certificate itself first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// A secret that only holders of the key know.
    pub fn seal(&self) -> &Seal {
        &self.seal
    }

    /// The tag of a message, which only holders of the key can make.
    #[must_use]
    pub fn tag(&self, message: &[u8]) -> Vec<u8> {
        self.secret.tag(message)
    }

    /// Whether the tag of a message was made with the key.
    #[must_use]
    pub fn has_tagged(&self, message: &[u8], tag: &[u8]) -> bool {
        self.secret.has(message, tag)
    }

    pub(super) fn certified_key(&self) -> CertifiedKey {
        self.key.clone()
    }
}

/// `read` checks that the key belongs to the certificate, so equal certificates have equal keys.
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }
}

/// A bundle of authorities.
#[derive(Clone, Debug)]
pub struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Authorities {
    /// Parses a whole bundle. A part of a bundle would refuse some of the other side's certificates.
    ///
    /// # Errors
    /// If the text is not PEM, is empty, or has a certificate that is no authority's.
    pub fn read(bundle: &[u8]) -> Result<Self, CertificateError> {
        let certificates = certificates("the bundle of authorities", bundle)?;
        let mut roots = RootCertStore::empty();
        for authority in &certificates {
            roots
                .add(authority.clone())
                .map_err(|source| CertificateError::Use { what: "an authority of the bundle", source })?;
        }
        Ok(Authorities { certificates, roots: Arc::new(roots) })
    }

    /// The certificates in the order of the bundle.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| CertificateError::Pem { what, source })?;
    if all.is_empty() { Err(CertificateError::Empty { what }) } else { Ok(all) }
}
