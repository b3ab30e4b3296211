//! Requests of users about a guest: to pause it, reset it, freeze its file systems, and to read what its
//! agent and its display show.
//!
//! virt-api has already decided from the instance's status whether the user may do this and whether it makes
//! sense. The launcher has newer information and makes the final decision.

use std::time::Duration;

use barevirt_api::freeze;
use barevirt_api::names::{
    REASON_FREEZE_ERROR, REASON_PAUSED, REASON_RESET, REASON_SOFT_REBOOTED, REASON_UNPAUSED,
};
use barevirt_api::v1::{
    VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList,
    VirtualMachineInstanceGuestAgentInfo, VirtualMachineInstanceGuestOsUserList,
};
use barevirt_protocol::v1::Control;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use kube::runtime::events::{Event, EventType};
use serde::Serialize;
use tokio::time::timeout;
use tracing::{info, warn};

use super::answer::{self, Body, refuse};
use super::parts::{REQUEST, failed, has_flag};
use super::route::{AgentQuery, Guest, Kind};
use crate::launchers::{Launcher, LauncherError};
use crate::registry::Launchers;

/// Longest time for a control.
const CONTROL: Duration = Duration::from_secs(15);
/// Longest time for a freeze. Before it, everything that the guest has written goes to its disks.
const FREEZE: Duration = Duration::from_secs(50);
/// Largest body of a freeze.
const LARGEST_BODY: usize = 4096;
/// Most users and file systems in the overview. There are separate requests for the complete lists.
const IN_OVERVIEW: usize = 10;

/// Carries out one control.
pub(super) async fn control(
    request: Request<Incoming>,
    guest: &Guest,
    control: Control,
    launcher: &Launcher,
    launchers: &Launchers,
) -> Response<Body> {
    let mut unfreeze_after = Duration::ZERO;
    if control == Control::Freeze {
        let body = timeout(REQUEST, Limited::new(request.into_body(), LARGEST_BODY).collect()).await;
        let Ok(Ok(body)) = body else {
            return refuse(
                StatusCode::BAD_REQUEST,
                "BadRequest",
                "the body of a freeze did not arrive completely",
            );
        };
        match freeze::unfreeze_after(&body.to_bytes()) {
            Ok(after) => unfreeze_after = after,
            Err(why) => return refuse(StatusCode::BAD_REQUEST, "BadRequest", &why),
        }
    }
    let within = match control {
        Control::Freeze | Control::Unfreeze => FREEZE,
        Control::Unspecified | Control::Pause | Control::Unpause | Control::Reset | Control::SoftReboot => {
            CONTROL
        }
    };
    let result = launcher.control(control, unfreeze_after, within).await;
    let Guest { namespace, name, .. } = guest;
    if let Err(error) = &result {
        warn!(namespace, name, ?control, %error, "control not carried out");
    } else {
        info!(namespace, name, ?control, "control carried out");
    }
    if let Some(event) = event(control, result.as_ref().err()) {
        launchers.publish(namespace, name, event).await;
    }
    match result {
        Ok(()) => done(),
        Err(error) => refusal(guest, &error),
    }
}

/// KubeVirt's name of a command that fails as a whole in the guest. The answer is then 500, and backup tools
/// read its message.
fn failing_command(guest: &Guest) -> Option<&'static str> {
    match guest.kind {
        Kind::Control(Control::Freeze) => Some("Freeze"),
        Kind::Control(Control::Unfreeze) => Some("Unfreeze"),
        _ => None,
    }
}

/// The event for a control, with KubeVirt's reasons and texts.
fn event(control: Control, error: Option<&LauncherError>) -> Option<Event> {
    let (type_, reason, note) = match (control, error) {
        (Control::Pause, None) => {
            (EventType::Normal, REASON_PAUSED, "VirtualMachineInstance paused".to_owned())
        }
        (Control::Unpause, None) => {
            (EventType::Normal, REASON_UNPAUSED, "VirtualMachineInstance unpaused".to_owned())
        }
        (Control::Reset, None) => {
            (EventType::Normal, REASON_RESET, "VirtualMachineInstance reset".to_owned())
        }
        (Control::SoftReboot, None) => {
            (EventType::Normal, REASON_SOFT_REBOOTED, "VirtualMachineInstance soft rebooted".to_owned())
        }
        (Control::Freeze, Some(error)) => {
            (EventType::Warning, REASON_FREEZE_ERROR, format!("Failed to freeze VMI: {}", words(error)))
        }
        (
            Control::Unspecified
            | Control::Pause
            | Control::Unpause
            | Control::Reset
            | Control::SoftReboot
            | Control::Freeze
            | Control::Unfreeze,
            _,
        ) => return None,
    };
    let (action, reason) = ("Control".to_owned(), reason.to_owned());
    Some(Event { type_, reason, note: Some(note), action, secondary: None })
}

/// Answers with information from the guest agent.
pub(super) async fn answer_query(guest: &Guest, query: AgentQuery, launcher: &Launcher) -> Response<Body> {
    let info = match launcher.guest(CONTROL).await {
        Ok(info) => info,
        Err(error) => return refusal(guest, &error),
    };
    let mut info: VirtualMachineInstanceGuestAgentInfo = match serde_json::from_slice(&info) {
        Ok(info) => info,
        Err(error) => {
            let message = format!("Internal error occurred: read the launcher's answer: {error}");
            return refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message);
        }
    };
    match query {
        AgentQuery::Overview => {
            info.user_list.truncate(IN_OVERVIEW);
            let file_systems = info.fs_info.get_or_insert_with(VirtualMachineInstanceFileSystemInfo::default);
            file_systems.disks.truncate(IN_OVERVIEW);
            object(&info)
        }
        AgentQuery::Users => object(&VirtualMachineInstanceGuestOsUserList {
            items: info.user_list,
            metadata: Some(Default::default()),
        }),
        AgentQuery::FileSystems => object(&VirtualMachineInstanceFileSystemList {
            items: info.fs_info.unwrap_or_default().disks,
            metadata: Some(Default::default()),
        }),
    }
}

/// Answers with a picture of the display.
pub(super) async fn screenshot(
    request: &Request<Incoming>,
    guest: &Guest,
    launcher: &Launcher,
) -> Response<Body> {
    let move_cursor = has_flag(request.uri().query(), "moveCursor");
    match launcher.screenshot(move_cursor, CONTROL).await {
        Ok(png) => {
            let mut answer = Response::new(Body::from(Bytes::from(png)));
            answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("image/png"));
            answer
        }
        Err(error) => refusal(guest, &error),
    }
}

fn object(object: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(object) {
        Ok(json) => answer::json(StatusCode::OK, json),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &error.to_string()),
    }
}

fn done() -> Response<Body> {
    let mut answer = Response::new(Body::default());
    *answer.status_mut() = StatusCode::ACCEPTED;
    answer
}

/// The launcher's own message, without the name of the call.
fn words(error: &LauncherError) -> String {
    match error {
        LauncherError::Call { status, .. } => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// The launcher's refusal of a user's request.
fn refusal(guest: &Guest, error: &LauncherError) -> Response<Body> {
    let LauncherError::Call { status, .. } = error else { return failed(error) };
    let message = status.message();
    match status.code() {
        tonic::Code::FailedPrecondition if let Some(command) = failing_command(guest) => {
            let message = format!("Internal error occurred: command {command} failed: {message}");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message)
        }
        tonic::Code::FailedPrecondition => {
            let name = &guest.name;
            let message = format!(
                "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"{name}\": {message}"
            );
            refuse(StatusCode::CONFLICT, "Conflict", &message)
        }
        tonic::Code::Unimplemented => {
            let message = "the launcher of this instance is of an older version, which cannot do this";
            refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
        }
        tonic::Code::Internal => {
            let message = format!("Internal error occurred: {message}");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message)
        }
        // This is the channel's code for a deadline.
        tonic::Code::Cancelled => refuse(StatusCode::GATEWAY_TIMEOUT, "Timeout", message),
        _ => failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: tonic::Code) -> LauncherError {
        LauncherError::Call { call: "control", status: Box::new(tonic::Status::new(code, "VMI is paused")) }
    }

    #[test]
    fn refusals_have_codes_that_clients_know() {
        let guest = Guest {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            kind: Kind::Control(Control::Pause),
        };
        for (code, wanted) in [
            (tonic::Code::FailedPrecondition, StatusCode::CONFLICT),
            (tonic::Code::Unimplemented, StatusCode::NOT_IMPLEMENTED),
            (tonic::Code::Internal, StatusCode::INTERNAL_SERVER_ERROR),
            (tonic::Code::DeadlineExceeded, StatusCode::GATEWAY_TIMEOUT),
            (tonic::Code::Cancelled, StatusCode::GATEWAY_TIMEOUT),
            (tonic::Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            assert_eq!(refusal(&guest, &refused(code)).status(), wanted, "{code}");
        }
        for (control, wanted) in [
            (Control::Unfreeze, StatusCode::INTERNAL_SERVER_ERROR),
            (Control::Freeze, StatusCode::INTERNAL_SERVER_ERROR),
            (Control::Reset, StatusCode::CONFLICT),
        ] {
            let guest = Guest { kind: Kind::Control(control), ..guest.clone() };
            assert_eq!(refusal(&guest, &refused(tonic::Code::FailedPrecondition)).status(), wanted);
        }
    }

    #[test]
    fn controls_and_failed_freezes_cause_events() {
        let error = refused(tonic::Code::Internal);
        let told = |control, error| event(control, error).map(|event| event.reason);
        for (control, done, failed) in [
            (Control::Pause, Some("Paused"), None),
            (Control::Unpause, Some("Unpaused"), None),
            (Control::Reset, Some("Reset"), None),
            (Control::SoftReboot, Some("SoftRebooted"), None),
            (Control::Freeze, None, Some("FreezeError")),
            (Control::Unfreeze, None, None),
        ] {
            assert_eq!(told(control, None).as_deref(), done, "{control:?}");
            assert_eq!(told(control, Some(&error)).as_deref(), failed, "{control:?}");
        }
    }
}
