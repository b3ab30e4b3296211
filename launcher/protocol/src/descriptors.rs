//! The descriptor socket, both ends: `give` hands descriptors to the launcher, `take` asks it for a connection.
//!
//! The launcher's end turns every request into a [`Call`] on a channel, so that the one task that owns the machine
//! decides, and answers what that task says. A client that is silent, slow, or speaks nonsense costs one connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::message::{Answer, Give, MessageError, Request, Take, decode_answer, decode_request, encode};
use crate::seqpacket::{PacketListener, PacketSocket, SocketError};

/// How long the launcher's main task may take to answer a call.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the launcher closes it.
pub const IDLE_DEADLINE: Duration = Duration::from_secs(60);

/// Connections served at the same time; more wait for a free place.
pub const MOST_CONNECTIONS: usize = 16;

/// Why a call did not succeed, at the client.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket failed.
    #[error("call launcher's descriptor socket")]
    Socket(#[source] SocketError),
    /// The answer is not one.
    #[error("read answer of launcher's descriptor socket")]
    Message(#[source] MessageError),
    /// No answer in time. The connection is of no further use: a late answer would be taken for the next one's.
    #[error("launcher did not answer {request} in time")]
    Deadline {
        /// What was asked.
        request: String,
    },
    /// The launcher closed the connection.
    #[error("launcher closed its descriptor socket")]
    Closed,
    /// The launcher refused, in its own words.
    #[error("launcher refused {request}: {error}")]
    Refused {
        /// What was asked.
        request: String,
        /// The launcher's words.
        error: String,
    },
    /// It agreed, and sent another number of descriptors than asked for.
    #[error("launcher answered {request} with {count} descriptors")]
    WrongCount {
        /// What was asked.
        request: String,
        /// How many came.
        count: usize,
    },
}

/// The handler's end. One call at a time.
#[derive(Debug)]
pub struct Client {
    socket: PacketSocket,
}

impl Client {
    /// A client over a connection whose peer was verified.
    pub fn new(socket: PacketSocket) -> Self {
        Self { socket }
    }

    /// Hands over descriptors under a name; returns when the launcher holds them. The caller may close its own then.
    ///
    /// # Errors
    /// When the launcher refuses or does not answer in time. After anything but `Refused`, connect anew.
    pub async fn give(
        &mut self,
        revision: i64,
        name: &str,
        descriptors: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<(), CallError> {
        let request = Request::Give(Give { revision, name: name.to_owned() });
        let received = self.call(&request, descriptors, within).await?;
        match received.len() {
            0 => Ok(()),
            count => Err(CallError::WrongCount { request: describe(&request), count }),
        }
    }

    /// Asks for a connection to one of the guest's streams, e.g. `serial0`.
    ///
    /// # Errors
    /// When the launcher has no such stream or does not answer in time. After anything but `Refused`, connect anew.
    pub async fn take(&mut self, stream: &str, within: Duration) -> Result<OwnedFd, CallError> {
        let request = Request::Take(Take { stream: stream.to_owned() });
        let mut received = self.call(&request, &[], within).await?;
        match (received.pop(), received.len()) {
            (Some(descriptor), 0) => Ok(descriptor),
            (last, others) => {
                let count = others + usize::from(last.is_some());
                Err(CallError::WrongCount { request: describe(&request), count })
            }
        }
    }

    async fn call(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<Vec<OwnedFd>, CallError> {
        let deadline = Instant::now() + within;
        let late = |_| CallError::Deadline { request: describe(request) };
        let bytes = encode(request).map_err(CallError::Message)?;
        let sent = timeout_at(deadline, self.socket.send(&bytes, descriptors)).await.map_err(late)?;
        sent.map_err(CallError::Socket)?;
        let received = timeout_at(deadline, self.socket.receive()).await.map_err(late)?;
        let packet = received.map_err(CallError::Socket)?.ok_or(CallError::Closed)?;
        let answer = decode_answer(&packet.bytes).map_err(CallError::Message)?;
        if answer.ok {
            return Ok(packet.descriptors);
        }
        let error = answer.error.unwrap_or_else(|| "no reason given".to_owned());
        Err(CallError::Refused { request: describe(request), error })
    }
}

fn describe(request: &Request) -> String {
    match request {
        Request::Give(give) => format!("give {}", give.name),
        Request::Take(take) => format!("take {}", take.stream),
    }
}

/// What the launcher's main task says to a call: the descriptors to send back, or why not.
pub type Reply = Result<Vec<OwnedFd>, String>;

/// One request, as the launcher's main task gets it.
#[derive(Debug)]
pub struct Call {
    /// What is asked. Names are checked for length and control characters only.
    pub request: Request,
    /// What came with it: 1 to 8 for `give`, none for `take`.
    pub descriptors: Vec<OwnedFd>,
    /// Where the answer goes. Dropping it refuses the request.
    pub reply: oneshot::Sender<Reply>,
}

/// Accepts connections and turns requests into calls, until the receiver of the calls is dropped. Peers of users other
/// than `allowed_uids` are closed unread.
pub async fn serve(listener: PacketListener, allowed_uids: Vec<u32>, calls: mpsc::Sender<Call>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let socket = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => socket,
                Err(error) => {
                    // Out of descriptors, most likely: give others time to close some.
                    tracing::warn!(%error, "could not accept on descriptor socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = calls.closed() => return,
        };
        match socket.peer() {
            Ok(peer) if allowed_uids.contains(&peer.uid) => {}
            Ok(peer) => {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "stranger on descriptor socket turned away");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "peer of descriptor socket is unknown");
                continue;
            }
        }
        let calls = calls.clone();
        tokio::spawn(async move {
            if let Err(error) = serve_connection(&socket, &calls).await {
                tracing::debug!(%error, "connection to descriptor socket ended");
            }
            drop(place);
        });
    }
}

async fn serve_connection(socket: &PacketSocket, calls: &mpsc::Sender<Call>) -> Result<(), SocketError> {
    loop {
        let packet = match timeout(IDLE_DEADLINE, socket.receive()).await {
            Ok(Ok(Some(packet))) => packet,
            Ok(Ok(None)) | Err(_) => return Ok(()),
            Ok(Err(error)) => {
                // The peer is told what it did wrong, and the connection ends: it broke a bound.
                answer(socket, Err(error.to_string())).await?;
                return Err(error);
            }
        };
        let reply = match admit(&packet.bytes, packet.descriptors.len()) {
            Ok(request) => ask(calls, request, packet.descriptors).await,
            Err(error) => Err(error),
        };
        answer(socket, reply).await?;
    }
}

/// The request, when it is one and comes with the right number of descriptors.
fn admit(bytes: &[u8], descriptors: usize) -> Result<Request, String> {
    let request = decode_request(bytes).map_err(|error| match error {
        MessageError::Decode(source) => format!("decode message: {source}"),
        other => other.to_string(),
    })?;
    match (&request, descriptors) {
        (Request::Give(_), 0) => Err("give comes without a descriptor".to_owned()),
        (Request::Take(_), 1..) => Err("take comes with a descriptor".to_owned()),
        _ => Ok(request),
    }
}

async fn ask(calls: &mpsc::Sender<Call>, request: Request, descriptors: Vec<OwnedFd>) -> Reply {
    let (reply, answered) = oneshot::channel();
    let asked = async {
        calls
            .send(Call { request, descriptors, reply })
            .await
            .map_err(|_| "launcher is ending".to_owned())?;
        answered.await.unwrap_or_else(|_| Err("launcher does not answer this request".to_owned()))
    };
    timeout(CALL_DEADLINE, asked).await.unwrap_or_else(|_| Err("launcher is busy".to_owned()))
}

async fn answer(socket: &PacketSocket, reply: Reply) -> Result<(), SocketError> {
    let (answer, descriptors) = match reply {
        Ok(descriptors) => (Answer::done(), descriptors),
        Err(error) => (Answer::refused(error), Vec::new()),
    };
    let bytes = encode(&answer).unwrap_or_else(|_| br#"{"ok":false,"error":"answer is too large"}"#.to_vec());
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    match timeout(CALL_DEADLINE, socket.send(&bytes, &borrowed)).await {
        Ok(sent) => sent,
        // A peer that does not read its answers is given up.
        Err(_) => Ok(()),
    }
}
