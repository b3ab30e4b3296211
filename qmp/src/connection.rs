//! The two tasks of a stream, and the table of callers that wait for an answer.
//!
//! The reader never waits for other tasks: answers go to oneshots, events to a broadcast channel that
//! overwrites. The writer takes whole lines from a queue and is the only task that writes, so a dropped
//! caller's future never leaves half a line on the stream.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::Value;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::codec::{DEFAULT_MAX_LINE, Decoder, Line};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::message::{Greeting, Incoming, Refusal, classify};
use crate::quiet::{self, Quiet};

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Longest line accepted, in bytes; see [`Line::TooLong`].
    pub max_line: usize,
    /// How many events a listener may be behind before the oldest is overwritten.
    pub event_backlog: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_line: DEFAULT_MAX_LINE, event_backlog: 1024 }
    }
}

/// Lines that may wait for the writer. Further callers wait for a free place, up to their own deadlines.
const QUEUE: usize = 64;

/// Bytes read at a time.
const CHUNK: usize = 16 << 10;

/// A line in the writer's queue.
struct Outgoing {
    id: u64,
    line: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A caller that waits for an answer, or has given up.
struct Waiter {
    answer: oneshot::Sender<Result<Value, Refusal>>,
    /// The only answer without an id that this caller accepts; see [`crate::agent`].
    only: Option<Value>,
    /// QEMU keeps only the descriptors of the latest message. The descriptors of the next message may not be
    /// sent before this command has been answered, even if its caller has given up.
    fd_turn: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct Table {
    waiters: HashMap<u64, Waiter>,
    /// Why the stream ended.
    closed: Option<String>,
    /// Dropped at the end, which ends the listeners' streams after the last event.
    events: Option<broadcast::Sender<Event>>,
    greeting: Option<oneshot::Sender<Greeting>>,
}

/// State that both tasks and the callers share.
struct Shared {
    table: Mutex<Table>,
    ended: watch::Sender<bool>,
    /// Limits log lines about unreadable data: the guest decides what an agent sends, and how often.
    quiet: Quiet,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while it holds the lock. If one did, the table would still be usable.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, reason: &str) {
        {
            let mut table = self.table();
            if table.closed.is_none() {
                table.closed = Some(reason.to_owned());
            }
            // Dropping the senders wakes every waiter.
            table.waiters.clear();
            table.events = None;
            table.greeting = None;
        }
        self.ended.send_replace(true);
    }

    fn closed_error(&self, command: &str) -> Error {
        let reason = self.table().closed.clone().unwrap_or_else(|| "the session is over".to_owned());
        Error::Closed { command: command.to_owned(), reason }
    }

    fn take_in(&self, line: Line, agent: bool) {
        let object = match line {
            Line::Object(object) => object,
            Line::Garbage { length, start } => {
                if let Some(left_out) = self.quiet.line() {
                    tracing::warn!(length, start, left_out, "line is not a message");
                }
                return;
            }
            Line::TooLong { length } => {
                if let Some(left_out) = self.quiet.line() {
                    tracing::warn!(length, left_out, "line is over the limit");
                }
                return;
            }
        };
        match classify(object) {
            Incoming::Event(event) => {
                tracing::debug!(event = event.name(), "event");
                if let Some(events) = &self.table().events {
                    // This fails if there is no listener, which is fine.
                    let _ = events.send(event);
                }
            }
            Incoming::Greeting(greeting) => {
                if let Some(waiter) = self.table().greeting.take() {
                    let _ = waiter.send(greeting);
                }
            }
            Incoming::Reply { id: Some(id), outcome } => match self.table().waiters.remove(&id) {
                Some(waiter) => drop(waiter.answer.send(outcome)),
                None => tracing::debug!(id, "answer came too late"),
            },
            Incoming::Reply { id: None, outcome } if agent => self.settle_without_id(outcome),
            Incoming::Reply { id: None, outcome } => {
                if let Some(left_out) = self.quiet.line() {
                    tracing::warn!(refused = outcome.is_err(), left_out, "answer without id");
                }
            }
            Incoming::Unknown(object) => {
                if let Some(left_out) = self.quiet.line() {
                    tracing::warn!(keys = quiet::names(object.keys()), left_out, "message of unknown kind");
                }
            }
        }
    }

    /// An old guest agent returns no ids. Only one command is in flight there, so the answer belongs to it;
    /// but a waiter for a certain value accepts only that value.
    fn settle_without_id(&self, outcome: Result<Value, Refusal>) {
        let mut table = self.table();
        let fits = |waiter: &Waiter| waiter.only.as_ref().is_none_or(|only| outcome.as_ref() == Ok(only));
        let id = table.waiters.iter().find(|(_, waiter)| fits(waiter)).map(|(id, _)| *id);
        if let Some(waiter) = id.and_then(|id| table.waiters.remove(&id)) {
            drop(waiter.answer.send(outcome));
        }
    }

    /// Whether the caller of this line still waits.
    fn is_wanted(&self, id: u64) -> bool {
        self.table().waiters.get(&id).is_some_and(|waiter| !waiter.answer.is_closed())
    }
}

/// Ends both tasks when the last handle is dropped.
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// A command to send: its line, and how the answer is recognized.
pub(crate) struct Request<'a> {
    /// Its name, for errors.
    pub(crate) name: &'a str,
    /// Makes the line for an id.
    pub(crate) line: &'a (dyn Fn(u64) -> Vec<u8> + Sync),
    /// Descriptors to send along.
    pub(crate) fds: Vec<OwnedFd>,
    /// See [`Waiter::only`].
    pub(crate) only: Option<Value>,
}

/// Handle to a stream and its two tasks. Cheap to clone; the stream is closed with the last one.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Outgoing>,
    ids: Arc<AtomicU64>,
    fd_turn: Arc<Semaphore>,
    _tasks: Arc<Tasks>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("closed", &self.shared.table().closed).finish_non_exhaustive()
    }
}

/// The dialect of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A monitor: greeting, ids, events.
    Monitor,
    /// A guest agent: none of these is certain, but it knows the flush byte.
    Agent,
}

impl Connection {
    /// Starts the two tasks. Events and the greeting are received from the first byte on.
    pub(crate) fn start(
        stream: UnixStream,
        dialect: Dialect,
        options: Options,
    ) -> (Self, Events, oneshot::Receiver<Greeting>) {
        let (events, listener) = broadcast::channel(options.event_backlog.max(1));
        let (greeting, greeted) = oneshot::channel();
        let table = Table { events: Some(events), greeting: Some(greeting), ..Table::default() };
        let ended = watch::Sender::new(false);
        let shared = Arc::new(Shared { table: Mutex::new(table), ended, quiet: Quiet::new(1) });
        let stream = Arc::new(stream);
        let (queue, lines) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read(stream.clone(), shared.clone(), dialect, options.max_line));
        let writer = tokio::spawn(write(stream, shared.clone(), lines));
        let connection = Self {
            shared,
            queue,
            ids: Arc::new(AtomicU64::new(1)),
            fd_turn: Arc::new(Semaphore::new(1)),
            _tasks: Arc::new(Tasks(vec![reader.abort_handle(), writer.abort_handle()])),
        };
        (connection, Events::new(listener), greeted)
    }

    /// A listener for the events from now on. It ends at once if the stream has already ended.
    pub(crate) fn events(&self) -> Events {
        let receiver = match &self.shared.table().events {
            Some(events) => events.subscribe(),
            None => broadcast::channel(1).1,
        };
        Events::new(receiver)
    }

    /// Waits for the end of the stream.
    pub(crate) async fn ended(&self) {
        let mut ended = self.shared.ended.subscribe();
        // This only fails if the sender is gone, which means the end as well.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Why the session ended.
    pub(crate) fn closed_error(&self, command: &str) -> Error {
        self.shared.closed_error(command)
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn ask(&self, request: Request<'_>, deadline: Deadline) -> Result<Value, Error> {
        let name = request.name;
        match tokio::time::timeout_at(deadline.instant(), self.ask_forever(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Deadline { command: name.to_owned() }),
        }
    }

    async fn ask_forever(&self, request: Request<'_>) -> Result<Value, Error> {
        let Request { name, line, fds, only } = request;
        let closed = || self.shared.closed_error(name);
        let fd_turn = if fds.is_empty() {
            None
        } else {
            tokio::select! {
                turn = self.fd_turn.clone().acquire_owned() => Some(turn.map_err(|_| closed())?),
                () = self.ended() => return Err(closed()),
            }
        };
        let place = self.queue.reserve().await.map_err(|_| closed())?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut table = self.shared.table();
            if table.closed.is_some() {
                drop(table);
                return Err(closed());
            }
            table.waiters.insert(id, Waiter { answer, only, fd_turn });
        }
        // From here on, an early end (deadline, dropped future) removes the waiter from the table.
        let _leave = Leave { shared: &self.shared, id };
        place.send(Outgoing { id, line: line(id), fds });
        match answered.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Refusal { class, desc })) => Err(Error::Refused { command: name.to_owned(), class, desc }),
            Err(_) => Err(closed()),
        }
    }
}

/// Removes a waiter from the table, unless QEMU still holds its descriptors as the latest ones.
struct Leave<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        if table.waiters.get(&self.id).is_some_and(|waiter| waiter.fd_turn.is_none()) {
            table.waiters.remove(&self.id);
        }
    }
}

async fn read(stream: Arc<UnixStream>, shared: Arc<Shared>, dialect: Dialect, max_line: usize) {
    let agent = dialect == Dialect::Agent;
    let mut decoder = if agent { Decoder::for_agent(max_line) } else { Decoder::new(max_line) };
    let mut chunk = vec![0; CHUNK];
    let reason = loop {
        if let Err(error) = stream.readable().await {
            break error.to_string();
        }
        match stream.try_read(&mut chunk) {
            Ok(0) if decoder.unfinished() > 0 => break "closed by the other side within a line".to_owned(),
            Ok(0) => break "closed by the other side".to_owned(),
            Ok(count) => {
                decoder.push(&chunk[..count]);
                while let Some(line) = decoder.take() {
                    shared.take_in(line, agent);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => break error.to_string(),
        }
    };
    tracing::debug!(reason, "stream ended");
    shared.close(&reason);
}

async fn write(stream: Arc<UnixStream>, shared: Arc<Shared>, mut lines: mpsc::Receiver<Outgoing>) {
    let mut broken = false;
    while let Some(Outgoing { id, line, fds }) = lines.recv().await {
        if !shared.is_wanted(id) {
            // Nothing was sent, so nothing is awaited, including descriptors.
            shared.table().waiters.remove(&id);
            continue;
        }
        if !broken && let Err(error) = write_line(&stream, &line, &fds).await {
            // Data from the other side is still read; its end ends the session.
            tracing::debug!(%error, "cannot write any more");
            broken = true;
        }
        if broken {
            let mut table = shared.table();
            table.waiters.remove(&id);
            if table.closed.is_none() {
                table.closed = Some("the other side takes no more commands".to_owned());
            }
        }
    }
}

/// Writes a line; the descriptors go with its first byte, in the same call.
async fn write_line(stream: &UnixStream, line: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    while sent < line.len() {
        stream.writable().await?;
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if sent == 0 && !raw.is_empty() { &rights } else { &[] };
        let attempt = stream.try_io(Interest::WRITABLE, || {
            let rest = [io::IoSlice::new(&line[sent..])];
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            sendmsg::<()>(stream.as_raw_fd(), &rest, control, flags, None).map_err(io::Error::from)
        });
        match attempt {
            Ok(count) => sent += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
