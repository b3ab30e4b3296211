//! The I/O of a stream: two websockets with a [`Session`] between them.
//!
//! Memory is bounded: a line and a buffer for each side. If a user does not read, the launcher's writes to
//! this user wait, until the launcher closes the stream; other users are not affected.

use std::time::Duration;

use barevirt_component::websocket::{self, Upgrade};
use barevirt_qmp::codec::{Decoder, Line, encode};
use http::Request;
use hyper::body::Incoming;
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use super::audit::{self, AuditEntry};
use super::gate::Gate;
use super::session::{self, Answered, Session};
use crate::answer::{Answer, Refusal};
use crate::state::State;
use crate::streams::Kind;
use crate::to_handler::{self, Handler, Opened};

/// Streams at the same time of users who may give commands.
const MOST: usize = 64;
static SEATS: Semaphore = Semaphore::const_new(MOST);
/// Streams at the same time of users who may only query. They are counted separately, so they cannot block
/// users with more rights.
const MOST_QUERIES: usize = 32;
static QUERY_SEATS: Semaphore = Semaphore::const_new(MOST_QUERIES);
/// Longest line of a user, as at the launcher.
const MAX_ASKED: usize = 1 << 20;
/// Longest line of the launcher: the schema has 0.2 MB.
const MAX_SAID: usize = 4 << 20;
/// Bytes between a websocket and the session.
const BUFFER: usize = 64 << 10;
/// Longest time of a stream, because permissions are only checked at its start.
const LONGEST: Duration = Duration::from_secs(8 * 3600);
/// How long a review may take.
const REVIEW: Duration = Duration::from_secs(10);

/// Opens a stream and serves it until either side ends.
pub(super) async fn open(
    state: &State,
    gate: Gate,
    handler: &Handler,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let upgrade = Upgrade::read(&request).map_err(Refusal::bad_request)?;
    let (kind, seats, most) = match timeout(REVIEW, gate.asks_only()).await {
        Ok(false) => (Kind::Qmp, &SEATS, MOST),
        Ok(true) | Err(_) => (Kind::QmpQueries, &QUERY_SEATS, MOST_QUERIES),
    };
    let place = state.streams.open(kind, &gate.user.name, &gate.namespace, &gate.name)?;
    let seat = seats
        .try_acquire()
        .map_err(|_| Refusal::unavailable(format!("{most} QMP streams are open here already")))?;
    let path = format!("{}/qmp/stream", crate::instance::handler_path(&gate.namespace, &gate.name));
    let vm = match to_handler::open(&state.certificates, handler, &path).await? {
        Opened::Stream(vm) => vm,
        Opened::Refused(answer) => return Ok(answer),
    };
    let (person, theirs) = duplex(BUFFER);
    tokio::spawn(websocket::run(request, theirs, websocket::CLOSED));
    tokio::spawn(async move {
        serve(gate, person, vm, seat).await;
        drop(place);
    });
    Ok(upgrade.answer())
}

async fn serve(gate: Gate, person: DuplexStream, vm: DuplexStream, seat: SemaphorePermit<'static>) {
    let (user, namespace, name) = (&gate.user.name, &gate.namespace, &gate.name);
    tracing::info!(user, namespace, name, stream = "qmp", "stream opened");
    let mut session = Session::default();
    let ended = converse(&gate, &mut session, person, vm).await;
    for left in session.unanswered() {
        write_down(&gate, left);
    }
    tracing::info!(user, namespace, name, stream = "qmp", ended, "stream ended");
    drop(seat);
}

async fn converse(
    gate: &Gate,
    session: &mut Session,
    person: DuplexStream,
    vm: DuplexStream,
) -> &'static str {
    let (mut from_person, mut to_person) = split(person);
    let (mut from_vm, mut to_vm) = split(vm);
    let (mut asked, mut told) = (Decoder::for_commands(MAX_ASKED), Decoder::new(MAX_SAID));
    let (mut chunk_asked, mut chunk_told) = (vec![0; 4096], vec![0; 16 << 10]);
    let end = Instant::now() + LONGEST;
    loop {
        while session.has_room()
            && let Some(line) = asked.take()
        {
            let (to, line) = match ask(gate, session, line).await {
                Ok(line) => (&mut to_vm, line),
                Err(answer) => (&mut to_person, answer),
            };
            if to.write_all(&encode(&line)).await.is_err() {
                return "a side went";
            }
        }
        tokio::select! {
            read = from_vm.read(&mut chunk_told) => match read {
                Ok(count @ 1..) => told.push(&chunk_told[..count]),
                _ => return "the launcher ended it",
            },
            read = from_person.read(&mut chunk_asked), if session.has_room() => match read {
                Ok(count @ 1..) => asked.push(&chunk_asked[..count]),
                _ => return "the user ended it",
            },
            () = sleep_until(end) => return "its time limit has passed",
        }
        while let Some(line) = told.take() {
            let Line::Object(said) = line else { return "the launcher does not speak QMP" };
            let Some((line, answered)) = session.hear(said) else { continue };
            if let Some(answered) = answered {
                write_down(gate, answered);
            }
            if to_person.write_all(&encode(&line)).await.is_err() {
                return "the person went";
            }
        }
    }
}

/// The line for the launcher, or the answer to the user.
async fn ask(
    gate: &Gate,
    session: &mut Session,
    line: Line,
) -> Result<Map<String, Value>, Map<String, Value>> {
    let asked = match line {
        Line::Object(asked) => asked,
        Line::Garbage { .. } => return Err(session::refusal("JSON parse error", None)),
        Line::TooLong { .. } => return Err(session::refusal("the line is too long", None)),
    };
    let command = session::read(asked)?;
    let admitted = timeout(REVIEW, gate.admit(&command.name, &command.arguments)).await;
    let admitted = admitted.unwrap_or_else(|_| Err(Refusal::timeout("the access review took too long")));
    match admitted {
        Ok(class) => {
            audit::record_event(gate, class, &command.name);
            Ok(session.pass(command, class))
        }
        Err(refusal) => {
            let mut entry = AuditEntry::new("stream");
            entry.command(&command.name, command.arguments.as_object());
            entry.write(gate, &refusal.code.as_u16().to_string());
            Err(session::refusal(&refusal.message, command.id))
        }
    }
}

fn write_down(gate: &Gate, answered: Answered) {
    let Answered { name, class, arguments, outcome } = answered;
    let mut entry = AuditEntry::new("stream");
    let names = arguments.into_iter().map(|name| (name, Value::Null)).collect();
    entry.command(&name, Some(&names));
    entry.class = Some(class);
    entry.write(gate, &outcome);
}
