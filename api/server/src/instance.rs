//! Streams of a running instance, forwarded to the handler of its node: console, VNC and USB.

use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::{boolean, names};
use barevirt_component::query;
use http::Request;
use hyper::body::Incoming;
use kube::{Api, Client};

use crate::answer::{Answer, Refusal};
use crate::endpoints::{InstanceAction, KEEP_SESSION};
use crate::front_proxy::User;
use crate::state::State;
use crate::streams::Kind;
use crate::to_handler::{self, Handler};

/// A stream between the client and the guest.
///
/// # Errors
/// 404; 400 if the instance has no such device or does not run yet; 409 if it cannot have a stream; and the
/// handler's errors.
pub async fn stream(
    state: &State,
    user: &User,
    action: InstanceAction,
    namespace: &str,
    name: &str,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let kind = match action {
        InstanceAction::Console => Kind::Console,
        InstanceAction::Vnc => Kind::Display,
        InstanceAction::UsbRedir => Kind::Usb,
        InstanceAction::Qmp | InstanceAction::QmpStream | InstanceAction::Debug => Kind::Qmp,
    };
    let seat = state.streams.open(kind, &user.name, namespace, name)?;
    let vmi = get(&state.client.0, namespace, name).await?;
    has_stream(&vmi, action)?;
    let handler = handler_of(&state.client.0, &state.namespace, vmi).await?;
    let mut path = format!("{}/{}", handler_path(namespace, name), action.subresource());
    if keeps_session(request.uri().query()) {
        path.push_str("?preserveSession=true");
    }
    let answer = to_handler::stream(&state.certificates, &handler, &path, request, seat).await?;
    tracing::info!(user = user.name, namespace, name, stream = action.subresource(), "stream opened");
    Ok(answer)
}

/// Path at the handler. Namespace and name come from a [`crate::route::Route`], which only accepts DNS names.
pub(crate) fn handler_path(namespace: &str, name: &str) -> String {
    format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}")
}

/// Reads an instance.
///
/// # Errors
/// 404, and other errors of the API server.
pub(crate) async fn get(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<VirtualMachineInstance, Refusal> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    vmis.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachineInstance", error))
}

/// Whether the instance has the device of the stream; otherwise KubeVirt's answer.
fn has_stream(vmi: &VirtualMachineInstance, action: InstanceAction) -> Result<(), Refusal> {
    let devices = &vmi.spec.domain.devices;
    let is_off = |attach: Option<bool>| attach == Some(false);
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let conflict = |why: &str| Err(Refusal::conflict("virtualmachineinstance", name, why));
    match action {
        InstanceAction::Console if is_off(devices.autoattach_serial_console) => {
            Err(Refusal::bad_request("No serial consoles are present."))
        }
        InstanceAction::Vnc if is_off(devices.autoattach_graphics_device) => {
            Err(Refusal::bad_request("No graphics devices are present."))
        }
        InstanceAction::UsbRedir if devices.client_passthrough.is_none() => {
            conflict("Not configured with USB Redirection")
        }
        InstanceAction::Console if phase(vmi) == names::PHASE_FAILED => conflict("VMI is in failed status"),
        // Clients of KubeVirt try again after this answer only.
        InstanceAction::Console | InstanceAction::Vnc | InstanceAction::UsbRedir if !is_running(vmi) => {
            Err(Refusal::bad_request("VMI is not running"))
        }
        _ => Ok(()),
    }
}

/// Its phase; empty before it has one.
pub(crate) fn phase(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether its guest runs.
pub(crate) fn is_running(vmi: &VirtualMachineInstance) -> bool {
    phase(vmi) == names::PHASE_RUNNING
}

/// Whether the user who already has the stream keeps it. The value is true in Go's spellings; any other value
/// is false, as in KubeVirt.
fn keeps_session(query: Option<&str>) -> bool {
    query::values(query, KEEP_SESSION.name).next().is_some_and(boolean::is_true)
}

/// The handler of the node that an instance runs on.
///
/// # Errors
/// 409 if it does not run, 500 if the node has no handler.
pub(crate) async fn handler_of(
    client: &Client,
    install_namespace: &str,
    vmi: VirtualMachineInstance,
) -> Result<Handler, Refusal> {
    let running = is_running(&vmi);
    match vmi.status.unwrap_or_default().node_name {
        Some(node) if running => to_handler::find(client, install_namespace, &node).await,
        _ => {
            let name = vmi.metadata.name.unwrap_or_default();
            Err(Refusal::conflict("virtualmachineinstances", &name, "VMI is not running"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_stream_needs_its_device() {
        let vmi = |devices: Value| -> VirtualMachineInstance {
            let spec = serde_json::json!({"domain": {"devices": devices}});
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let without = vmi(serde_json::json!({
            "autoattachSerialConsole": false, "autoattachGraphicsDevice": false,
        }));
        for (action, message) in [
            (InstanceAction::Console, "No serial consoles are present."),
            (InstanceAction::Vnc, "No graphics devices are present."),
        ] {
            let refusal = has_stream(&without, action).unwrap_err();
            assert_eq!((refusal.code.as_u16(), refusal.message.as_str()), (400, message));
            let mut with = vmi(serde_json::json!({}));
            let refusal = has_stream(&with, action).unwrap_err();
            assert_eq!((refusal.code.as_u16(), refusal.message.as_str()), (400, "VMI is not running"));
            with.status.get_or_insert_default().phase = Some("Running".to_owned());
            assert!(has_stream(&with, action).is_ok());
        }
        let mut failed = vmi(serde_json::json!({}));
        failed.status.get_or_insert_default().phase = Some("Failed".to_owned());
        let refusal = has_stream(&failed, InstanceAction::Console).unwrap_err();
        assert_eq!(refusal.code.as_u16(), 409);
        assert!(refusal.message.ends_with("VMI is in failed status"), "{refusal:?}");
        let refusal = has_stream(&without, InstanceAction::UsbRedir).unwrap_err();
        assert_eq!(refusal.code.as_u16(), 409);
        assert!(refusal.message.ends_with("Not configured with USB Redirection"), "{refusal:?}");
        let mut with = vmi(serde_json::json!({"clientPassthrough": {}}));
        let refusal = has_stream(&with, InstanceAction::UsbRedir).unwrap_err();
        assert_eq!((refusal.code.as_u16(), refusal.message.as_str()), (400, "VMI is not running"));
        with.status.get_or_insert_default().phase = Some("Running".to_owned());
        assert!(has_stream(&with, InstanceAction::UsbRedir).is_ok());
    }

    #[test]
    fn a_session_is_kept_where_it_is_said() {
        for (query, kept) in [
            (None, false),
            (Some(""), false),
            (Some("preserveSession=false"), false),
            (Some("preserveSession=maybe"), false),
            (Some("a=true&preserveSession=true"), true),
            (Some("preserveSession=1"), true),
        ] {
            assert_eq!(keeps_session(query), kept, "{query:?}");
        }
    }
}
