//! Removes what an ended or deleted instance leaves. Pure.

use super::action::{Action, Plan};
use super::consumer::is_first_consumer;
use super::hotplug;
use super::hotplug::attachments::is_attachment;
use super::instance_end::InstanceEnd;
use super::kept;
use super::observed::Observed;
use super::others::Other;
use super::status::{age, is_ours, patch};
use crate::node::NodeState;
use crate::pod;
use barevirt_api::names::{REASON_NODE_UNRESPONSIVE, REASON_SUCCESSFUL_DELETE, VMI_FINALIZER};
use barevirt_component::notes::Note;
use barevirt_plan::phase;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

/// How long a pod may outlive its instance's final phase, so that the launcher ends by itself.
const LINGER: Duration = Duration::from_secs(10);

/// The instance has ended and stays as a record; its pod must not keep running.
pub(super) fn clean_up(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    // No guest is to continue elsewhere.
    let others = remove_others(observed.others.iter().filter(|other| is_ours(&other.pod, vmi)));
    if !others.actions.is_empty() {
        return others;
    }
    let Some(pod) = observed.pod.as_ref().filter(|pod| is_ours(pod, vmi) && InstanceEnd::of(pod).is_none())
    else {
        // While the launcher ran, its guest may have had their disks.
        let left = observed.attachments.pods().chain(&observed.consumer.pod);
        return hotplug::remove(left.filter(|pod| is_ours(pod, vmi)));
    };
    let status = vmi.status.as_ref();
    let unresponsive = status.and_then(|status| status.reason.as_deref()) == Some(REASON_NODE_UNRESPONSIVE);
    let since = status
        .and_then(|status| {
            status.phase_transition_timestamps.iter().find(|stamp| stamp.phase.as_deref() == Some(phase(vmi)))
        })
        .and_then(|stamp| stamp.phase_transition_timestamp.as_ref())
        .map_or(Duration::MAX, |time| age(time.0, observed.now));
    if !unresponsive && since < LINGER {
        return Plan::default().again_in(LINGER.saturating_sub(since));
    }
    delete_pods(observed, [(pod, observed.node)])
}

/// The instance is being deleted: first its launcher, then the pods that have its claims, then its finalizer.
pub(super) fn take_down(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    let others = observed.others.iter().chain(&observed.strays).map(|other| (&other.pod, other.node));
    let mut pods: Vec<(&Pod, Option<NodeState>)> =
        observed.pod.iter().map(|pod| (pod, observed.node)).chain(others).collect();
    pods.retain(|(pod, _)| is_ours(pod, vmi));
    // A pod may have been found in two ways.
    let mut seen = HashSet::new();
    pods.retain(|(pod, _)| seen.insert(pod.name_any()));
    // By its name: the owner of a pod can write its labels.
    let name = launcher_name(vmi);
    let has_claims = |pod: &Pod| is_attachment(pod) || is_first_consumer(pod);
    let (launchers, others): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|(pod, _)| pod.name_any() == name || !has_claims(pod));
    if !launchers.is_empty() {
        return delete_pods(observed, launchers);
    }
    let others: Vec<&Pod> = others.into_iter().map(|(pod, _)| pod).collect();
    if !others.is_empty() {
        return hotplug::remove(others);
    }
    let finalizers = vmi.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == VMI_FINALIZER) {
        return Plan::default();
    }
    let left: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != VMI_FINALIZER).collect();
    // The next instance finds the state where it is now.
    let settle = kept::moved(vmi).map(Action::SettleState);
    Plan::default().act_if(settle).act(patch(vmi, json!({"finalizers": left}), None))
}

fn delete_pods<'a>(
    observed: &Observed,
    pods: impl IntoIterator<Item = (&'a Pod, Option<NodeState>)>,
) -> Plan {
    let vmi = &observed.vmi;
    let given = vmi.spec.termination_grace_period_seconds;
    let given = given.unwrap_or(barevirt_api::defaults::GRACE_PERIOD_SECONDS);
    let grace = pod::grace_seconds(u64::try_from(given).unwrap_or(0));
    let (mut plan, mut again) = (Plan::default(), None);
    for (pod, node) in pods {
        // By the state of its own node: a pod on another node needs its time, and must not be forgotten.
        let dead = node.is_some_and(NodeState::is_known_dead);
        plan = delete_pod(plan, pod, if dead { 0 } else { grace });
        if let Some(NodeState::NotReady { left }) = node {
            again = again.into_iter().chain([left]).min();
        }
    }
    match again {
        Some(left) => plan.again_in(left),
        None => plan,
    }
}

/// Seconds for a launcher without a guest to end.
const NO_GUEST: u32 = 10;

/// Deletes launcher pods that have no guest any more.
pub(super) fn remove_others<'a>(others: impl IntoIterator<Item = &'a Other>) -> Plan {
    others.into_iter().fold(Plan::default(), |plan, other| {
        let dead = other.node.is_some_and(NodeState::is_known_dead);
        let over = InstanceEnd::of(&other.pod).is_some();
        // The kubelet removes a deleted pod that has ended: no shorter grace period is needed.
        let going = other.pod.metadata.deletion_timestamp.is_some();
        delete_pod(plan, &other.pod, if dead || (over && !going) { 0 } else { NO_GUEST })
    })
}

/// Deletes a pod, or shortens the grace period of one that is being deleted.
pub(super) fn delete_pod(plan: Plan, pod: &Pod, grace: u32) -> Plan {
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    let going = pod.metadata.deletion_timestamp.is_some();
    let granted = pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
    // The grace period of a deletion in progress may be shortened, never extended.
    if going && granted <= i64::from(grace) {
        return plan;
    }
    let note = Note::normal(REASON_SUCCESSFUL_DELETE, format!("Deleted virtual machine pod {name}"));
    let plan = plan.act(Action::DeletePod { name, uid, grace });
    if going { plan } else { plan.tell(note) }
}
