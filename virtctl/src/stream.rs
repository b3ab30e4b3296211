//! Streams of the subresource API: websockets whose binary messages are a guest's unchanged bytes.

use std::time::Duration;

use anyhow::{Context, bail};
use http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::session::{self, Session};

/// The only protocol of KubeVirt's streams: binary messages with unchanged bytes.
const PROTOCOL: &str = "plain.kubevirt.io";
const MAX_MESSAGE: usize = 1 << 20;
/// Pings at this interval keep a quiet stream open through any proxy in between.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(20);

/// An open stream.
pub(crate) type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

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
