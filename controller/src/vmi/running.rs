//! What is done for an instance whose guest runs and does not move. One patch at a time: its own event follows. Pure.

use super::action::Plan;
use super::observed::Observed;
use super::{eviction, grown, hotplug, moving, networks, resize, volume_turn};
use k8s_openapi::api::core::v1::Pod;

/// The plan; the pod is not being deleted.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let marks = eviction::plan(observed, pod);
    if !marks.actions.is_empty() {
        return marks;
    }
    let turn = volume_turn::plan(observed);
    if !turn.actions.is_empty() {
        return turn;
    }
    let plan = moving::tidy(observed, pod).and(turn);
    // The target pod of a migration gets the guest's present devices.
    if !plan.actions.is_empty() || observed.others.iter().any(|other| other.wanted) {
        return plan;
    }
    let plan = plan.and(resize::plan(observed, pod));
    let plan = if plan.actions.is_empty() { plan.and(hotplug::plan(observed, pod)) } else { plan };
    let plan = if plan.actions.is_empty() { plan.and(networks::plan(observed, pod)) } else { plan };
    if plan.actions.is_empty() { plan.and(grown::plan(observed)) } else { plan }
}
