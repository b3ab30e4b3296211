//! The target's side of a migration. Handlers of sources connect over TLS, and connections between QEMUs
//! bring a ticket.
//!
//! Every pod can connect here. A connection that has shown neither gives way to later ones, so that no client keeps guests
//! from coming by connections on which it says nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::names::handler_host;
use barevirt_component::certificates::{Server, Trusted, is_server_of};
use barevirt_component::error::chain;
use barevirt_component::server::Limits;
use barevirt_component::server::places::{Place, Places};
use barevirt_protocol::names::{MigrationChannel, MigrationStream};
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{MigrateRequest, MigrationGo, MigrationReceive, MigrationRejoin};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::arrivals::{Arrival, Arrivals, Purpose};
use super::compression::takes_compression;
use super::control::{Answer, LONGEST, MAGIC, Request, Secret, WELCOME, line};
use super::plan::{images, memory_channels, offers_post_copy};
use super::silence::end_by_silence;

/// Most concurrent connections that have not yet said what they are for, or are being answered.
const LIMITS: Limits = Limits { connections: 256, of_address: 64, ..Limits::BUSY };
/// Longest time for a connection to say what it is for and to be answered.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The state of the listener.
#[derive(Debug, Clone)]
pub struct ListenState {
    /// This handler's certificate. Only callers with the certificate of a server of ours get past the handshake.
    pub certificates: Arc<Server>,
    /// The authorities whose certificates are trusted.
    pub trusted: Trusted,
    /// The guests that may arrive.
    pub arrivals: Arrivals,
}

/// Why a caller was rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("it is neither a TLS session nor a connection with a ticket")]
    Stranger,
    #[error("its ticket is not valid")]
    Ticket,
    #[error("there is no certificate yet")]
    NotReady,
    #[error("its request is not valid")]
    Request(#[from] serde_json::Error),
    #[error("it sent nothing in time")]
    Silent,
    #[error("it was silent while others connected")]
    Displaced,
}

/// Serves for as long as the process lives.
pub async fn run(listener: TcpListener, state: ListenState) {
    let places = Places::new(LIMITS);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "connection of a migration not accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some((place, displaced)) = Places::enter(&places, from.ip().to_canonical()) else {
            debug!(%from, "too many connections of migrations");
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            let ended = tokio::select! {
                served = timeout(TIMEOUT, serve(stream, &place, &state)) => {
                    served.unwrap_or(Err(Rejection::Silent))
                }
                () = displaced.wait() => Err(Rejection::Displaced),
            };
            if let Err(error) = ended {
                debug!(%from, error = chain(&error), "a caller was rejected");
            }
        });
    }
}

async fn serve(mut stream: TcpStream, place: &Place, state: &ListenState) -> Result<(), Rejection> {
    stream.set_nodelay(true)?;
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 {
        return Err(Rejection::Stranger);
    }
    if first[0] != MAGIC[0] {
        return converse(stream, place, state).await;
    }
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    if magic != MAGIC {
        return Err(Rejection::Stranger);
    }
    let mut ticket: Secret = [0; 32];
    stream.read_exact(&mut ticket).await?;
    let mut name = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut name).await?;
    let carries =
        std::str::from_utf8(&name).ok().and_then(MigrationStream::parse).ok_or(Rejection::Stranger)?;
    end_by_silence(&stream)?;
    let (uid, launcher, purpose) = state.arrivals.take(&ticket, &carries).ok_or(Rejection::Ticket)?;
    place.known();
    let channel = MigrationChannel { uid: uid.clone(), stream: carries };
    if channel.stream != MigrationStream::Memory {
        let given = [(channel.descriptor(), stream.as_fd().try_clone_to_owned()?)];
        match launcher.give(0, &given).await {
            Ok(()) => stream.write_all(&[WELCOME]).await?,
            Err(error) => warn!(
                migration = uid,
                error = chain(&error),
                "a connection for a disk or for memory is not taken"
            ),
        }
        return Ok(());
    }
    stream.write_all(&[WELCOME]).await?;
    // From here on QEMU owns the connection.
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let given = [(channel.descriptor(), OwnedFd::from(stream))];
    let order = match purpose {
        Purpose::Begin { key, compression } => {
            let key = key.map(Vec::from).unwrap_or_default();
            Order::Receive(MigrationReceive { key, compression })
        }
        Purpose::Rejoin => Order::Rejoin(MigrationRejoin {}),
    };
    let order = MigrateRequest { uid: uid.clone(), order: Some(order) };
    let outcome = async {
        launcher.give(0, &given).await?;
        launcher.migrate(order).await
    };
    match outcome.await {
        Ok(()) => info!(migration = uid, "guest is being received"),
        // The connection closes, so the source notices.
        Err(error) => warn!(migration = uid, error = chain(&error), "guest cannot be received"),
    }
    Ok(())
}

async fn converse(stream: TcpStream, place: &Place, state: &ListenState) -> Result<(), Rejection> {
    let config = state.certificates.current().ok_or(Rejection::NotReady)?;
    let mut stream = BufReader::new(TlsAcceptor::from(config).accept(stream).await?);
    let shown: Vec<CertificateDer<'static>> = stream
        .get_ref()
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
        .unwrap_or_default();
    let mut text = Vec::new();
    (&mut stream).take(LONGEST as u64).read_until(b'\n', &mut text).await?;
    let request: Request = serde_json::from_slice(&text)?;
    let answer = match expected(&request, &shown, state) {
        Some(arrival) => {
            place.known();
            let answer = answer(&request, arrival, state).await;
            if let Answer::Refused(why) = &answer {
                info!(migration = request.migration(), why, "refused");
            }
            answer
        }
        // Each of our servers can cause this, with any text: it is not logged.
        None => Answer::Refused("no guest is expected by this migration from that node".to_owned()),
    };
    stream.write_all(&line(&answer)?).await?;
    stream.shutdown().await?;
    Ok(())
}

/// The guest that a request is about. Only the handler of the node that the guest comes from gets it. Others learn
/// nothing, not even whether the guest is expected.
fn expected(request: &Request, shown: &[CertificateDer<'static>], state: &ListenState) -> Option<Arrival> {
    let arrival = state.arrivals.find(request.migration())?;
    let trusted = state.trusted.borrow().clone()?;
    is_server_of(shown, &handler_host(&arrival.source), &trusted).then_some(arrival)
}

async fn answer(request: &Request, arrival: Arrival, state: &ListenState) -> Answer {
    let Arrival { source, launcher, plain, report } = arrival;
    match request {
        Request::Begin { migration, compression } => {
            let (Some(ticket), key) = (secret(), secret()) else {
                return Answer::Refused("there are no random numbers".to_owned());
            };
            let key = key.filter(|_| !plain);
            if key.is_none() && !plain {
                return Answer::Refused("there are no random numbers".to_owned());
            }
            let told = report.borrow().status.clone().unwrap_or_default();
            let compression = takes_compression(&told, *compression);
            state.arrivals.admit(migration, ticket, Purpose::Begin { key, compression });
            info!(migration, source, "guest is admitted");
            let (post_copy, images) = (offers_post_copy(&told, migration), !images(&told).is_empty());
            let channels = memory_channels(&told);
            Answer::Begun { key, ticket, post_copy, images, channels, compression }
        }
        Request::Rejoin { migration } => {
            let Some(ticket) = secret() else {
                return Answer::Refused("there are no random numbers".to_owned());
            };
            state.arrivals.admit(migration, ticket, Purpose::Rejoin);
            let (images, channels, compression) = (false, 0, false);
            Answer::Begun { key: None, ticket, post_copy: true, images, channels, compression }
        }
        Request::Go { migration, hold } => {
            let order = Order::Go(MigrationGo { hold: *hold });
            match launcher.migrate(MigrateRequest { uid: migration.clone(), order: Some(order) }).await {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused(chain(&error)),
            }
        }
    }
}

fn secret() -> Option<Secret> {
    let mut secret = [0; 32];
    let provider = rustls::crypto::CryptoProvider::get_default()?;
    provider.secure_random.fill(&mut secret).ok()?;
    Some(secret)
}
