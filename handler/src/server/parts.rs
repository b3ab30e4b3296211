//! Functions for several kinds of requests: open a stream of the launcher, turn its refusal into an answer,
//! read a flag of the query.

use std::time::Duration;

use barevirt_component::query;
use http::{Response, StatusCode};
use tokio::net::UnixStream;

use super::answer::{Body, refuse};
use crate::launchers::{Launcher, LauncherError};

/// Longest time to receive the body of a request.
pub(super) const REQUEST: Duration = Duration::from_secs(10);

/// Opens a stream of the guest at its launcher.
pub(super) async fn take(launcher: &Launcher, stream: &str) -> Result<UnixStream, Box<Response<Body>>> {
    let socket = launcher.take(stream).await.map_err(|error| Box::new(failed(&error)))?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket)).map_err(|error| {
        let message = format!("use the guest's stream: {error}");
        Box::new(refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message))
    })
}

/// Whether the query sets this flag to true.
pub(super) fn has_flag(query: Option<&str>, name: &str) -> bool {
    query::values(query, name).any(|value| value == "true")
}

/// The answer to virt-api after the launcher has refused.
pub(super) fn failed(error: &LauncherError) -> Response<Body> {
    let (code, reason) = match error {
        LauncherError::Call { status, .. } => match status.code() {
            tonic::Code::InvalidArgument => (StatusCode::BAD_REQUEST, "BadRequest"),
            tonic::Code::PermissionDenied => (StatusCode::FORBIDDEN, "Forbidden"),
            tonic::Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
            tonic::Code::Unavailable | tonic::Code::FailedPrecondition => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        },
        LauncherError::Connect(_) | LauncherError::Descriptor(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
    };
    refuse(code, reason, &error.to_string())
}
