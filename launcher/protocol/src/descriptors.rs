//! Both ends of the descriptor socket: `give` passes descriptors to the launcher, `take` requests a
//! connection from it.
//!
//! The launcher's end turns every request into a [`Call`] on a channel, so that the task that owns the
//! machine decides, and sends that task's answer. A client that is silent, slow or sends invalid data costs
//! one connection.

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
    /// The answer is invalid.
    #[error("read answer of launcher's descriptor socket")]
    Message(#[source] MessageError),
    /// No answer in time. The connection cannot be used any more: a late answer would be taken for the next
    /// one.
    #[error("launcher did not answer {request} in time")]
    Deadline {
        /// The request.
        request: String,
    },
    /// The launcher closed the connection.
    #[error("launcher closed its descriptor socket")]
    Closed,
    /// The launcher refused, with its own message.
    #[error("launcher refused {request}: {error}")]
    Refused {
        /// The request.
        request: String,
        /// The launcher's message.
        error: String,
    },
    /// The launcher agreed, but sent another number of descriptors than requested.
    #[error("launcher answered {request} with {count} descriptors")]
    WrongCount {
        /// The request.
        request: String,
        /// Number of descriptors received.
        count: usize,
    },
}

/// The handler's end. One call at a time.
#[derive(Debug)]
pub struct Client {
    socket: PacketSocket,
}

impl Client {
    /// A client on a connection whose peer was verified.
    pub fn new(socket: PacketSocket) -> Self {
        Self { socket }
    }

    /// Passes descriptors under a name; returns when the launcher holds them, so that the caller may close
    /// its own.
    ///
    /// # Errors
    /// If the launcher refuses or does not answer in time. After any error except `Refused`, connect again.
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

    /// Requests a connection to one of the guest's streams, e.g. `serial0`.
    ///
    /// # Errors
    /// If the launcher has no such stream or does not answer in time. After any error except `Refused`,
    /// connect again.
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

/// The result of a call from the launcher's main task: the descriptors to send back, or the reason for a
/// refusal.
pub type Reply = Result<Vec<OwnedFd>, String>;

/// One request for the launcher's main task.
#[derive(Debug)]
pub struct Call {
    /// The request. Its names are only checked for length and control characters.
    pub request: Request,
    /// Descriptors sent with it: 1 to 8 for `give`, none for `take`.
    pub descriptors: Vec<OwnedFd>,
    /// Channel for the answer. Dropping it refuses the request.
    pub reply: oneshot::Sender<Reply>,
}

/// Accepts connections and turns requests into calls, until the receiver of the calls is dropped. Connections
/// of users other than `allowed_uids` are closed unread.
pub async fn serve(listener: PacketListener, allowed_uids: Vec<u32>, calls: mpsc::Sender<Call>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let socket = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => socket,
                Err(error) => {
                    // Most likely no descriptors are left: wait until others are closed.
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
                tracing::warn!(
                    uid = peer.uid,
                    pid = peer.pid,
                    "unknown client on descriptor socket rejected"
                );
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
                // The peer gets the error, and the connection ends, because the peer violated a limit.
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

/// Parses the request and checks the number of descriptors.
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
        // The connection of a peer that does not read its answers is closed.
        Err(_) => Ok(()),
    }
}
