//! The listener: TLS, and one task for each connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::dispatch;
use crate::state::State;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at one time. The aggregator and the webhooks share few; each console is one more.
const MAX_CONNECTIONS: usize = 4096;

/// Accepts until the future is dropped.
pub async fn serve(state: Arc<State>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                // Out of descriptors, or a client that left: the next one may do better, but not at once.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let state = state.clone();
        tokio::spawn(async move {
            connection(state, tcp).await;
            drop(place);
        });
    }
}

async fn connection(state: Arc<State>, tcp: TcpStream) {
    // Of this moment: it changes when certificates are renewed.
    let Some(config) = state.certificates.server() else { return tracing::debug!("no certificate yet") };
    let tls = match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(tcp)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return tracing::debug!(%error, "no TLS session"),
        Err(_) => return tracing::debug!("no TLS session in time"),
    };
    let shown: Arc<[CertificateDer<'static>]> = tls
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|cert| cert.clone().into_owned()).collect())
        .unwrap_or_default();
    let service = service_fn(move |request| {
        let (state, shown) = (state.clone(), shown.clone());
        async move { Ok::<_, Infallible>(dispatch::answer(&state, &shown, request).await) }
    });
    let builder = Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(tls), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
