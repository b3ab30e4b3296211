//! Copies bytes between a websocket and a guest's stream without changing them.
//!
//! Memory is bounded: there is one buffer in each direction. If one side does not read, the other side is not
//! read either, so the guest's port or the user's terminal waits.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// The subprotocol of consoles: raw bytes in binary frames.
pub const SUBPROTOCOL: &str = "plain.kubevirt.io";
/// Bytes read from the guest at a time: larger than any datagram, so that each is one message.
const CHUNK: usize = 64 << 10;
/// Largest message accepted from the user.
const LARGEST: usize = 1 << 20;
/// How long the switch of protocols may take.
const UPGRADE: Duration = Duration::from_secs(10);
/// Longest time for sending the close frame, and for the user's answer to it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of pings to the other side.
const PING: Duration = Duration::from_secs(30);
/// How long either side may accept no data, or the user's side send nothing, not even an answer to a ping.
const STALL: Duration = Duration::from_secs(300);

/// The close frame for a stream that the user did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseReason {
    code: CloseCode,
    reason: &'static str,
}

/// The end of a stream that a guest has only once: clients of KubeVirt look for EOF.
pub const TAKEN_OR_ENDED: CloseReason = CloseReason {
    code: CloseCode::Library(4000),
    reason: "EOF: the guest ended, or another user has taken the stream over",
};
/// Another user has certainly taken over the stream.
pub const TAKEN: CloseReason =
    CloseReason { code: CloseCode::Library(4001), reason: "EOF: another user has taken the stream over" };
/// The end of a connection that was opened for this stream only: no error.
pub const CLOSED: CloseReason = CloseReason { code: CloseCode::Normal, reason: "" };
/// The same: the guest is on another node now, and the connection does not lead there.
pub const MOVED: CloseReason =
    CloseReason { code: CloseCode::Normal, reason: "the guest has moved to another node" };
/// The same: the guest has ended.
pub const ENDED: CloseReason = CloseReason { code: CloseCode::Normal, reason: "the guest has ended" };

/// A valid request for a websocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    accept: String,
    subprotocol: bool,
}

impl Upgrade {
    /// Checks the headers of a request.
    ///
    /// # Errors
    /// A sentence on what is wrong with them.
    pub fn read<B>(request: &Request<B>) -> Result<Self, &'static str> {
        let headers = request.headers();
        let has = |name: header::HeaderName, token: &str| {
            headers
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .any(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case(token)))
        };
        if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
            return Err("this path is a websocket: the request is not a websocket upgrade");
        }
        if !has(header::SEC_WEBSOCKET_VERSION, "13") {
            return Err("only version 13 of the websocket protocol is supported");
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or("the request has no websocket key")?;
        let subprotocol = has(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
        if !subprotocol && headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
            return Err("only the subprotocol plain.kubevirt.io is supported");
        }
        Ok(Self { accept: derive_accept_key(key.as_bytes()), subprotocol })
    }

    /// The answer that accepts the request.
    pub fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        // Base64 is always a valid value.
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if self.subprotocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        }
        response
    }
}

/// Copies bytes between the upgraded connection of `request` and the guest's stream until one of them ends;
/// returns the reason.
pub async fn run<G>(request: Request<Incoming>, guest: G, close: CloseReason) -> String
where
    G: AsyncRead + AsyncWrite,
{
    run_until(request, guest, close, std::future::pending()).await
}

/// The same, ended earlier with the close frame that `stop` gives.
pub async fn run_until<G>(
    mut request: Request<Incoming>,
    guest: G,
    close: CloseReason,
    stop: impl Future<Output = CloseReason>,
) -> String
where
    G: AsyncRead + AsyncWrite,
{
    let upgraded = match timeout(UPGRADE, hyper::upgrade::on(&mut request)).await {
        Ok(Ok(upgraded)) => TokioIo::new(upgraded),
        Ok(Err(error)) => return format!("not upgraded: {error}"),
        Err(_) => return "not upgraded in time".to_owned(),
    };
    let config = WebSocketConfig::default()
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST))
        // Each frame is sent before the next is read.
        .write_buffer_size(0)
        .max_write_buffer_size(4 * CHUNK);
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await;
    pump(socket, guest, close, stop).await
}

/// The same between an open websocket and a stream.
pub async fn pump<S, G>(
    socket: WebSocketStream<S>,
    guest: G,
    mut close: CloseReason,
    stop: impl Future<Output = CloseReason>,
) -> String
where
    S: AsyncRead + AsyncWrite + Unpin,
    G: AsyncRead + AsyncWrite,
{
    let (mut to_user, mut from_user) = socket.split();
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let inward = async {
        loop {
            let message = match timeout(STALL, from_user.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return format!("user's side broke off: {error}"),
                Ok(None) => return "user's side ended".to_owned(),
                Err(_) => return "user's side is silent".to_owned(),
            };
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => Bytes::from(text),
                Message::Close(_) => return "user closed".to_owned(),
                // The library answers pings by itself; any frame shows that the user's side is alive.
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
            match timeout(STALL, to_guest.write_all(&bytes)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return format!("guest's side broke off: {error}"),
                Err(_) => return "guest's side accepts no data".to_owned(),
            }
        }
    };
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        let mut ping = interval_at(Instant::now() + PING, PING);
        loop {
            let message = tokio::select! {
                read = from_guest.read(&mut buffer) => match read {
                    Ok(0) => return "guest's side ended".to_owned(),
                    Ok(length) => Message::Binary(Bytes::copy_from_slice(&buffer[..length])),
                    Err(error) => return format!("guest's side broke off: {error}"),
                },
                _ = ping.tick() => Message::Ping(Bytes::new()),
            };
            match timeout(STALL, to_user.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return format!("user's side broke off: {error}"),
                Err(_) => return "user's side accepts no data".to_owned(),
            }
        }
    };
    let ended = tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
        reason = stop => {
            close = reason;
            close.reason.to_owned()
        }
    };
    // Sends the close frame if the other side is still there. The reason is already known, so errors are
    // ignored.
    let close = CloseFrame { code: close.code, reason: close.reason.into() };
    let _ = timeout(CLOSE_TIMEOUT, async {
        to_user.send(Message::Close(Some(close))).await?;
        // Closing a connection with unread data resets it, and the last data sent may be lost.
        while let Some(Ok(_)) = from_user.next().await {}
        to_user.close().await
    })
    .await;
    ended
}
