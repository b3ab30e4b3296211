//! An instance that was asked to leave its node, and how that is shown to others. Pure.
//!
//! ```text
//!   status.evacuationNodeName --> condition EvictionRequested
//!                             --> annotation of the pod: a descheduler waits for the eviction that it requested
//! ```

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::status_patch;
use barevirt_api::names::{
    CONDITION_EVICTION_REQUESTED, EVICTION_IN_PROGRESS_ANNOTATION, REASON_EVICTION_REQUESTED,
};
use barevirt_api::v1::{Condition, VirtualMachineInstanceStatus, merge_condition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

/// Sets the condition by the mark. A mark that names a former node of the guest is [removed](super::moving::tidy) with its
/// condition.
pub(super) fn note(status: &mut VirtualMachineInstanceStatus, now: Timestamp) {
    if status.evacuation_node_name.as_deref().is_none_or(str::is_empty) {
        Condition::remove(&mut status.conditions, CONDITION_EVICTION_REQUESTED);
    } else if leaves(status) {
        let message = "VMI is marked for eviction";
        let condition =
            Condition::new(CONDITION_EVICTION_REQUESTED, true, REASON_EVICTION_REQUESTED, message);
        merge_condition(&mut status.conditions, condition, &Time(now));
    }
}

/// The plan for a running instance whose guest is in this pod.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    note(&mut status, observed.now);
    let leaves = leaves(&status);
    let mark = (pod.annotations().contains_key(EVICTION_IN_PROGRESS_ANNOTATION) != leaves).then(|| {
        Action::AnnotatePod {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            annotation: EVICTION_IN_PROGRESS_ANNOTATION,
            value: leaves.then(|| "true".to_owned()),
        }
    });
    Plan::default().act_if(mark).act_if(status_patch(vmi, json!({}), &status))
}

/// Whether the instance is to leave the guest's present node.
fn leaves(status: &VirtualMachineInstanceStatus) -> bool {
    let marked = status.evacuation_node_name.as_deref().filter(|node| !node.is_empty());
    marked.is_some() && marked == status.node_name.as_deref()
}
