//! What several kinds of requests need: a stream of the launcher's, its refusal as an answer, a flag of the query.

use std::time::Duration;

use barevirt_component::query;
use http::{Response, StatusCode};
use tokio::net::UnixStream;

use super::answer::{Body, refuse};
use crate::launchers::{Launcher, LauncherError};

/// How long the body of a request may take.
pub(super) const REQUEST: Duration = Duration::from_secs(10);

/// A stream of the guest's, from its launcher.
pub(super) async fn take(launcher: &Launcher, stream: &str) -> Result<UnixStream, Box<Response<Body>>> {
    let socket = launcher.take(stream).await.map_err(|error| Box::new(failed(&error)))?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket)).map_err(|error| {
        let message = format!("use the guest's stream: {error}");
        Box::new(refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message))
    })
}

/// Whether the query says that this is true.
pub(super) fn has_flag(query: Option<&str>, name: &str) -> bool {
    query::values(query, name).any(|value| value == "true")
}

/// The launcher's refusal, as an answer to virt-api.
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
