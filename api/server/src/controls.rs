//! Users' controls of a guest (pause, reset, freeze, ...), and information from its agent and its display.
//! This module decides from the instance whether a control is possible, with KubeVirt's messages and codes;
//! the handler of the node carries it out.

use std::time::Duration;

use barevirt_api::freeze;
use barevirt_api::names::{CONDITION_AGENT_CONNECTED, CONDITION_PAUSED, PHASE_RUNNING, PHASE_SCHEDULED};
use barevirt_api::v1::{Condition, VirtualMachine, VirtualMachineInstance};
use barevirt_component::query;
use http::{Method, StatusCode};
use hyper::body::Bytes;
use kube::{Api, Client};

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::Control;
use crate::front_proxy::User;
use crate::state::State;
use crate::to_handler::{self, Exchange};
use crate::{instance, machine};

/// How long the handler may take.
const USUAL: Duration = Duration::from_secs(20);
/// The same for a freeze, which first writes all of the guest's data to its disks. The aggregator waits for a
/// minute.
const FREEZE: Duration = Duration::from_secs(55);

/// KubeVirt's name of the resource in refusals.
const RESOURCE: &str = "virtualmachineinstance";
const VM_NOT_RUNNING: &str = "VM is not running";
const VMI_NOT_RUNNING: &str = "VMI is not running";

/// Whether a control is possible in the current state of the instance. Pure.
///
/// # Errors
/// 400, 403 and 409, with KubeVirt's messages.
pub fn judge(control: Control, vmi: &VirtualMachineInstance) -> Result<(), Refusal> {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let conflict = |why: &str| Err(Refusal::conflict(RESOURCE, name, why));
    let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let running = phase == PHASE_RUNNING;
    let has = |condition| {
        vmi.status.as_ref().is_some_and(|status| Condition::is_set(&status.conditions, condition))
    };
    let (paused, agent) = (has(CONDITION_PAUSED), has(CONDITION_AGENT_CONNECTED));
    match control {
        Control::Pause if !running => conflict(VM_NOT_RUNNING),
        Control::Pause if would_be_killed(vmi) => Err(Refusal::forbidden(format!(
            "{RESOURCE}.kubevirt.io \"{name}\" is forbidden: \
             Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported"
        ))),
        Control::Pause if paused => conflict("VMI is already paused"),
        Control::Unpause if !running => conflict(VMI_NOT_RUNNING),
        Control::Unpause if !paused => conflict("VMI is not paused"),
        Control::Freeze if !running => conflict(VM_NOT_RUNNING),
        Control::Unfreeze if !running => conflict(VMI_NOT_RUNNING),
        Control::SoftReboot if !running => conflict(VM_NOT_RUNNING),
        Control::SoftReboot if paused => conflict("VMI is paused"),
        Control::SoftReboot if !agent && !has_power_button(vmi) => {
            conflict("VMI neither have the agent connected nor the ACPI feature enabled")
        }
        Control::Reset if !running && phase != PHASE_SCHEDULED => Err(Refusal::bad_request(format!(
            "Failed to reset non-running VMI with phase {phase}: Unable to connect to VirtualMachineInstance \
             because phase is {phase} instead of {PHASE_RUNNING} or {PHASE_SCHEDULED}"
        ))),
        Control::GuestOsInfo | Control::UserList | Control::FilesystemList if !running => {
            conflict(VMI_NOT_RUNNING)
        }
        Control::GuestOsInfo | Control::UserList | Control::FilesystemList if !agent => {
            conflict("VMI does not have guest agent connected")
        }
        Control::Screenshot if vmi.spec.domain.devices.autoattach_graphics_device == Some(false) => {
            Err(Refusal::bad_request("No graphics devices are present."))
        }
        Control::Screenshot if !running => Err(Refusal::bad_request(VMI_NOT_RUNNING)),
        Control::Pause
        | Control::Unpause
        | Control::Freeze
        | Control::Unfreeze
        | Control::SoftReboot
        | Control::Reset
        | Control::GuestOsInfo
        | Control::UserList
        | Control::FilesystemList
        | Control::Screenshot => Ok(()),
    }
}

/// Whether a liveness probe would fail for a paused guest and kill it.
fn would_be_killed(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.liveness_probe.as_ref().is_some_and(|probe| probe.guest_agent_ping.is_none())
}

fn has_power_button(vmi: &VirtualMachineInstance) -> bool {
    let acpi = vmi.spec.domain.features.as_ref().and_then(|features| features.acpi.as_ref());
    acpi.is_none_or(|acpi| acpi.is_enabled())
}

/// Carries out a control. `query` and `body` are the request's.
///
/// # Errors
/// 404 for an instance that does not exist; the errors of [`judge`], of the handler and of the launcher.
pub async fn act(
    state: &State,
    user: &User,
    control: Control,
    (namespace, name): (&str, &str),
    query: Option<&str>,
    body: Bytes,
) -> Result<Answer, Refusal> {
    let answer = pass(state, control, (namespace, name), query, body).await;
    let answer = answer.or_else(|refusal| in_text(control, refusal));
    let code = answer.as_ref().map_or_else(|refusal| refusal.code, Answer::status);
    let control = control.path();
    tracing::info!(user = user.name, namespace, name, control, code = code.as_u16(), "control of a guest");
    answer
}

/// KubeVirt's client drops the message of a conflict about `guestosinfo` and shows the message of a 500 in
/// plain text. So KubeVirt answers with such a 500, and so does this server.
fn in_text(control: Control, refusal: Refusal) -> Result<Answer, Refusal> {
    if control == Control::GuestOsInfo && refusal.code == StatusCode::CONFLICT {
        return Ok(answer::typed(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", refusal.message));
    }
    Err(refusal)
}

async fn pass(
    state: &State,
    control: Control,
    (namespace, name): (&str, &str),
    query: Option<&str>,
    body: Bytes,
) -> Result<Answer, Refusal> {
    let client = &state.client.0;
    let mut dry_run = false;
    match control {
        Control::Pause | Control::Unpause => {
            dry_run = machine::options(&body)?.dry_run.iter().any(|word| word == "All");
        }
        Control::Freeze => drop(freeze::unfreeze_after(&body).map_err(Refusal::bad_request)?),
        Control::Unfreeze
        | Control::SoftReboot
        | Control::Reset
        | Control::GuestOsInfo
        | Control::UserList
        | Control::FilesystemList
        | Control::Screenshot => {}
    }
    if control == Control::Unpause {
        no_snapshot(client, namespace, name).await?;
    }
    let vmi = instance::get(client, namespace, name).await?;
    judge(control, &vmi)?;
    if dry_run {
        return Ok(answer::done());
    }
    let Some(node) = vmi.status.and_then(|status| status.node_name) else {
        return Err(Refusal::conflict(RESOURCE, name, VMI_NOT_RUNNING));
    };
    let handler = to_handler::find(client, &state.namespace, &node).await?;
    let mut path = format!("/v1/namespaces/{namespace}/{}s/{name}/{}", RESOURCE, control.path());
    if control == Control::Screenshot && moves_cursor(query) {
        path.push_str("?moveCursor=true");
    }
    let changes = control.changes();
    let exchange = Exchange {
        method: if changes { Method::PUT } else { Method::GET },
        path: &path,
        body: if control == Control::Freeze { body } else { Bytes::new() },
        within: if matches!(control, Control::Freeze | Control::Unfreeze) { FREEZE } else { USUAL },
    };
    let answer = to_handler::call(&state.certificates, &handler, exchange).await?;
    // KubeVirt's answer to a completed change.
    Ok(if changes && answer.status() == StatusCode::ACCEPTED { answer::done() } else { answer })
}

fn moves_cursor(query: Option<&str>) -> bool {
    query::values(query, "moveCursor").any(|value| value == "true")
}

/// Refuses to unpause a guest that is paused for a snapshot of its machine.
async fn no_snapshot(client: &Client, namespace: &str, name: &str) -> Result<(), Refusal> {
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let vm = vms.get_opt(name).await.map_err(|error| Refusal::from_kube("get VirtualMachine", error))?;
    let taken = vm.and_then(|vm| vm.status).and_then(|status| status.snapshot_in_progress);
    match taken {
        Some(_) => Err(Refusal::conflict("virtualmachine", name, "VM snapshot is in progress")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "controls_tests.rs"]
mod tests;
