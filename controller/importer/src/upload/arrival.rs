//! One image, or one archive, that arrives over one connection or over several.
//!
//! ```text
//!   POST --body--> arrives --all of it--> checksum --> End
//!                    |  ^
//!      breaks off, or |  | the rest, at the byte where it stopped
//!   a client asks for |  |
//!             the byte v  |
//!                   waits --nothing comes, or another upload takes its place--> Failed
//! ```
//!
//! The thread that reads the image sees nothing of that: it waits for its next byte. Only an upload that its client has
//! given a name waits; any other fails when it breaks off.

use super::asked::Begin;
use crate::checksum::{Checksum, Hasher};
use crate::failure::Failure;
use crate::feed::Piece;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::info;

/// How much of an unwanted body is read, and for how long: its sender has to read the answer.
const MOST_UNWANTED: u64 = 64 << 20;
const UNWANTED: Duration = Duration::from_secs(10);
/// Orders that wait.
const ORDERS: usize = 4;

/// What a connection wants of an upload that has begun.
pub(super) enum Order {
    /// How many bytes have arrived? A connection that still sends is given up.
    Ask(oneshot::Sender<u64>),
    /// Go on with this part at that byte. The answer is the byte at which it would have to begin.
    GoOn(u64, Part, oneshot::Sender<Result<(), u64>>),
    /// Give up, unless a connection sends. The answer is whether it did.
    Leave(oneshot::Sender<bool>),
}

/// The body of one request. The other end of `over` gets a message when its last byte has arrived; if it breaks off,
/// `over` is dropped.
pub(super) struct Part {
    body: Incoming,
    over: oneshot::Sender<()>,
}

impl Part {
    /// A body, and the receiver of that message, for its request.
    pub(super) fn of(body: Incoming) -> (Self, oneshot::Receiver<()>) {
        let (over, received) = oneshot::channel();
        (Part { body, over }, received)
    }

    /// Reads it for a while without using it.
    pub(super) async fn refuse(self) {
        // Its request has the answer, or gets it.
        let _ = self.over.send(());
        unwanted(self.body).await;
    }
}

/// An upload that arrives.
pub(super) struct Arrival {
    part: Option<Part>,
    orders: mpsc::Receiver<Order>,
    /// Bytes that have arrived.
    offset: u64,
    /// Bytes of all of it, if they are known.
    length: Option<u64>,
    /// Whether it can go on over another connection.
    waits: bool,
    checksum: Option<(Checksum, Hasher)>,
    /// How long nothing may come.
    stall: Duration,
    /// Why no connection sends at the moment.
    broken: Failure,
}

enum Event {
    Order(Order),
    Frame(Option<Result<Frame<Bytes>, hyper::Error>>),
    Late,
}

impl Arrival {
    /// An upload that begins with this part.
    pub(super) fn begin(part: Part, begin: Begin, stall: Duration) -> (Self, mpsc::Sender<Order>) {
        let (sender, orders) = mpsc::channel(ORDERS);
        let length = part.body.size_hint().exact();
        let checksum = begin.checksum.map(|checksum| {
            let hasher = checksum.hasher();
            (checksum, hasher)
        });
        let arrival = Arrival {
            part: Some(part),
            orders,
            offset: 0,
            length,
            // Without a length nobody can tell what is missing.
            waits: begin.id.is_some() && length.is_some(),
            checksum,
            stall,
            broken: Failure::Passing("the upload broke off".to_owned()),
        };
        (arrival, sender)
    }

    /// Its length in bytes, if it is known.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Reads what has begun without using it.
    pub(super) async fn refuse(self) {
        if let Some(part) = self.part {
            part.refuse().await;
        }
    }

    /// Passes all of it on, piece by piece; only a complete upload is reported as complete.
    pub(super) async fn run(mut self, sink: mpsc::Sender<Piece>) {
        let mut until = Instant::now() + self.stall;
        loop {
            match self.next(until).await {
                Event::Order(order) => {
                    if self.obey(order, &mut until) {
                        return self.fail(&sink).await;
                    }
                }
                Event::Frame(Some(Ok(frame))) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    if bytes.is_empty() {
                        continue;
                    }
                    let piece = self.take(bytes);
                    let is_last = !matches!(piece, Piece::Data(_));
                    if sink.send(piece).await.is_err() || is_last {
                        // It was refused.
                        return self.refuse().await;
                    }
                    if self.length == Some(self.offset) {
                        return self.end(&sink).await;
                    }
                    until = Instant::now() + self.stall;
                }
                Event::Frame(None) if self.length.is_none_or(|length| self.offset == length) => {
                    return self.end(&sink).await;
                }
                Event::Frame(None) => {
                    if self.breaks_off("the upload broke off".to_owned(), &mut until) {
                        return self.fail(&sink).await;
                    }
                }
                Event::Frame(Some(Err(error))) => {
                    if self.breaks_off(format!("the upload broke off: {error}"), &mut until) {
                        return self.fail(&sink).await;
                    }
                }
                Event::Late if self.part.is_some() => {
                    let why = format!("nothing of the image came for {} s", self.stall.as_secs());
                    if self.breaks_off(why, &mut until) {
                        return self.fail(&sink).await;
                    }
                }
                Event::Late => return self.fail(&sink).await,
            }
        }
    }

    async fn next(&mut self, until: Instant) -> Event {
        match &mut self.part {
            Some(part) => tokio::select! {
                Some(order) = self.orders.recv() => Event::Order(order),
                frame = timeout_at(until, part.body.frame()) => frame.map_or(Event::Late, Event::Frame),
            },
            None => tokio::select! {
                Some(order) = self.orders.recv() => Event::Order(order),
                () = sleep_until(until) => Event::Late,
            },
        }
    }

    /// Whether the upload is given up.
    fn obey(&mut self, order: Order, until: &mut Instant) -> bool {
        // A connection that is gone meanwhile needs no answer.
        match order {
            Order::Ask(answer) => {
                self.part = None;
                *until = Instant::now() + self.stall;
                let _ = answer.send(self.offset);
            }
            Order::GoOn(from, part, answer) if from == self.offset && self.part.is_none() => {
                info!(offset = from, "an upload goes on");
                self.part = Some(part);
                *until = Instant::now() + self.stall;
                let _ = answer.send(Ok(()));
            }
            Order::GoOn(.., answer) => {
                let _ = answer.send(Err(self.offset));
            }
            Order::Leave(answer) if self.part.is_none() => {
                self.broken = Failure::Passing("another upload has taken its place".to_owned());
                let _ = answer.send(true);
                return true;
            }
            Order::Leave(answer) => {
                let _ = answer.send(false);
            }
        }
        false
    }

    /// Counts and checks bytes that have arrived.
    fn take(&mut self, bytes: Bytes) -> Piece {
        self.offset += bytes.len() as u64;
        if let Some(length) = self.length
            && self.offset > length
        {
            return Piece::Failed(Failure::Final(format!("the upload has more than its {length} bytes")));
        }
        if let Some((_, hasher)) = &mut self.checksum {
            hasher.update(&bytes);
        }
        Piece::Data(bytes)
    }

    /// All of it has arrived.
    async fn end(mut self, sink: &mpsc::Sender<Piece>) {
        let verified =
            self.checksum.take().map_or(Ok(()), |(checksum, hasher)| checksum.verify(hasher, "the upload"));
        // A reader that is gone has said why.
        let _ = sink.send(verified.map_or_else(Piece::Failed, |()| Piece::End)).await;
        self.refuse().await;
    }

    /// Notes that no connection sends any more. Whether the upload fails with that.
    fn breaks_off(&mut self, why: String, until: &mut Instant) -> bool {
        info!(why, offset = self.offset, waits = self.waits, "an upload broke off");
        self.broken = Failure::Passing(why);
        if self.waits {
            self.part = None;
            *until = Instant::now() + self.stall;
        }
        !self.waits
    }

    async fn fail(self, sink: &mpsc::Sender<Piece>) {
        // If the reader is gone, it has a failure of its own.
        let _ = sink.send(Piece::Failed(self.broken.clone())).await;
        self.refuse().await;
    }
}

/// Reads an unwanted body for a while: a connection that is closed with unread bytes loses the answer.
pub(super) async fn unwanted(mut body: Incoming) {
    let taken = async {
        let mut left = MOST_UNWANTED;
        while let Some(Ok(frame)) = body.frame().await {
            let count = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(count) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = timeout(UNWANTED, taken).await;
}
