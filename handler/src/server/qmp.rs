//! The users' QEMU monitor: one command, a stream of commands, and the launcher's information for the case
//! that QEMU does not answer.
//!
//! virt-api decides which user may run which command. The launcher refuses commands that no user may run.

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

/// Time limit of a QMP command if the request has none.
const USUAL: Duration = Duration::from_secs(15);
/// Longest time limit, in seconds. The launcher has a limit of its own.
const LONGEST: u64 = 60;
/// Largest QMP command, in bytes.
const LARGEST: usize = 1 << 20;
/// Longest time for the launcher's information.
const DEBUG: Duration = Duration::from_secs(10);

/// Runs one command.
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
        // The launcher's message has several lines about what QEMU's threads wait for.
        Err(LauncherError::Call { status, .. }) if status.code() == tonic::Code::DeadlineExceeded => {
            refuse(StatusCode::GATEWAY_TIMEOUT, "Timeout", status.message())
        }
        Err(error) => failed(&error),
    }
}

/// The value of `timeoutSeconds` in the query.
fn within(query: Option<&str>) -> Duration {
    let seconds = query::values(query, "timeoutSeconds").next().and_then(|text| text.parse().ok());
    seconds.map_or(USUAL, |seconds: u64| Duration::from_secs(seconds.clamp(1, LONGEST)))
}

/// Opens a session. There may be several at the same time.
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

/// Answers with the launcher's information about QEMU.
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
