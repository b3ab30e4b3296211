//! Certificates of this server: what it shows to those who call it, and to the handlers that it calls.
//!
//! The listener asks every client for a certificate and accepts whatever comes, none included: webhooks are called
//! without one, the aggregator shows its front-proxy certificate, and a certificate of a strange CA must lead to a 401
//! and not to a broken connection. The handshake proves possession of the key; whether the certificate is trusted for
//! anything is decided per request, in [`crate::front_proxy`].
//!
//! What follows the files is [`barevirt_component::certificates`].

use std::path::PathBuf;
use std::sync::Arc;

use barevirt_component::certificates::{Client, Clients, Pair, Server, Shown, TlsPolicy, files};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

/// For ALPN, the preferred one first.
const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

const OF_PROBES: &[&[u8]] = &[b"http/1.1"];

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
            // A body that waits must not keep others waiting on the same connection, as streams of HTTP/2 do.
            uploads: Server::follow(shown.clone(), Clients::Shown, policy.clone(), OF_PROBES),
            server: Server::follow(shown, Clients::Shown, policy.clone(), PROTOCOLS),
            to_handlers: Client::follow(client, trusted, policy.clone()),
        }
    }

    /// Comes back when all of them are there.
    pub async fn ready(&self) {
        tokio::join!(
            self.server.ready(),
            self.probes.ready(),
            self.uploads.ready(),
            self.to_handlers.ready()
        );
    }

    /// For the next connection.
    pub fn server(&self) -> Option<Arc<ServerConfig>> {
        self.server.current()
    }

    /// Whether whoever says so was told by the operator: the API server, by its configuration.
    pub fn is_seal(&self, said: &str) -> bool {
        self.shown.borrow().as_ref().is_some_and(|pair| pair.seal().is(said))
    }

    /// For the next connection of who probes.
    pub fn probes(&self) -> Option<Arc<ServerConfig>> {
        self.probes.current()
    }

    /// For the next connection of who uploads.
    pub fn uploads(&self) -> Option<Arc<ServerConfig>> {
        self.uploads.current()
    }

    /// What this server shows; none before there is any.
    pub fn shown(&self) -> Option<Arc<Pair>> {
        self.shown.borrow().clone()
    }

    /// For the next call to a handler: shows the client certificate, trusts only our own CA.
    pub fn to_handlers(&self) -> Option<Arc<ClientConfig>> {
        self.to_handlers.current()
    }
}
