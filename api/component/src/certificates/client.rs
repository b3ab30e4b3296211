//! The TLS configuration of a client, rebuilt whenever one of its inputs changes.

use super::server::gone;
use super::{Authorities, CertificateError, Pair, Shown, TlsPolicy, Trusted, change};
use crate::error::chain;
use arc_swap::ArcSwapOption;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::sign::SingleCertAndKey;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::warn;

/// The configuration for a client's next connection: it shows a certificate and trusts only these
/// authorities.
#[derive(Debug)]
pub struct Client {
    config: ArcSwapOption<ClientConfig>,
    present: watch::Sender<bool>,
}

impl Client {
    /// Follows all inputs in a task, for as long as the value is held.
    pub fn follow(shown: Shown, trusted: Trusted, policy: watch::Receiver<TlsPolicy>) -> Arc<Self> {
        let client = Arc::new(Client { config: ArcSwapOption::empty(), present: watch::Sender::new(false) });
        let followed = Arc::downgrade(&client);
        let (mut shown, mut trusted, mut policy) = (shown, trusted, policy);
        tokio::spawn(async move {
            loop {
                let pair = shown.borrow_and_update().clone();
                let authorities = trusted.borrow_and_update().clone();
                let made = pair
                    .zip(authorities)
                    .map(|(pair, authorities)| configure(&pair, &authorities, &policy.borrow_and_update()));
                let Some(client) = followed.upgrade() else { return };
                match made {
                    Some(Ok(config)) => {
                        client.config.store(Some(Arc::new(config)));
                        client.present.send_replace(true);
                    }
                    None => {}
                    Some(Err(error)) => warn!(error = chain(&error), "certificates could not be reloaded"),
                }
                drop(client);
                tokio::select! {
                    () = change(&mut shown) => {}
                    () = change(&mut trusted) => {}
                    () = change(&mut policy) => {}
                    () = gone(&followed) => return,
                }
            }
        });
        client
    }

    /// The configuration for a new connection; `None` before there are certificates.
    pub fn current(&self) -> Option<Arc<ClientConfig>> {
        self.config.load_full()
    }

    /// Returns as soon as there is a configuration.
    pub async fn ready(&self) {
        // This value holds the sender, so the wait cannot fail.
        let _ = self.present.subscribe().wait_for(|present| *present).await;
    }
}

fn configure(
    pair: &Pair,
    authorities: &Authorities,
    policy: &TlsPolicy,
) -> Result<ClientConfig, CertificateError> {
    let mut config = ClientConfig::builder_with_provider(policy.provider())
        .with_protocol_versions(policy.versions())
        .map_err(|source| CertificateError::Use { what: "the allowed versions of TLS", source })?
        .with_root_certificates(authorities.roots())
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())));
    config.resumption = Resumption::disabled();
    Ok(config)
}
