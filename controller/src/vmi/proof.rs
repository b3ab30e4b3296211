//! Which pod is believed to be an instance's launcher. Pure.
//!
//! ```text
//!   create answered with UID ──> noted in memory ──> pod takes long: `activePods: {UID: ""}` ──> handed over: `{UID: node}`
//!                                      │ this process dies
//!                                      └──> nobody vouches for the pod: it goes, and another one is made
//! ```
//!
//! Name and labels of a launcher can be foretold, and its owner reference, too: whoever may make pods in the namespace could
//! have one there before us. A status is our components' to write alone. What nobody vouches for never had a guest, since
//! handlers go by the status, so that it can go without harm. A pod of a node (`""` is none) was handed over to its handler.

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

/// Whether the status names that pod.
pub(super) fn names(vmi: &VirtualMachineInstance, uid: &str) -> bool {
    vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(uid))
}

/// Whether a pod was handed over to a node's handler: a guest may have run.
pub(super) fn is_handed_over(vmi: &VirtualMachineInstance) -> bool {
    let pods = vmi.status.iter().flat_map(|status| &status.active_pods);
    pods.into_iter().any(|(_, node)| !node.is_empty())
}

/// Whether the pod with the launcher's name is the one that we made.
pub(super) fn is_proven(observed: &Observed, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    // Once a pod was handed over, no other takes its place.
    let is_ours = observed.is_born_here && !is_handed_over(&observed.vmi);
    !uid.is_empty() && (is_ours || names(&observed.vmi, uid))
}

/// Notes a pod that is not on a node yet, along with what else is written.
pub(super) fn note(status: &mut VirtualMachineInstanceStatus, pod: &Pod) {
    status.active_pods = [(pod.uid().unwrap_or_default(), String::new())].into();
}

/// Nobody vouches for the pod: another one takes its place. None where one was handed over; then its end is the instance's.
pub(super) fn replace(observed: &Observed, pod: &Pod) -> Option<Plan> {
    let vmi = &observed.vmi;
    if is_handed_over(vmi) || ![PHASE_PENDING, PHASE_SCHEDULING].contains(&phase(vmi)) {
        return None;
    }
    let mut plan = Plan::default();
    if phase(vmi) != PHASE_PENDING {
        // Otherwise that the pod is gone would be the instance's end.
        let mut status = vmi.status.clone().unwrap_or_default();
        enter(&mut status, PHASE_PENDING, observed.now);
        not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
        plan = plan.act_if(status_patch(vmi, json!({}), &status));
    }
    Some(delete_pod(plan, pod, pod::grace_seconds(0)))
}
