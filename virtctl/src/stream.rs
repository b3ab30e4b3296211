//! Streams of the subresource API: websockets whose binary messages are a guest's unchanged bytes.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use crate::session::{self, Session};

/// The only protocol of KubeVirt's streams: binary messages with unchanged bytes.
const PROTOCOL: &str = "plain.kubevirt.io";
const MAX_MESSAGE: usize = 1 << 20;
/// Pings at this interval keep a quiet stream open through any proxy in between.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(20);

/// An open stream.
pub(crate) type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// How a stream between a guest and a local program ended.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The local program ended it.
    Local,
    /// The guest's side was closed.
    Closed(Option<CloseFrame>),
    /// The connection to the guest broke off.
    Broken(anyhow::Error),
}

impl StreamEnd {
    /// The reason for the end, if the server gave one. Fails if the connection broke off.
    pub(crate) fn reason(self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Local => Ok(None),
            Self::Closed(frame) => {
                Ok(frame.map(|frame| frame.reason.to_string()).filter(|reason| !reason.is_empty()))
            }
            Self::Broken(error) => Err(error),
        }
    }

    /// The error of a stream that ended before `what` was used.
    pub(crate) fn unused(self, what: &str) -> anyhow::Error {
        match self.reason() {
            Ok(Some(reason)) => anyhow!("{what} was closed: {reason}"),
            Ok(None) | Err(_) => anyhow!("{what} was closed"),
        }
    }
}

/// Tries once to open the stream of a subresource. The inner error is the server's refusal, which may be temporary.
pub(crate) async fn open(session: &Session, path: &str) -> anyhow::Result<Result<Socket, String>> {
    let request = Request::get(path)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(kube::client::Body::empty())?;
    let response = session.client.send(request).await.map_err(session::plain)?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = response.into_body().collect_bytes().await.unwrap_or_default();
        let text = session::sentence(&body);
        return match status {
            // KubeVirt answers 400 while the guest has not started; other 400 answers are permanent.
            StatusCode::BAD_REQUEST if text.ends_with("VMI is not running") => Ok(Err(text)),
            StatusCode::CONFLICT if text.ends_with("VMI is in failed status") => bail!("{text}"),
            StatusCode::CONFLICT
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Ok(Err(text)),
            _ => bail!("{text}"),
        };
    }
    let upgraded = hyper::upgrade::on(response).await.context("switch to a websocket")?;
    let limits =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    Ok(Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(limits)).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_was_closed_says_why() {
        let closed =
            |reason: &str| StreamEnd::Closed(Some(CloseFrame { code: 1000.into(), reason: reason.into() }));
        assert_eq!(closed("it has moved").reason().unwrap().as_deref(), Some("it has moved"));
        assert_eq!(closed("").reason().unwrap(), None);
        assert_eq!(StreamEnd::Local.reason().unwrap(), None);
        assert!(StreamEnd::Broken(anyhow!("reset")).reason().is_err());
        assert_eq!(closed("EOF").unused("the display").to_string(), "the display was closed: EOF");
        assert_eq!(StreamEnd::Closed(None).unused("the display").to_string(), "the display was closed");
    }
}
