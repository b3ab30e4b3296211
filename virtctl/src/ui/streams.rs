//! A guest's console and display, between a websocket of the browser and one of the API server.
//!
//! A browser does not tell a page why a websocket was not opened. So it is always opened, and a refusal is the reason of its
//! close frame. When the guest has moved to another node, the websocket ends with a close code of its own once the guest is
//! there, and the page opens it again.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::answer::{Answer, Failure};
use super::ask::Cluster;
use super::gate::PROTOCOL;
use super::route::{Stream, Target};
use crate::reconnect::{self, End, Follow, Gone, Place};
use crate::session::{self, INSTANCES, Session};
use crate::stream::{self, PING_EVERY, Socket};

/// How long the guest's side may take to open.
const OPEN: Duration = Duration::from_secs(20);
/// How long either side may take for a message.
const SEND: Duration = Duration::from_secs(30);
/// Largest message.
const MAX_MESSAGE: usize = 1 << 20;
/// Close codes: the guest's side could not be opened, it broke off, and it is on another node now. KubeVirt's own are below 4010.
const REFUSED: u16 = 4010;
const BROKEN: u16 = 4011;
const MOVED: u16 = 4012;
/// Longest reason that a close frame holds, in bytes.
const LONGEST_REASON: usize = 123;

type Browser = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// Whether a request asks for a websocket.
pub(super) fn is_upgrade<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Switches to a websocket, and carries the guest's stream in it until either side ends. Then `place` is
/// released.
pub(super) fn open(
    request: Request<Incoming>,
    cluster: &Arc<Cluster>,
    target: &Target,
    stream: Stream,
    place: OwnedSemaphorePermit,
) -> Result<Answer, Failure> {
    let headers = request.headers();
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_upgrade(&request));
    let Some(key) = key else { return Err(Failure::bad("this address is for a websocket")) };
    let accept = derive_accept_key(key.as_bytes());
    let accept = HeaderValue::from_str(&accept).map_err(Failure::bad)?;
    let session = cluster.session(&target.namespace);
    let subresource = match stream {
        Stream::Console => "console",
        Stream::Display => "vnc",
    };
    let path = session::path(&target.namespace, INSTANCES, &target.name, subresource);
    let name = target.name.clone();
    tokio::spawn(async move {
        // A browser that goes away meanwhile needs no answer.
        let Ok(Ok(upgraded)) = timeout(OPEN, hyper::upgrade::on(request)).await else { return };
        let limits =
            WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let mut browser =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(limits)).await;
        let home = Place::find(&session, &name).await;
        let end = match connect(&session, &path).await {
            Ok(guest) => match carry(&mut browser, guest).await {
                Ended::Browser => None,
                Ended::Guest(frame) => {
                    let gone = Gone { place: home, end: End::of(frame.as_ref()), follow: Follow::Moves };
                    match moved(&mut browser, &session, &name, &path, &gone).await {
                        Moved::To(node) => {
                            Some(close_frame(MOVED, &format!("{name} has moved to node {node}")))
                        }
                        Moved::Not => frame,
                        Moved::Unwanted => None,
                    }
                }
            },
            Err(why) => Some(close_frame(REFUSED, &why)),
        };
        // The end of the connection says the same.
        let _ = timeout(SEND, browser.close(end)).await;
        drop(place);
    });
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    // One that the page offers. The other has the token.
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    Ok(answer)
}

async fn connect(session: &Session, path: &str) -> Result<Socket, String> {
    match timeout(OPEN, stream::open(session, path)).await {
        Ok(Ok(Ok(socket))) => Ok(socket),
        Ok(Ok(Err(refusal))) => Err(refusal),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err(format!("the API server did not answer within {} s", OPEN.as_secs())),
    }
}

/// Which side of a stream ended.
enum Ended {
    Browser,
    /// With the guest's close frame.
    Guest(Option<CloseFrame>),
}

/// Carries messages until a side ends.
async fn carry(browser: &mut Browser, mut guest: Socket) -> Ended {
    let broken = || Ended::Guest(Some(close_frame(BROKEN, "the connection to the guest broke off")));
    let mut ping = interval(PING_EVERY);
    loop {
        let sent = tokio::select! {
            message = browser.next() => match message {
                Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
                    timeout(SEND, guest.send(Message::Binary(message.into_data()))).await
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    // The other side sees the end of the connection in any case.
                    let _ = timeout(SEND, guest.close(None)).await;
                    return Ended::Browser;
                }
                Some(Ok(_)) => continue,
            },
            message = guest.next() => match message {
                Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
                    timeout(SEND, browser.send(Message::Binary(message.into_data()))).await
                }
                Some(Ok(Message::Close(frame))) => return Ended::Guest(frame),
                Some(Err(_)) | None => return broken(),
                Some(Ok(_)) => continue,
            },
            _ = ping.tick() => {
                let both = async {
                    guest.send(Message::Ping(Bytes::new())).await?;
                    browser.send(Message::Ping(Bytes::new())).await
                };
                timeout(SEND, both).await
            }
        };
        if !matches!(sent, Ok(Ok(()))) {
            return broken();
        }
    }
}

/// What has become of a guest whose stream has ended.
enum Moved {
    /// It is on that node now, where its stream can be opened.
    To(String),
    Not,
    /// The browser has ended its side meanwhile.
    Unwanted,
}

/// Waits for a guest that has moved.
async fn moved(browser: &mut Browser, session: &Session, name: &str, path: &str, gone: &Gone) -> Moved {
    // A trial, since the page would not try again: its own stream is another one.
    let open = || async { connect(session, path).await.ok().map(drop) };
    let found = tokio::select! {
        found = reconnect::again(session, name, gone, || {}, open) => found,
        () = gone_away(browser) => return Moved::Unwanted,
    };
    match found {
        Some(((), there)) => Moved::To(there.node),
        None => Moved::Not,
    }
}

/// Waits until the browser ends its side. What it sends meanwhile has nowhere to go.
async fn gone_away(browser: &mut Browser) {
    loop {
        match browser.next().await {
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            Some(Ok(_)) => {}
        }
    }
}

/// A close frame; its reason is cut to what fits.
fn close_frame(code: u16, reason: &str) -> CloseFrame {
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    CloseFrame { code: code.into(), reason: reason[..end].into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut() {
        let reason = close_frame(REFUSED, &"ä".repeat(100)).reason.to_string();
        assert_eq!(reason, "ä".repeat(61));
        assert_eq!(close_frame(REFUSED, "no").reason.to_string(), "no");
    }

    #[test]
    fn a_websocket_is_asked_for_by_a_header() {
        let request = |value: &str| Request::get("/").header(header::UPGRADE, value).body(()).unwrap();
        assert!(is_upgrade(&request("WebSocket")));
        assert!(!is_upgrade(&request("h2c")) && !is_upgrade(&Request::new(())));
    }
}
