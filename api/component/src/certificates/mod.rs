//! Certificates of a server and of a client, followed: what changed is taken over without a restart.
//!
//! ```text
//!   tls.crt, tls.key --files::pair-------> watch<Pair> ------+
//!   (or made in memory: the handler's, from a request)       +--> Server: ServerConfig for the next connection
//!   ca-bundle ---------files::authorities> watch<Authorities>+--> Client: ClientConfig for the next call
//!   KubeVirt object -------------------> watch<TlsPolicy> ---+
//! ```
//!
//! On any change the whole configuration is made anew and swapped. Connections that are open keep theirs, so no request
//! is lost; the next connection gets the new one. What cannot be used (half written, a key that does not fit, no
//! PEM) changes nothing: the last good one stays in force, and a line in the log says why.
//!
//! Nothing is resumed: a session that could be taken up again would spare the look at the other side's certificate, which
//! may have expired meanwhile.

mod client;
pub mod files;
mod pair;
mod peer;
mod policy;
mod seal;
mod seen;
mod server;
mod tag;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use pair::{Authorities, Pair};
pub use peer::is_server_of;
pub use policy::{PolicyError, TlsPolicy};
pub use seal::Seal;
pub use seen::Seen;
pub use server::{Clients, Server};

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// What a process shows; none before there is any.
pub type Shown = watch::Receiver<Option<Arc<Pair>>>;
/// Whom a process believes; none before that is known.
pub type Trusted = watch::Receiver<Option<Arc<Authorities>>>;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file is not there, or not readable.
    #[error("cannot read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A text is not PEM.
    #[error("{what} is not PEM")]
    Pem {
        /// Which text.
        what: &'static str,
        /// What is wrong.
        source: rustls_pki_types::pem::Error,
    },
    /// A text without any certificate.
    #[error("{what} holds no certificate")]
    Empty {
        /// Which text.
        what: &'static str,
    },
    /// The TLS library takes nothing of it, or the key is another certificate's.
    #[error("cannot use {what}")]
    Use {
        /// Which part.
        what: &'static str,
        /// What the library says.
        source: rustls::Error,
    },
    /// No certificate is accepted with these authorities.
    #[error("cannot check certificates of clients")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The certificate and key, once there is one.
pub async fn shown(mut shown: Shown) -> Option<Arc<Pair>> {
    let pair = shown.wait_for(Option::is_some).await.ok()?;
    pair.clone()
}

/// Makes ring the provider of this process. Other crates may have asked for none, and then the first use panics.
pub fn install_provider() {
    // Fails only where a provider is installed already, which is as good.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
}

/// Comes back when there is something new; never when nothing new can come.
async fn change<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}
