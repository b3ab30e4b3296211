//! Receives one image, or one archive, from virt-api into the claim, then ends.
//!
//! ```text
//!   virt-api --mutual TLS--> connection --POST--> place: is it free? --arrival, feed--> image --> target --> convert
//!                               |                     |                  ^                         |
//!                               +-- HEAD: 200         +-- no: 503        |                         +-- filled: 200, and the program ends
//!                               +-- POST, the rest of an upload ---------+
//! ```
//!
//! Only clients with a certificate that Barevirt's authority has signed for clients are accepted: virt-api, which has
//! checked the user's permission. An image that is refused or broken off leaves nothing behind, and another one may follow.
//! An upload to which its client has given a name may go on over another connection (`arrival`), as long as no other one takes
//! its place. If the answer was sent before the conversion, and the conversion fails, the program ends: its restart shows that
//! to the user.

mod arrival;
mod asked;
mod latest;

use crate::accept::connections;
use crate::archive;
use crate::claim::{Claim, Settings};
use crate::convert::{Tools, convert};
use crate::download::Described;
use crate::failure::{Failure, joined};
use crate::feed::{Feed, PIECES};
use crate::image::Filled;
use crate::keys;
use crate::progress::Progress;
use crate::reading::Reading;
use crate::run::whole;
use crate::target::Places;
use arrival::{Arrival, Part};
use asked::{Begin, Rest};
use barevirt_import_job::{Job, Source, UPLOAD, UPLOAD_ASYNC, UPLOAD_REST};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use latest::{Latest, outcome, refuse, said};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

/// Names of the image and of the archive in messages.
const WHAT: &str = "the image";
const ARCHIVE: &str = "the archive";
/// Concurrent connections: one sends, others ask.
const MOST_CONNECTIONS: usize = 16;
/// Time limit of the TLS handshake, and of a request's head.
const GREETING: Duration = Duration::from_secs(10);
/// Time for the last answers.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an upload that gives up its place takes to leave it.
const LEAVES: Duration = Duration::from_secs(10);

/// The result with which the program ends.
type Ended = Result<u64, Failure>;

/// The server of one upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The claim.
    pub places: Places,
    /// The programs that convert.
    pub tools: Tools,
    /// The job.
    pub job: Job,
    /// How long an image may send nothing.
    pub stall: Duration,
}

/// TLS with the pod's own key, in that directory, which accepts only the clients of the source's authorities.
///
/// # Errors
/// The key or the authorities cannot be used.
pub fn tls(source: &Source, directory: &Path) -> Result<ServerConfig, Failure> {
    let Source::Upload { authorities } = source else {
        return Err(Failure::Final("the job is not an upload".to_owned()));
    };
    let wrong =
        |what: &str, why: &dyn std::fmt::Display| Failure::Final(format!("prepare TLS: {what}: {why}"));
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        let authority = authority.map_err(|error| wrong("authorities", &error))?;
        roots.add(authority).map_err(|error| wrong("authorities", &error))?;
    }
    let (shown, key) = keys::own(directory)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let clients = clients.map_err(|error| wrong("authorities", &error))?;
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong("versions", &error))?.with_client_cert_verifier(clients);
    config.with_single_cert(shown, key).map_err(|error| wrong("certificate", &error))
}

/// State that all connections share.
struct Shared {
    upload: Upload,
    /// Held while an image is received and converted, and forever once the claim is filled.
    place: Arc<Mutex<()>>,
    /// The upload that began last.
    latest: Lock<Option<Latest>>,
    ended: mpsc::Sender<Ended>,
}

impl Shared {
    fn latest(&self) -> Option<Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The place for an upload. One that waits for its rest leaves it.
    async fn place(&self) -> Option<OwnedMutexGuard<()>> {
        if let Ok(place) = self.place.clone().try_lock_owned() {
            return Some(place);
        }
        let latest = self.latest()?;
        let left = async {
            latest.leave().await.then_some(())?;
            Some(self.place.clone().lock_owned().await)
        };
        timeout(LEAVES, left).await.ok()?
    }
}

impl Upload {
    /// Serves until the claim is filled; returns the size of its disk in bytes.
    ///
    /// # Errors
    /// An accepted image cannot be converted.
    pub async fn serve(self, listener: TcpListener, tls: Arc<ServerConfig>) -> Ended {
        let (ended, mut end) = mpsc::channel(1);
        let shared = Arc::new(Shared { upload: self, place: Arc::default(), latest: Lock::default(), ended });
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let accept = connections(&listener, &room, |stream| {
            connection(stream, TlsAcceptor::from(tls.clone()), shared.clone())
        });
        let ended = tokio::select! {
            () = accept => None,
            ended = end.recv() => ended,
        };
        // The last answer may still be on its way.
        let all = u32::try_from(MOST_CONNECTIONS).unwrap_or(u32::MAX);
        let _ = timeout(DRAIN_TIMEOUT, room.acquire_many(all)).await;
        ended.unwrap_or_else(|| Err(Failure::Passing("the upload server has ended".to_owned())))
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // The kubelet's probes only open a connection.
    let stream = match timeout(GREETING, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "no TLS session"),
        Err(_) => return,
    };
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move {
            let mut answer = answer(&shared, request).await;
            answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(GREETING);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "a connection ended");
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let known = [UPLOAD, UPLOAD_ASYNC, UPLOAD_REST];
    let Some(path) = known.into_iter().find(|path| *path == request.uri().path()) else {
        return said(StatusCode::NOT_FOUND, "no such path");
    };
    match *request.method() {
        Method::HEAD => return said(StatusCode::OK, ""),
        Method::POST | Method::PUT => {}
        _ => return said(StatusCode::METHOD_NOT_ALLOWED, "an image is sent with POST or PUT"),
    }
    let at_once = path == UPLOAD_ASYNC;
    let (head, body) = request.into_parts();
    if path == UPLOAD_REST {
        let rest = match Rest::of(&head.headers) {
            Ok(rest) => rest,
            Err(failure) => return refuse(StatusCode::BAD_REQUEST, &failure.to_string(), body),
        };
        return match shared.latest().filter(|latest| latest.is(&rest)) {
            Some(latest) => latest.go_on(rest.from, body).await,
            None => refuse(StatusCode::SERVICE_UNAVAILABLE, "no such upload has begun: send all of it", body),
        };
    }
    let begin = match Begin::of(&head.headers) {
        Ok(begin) => begin,
        Err(failure) => return refuse(StatusCode::BAD_REQUEST, &failure.to_string(), body),
    };
    let Some(place) = shared.place().await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "another upload is under way", body);
    };
    let (part, over) = Part::of(body);
    let id = begin.id.clone();
    let (arrival, orders) = Arrival::begin(part, begin, shared.upload.stall);
    let (answered, answer) = watch::channel(None);
    let latest = Latest { id, length: arrival.length(), orders, answer: answer.clone() };
    *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
    // If the client disconnects, the work continues.
    tokio::spawn(take(shared.clone(), place, arrival, at_once, answered));
    outcome(answer, over).await
}

/// Receives an image. `answered` is notified once it has been received, if the answer is not to wait; otherwise once the
/// claim is filled.
async fn take(
    shared: Arc<Shared>,
    place: OwnedMutexGuard<()>,
    arrival: Arrival,
    at_once: bool,
    answered: watch::Sender<Option<Result<(), Failure>>>,
) {
    let upload = &shared.upload;
    info!(length = arrival.length(), "an upload begins");
    let (places, settings) = (upload.places.clone(), Settings::of(&upload.job));
    let claim = match joined(spawn_blocking(move || Claim::open(&places, settings))).await {
        Ok(claim) => claim,
        Err(failure) => {
            warn!(%failure, "the claim cannot be written");
            tokio::spawn(arrival.refuse());
            drop(place);
            return drop(answered.send(Some(Err(failure))));
        }
    };
    let filled = match receive(arrival, &claim).await {
        Ok(filled) => filled,
        Err(failure) => {
            abandon(&claim).await;
            info!(%failure, "an upload was refused");
            // Released before the answer: the client may try again at once.
            drop(place);
            return drop(answered.send(Some(Err(failure))));
        }
    };
    let waiting = if at_once {
        // The client may be gone.
        let _ = answered.send(Some(Ok(())));
        None
    } else {
        Some(answered)
    };
    let ended = complete(upload, filled, &claim).await;
    if ended.is_err() {
        abandon(&claim).await;
    }
    match (waiting, ended) {
        (Some(answered), Err(failure)) => {
            info!(%failure, "an image was refused");
            drop(place);
            let _ = answered.send(Some(Err(failure)));
        }
        (waiting, ended) => {
            if ended.is_ok() {
                // No further image is accepted.
                std::mem::forget(place);
            }
            if let Some(waiting) = waiting {
                let _ = waiting.send(Some(Ok(())));
            }
            // A failed conversion does not concern the next image, so the failure is not final.
            let ended = ended.map_err(|failure| Failure::Passing(failure.to_string()));
            let _ = shared.ended.send(ended).await;
        }
    }
}

async fn abandon(claim: &Claim) {
    if let Err(failure) = claim.abandon().await {
        warn!(%failure, "an incomplete upload may be left");
    }
}

/// Reads an image or an archive into the claim while it arrives.
async fn receive(arrival: Arrival, claim: &Claim) -> Result<Filled, Failure> {
    match claim {
        Claim::Disk(target) => read(arrival, target, WHAT, whole).await,
        Claim::Tree(tree) => read(arrival, tree, ARCHIVE, archive::whole).await.map(|()| Filled::Written),
    }
}

async fn read<T: Send + 'static, C: Send + Sync + 'static>(
    arrival: Arrival,
    target: &Arc<C>,
    what: &str,
    read: fn(Reading<C>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let described = Described { length: arrival.length(), media_type: None };
    let (sink, pieces) = mpsc::channel(PIECES);
    tokio::spawn(arrival.run(sink));
    let (feed, trouble) = Feed::new(pieces);
    let reading = Reading {
        feed: Some(feed),
        trouble,
        what: what.to_owned(),
        described,
        target: target.clone(),
        progress: Arc::new(Progress::default()),
    };
    joined(spawn_blocking(move || read(reading))).await
}

async fn complete(upload: &Upload, filled: Filled, claim: &Claim) -> Result<u64, Failure> {
    if let (Filled::Staged(image), Claim::Disk(target)) = (filled, claim) {
        convert(&upload.tools, &image, WHAT, target, &Progress::default()).await?;
    }
    claim.finish().await
}
