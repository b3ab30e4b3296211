//! Certificates of this server: read from mounted secrets, swapped while serving, and what a client showed.
//!
//! The listener asks every client for a certificate and accepts whatever comes, none included: webhooks are called
//! without one, the aggregator shows its front-proxy certificate, and a certificate of a strange CA must lead to a 401
//! and not to a broken connection. The handshake proves possession of the key; whether the certificate is trusted for
//! anything is decided per request, in [`crate::front_proxy`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore, ServerConfig,
    SignatureScheme,
};

/// How often mounted certificates are looked at. The kubelet refreshes them about once a minute.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Why certificates could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read as PEM.
    #[error("read certificate {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// A key of a kind this server does not know, or one that does not fit.
    #[error("use certificate {path}")]
    Use {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        source: TlsError,
    },
}

/// Where the certificates of this server lie.
#[derive(Debug, Clone)]
pub struct Files {
    /// `tls.crt` and `tls.key` that this server shows.
    pub serving: PathBuf,
    /// `tls.crt` and `tls.key` with which it calls handlers.
    pub client: PathBuf,
    /// Directory with `ca-bundle`: who signs handlers' certificates.
    pub ca: PathBuf,
}

/// Certificates in use; the newest good ones.
#[derive(Debug)]
pub struct Certificates {
    files: Files,
    serving: ArcSwap<CertifiedKey>,
    to_handlers: ArcSwap<ClientConfig>,
}

impl Certificates {
    /// Reads all certificates.
    ///
    /// # Errors
    /// Names the file that is missing or wrong.
    pub fn read(files: Files) -> Result<Arc<Self>, Error> {
        let serving = ArcSwap::from_pointee(serving_key(&files.serving)?);
        let to_handlers = ArcSwap::from_pointee(client_config(&files)?);
        Ok(Arc::new(Self { files, serving, to_handlers }))
    }

    /// Follows the files for ever; what cannot be read leaves the last good ones in force.
    pub async fn follow(self: Arc<Self>) {
        let mut seen = self.changed_at();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.changed_at();
            if now == seen {
                continue;
            }
            match (serving_key(&self.files.serving), client_config(&self.files)) {
                (Ok(serving), Ok(client)) => {
                    self.serving.store(Arc::new(serving));
                    self.to_handlers.store(Arc::new(client));
                    seen = now;
                    tracing::info!("certificates replaced");
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(%error, "new certificates are not usable, the last ones stay in force");
                }
            }
        }
    }

    /// Configuration of the listener.
    ///
    /// # Errors
    /// Only where the TLS library refuses its own defaults.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AnyClient { algorithms: provider.signature_verification_algorithms });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Configuration for calls to handlers: shows the client certificate, trusts only our own CA.
    pub fn to_handlers(&self) -> Arc<ClientConfig> {
        self.to_handlers.load_full()
    }

    fn changed_at(&self) -> Vec<Option<SystemTime>> {
        let Files { serving, client, ca } = &self.files;
        [serving.join("tls.crt"), client.join("tls.crt"), ca.join("ca-bundle")]
            .iter()
            .map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
            .collect()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.serving.load_full())
    }
}

fn serving_key(dir: &Path) -> Result<CertifiedKey, Error> {
    let (chain, key) = pair(dir)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|source| Error::Use { path: dir.join("tls.crt"), source })
}

fn client_config(files: &Files) -> Result<ClientConfig, Error> {
    let (chain, key) = pair(&files.client)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&files.ca.join("ca-bundle"))?);
    let used = |source| Error::Use { path: files.client.join("tls.crt"), source };
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(used)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(used)
}

fn pair(dir: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let path = dir.join("tls.key");
    let key = PrivateKeyDer::from_pem_file(&path).map_err(|source| Error::Read { path, source })?;
    Ok((certificates(&dir.join("tls.crt"))?, key))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Takes any client certificate, and none; proves only that the client holds the key.
#[derive(Debug)]
struct AnyClient {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Makes ring the provider of this process. Other crates may have asked for none, and then the first use panics.
pub fn install_provider() {
    // Fails only where a provider is installed already, which is as good.
    if CryptoProvider::get_default().is_none() {
        let _already_installed = ring::default_provider().install_default();
    }
}
