//! The people's monitor: one command, a stream of them, and what the launcher knows when QEMU does not answer.
//!
//! Who may give which command is virt-api's to decide; what nobody may, the launcher refuses.

use std::time::Duration;

use barevirt_component::{query, websocket};
use barevirt_protocol::names::STREAM_QMP;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;
use tracing::info;

use super::answer::{self, Body, refuse};
use super::parts::{REQUEST, failed, take};
use super::route::Guest;
use crate::launchers::{Launcher, LauncherError};

/// How long a QMP command may take when the request does not say.
const USUAL: Duration = Duration::from_secs(15);
/// The longest it may take. The launcher has a limit of its own.
const LONGEST: u64 = 60;
/// Largest QMP command, bytes.
const LARGEST: usize = 1 << 20;
/// How long the launcher may take to tell what it knows.
const DEBUG: Duration = Duration::from_secs(10);

/// One command.
pub(super) async fn call(request: Request<Incoming>, guest: &Guest, launcher: &Launcher) -> Response<Body> {
    let within = within(request.uri().query());
    let body = timeout(REQUEST, Limited::new(request.into_body(), LARGEST).collect()).await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            return refuse(StatusCode::BAD_REQUEST, "BadRequest", &format!("read command: {error}"));
        }
        Err(_) => {
            return refuse(StatusCode::REQUEST_TIMEOUT, "Timeout", "the command did not arrive in time");
        }
    };
    let command = match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(command) if command.is_object() => command,
        Ok(_) | Err(_) => {
            return refuse(StatusCode::BAD_REQUEST, "BadRequest", "the command is not a JSON object");
        }
    };
    let execute = command.get("execute").and_then(|name| name.as_str());
    let result = launcher.qmp(body.to_vec(), within).await;
    let Guest { namespace, name, .. } = guest;
    info!(namespace, name, execute, answered = result.is_ok(), "qmp command passed on");
    match result {
        Ok(answer) => answer::json(StatusCode::OK, answer),
        // In the launcher's words: several lines on what QEMU's threads wait for.
        Err(LauncherError::Call { status, .. }) if status.code() == tonic::Code::DeadlineExceeded => {
            refuse(StatusCode::GATEWAY_TIMEOUT, "Timeout", status.message())
        }
        Err(error) => failed(&error),
    }
}

/// `timeoutSeconds` of a query, in seconds.
fn within(query: Option<&str>) -> Duration {
    let seconds = query::values(query, "timeoutSeconds").next().and_then(|text| text.parse().ok());
    seconds.map_or(USUAL, |seconds: u64| Duration::from_secs(seconds.clamp(1, LONGEST)))
}

/// A session, of which there may be several.
pub(super) async fn stream(request: Request<Incoming>, guest: &Guest, launcher: &Launcher) -> Response<Body> {
    let upgrade = match websocket::Upgrade::read(&request) {
        Ok(upgrade) => upgrade,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, "BadRequest", message),
    };
    let socket = match take(launcher, STREAM_QMP).await {
        Ok(socket) => socket,
        Err(refusal) => return *refusal,
    };
    let (namespace, name) = (guest.namespace.clone(), guest.name.clone());
    tokio::spawn(async move {
        let ended = websocket::run(request, socket, websocket::CLOSED).await;
        info!(namespace, name, stream = STREAM_QMP, ended, "stream closed");
    });
    upgrade.answer()
}

/// What the launcher knows of QEMU.
pub(super) async fn debug(launcher: &Launcher) -> Response<Body> {
    match launcher.debug(DEBUG).await {
        Ok(report) => answer::json(StatusCode::OK, report),
        Err(error) => failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_gives_the_time_within_bounds() {
        let seconds = |query| within(query).as_secs();
        assert_eq!(
            (seconds(None), seconds(Some("timeoutSeconds=7")), seconds(Some("timeoutSeconds=x"))),
            (15, 7, 15)
        );
        assert_eq!(
            (seconds(Some("a=b&timeoutSeconds=0")), seconds(Some("timeoutSeconds=9999"))),
            (1, LONGEST)
        );
    }
}
