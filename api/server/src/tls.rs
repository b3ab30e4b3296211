//! Certificates of this server: the one for its clients, and the one for calls to handlers.
//!
//! The listener asks every client for a certificate and accepts any, or none: webhooks are called without
//! one, the aggregator shows its front-proxy certificate, and a certificate of an unknown CA must lead to a
//! 401 and not to a broken connection. The handshake only proves possession of the key;
//! [`crate::front_proxy`] decides for each request whether the certificate is trusted.
//!
//! [`barevirt_component::certificates`] follows the files.

use std::path::PathBuf;
use std::sync::Arc;

use barevirt_component::certificates::{Client, Clients, Pair, Server, Shown, TlsPolicy, files};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

/// For ALPN, the preferred one first.
const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

const OF_PROBES: &[&[u8]] = &[b"http/1.1"];

/// Paths of this server's certificates.
#[derive(Debug, Clone)]
pub struct Files {
    /// `tls.crt` and `tls.key` that this server shows.
    pub serving: PathBuf,
    /// `tls.crt` and `tls.key` with which it calls handlers.
    pub client: PathBuf,
    /// Directory with `ca-bundle`, the authorities that sign handlers' certificates.
    pub ca: PathBuf,
}

/// Certificates in use: the newest valid ones.
#[derive(Debug)]
pub struct Certificates {
    shown: Shown,
    server: Arc<Server>,
    probes: Arc<Server>,
    uploads: Arc<Server>,
    to_handlers: Arc<Client>,
}

impl Certificates {
    /// Follows the files, for as long as the value is held.
    pub fn follow(files: &Files, policy: &watch::Receiver<TlsPolicy>) -> Self {
        let shown = files::pair(&files.serving);
        let (client, trusted) = (files::pair(&files.client), files::authorities(&files.ca.join("ca-bundle")));
        Self {
            shown: shown.clone(),
            probes: Server::follow(shown.clone(), Clients::Everybody, policy.clone(), OF_PROBES),
            // HTTP/1.1 only: with HTTP/2, a waiting body could block other streams on the same connection.
            uploads: Server::follow(shown.clone(), Clients::Shown, policy.clone(), OF_PROBES),
            server: Server::follow(shown, Clients::Shown, policy.clone(), PROTOCOLS),
            to_handlers: Client::follow(client, trusted, policy.clone()),
        }
    }

    /// Returns as soon as all certificates exist.
    pub async fn ready(&self) {
        tokio::join!(
            self.server.ready(),
            self.probes.ready(),
            self.uploads.ready(),
            self.to_handlers.ready()
        );
    }

    /// Configuration for the next connection.
    pub fn server(&self) -> Option<Arc<ServerConfig>> {
        self.server.current()
    }

    /// Whether this is the seal that the operator wrote into the API server's configuration, so that the
    /// caller is the API server.
    pub fn is_seal(&self, said: &str) -> bool {
        self.shown.borrow().as_ref().is_some_and(|pair| pair.seal().is(said))
    }

    /// Configuration for the next connection to the probes.
    pub fn probes(&self) -> Option<Arc<ServerConfig>> {
        self.probes.current()
    }

    /// Configuration for the next upload.
    pub fn uploads(&self) -> Option<Arc<ServerConfig>> {
        self.uploads.current()
    }

    /// The certificate that this server shows; `None` before there is one.
    pub fn shown(&self) -> Option<Arc<Pair>> {
        self.shown.borrow().clone()
    }

    /// Configuration for the next call to a handler: shows the client certificate and trusts only our own CA.
    pub fn to_handlers(&self) -> Option<Arc<ClientConfig>> {
        self.to_handlers.current()
    }
}
