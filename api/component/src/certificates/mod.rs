//! Certificates of servers and clients, followed: changes take effect without a restart.
//!
//! ```text
//!   tls.crt, tls.key --files::pair-------> watch<Pair> ------+
//!   (or made in memory: the handler's, from a request)       +--> Server: ServerConfig for the next connection
//!   ca-bundle ---------files::authorities> watch<Authorities>+--> Client: ClientConfig for the next call
//!   KubeVirt object -------------------> watch<TlsPolicy> ---+
//! ```
//!
//! After any change the whole configuration is rebuilt and swapped. Open connections keep their
//! configuration, so no request is lost; the next connection gets the new one. An unusable input (half
//! written, a key that does not match, not PEM) changes nothing: the last good one stays in effect, and the
//! log has a line with the reason.
//!
//! Sessions are never resumed. A resumed session would skip the check of the other side's certificate, which
//! may have expired in the meantime.

mod client;
pub mod files;
mod pair;
mod parsed;
mod peer;
mod policy;
mod seal;
mod server;
mod tag;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use pair::{Authorities, Pair};
pub use parsed::ParsedCertificate;
pub use peer::is_server_of;
pub use policy::{PolicyError, TlsPolicy};
pub use seal::Seal;
pub use server::{Clients, Server};

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// The certificate that a process shows; `None` before there is one.
pub type Shown = watch::Receiver<Option<Arc<Pair>>>;
/// The authorities that a process trusts; `None` before they are known.
pub type Trusted = watch::Receiver<Option<Arc<Authorities>>>;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file does not exist or cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A text is not PEM.
    #[error("{what} is not PEM")]
    Pem {
        /// Which text.
        what: &'static str,
        /// The error.
        source: rustls_pki_types::pem::Error,
    },
    /// A text contains no certificate.
    #[error("{what} holds no certificate")]
    Empty {
        /// Which text.
        what: &'static str,
    },
    /// The TLS library does not accept the certificates, or the key belongs to another certificate.
    #[error("cannot use {what}")]
    Use {
        /// Which part.
        what: &'static str,
        /// The error of the library.
        source: rustls::Error,
    },
    /// No client certificate can be checked with these authorities.
    #[error("cannot check certificates of clients")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The certificate and key, as soon as there is one.
pub async fn shown(mut shown: Shown) -> Option<Arc<Pair>> {
    let pair = shown.wait_for(Option::is_some).await.ok()?;
    pair.clone()
}

/// Makes ring the crypto provider of this process. If other crates enable another provider as well, the first
/// use of TLS would panic without this choice.
pub fn install_provider() {
    // This only fails if a provider is already installed, which is fine.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
}

/// Returns when the value changes; never if it cannot change any more.
async fn change<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}
