//! Decides which pod counts as an instance's launcher. Pure.
//!
//! ```text
//!   create returned UID ──> recorded in memory ──> pod takes long: `activePods: {UID: ""}` ──> handed over: `{UID: node}`
//!                                      │ this process dies
//!                                      └──> the pod's UID is unknown: it is deleted, and another one is made
//! ```
//!
//! Name, labels and owner reference of a launcher are predictable: any client that may create pods in the namespace could
//! have made one before us. A status is only written by our components. A pod with an unknown UID never had a guest, since
//! handlers follow the status, so it can be deleted without harm. A UID with a node (not `""`) was handed over to that
//! node's handler.

use super::action::Plan;
use super::observed::Observed;
use super::removal::delete_pod;
use super::status::{NOT_RUNNING_MESSAGE, enter, not_running, status_patch};
use crate::pod;
use barevirt_api::names::{PHASE_PENDING, PHASE_SCHEDULING, REASON_GUEST_NOT_RUNNING};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use barevirt_plan::phase;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

/// Whether the status names that pod's UID.
pub(super) fn names(vmi: &VirtualMachineInstance, uid: &str) -> bool {
    vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(uid))
}

/// Whether a pod was handed over to a node's handler: a guest may have run.
pub(super) fn is_handed_over(vmi: &VirtualMachineInstance) -> bool {
    let pods = vmi.status.iter().flat_map(|status| &status.active_pods);
    pods.into_iter().any(|(_, node)| !node.is_empty())
}

/// Whether the pod with the launcher's name is one that we made.
pub(super) fn is_proven(observed: &Observed, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    // Once a pod was handed over, no other replaces it.
    let is_ours = observed.is_created_here && !is_handed_over(&observed.vmi);
    !uid.is_empty() && (is_ours || names(&observed.vmi, uid))
}

/// Records a pod without a node, together with another write of the status.
pub(super) fn note(status: &mut VirtualMachineInstanceStatus, pod: &Pod) {
    status.active_pods = [(pod.uid().unwrap_or_default(), String::new())].into();
}

/// The pod's UID is unknown: it is replaced. `None` after a hand-over; then the pod's end is the instance's end.
pub(super) fn replace(observed: &Observed, pod: &Pod) -> Option<Plan> {
    let vmi = &observed.vmi;
    if is_handed_over(vmi) || ![PHASE_PENDING, PHASE_SCHEDULING].contains(&phase(vmi)) {
        return None;
    }
    let mut plan = Plan::default();
    if phase(vmi) != PHASE_PENDING {
        // Otherwise the missing pod would be the instance's end.
        let mut status = vmi.status.clone().unwrap_or_default();
        enter(&mut status, PHASE_PENDING, observed.now);
        not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
        plan = plan.act_if(status_patch(vmi, json!({}), &status));
    }
    Some(delete_pod(plan, pod, pod::grace_seconds(0)))
}
