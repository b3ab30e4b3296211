//! The accept loop of all our servers: TLS, HTTP/1.1 or HTTP/2, and limits so that no client can shut others
//! out.
//!
//! ```text
//!   accept --> places: a free one, or displace another --> handshake --> HTTP, by ALPN --> the server's own function
//!                |                                          10 s        |  first head 10 s, then idle 90 s
//!                +-- in total, per address; the longest silent one is closed    +-- bodies: bytes in flight, a review's weight
//! ```
//!
//! Every client that reaches the port is served before its identity is known, because the API server calls
//! webhooks without a certificate. So an unknown client must not occupy resources that others need:
//!
//! - A connection has a place ([`places`]). If all are taken, or an address has its share, the anonymous
//!   connection that was silent longest is closed, but never one whose request is being answered. The
//!   listener itself never waits.
//! - A handshake and the head of the first request have a deadline; a connection without requests ends after
//!   a while; HTTP/2 connections are pinged and buffer only a small window of unread bytes.
//! - Bodies have a budget ([`bodies`]).

pub mod bodies;
pub mod places;
#[cfg(test)]
mod tests;
mod weight;

use crate::error::chain;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use places::{Place, Places, Work};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Interval of pings to HTTP/2 clients, and the time for their answer.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);
/// Requests of one connection at the same time.
const STREAMS: u32 = 128;
/// Bytes of bodies that one connection may have sent before they are read.
const WINDOW: u32 = 64 << 10;
/// Largest head of a request. The aggregator sends a user's groups in it.
const LARGEST_HEAD: u32 = 64 << 10;

/// How many connections a server has, and how long each may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time.
    pub connections: usize,
    /// Anonymous connections from one address among these.
    pub of_address: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long the head of the first request may take.
    pub head: Duration,
    /// How long a connection may stay without a request afterwards.
    pub idle: Duration,
}

impl Limits {
    /// For a server that many clients call.
    pub const BUSY: Limits = Limits {
        connections: 1024,
        of_address: 128,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(10),
        // Clients written in Go close idle connections after the same time.
        idle: Duration::from_secs(90),
    };
    /// For a server that only API servers call.
    pub const QUIET: Limits = Limits { connections: 256, of_address: 64, ..Limits::BUSY };
    /// For probes: the kubelet, monitoring and users.
    pub const PROBES: Limits = Limits { connections: 128, of_address: 32, ..Limits::BUSY };
}

/// Time for a client that was asked to close its connection.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The sender of a request, as far as the connection shows.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Address of the client.
    pub address: IpAddr,
    /// Certificates that the client has shown, the leaf first. The handshake proves that it holds the key,
    /// and otherwise only what the configuration of [`serve`] checks.
    pub shown: Arc<[CertificateDer<'static>]>,
    /// Whether it is one of the clients that the server knows.
    pub known: bool,
    place: Arc<Place>,
}

impl Caller {
    /// While the value is held, the connection is not displaced. For requests that have arrived completely,
    /// or that are known to be justified in another way.
    pub fn work(&self) -> Work {
        self.place.work()
    }
}

/// Serves until the future is dropped.
///
/// `tls` is called for each connection, so that certificates can change; without a certificate no client gets
/// an answer. `knows` decides from the shown certificates whether a client is never displaced; it is called
/// once, after the handshake.
pub async fn serve<T, K, S, F, B>(listener: TcpListener, limits: Limits, tls: T, knows: K, service: S)
where
    T: Fn() -> Option<Arc<ServerConfig>>,
    K: Fn(&[CertificateDer<'static>]) -> bool + Clone + Send + Sync + 'static,
    S: Fn(Caller, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let places = Places::new(limits);
    loop {
        let (tcp, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process has no free descriptors, or the client left. The next attempt may succeed, but
                // not at once.
                warn!(%error, "connection not accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let address = from.ip().to_canonical();
        let Some(config) = tls() else {
            debug!("no certificate yet");
            continue;
        };
        let Some((place, displaced)) = Places::enter(&places, address) else {
            debug!(%address, "too many connections");
            continue;
        };
        let (knows, service) = (knows.clone(), service.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(tcp, address, (config, limits), place, knows, service) => {}
                () = displaced.wait() => debug!(%address, "a connection was closed to admit another"),
            }
        });
    }
}

async fn connection<K, S, F, B>(
    tcp: TcpStream,
    address: IpAddr,
    (config, limits): (Arc<ServerConfig>, Limits),
    place: Arc<Place>,
    knows: K,
    service: S,
) where
    K: Fn(&[CertificateDer<'static>]) -> bool + Send,
    S: Fn(Caller, Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Answers are small and are sent at once.
    if let Err(error) = tcp.set_nodelay(true) {
        return debug!(%error, "connection ended");
    }
    let tls = match timeout(limits.handshake, TlsAcceptor::from(config).accept(tcp)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return debug!(%address, %error, "no TLS session"),
        Err(_) => return debug!(%address, "no TLS session in time"),
    };
    let session = tls.get_ref().1;
    let shown: Arc<[CertificateDer<'static>]> = session
        .peer_certificates()
        .map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
        .unwrap_or_default();
    let http2 = session.alpn_protocol() == Some(b"h2".as_slice());
    let known = knows(&shown);
    if known {
        place.known();
    }
    let (asked, mut requests) = watch::channel(Requests::default());
    let caller = Caller { address, shown, known, place };
    let service = service_fn(move |request| {
        let open = Open::begin(&asked, &caller.place);
        let answer = service(caller.clone(), request);
        async move {
            let answer = answer.await;
            drop(open);
            Ok::<_, Infallible>(answer)
        }
    });
    let builder = builder(http2, limits.idle);
    let mut http = pin!(builder.serve_connection_with_upgrades(TokioIo::new(tls), service));
    tokio::select! {
        ended = http.as_mut() => return done(ended),
        () = quiet(&mut requests, limits) => http.as_mut().graceful_shutdown(),
    }
    match timeout(DRAIN_TIMEOUT, http).await {
        Ok(ended) => done(ended),
        Err(_) => debug!(%address, "an idle connection was closed"),
    }
}

/// The handshake has decided the protocol, so nothing waits for a first byte to find out.
fn builder(http2: bool, idle: Duration) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(LARGEST_HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(LARGEST_HEAD);
    builder
}

fn done(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(error = chain(error.as_ref()), "connection ended");
    }
}

/// State of a connection's requests.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    /// Whether there was any request.
    begun: bool,
    /// How many requests are being answered.
    open: usize,
}

/// A request that is being answered.
struct Open {
    requests: watch::Sender<Requests>,
    place: Arc<Place>,
}

impl Open {
    fn begin(requests: &watch::Sender<Requests>, place: &Arc<Place>) -> Self {
        requests.send_modify(|requests| {
            requests.begun = true;
            requests.open += 1;
        });
        Open { requests: requests.clone(), place: place.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.requests.send_modify(|requests| requests.open = requests.open.saturating_sub(1));
        self.place.answered();
    }
}

/// Returns when there was no request for too long.
async fn quiet(requests: &mut watch::Receiver<Requests>, limits: Limits) {
    loop {
        let Requests { begun, open } = *requests.borrow_and_update();
        let time_limit = if begun { limits.idle } else { limits.head };
        let changed = if open > 0 {
            requests.changed().await
        } else {
            match timeout(time_limit, requests.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        };
        if changed.is_err() {
            // The service is gone: the connection ends by itself.
            std::future::pending::<()>().await;
        }
    }
}
