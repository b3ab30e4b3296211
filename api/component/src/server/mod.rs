//! The one loop in which all servers of ours answer: TLS, HTTP/1.1 or HTTP/2, and nobody who keeps others out.
//!
//! ```text
//!   accept --> places: is there one? who goes for it? --> handshake --> HTTP, by ALPN --> the server's own function
//!                |                                          10 s        |  first head 10 s, then idle 90 s
//!                +-- of all, of one address; the longest silent goes    +-- bodies: bytes in flight, a review's weight
//! ```
//!
//! Whoever reaches the port is served without having said who they are: the API server calls webhooks without a certificate.
//! So nothing that a stranger does may hold what others need:
//!
//! - A connection has a place ([`places`]). Where all are taken, or an address has its share, the anonymous connection that
//!   was silent longest goes, and never one whose request is being answered. The listener itself never waits.
//! - A handshake and the head of the first request have a deadline; a connection without requests ends after a while; HTTP/2 is
//!   pinged, and takes no more unread bytes than a small window.
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

/// How often a client of HTTP/2 is asked whether it is there, and how long it has for the answer.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);
/// Requests of one connection at one time.
const STREAMS: u32 = 128;
/// Bytes of bodies that one connection may have sent and nobody has read.
const WINDOW: u32 = 64 << 10;
/// Largest head of a request. The aggregator writes a user's groups there.
const LARGEST_HEAD: u32 = 64 << 10;

/// How many connections a server has, and how long each may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At one time.
    pub connections: usize,
    /// Of these, anonymous ones from one address.
    pub of_address: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long the first request may let wait for its head.
    pub head: Duration,
    /// How long a connection may be without a request afterwards.
    pub idle: Duration,
}

impl Limits {
    /// For a server that many clients call.
    pub const BUSY: Limits = Limits {
        connections: 1024,
        of_address: 128,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(10),
        // Clients written in Go let theirs go after as long.
        idle: Duration::from_secs(90),
    };
    /// For a server that only API servers call.
    pub const QUIET: Limits = Limits { connections: 256, of_address: 64, ..Limits::BUSY };
    /// For probes: the kubelet, monitoring and people.
    pub const PROBES: Limits = Limits { connections: 128, of_address: 32, ..Limits::BUSY };
}

/// How long a client that was told to go may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Who sent a request, as far as the connection tells.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where the connection comes from.
    pub address: IpAddr,
    /// What it has shown, the leaf first. That it holds the key is proven, and only what [`serve`] was told about it besides.
    pub shown: Arc<[CertificateDer<'static>]>,
    /// Whether it is one of those that the server knows.
    pub known: bool,
    place: Arc<Place>,
}

impl Caller {
    /// While the value is held the connection makes room for nobody: its request has come whole, or it is known by other means
    /// that it is not sent for nothing.
    pub fn work(&self) -> Work {
        self.place.work()
    }
}

/// Answers until the future is dropped.
///
/// `tls` is asked for each connection, so that certificates can change; without any nobody is answered. `knows` says by what a
/// client has shown whether it is one that is never put out for another; it is asked once, after the handshake.
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
                // Out of descriptors, or a client that left: the next one may do better, but not at once.
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
            debug!(%address, "no place for a connection");
            continue;
        };
        let (knows, service) = (knows.clone(), service.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(tcp, address, (config, limits), place, knows, service) => {}
                () = displaced.wait() => debug!(%address, "a connection made room for another"),
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
    // Answers are small and come at once.
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
    match timeout(GOODBYE, http).await {
        Ok(ended) => done(ended),
        Err(_) => debug!(%address, "a silent connection was ended"),
    }
}

/// Which of the two it is was agreed on in the handshake: nothing waits for a first byte to tell.
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

/// Requests of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    /// Whether there was any.
    begun: bool,
    /// How many are being answered.
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

/// Comes back when there was no request for too long.
async fn quiet(requests: &mut watch::Receiver<Requests>, limits: Limits) {
    loop {
        let Requests { begun, open } = *requests.borrow_and_update();
        let patience = if begun { limits.idle } else { limits.head };
        let changed = if open > 0 {
            requests.changed().await
        } else {
            match timeout(patience, requests.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        };
        if changed.is_err() {
            // There is no service any more: the connection ends by itself.
            std::future::pending::<()>().await;
        }
    }
}
