//! The TLS configuration of a server, rebuilt whenever one of its inputs changes.

use super::{Authorities, CertificateError, Pair, Shown, TlsPolicy, Trusted, change};
use crate::error::chain;
use arc_swap::ArcSwapOption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::warn;

/// Which clients a server accepts.
#[derive(Clone, Debug)]
pub enum Clients {
    /// All clients; none is asked for a certificate.
    Everybody,
    /// All clients, with any certificate or none. The handshake only proves that a client holds the key of
    /// the certificate that it shows. The identity must be checked for each request.
    Shown,
    /// Clients without a certificate, and clients with a valid certificate that one of these authorities has
    /// signed; no others.
    SignedBy(Trusted),
    /// Clients that are servers themselves: each shows a valid certificate of a server that one of these authorities has
    /// signed. Which server it is must be checked for each request.
    Servers(Trusted),
}

/// The configuration for a server's next connection.
#[derive(Debug)]
pub struct Server {
    config: ArcSwapOption<ServerConfig>,
    present: watch::Sender<bool>,
}

impl Server {
    /// Follows all inputs in a task, for as long as the value is held. `protocols` are for ALPN, the
    /// preferred one first.
    pub fn follow(
        shown: Shown,
        clients: Clients,
        policy: watch::Receiver<TlsPolicy>,
        protocols: &'static [&'static [u8]],
    ) -> Arc<Self> {
        let server = Arc::new(Server { config: ArcSwapOption::empty(), present: watch::Sender::new(false) });
        let followed = Arc::downgrade(&server);
        let (mut shown, mut clients, mut policy) = (shown, clients, policy);
        tokio::spawn(async move {
            loop {
                let made = make(&mut shown, &mut clients, &mut policy, protocols);
                let Some(server) = followed.upgrade() else { return };
                match made {
                    Ok(Some(config)) => {
                        server.config.store(Some(Arc::new(config)));
                        server.present.send_replace(true);
                    }
                    Ok(None) => {}
                    Err(error) => warn!(error = chain(&error), "certificates could not be reloaded"),
                }
                drop(server);
                let authorities = async {
                    match &mut clients {
                        Clients::SignedBy(trusted) | Clients::Servers(trusted) => change(trusted).await,
                        Clients::Everybody | Clients::Shown => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = change(&mut shown) => {}
                    () = authorities => {}
                    () = change(&mut policy) => {}
                    () = gone(&followed) => return,
                }
            }
        });
        server
    }

    /// The configuration for a new connection; `None` before there is a certificate.
    pub fn current(&self) -> Option<Arc<ServerConfig>> {
        self.config.load_full()
    }

    /// Returns as soon as there is a configuration.
    pub async fn ready(&self) {
        // This value holds the sender, so the wait cannot fail.
        let _ = self.present.subscribe().wait_for(|present| *present).await;
    }
}

/// Returns shortly after the last reference to the value is dropped.
pub(super) async fn gone<T>(value: &std::sync::Weak<T>) {
    while value.strong_count() > 0 {
        tokio::time::sleep(super::files::LOOK).await;
    }
}

fn make(
    shown: &mut Shown,
    clients: &mut Clients,
    policy: &mut watch::Receiver<TlsPolicy>,
    protocols: &[&[u8]],
) -> Result<Option<ServerConfig>, CertificateError> {
    let Some(pair) = shown.borrow_and_update().clone() else { return Ok(None) };
    let verifier = match clients {
        Clients::Everybody => Verifier::None,
        Clients::Shown => Verifier::Any,
        Clients::SignedBy(trusted) => match trusted.borrow_and_update().clone() {
            Some(authorities) => Verifier::SignedBy(authorities),
            None => return Ok(None),
        },
        Clients::Servers(trusted) => match trusted.borrow_and_update().clone() {
            Some(authorities) => Verifier::Servers(authorities),
            None => return Ok(None),
        },
    };
    configure(&pair, &verifier, &policy.borrow_and_update(), protocols).map(Some)
}

enum Verifier {
    None,
    Any,
    SignedBy(Arc<Authorities>),
    Servers(Arc<Authorities>),
}

fn configure(
    pair: &Pair,
    verifier: &Verifier,
    policy: &TlsPolicy,
    protocols: &[&[u8]],
) -> Result<ServerConfig, CertificateError> {
    let provider = policy.provider();
    let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(policy.versions())
        .map_err(|source| CertificateError::Use { what: "the allowed versions of TLS", source })?;
    let identified = match verifier {
        Verifier::None => versions.with_no_client_auth(),
        Verifier::Any => versions.with_client_cert_verifier(Arc::new(OwnVerifier {
            algorithms: provider.signature_verification_algorithms,
            servers_of: None,
        })),
        Verifier::Servers(authorities) => versions.with_client_cert_verifier(Arc::new(OwnVerifier {
            algorithms: provider.signature_verification_algorithms,
            servers_of: Some(authorities.roots()),
        })),
        Verifier::SignedBy(authorities) => versions.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(authorities.roots(), provider)
                .allow_unauthenticated()
                .build()?,
        ),
    };
    let mut config = identified.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// Accepts any client certificate, or none, or only certificates of servers. In each case the client has to hold the key.
#[derive(Debug)]
struct OwnVerifier {
    algorithms: WebPkiSupportedAlgorithms,
    /// The authorities that sign servers, where only these are accepted.
    servers_of: Option<Arc<RootCertStore>>,
}

impl ClientCertVerifier for OwnVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        self.servers_of.is_some()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        if let Some(roots) = &self.servers_of {
            let shown = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&shown, roots, intermediates, now, algorithms)
                // One alert for each reason: a stranger learns nothing about the check.
                .map_err(|_| TlsError::InvalidCertificate(rustls::CertificateError::UnknownIssuer))?;
        }
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
