//! A certificate with its key, and a bundle of authorities, read from PEM.

use super::tag::Secret;
use super::{CertificateError, Seal};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// A certificate, with those that lead to its authority, and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    key: CertifiedKey,
    seal: Seal,
    secret: Secret,
}

impl Pair {
    /// Reads both.
    ///
    /// # Errors
    /// For what is no PEM, and for a key that is not the certificate's.
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

    /// What only those know who have the key.
    pub fn seal(&self) -> &Seal {
        &self.seal
    }

    /// What only those can write below a message who have the key.
    #[must_use]
    pub fn tag(&self, message: &[u8]) -> Vec<u8> {
        self.secret.tag(message)
    }

    /// Whether a message has the tag that the key gives it.
    #[must_use]
    pub fn has_tagged(&self, message: &[u8], tag: &[u8]) -> bool {
        self.secret.has(message, tag)
    }

    pub(super) fn certified_key(&self) -> CertifiedKey {
        self.key.clone()
    }
}

/// The key was seen to be the certificate's: the same certificate has the same key.
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
    /// Reads a bundle, all of it: half a bundle would refuse half of the others.
    ///
    /// # Errors
    /// For what is no PEM, empty, or no authority's.
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

    /// In the order of the bundle.
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
