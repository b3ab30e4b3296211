//! Certificates: ours, and whose we believe. Read again when they change, without a restart.
//!
//! The kubelet mounts them and replaces the files when the controller rotates them. The whole configuration is made anew
//! and swapped: connections that are open keep theirs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Common name of the certificate that virt-api shows.
pub const VIRT_API_NAME: &str = "kubevirt.io:system:client:virt-handler";
/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file is not there, or not readable.
    #[error("read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{what} is not PEM: {reason}")]
    Pem {
        /// Which file.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The parts do not fit.
    #[error("use certificates: {0}")]
    Use(String),
}

/// What the files hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

/// The certificates in force.
#[derive(Debug)]
pub struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    config: ArcSwapOption<ServerConfig>,
}

impl Certificates {
    /// Certificates from `tls.crt` and `tls.key` in `serving`, and the authorities that sign virt-api's from the file
    /// `authorities`. Nothing is read yet.
    pub fn new(serving: &std::path::Path, authorities: PathBuf) -> Arc<Self> {
        let (certificate, key) = (serving.join("tls.crt"), serving.join("tls.key"));
        Arc::new(Self { certificate, key, authorities, config: ArcSwapOption::empty() })
    }

    /// The configuration for a new connection; nothing before the files are there.
    pub fn current(&self) -> Option<Arc<ServerConfig>> {
        self.config.load_full()
    }

    /// Reads the files for as long as the process lives, and takes over what changed.
    pub async fn follow(self: Arc<Self>) {
        let mut present: Option<Files> = None;
        let mut told = false;
        loop {
            match self.read().await {
                Ok(files) if present.as_ref() == Some(&files) => {}
                Ok(files) => match configure(&files) {
                    Ok(config) => {
                        info!(first = present.is_none(), "certificates taken over");
                        self.config.store(Some(Arc::new(config)));
                        present = Some(files);
                        told = false;
                    }
                    // Half of a rotation, perhaps: what is in force stays so.
                    Err(error) if !told => {
                        warn!(%error, "certificates not taken over");
                        told = true;
                    }
                    Err(_) => {}
                },
                Err(error) if !told => {
                    info!(%error, "certificates are waited for");
                    told = true;
                }
                Err(_) => {}
            }
            sleep(LOOK).await;
        }
    }

    async fn read(&self) -> Result<Files, CertificateError> {
        let read = async |path: &PathBuf| {
            let bytes = tokio::fs::read(path).await;
            bytes.map_err(|source| CertificateError::Read { path: path.clone(), source })
        };
        Ok(Files {
            certificate: read(&self.certificate).await?,
            key: read(&self.key).await?,
            authorities: read(&self.authorities).await?,
        })
    }
}

fn configure(files: &Files) -> Result<ServerConfig, CertificateError> {
    let chain = certificates("the serving certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(|error| CertificateError::Pem { what: "the serving key", reason: error.to_string() })?;
    let mut roots = RootCertStore::empty();
    for authority in certificates("the bundle of authorities", &files.authorities)? {
        roots.add(authority).map_err(|error| CertificateError::Use(error.to_string()))?;
    }
    // Without a certificate only the health path is answered: see `is_virt_api`.
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build();
    let verifier = verifier.map_err(|error| CertificateError::Use(error.to_string()))?;
    let mut config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| CertificateError::Use(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| CertificateError::Pem { what, reason: error.to_string() })?;
    if all.is_empty() {
        return Err(CertificateError::Pem { what, reason: "there is no certificate in it".to_owned() });
    }
    Ok(all)
}

/// Whether the peer has shown virt-api's certificate. That one of our authorities signed it was checked in the handshake.
pub fn is_virt_api(connection: &ServerConnection) -> bool {
    let Some(leaf) = connection.peer_certificates().and_then(|chain| chain.first()) else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return false };
    let mut names = certificate.subject().iter_common_name();
    let first = names.next().and_then(|name| name.as_str().ok());
    first == Some(VIRT_API_NAME) && names.next().is_none()
}
