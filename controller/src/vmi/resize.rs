//! Resizes the launcher pod of an instance whose sockets or memory change while it runs. Pure.
//!
//! ```text
//!   grow:    spec changes -> condition PodResizing, pod resized -> kubelet confirms -> PodResized -> handler, guest -> gone
//!   shrink:  spec changes -> condition PodResizing -> handler, guest -> status follows -> pod resized -> gone
//! ```
//!
//! The pod always has the resources for what is wanted and for what the guest has, whichever is more: one formula serves
//! both directions ([`sized`]). If the cluster or the node cannot resize, the condition becomes False, the pod gets its
//! former resources back, and the machine reports that it has to be restarted.

use super::action::{Action, Plan};
use super::instance_end::bounded;
use super::observed::Observed;
use super::overhead;
use super::status::status_patch;
use barevirt_api::names::{
    COMPUTE_CONTAINER, CONDITION_HOT_MEMORY_CHANGE, CONDITION_HOT_VCPU_CHANGE, REASON_POD_RESIZE_DEFERRED,
    REASON_POD_RESIZE_INFEASIBLE, REASON_POD_RESIZE_TIMED_OUT, REASON_POD_RESIZED, REASON_POD_RESIZING,
};
use barevirt_api::quantity;
use barevirt_api::sizing;
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition};
use barevirt_api::valid::ValidVmi;
use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a node may defer a pod's resize.
const TIMEOUT: Duration = Duration::from_secs(300);
const BOTH: [&str; 2] = [CONDITION_HOT_VCPU_CHANGE, CONDITION_HOT_MEMORY_CHANGE];
type Amounts = BTreeMap<String, Quantity>;

/// Sockets, or bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    wanted: u64,
    /// What the guest has, or was asked for, whichever is more.
    there: u64,
    /// What the guest was asked for.
    asked: u64,
}

impl Amount {
    fn changes(self) -> bool {
        self.wanted != self.asked || self.there > self.wanted
    }
}

/// The changing amounts: sockets, then memory.
fn amounts(vmi: &VirtualMachineInstance) -> Option<[Amount; 2]> {
    let status = vmi.status.as_ref()?;
    let topology = sizing::Topology::of(vmi.spec.domain.cpu.as_ref());
    let wanted = u64::from(topology.sockets);
    let sockets = status.current_cpu_topology.as_ref().and_then(|topology| topology.sockets);
    // The present size is reported by the launcher. No report makes the pod larger than the specification allows.
    let sockets = sockets.map_or(wanted, u64::from).min(u64::from(topology.max_sockets));
    let guest = sizing::guest_memory_bytes(&vmi.spec)?;
    let most = sizing::most_guest_memory_bytes(&vmi.spec)?;
    let grows = vmi.spec.domain.memory.as_ref().is_some_and(|memory| memory.max_guest.is_some());
    let told = status.memory.as_ref().filter(|_| grows);
    let bytes = |quantity: Option<&Quantity>| {
        let bytes = quantity.and_then(|quantity| quantity::bytes(quantity).ok());
        bytes.map_or(guest, sizing::whole_mib).min(most)
    };
    let asked = bytes(told.and_then(|told| told.guest_requested.as_ref()));
    let current = bytes(told.and_then(|told| told.guest_current.as_ref()));
    Some([
        Amount { wanted, there: sockets, asked: sockets },
        Amount { wanted: guest, there: asked.max(current), asked },
    ])
}

/// Whether a change is in progress or wanted: only then the namespace's settings for pods are needed.
pub(super) fn is_due(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    BOTH.iter().any(|type_| Condition::find(conditions, type_).is_some())
        || amounts(vmi).is_some_and(|amounts| amounts.iter().any(|amount| amount.changes()))
}

/// The plan for a running instance and its pod.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let Some(amounts) = amounts(vmi) else { return Plan::default() };
    let mut status = vmi.status.clone().unwrap_or_default();
    let under_way = |status: &VirtualMachineInstanceStatus, type_: &str| {
        Condition::find(&status.conditions, type_).cloned()
    };
    if !is_due(vmi) {
        return Plan::default();
    }
    let now = Time(observed.now);
    let mut held = amounts.map(|amount| amount.wanted.max(amount.there));
    for ((type_, amount), held) in BOTH.into_iter().zip(amounts).zip(&mut held) {
        match under_way(&status, type_) {
            None if amount.changes() => {
                let condition = Condition::new(type_, true, REASON_POD_RESIZING, "");
                merge_condition(&mut status.conditions, condition, &now);
            }
            // A failed change is not retried: the pod returns what the guest does not have.
            Some(condition) if !condition.is_true() => *held = amount.there,
            _ => {}
        }
    }
    let Some(sized) = sized(vmi, held) else { return Plan::default() };
    let Some(has) = asked_of(pod) else { return Plan::default() };
    let settings = &observed.config.settings;
    let target = like(&sizing::pod_resources(&sized, settings), has);
    let under_way_before = status.conditions.len();
    let mut plan = Plan::default();
    let mut resize = None;
    if !same(&target, has) {
        resize = Some(Action::ResizePod {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            resources: Box::new(target),
        });
    } else {
        for (type_, amount) in BOTH.into_iter().zip(amounts) {
            let Some(condition) = under_way(&status, type_) else { continue };
            if !amount.changes() {
                if is_confirmed(pod, has) || !condition.is_true() {
                    Condition::remove(&mut status.conditions, type_);
                }
            } else if condition.is_true() {
                let (next, again) = step(pod, has, &condition, observed);
                if !next.is_true() {
                    let message = next.message.clone().unwrap_or_default();
                    plan.notes.push(Note::warning(reason_of_event(&next), message));
                }
                merge_condition(&mut status.conditions, Condition { type_: type_.to_owned(), ..next }, &now);
                plan.again = again.or(plan.again);
            }
        }
        if status.conditions.len() < under_way_before {
            let bytes = sizing::overhead_bytes(&sized, settings);
            overhead::note(&mut status, Some(quantity::from_bytes(bytes)));
        }
    }
    // The condition is written first, so that a change of the pod can be explained. The pod is changed at the next look.
    let patch = status_patch(vmi, json!({}), &status);
    plan.actions.extend(patch.or(resize));
    plan
}

/// The resize was refused: by a quota, or by a cluster without in-place resize.
pub(super) fn refused(vmi: &VirtualMachineInstance, message: &str, now: Timestamp) -> Plan {
    let mut status = vmi.status.clone().unwrap_or_default();
    let text = format!("the launcher pod cannot be resized: {message}");
    let mut notes = Vec::new();
    for type_ in BOTH {
        if Condition::is_set(&status.conditions, type_) {
            let condition = Condition::new(type_, false, REASON_POD_RESIZE_INFEASIBLE, bounded(&text));
            merge_condition(&mut status.conditions, condition, &Time(now));
            notes = vec![Note::warning(REASON_POD_RESIZE_INFEASIBLE, bounded(&text))];
        }
    }
    let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

/// Reasons of events are constants; only failures are reported.
fn reason_of_event(condition: &Condition) -> &'static str {
    match condition.reason.as_deref() {
        Some(REASON_POD_RESIZE_INFEASIBLE) => REASON_POD_RESIZE_INFEASIBLE,
        _ => REASON_POD_RESIZE_TIMED_OUT,
    }
}

/// The state of the pod's resize, as a condition.
fn step(
    pod: &Pod,
    has: &ResourceRequirements,
    condition: &Condition,
    observed: &Observed,
) -> (Condition, Option<Duration>) {
    let new = |status: bool, reason: &str, message: String| Condition::new("", status, reason, message);
    if is_confirmed(pod, has) {
        return (new(true, REASON_POD_RESIZED, String::new()), None);
    }
    let since = condition.last_transition_time.as_ref().map_or(observed.now, |time| time.0);
    let age = Duration::try_from(observed.now.duration_since(since)).unwrap_or_default();
    let pending = pod_condition(pod, "PodResizePending");
    let failing = pod_condition(pod, "PodResizeInProgress").filter(|(reason, _)| reason == "Error");
    match (pending, failing) {
        (Some((reason, message)), _) if reason == "Infeasible" => {
            let text = format!("the node cannot resize the launcher pod: {message}");
            (new(false, REASON_POD_RESIZE_INFEASIBLE, text), None)
        }
        (pending, failing) if age >= TIMEOUT => {
            let why = pending.or(failing).map(|(_, message)| format!(": {message}")).unwrap_or_default();
            let text = format!("the launcher pod was not resized within {} s{why}", TIMEOUT.as_secs());
            (new(false, REASON_POD_RESIZE_TIMED_OUT, text), None)
        }
        (Some((_, message)), _) => {
            (new(true, REASON_POD_RESIZE_DEFERRED, message), Some(TIMEOUT.saturating_sub(age)))
        }
        (None, failing) => {
            let message = failing.map(|(_, message)| message).unwrap_or_default();
            (new(true, REASON_POD_RESIZING, message), Some(TIMEOUT.saturating_sub(age)))
        }
    }
}

fn pod_condition(pod: &Pod, type_: &str) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")?;
    Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
}

/// The instance with this number of sockets and this much memory: its pod is sized by the formula of its creation.
fn sized(vmi: &VirtualMachineInstance, [sockets, memory]: [u64; 2]) -> Option<ValidVmi> {
    let mut vmi = vmi.clone();
    let before = sizing::guest_memory_bytes(&vmi.spec)?;
    let domain = &mut vmi.spec.domain;
    if let Some(cpu) = &mut domain.cpu {
        cpu.sockets = u32::try_from(sockets).ok();
    }
    if memory != before {
        if let Some(guest) = &mut domain.memory {
            guest.guest = Some(quantity::from_bytes(memory));
        }
        // A pod's memory request in the specification is based on the memory in the specification.
        if let Some(resources) = &mut domain.resources {
            sizing::move_given_memory(resources, before, memory);
        }
    }
    ValidVmi::new(vmi).ok()
}

/// The resources of the launcher's container.
fn asked_of(pod: &Pod) -> Option<&ResourceRequirements> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == COMPUTE_CONTAINER)?.resources.as_ref()
}

/// The target resources, limited to those that the pod has: a resize can change values, but not add or remove them.
fn like(target: &ResourceRequirements, has: &ResourceRequirements) -> ResourceRequirements {
    let keep = |target: Option<&Amounts>, has: Option<&Amounts>| {
        let mut kept = has?.clone();
        for name in ["cpu", "memory"] {
            if let (Some(kept), Some(wanted)) =
                (kept.get_mut(name), target.and_then(|target| target.get(name)))
            {
                kept.clone_from(wanted);
            }
        }
        Some(kept)
    };
    let requests = keep(target.requests.as_ref(), has.requests.as_ref());
    let mut limits = keep(target.limits.as_ref(), has.limits.as_ref());
    // A limit from a former quota or a webhook must not be below the request.
    let millis = |amount: &Quantity| quantity::millis(amount).unwrap_or(0);
    for (name, limit) in limits.iter_mut().flatten() {
        if let Some(request) = requests.as_ref().and_then(|requests| requests.get(name))
            && millis(limit) < millis(request)
        {
            limit.clone_from(request);
        }
    }
    ResourceRequirements { requests, limits, claims: None }
}

/// Whether CPU and memory are the same amounts.
fn same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let millis = |amounts: Option<&Amounts>, name: &str| {
        amounts.and_then(|amounts| amounts.get(name)).and_then(|amount| quantity::millis(amount).ok())
    };
    ["cpu", "memory"].into_iter().all(|name| {
        millis(one.requests.as_ref(), name) == millis(other.requests.as_ref(), name)
            && millis(one.limits.as_ref(), name) == millis(other.limits.as_ref(), name)
    })
}

/// Whether the kubelet confirms that the container has its resources.
fn is_confirmed(pod: &Pod, has: &ResourceRequirements) -> bool {
    let Some(status) = &pod.status else { return false };
    let moves = ["PodResizePending", "PodResizeInProgress"];
    let compute =
        status.container_statuses.iter().flatten().find(|container| container.name == COMPUTE_CONTAINER);
    moves.iter().all(|type_| pod_condition(pod, type_).is_none())
        && compute.and_then(|compute| compute.resources.as_ref()).is_some_and(|real| same(real, has))
}

#[cfg(test)]
mod tests;
