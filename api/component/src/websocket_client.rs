//! The client's side of a websocket between two of our own servers.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::websocket::{CLOSED, SUBPROTOCOL, pump};

/// How long the switch of protocols may take.
const UPGRADE: Duration = Duration::from_secs(10);
/// Largest message accepted.
const LARGEST: usize = 1 << 20;

/// Headers of the request for a websocket.
pub fn headers() -> Vec<(HeaderName, HeaderValue)> {
    // A key is base64, which is always a valid value.
    let key = HeaderValue::from_str(&generate_key()).unwrap_or(HeaderValue::from_static(""));
    vec![
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
        (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL)),
        (header::SEC_WEBSOCKET_KEY, key),
    ]
}

/// Copies bytes between the server that has answered 101 and a local stream until one of them ends; returns
/// the reason.
pub async fn run<S>(mut response: Response<Incoming>, stream: S) -> String
where
    S: AsyncRead + AsyncWrite,
{
    let upgraded = match timeout(UPGRADE, hyper::upgrade::on(&mut response)).await {
        Ok(Ok(upgraded)) => TokioIo::new(upgraded),
        Ok(Err(error)) => return format!("not upgraded: {error}"),
        Err(_) => return "not upgraded in time".to_owned(),
    };
    let limits = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(limits)).await;
    pump(socket, stream, CLOSED, std::future::pending()).await
}
