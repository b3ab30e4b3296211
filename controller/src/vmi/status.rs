//! Texts and changes of an instance's status that several plans use.

use super::action::{Action, Plan};
use super::instance_end::bounded;
use crate::merge;
use barevirt_api::names::{
    CONDITION_POD_SCHEDULED, CONDITION_READY, CONDITION_SYNCHRONIZED, CREATED_BY_LABEL, DISKS_OF_LABEL,
    REASON_DATA_VOLUME_NOT_READY,
};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition, record_phase_transition,
};
use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;

/// Message of the Ready condition until the handler replaces it. VMs copy it word by word, which saves them a write.
pub const NOT_RUNNING_MESSAGE: &str = "Guest VM is not reported as running";

/// How often an object that has one of our names is looked at.
pub(super) const TAKEN_NAME_INTERVAL: Duration = Duration::from_secs(30);

/// Message about a pod that has one of our names.
pub(super) fn taken(name: &str) -> String {
    format!("a pod with the name {name} exists and belongs to something else")
}

/// The patch and event for a pod that was refused.
pub(super) fn refused(vmi: &VirtualMachineInstance, reason: &str, message: &str, now: Timestamp) -> Plan {
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, message, now);
    let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

/// Sets the condition to False; adds an event where the reason is new. A claim that is being filled is no trouble: its event is no
/// warning.
pub(super) fn note_trouble(
    status: &mut VirtualMachineInstanceStatus,
    notes: &mut Vec<Note>,
    condition: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let message = bounded(message);
    let known = Condition::find(&status.conditions, condition).and_then(|known| known.reason.as_deref());
    // The scheduler has an event of its own, on the pod; KubeVirt adds none.
    if known != Some(reason) && condition != CONDITION_POD_SCHEDULED {
        let warning = reason != REASON_DATA_VOLUME_NOT_READY;
        notes.push(Note { warning, reason: reason.to_owned(), message: message.clone() });
    }
    merge_condition(&mut status.conditions, Condition::new(condition, false, reason, message), &Time(now));
}

/// Enters a phase, and records the time.
pub(super) fn enter(status: &mut VirtualMachineInstanceStatus, phase: &str, now: Timestamp) {
    if status.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        record_phase_transition(&mut status.phase_transition_timestamps, phase, &Time(now));
    }
}

/// Sets the condition `Ready` to False.
pub(super) fn not_running(
    status: &mut VirtualMachineInstanceStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let condition = Condition::new(CONDITION_READY, false, reason, message);
    merge_condition(&mut status.conditions, condition, &Time(now));
}

/// Whether a pod was made for exactly this instance, so that it is deleted with the instance; whether it counts as the
/// launcher is another question ([`super::proof`]). The owner reference is removed when the instance is deleted and its
/// dependents are orphaned; the label stays.
pub(super) fn is_ours(pod: &Pod, vmi: &VirtualMachineInstance) -> bool {
    let Some(uid) = vmi.metadata.uid.as_deref() else { return false };
    made_for(pod) == Some(uid) || pod.owner_references().iter().any(|owner| owner.uid == uid)
}

/// UID of the instance that a pod was made for, by its labels. The launcher's label comes first: a launcher also has the
/// labels that users gave to their instance. Former versions gave it to pods with disks, too.
pub(super) fn made_for(pod: &Pod) -> Option<&str> {
    let labels = pod.labels();
    labels.get(CREATED_BY_LABEL).or_else(|| labels.get(DISKS_OF_LABEL)).map(String::as_str)
}

/// How long ago `since` was; zero where a clock ran backwards.
pub(super) fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

/// The patch from the stored status to this one; `None` where they are equal.
pub(super) fn status_patch(
    vmi: &VirtualMachineInstance,
    metadata: Value,
    status: &VirtualMachineInstanceStatus,
) -> Option<Action> {
    change(vmi, status).map(|change| patch(vmi, metadata, Some(change)))
}

/// The difference of the status, as a merge patch.
pub(super) fn change(vmi: &VirtualMachineInstance, status: &VirtualMachineInstanceStatus) -> Option<Value> {
    // Our types always have a JSON form: their maps have only string keys.
    let old = serde_json::to_value(vmi.status.clone().unwrap_or_default()).unwrap_or_default();
    let new = serde_json::to_value(status).unwrap_or_default();
    merge::difference(&old, &new)
}

/// The patch of an instance, which applies only to the observed version.
pub(super) fn patch(vmi: &VirtualMachineInstance, mut metadata: Value, status: Option<Value>) -> Action {
    metadata["resourceVersion"] = json!(vmi.metadata.resource_version);
    let mut body = json!({"metadata": metadata});
    if let Some(status) = status {
        body["status"] = status;
    }
    Action::Patch(body)
}
