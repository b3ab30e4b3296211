//! Calls on a running instance, passed to the handler of its node: console, VNC and QMP.

use barevirt_api::names;
use barevirt_api::v1::VirtualMachineInstance;
use http::{Method, Request};
use hyper::body::{Bytes, Incoming};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{Answer, Refusal};
use crate::endpoints::InstanceAction;
use crate::front_proxy::User;
use crate::server::Server;
use crate::to_handler::{self, Exchange, Handler};

/// A QMP command as it comes in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    execute: String,
    #[serde(default)]
    arguments: Option<Value>,
}

/// A stream between the client and the guest.
///
/// # Errors
/// 404, 400 where the instance has no such device, 409 where it does not run, and what the handler says.
pub async fn stream(
    server: &Server,
    user: &User,
    action: InstanceAction,
    namespace: &str,
    name: &str,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let vmi = get(&server.client.0, namespace, name).await?;
    has_stream(&vmi, action)?;
    let handler = handler_of(&server.client.0, &server.namespace, vmi).await?;
    let path = handler_path(namespace, name, action);
    let answer = to_handler::stream(&server.certificates, &handler, &path, request).await?;
    tracing::info!(user = user.name, namespace, name, stream = action.subresource(), "stream opened");
    Ok(answer)
}

/// One QMP command. Every call leaves a line in the log, also one that is refused.
///
/// # Errors
/// 400 for what is no command, 403 for one that is not open to people, and what the handler says.
pub async fn qmp(
    server: &Server,
    user: &User,
    namespace: &str,
    name: &str,
    body: Bytes,
) -> Result<Answer, Refusal> {
    let command = read_command(&body);
    let execute = command.as_ref().map_or("", |command| command.execute.as_str());
    let answer = match &command {
        Ok(command) => match permitted(&command.execute) {
            Ok(()) => pass_qmp(server, namespace, name, body.clone()).await,
            Err(refusal) => Err(refusal),
        },
        Err(refusal) => Err(refusal.clone()),
    };
    let code = answer.as_ref().map_or_else(|refusal| refusal.code, Answer::status);
    tracing::info!(
        audit = "qmp",
        user = user.name,
        namespace,
        name,
        execute,
        code = code.as_u16(),
        "qmp command"
    );
    answer
}

fn read_command(body: &[u8]) -> Result<Command, Refusal> {
    let command: Command = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!(
            "the body is no QMP command {{\"execute\": NAME, \"arguments\": {{}}}}: {error}"
        ))
    })?;
    if command.arguments.as_ref().is_some_and(|arguments| !arguments.is_object()) {
        return Err(Refusal::bad_request("arguments: a QMP command's arguments are an object"));
    }
    Ok(command)
}

/// Commands open to people. For now those that only look.
fn permitted(execute: &str) -> Result<(), Refusal> {
    if execute.starts_with("query-") {
        return Ok(());
    }
    Err(Refusal::forbidden(format!(
        "execute: QMP command \"{execute}\" is not supported yet: only query-* commands are"
    )))
}

async fn pass_qmp(server: &Server, namespace: &str, name: &str, body: Bytes) -> Result<Answer, Refusal> {
    let vmi = get(&server.client.0, namespace, name).await?;
    let handler = handler_of(&server.client.0, &server.namespace, vmi).await?;
    let path = handler_path(namespace, name, InstanceAction::Qmp);
    let exchange = Exchange { method: Method::POST, path: &path, body, within: to_handler::ANSWER_WITHIN };
    to_handler::call(&server.certificates, &handler, exchange).await
}

/// Path at the handler. Namespace and name come from a [`crate::route::Route`], which lets only DNS names through.
fn handler_path(namespace: &str, name: &str, action: InstanceAction) -> String {
    format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{}", action.subresource())
}

/// An instance as it is.
///
/// # Errors
/// 404, and what else the API server answers.
pub(crate) async fn get(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<VirtualMachineInstance, Refusal> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    vmis.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachineInstance", error))
}

/// Whether the instance has what the stream leads to; KubeVirt's answers where it has not.
fn has_stream(vmi: &VirtualMachineInstance, action: InstanceAction) -> Result<(), Refusal> {
    let devices = &vmi.spec.domain.devices;
    let is_off = |attach: Option<bool>| attach == Some(false);
    match action {
        InstanceAction::Console if is_off(devices.autoattach_serial_console) => {
            Err(Refusal::bad_request("No serial consoles are present."))
        }
        InstanceAction::Vnc if is_off(devices.autoattach_graphics_device) => {
            Err(Refusal::bad_request("No graphics devices are present."))
        }
        _ => Ok(()),
    }
}

async fn handler_of(
    client: &Client,
    install_namespace: &str,
    vmi: VirtualMachineInstance,
) -> Result<Handler, Refusal> {
    let status = vmi.status.unwrap_or_default();
    let running = status.phase.as_deref() == Some(names::PHASE_RUNNING);
    match status.node_name {
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
            assert!(has_stream(&vmi(serde_json::json!({})), action).is_ok());
        }
    }

    #[test]
    fn only_looking_is_permitted() {
        assert!(permitted("query-status").is_ok());
        for command in ["quit", "stop", "human-monitor-command", "getfd", "device_add", ""] {
            let refusal = permitted(command).unwrap_err();
            assert_eq!(refusal.code, 403);
            assert!(refusal.message.contains(&format!("{command:?}")), "{}", refusal.message);
        }
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for body in ["", "[]", "{}", r#"{"execute":1}"#, r#"{"execute":"query-status","id":1}"#] {
            assert_eq!(read_command(body.as_bytes()).unwrap_err().code, 400, "{body}");
        }
        let refusal = read_command(br#"{"execute":"query-status","arguments":[]}"#).unwrap_err();
        assert!(refusal.message.starts_with("arguments:"));
        assert!(read_command(br#"{"execute":"query-status","arguments":{}}"#).is_ok());
    }
}
