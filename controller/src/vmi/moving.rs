//! An instance with two launcher pods. Pure.
//!
//! ```text
//!   handed over ──> nothing here ends or changes it ──> over ──> the pod without a guest ends and stays as a record, or is
//!        │                                                                  deleted; then its UID is removed
//!        │
//!        └── the target's pod is gone for certain, and no handler reports it ──> failed: the guest goes on at the source
//! ```
//!
//! During a migration, the end of either pod is not the end of the instance: the source ends because it has sent everything,
//! the target because nothing came. Handlers report the result; where no source is left to begin, the target is asked to
//! report it. If the target's handler cannot, since its pod or node is gone, nothing can run there, and this program reports
//! it; never where something may still run.
//!
//! The target's handler writes its address only when it is prepared, and the source's begins only with that address. So
//! until then this program may end a migration on its own: its patch applies only to the observed version, so it is either
//! before the address or refused.

use super::action::{Action, Plan};
use super::eviction;
use super::instance_end::InstanceEnd;
use super::left_pod::{self, Retention};
use super::observed::Observed;
use super::others::{Target, is_moving, is_over, state};
use super::removal::remove_others;
use super::status::{age, change, is_ours, patch};
use crate::node::NodeState;
use barevirt_api::names::{COMPUTE_CONTAINER, MIGRATION_TARGET_NODE_LABEL};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState};
use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;

/// How long handlers have to report the end of a migration whose target is gone.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a responsive node may need to end what ran in a force-deleted pod.
const FORCED_END_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an instance is looked at whose guest is migrating and whose pods are not as expected.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the marks of a migration stay while one of its pods does not go.
const MARKS_TIMEOUT: Duration = Duration::from_secs(30);
/// Event reason: a migration failed. KubeVirt's.
const REASON_FAILED_MIGRATION: &str = "FailedMigration";
/// KubeVirt's text for a target that is gone.
const TARGET_IS_DOWN: &str = "Target pod is down";

/// The plan during a migration.
pub(super) fn plan(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    let Some(state) = state(vmi) else { return Plan::default() };
    let prepared = state.is_prepared();
    let (lost, deadline) = match observed.target {
        Target::Lives | Target::Unknown => (None, Duration::MAX),
        Target::Ended(since) => (Some(since), if prepared { END_REPORT_TIMEOUT } else { Duration::ZERO }),
        Target::Missing(since) => (Some(since), if prepared { FORCED_END_TIMEOUT } else { Duration::ZERO }),
    };
    if let Some(since) = lost {
        if since < deadline {
            return Plan::default().again_in(deadline.saturating_sub(since));
        }
        let uid = state.migration_uid.as_deref().unwrap_or_default();
        let message = format!("VirtualMachineInstance migration uid {uid} failed. reason: {TARGET_IS_DOWN}");
        let note = Note::warning(REASON_FAILED_MIGRATION, message);
        let body = failed(vmi, TARGET_IS_DOWN, observed.now);
        return Plan::default().act_if(body.map(Action::Patch)).tell(note);
    }
    let source_lives = observed.pod.as_ref().is_some_and(|pod| InstanceEnd::of(pod).is_none())
        && !observed.node.is_some_and(NodeState::is_lost);
    // The migration is not wanted any more, or no source is left to begin: a target that only waits reports its failure. If
    // the guest is being transferred, or has arrived, this changes nothing.
    if (!observed.is_asked_to_move || !source_lives) && state.abort_requested != Some(true) {
        return Plan::default().act_if(abort(vmi, observed.now).map(Action::Patch));
    }
    if source_lives && observed.target == Target::Lives {
        return Plan::default();
    }
    Plan::default().again_in(INTERVAL)
}

/// The patch that reports a failed migration. Only where the target cannot run the guest, or the source cannot have begun.
pub(crate) fn failed(vmi: &VirtualMachineInstance, reason: &str, now: Timestamp) -> Option<Value> {
    changed(vmi, |state| {
        (state.completed, state.failed) = (Some(true), Some(true));
        // As in KubeVirt, each migration that has an end has a start.
        state.start_timestamp.get_or_insert(Time(now));
        state.end_timestamp.get_or_insert(Time(now));
        state.failure_reason.get_or_insert_with(|| reason.to_owned());
        if state.abort_requested == Some(true) {
            state.abort_status.get_or_insert_with(|| "Succeeded".to_owned());
        }
    })
}

/// The patch that ends an unwanted migration, or asks handlers to: the source's if it has begun, the target's if nothing has
/// arrived yet.
pub(crate) fn abort(vmi: &VirtualMachineInstance, now: Timestamp) -> Option<Value> {
    changed(vmi, |state| {
        state.abort_requested = Some(true);
        if !state.is_prepared() {
            state.abort_status = Some("Succeeded".to_owned());
            (state.completed, state.failed) = (Some(true), Some(true));
            state.end_timestamp.get_or_insert(Time(now));
            state.failure_reason.get_or_insert_with(|| "Live migration aborted".to_owned());
        }
    })
}

/// The patch that asks the handlers to end a migration that has not begun in time, for this reason. The source's handler may not
/// answer, and may have begun without a report: so the migration fails only when one of them reports it.
pub(crate) fn overdue(vmi: &VirtualMachineInstance, reason: &str) -> Option<Value> {
    changed(vmi, |state| {
        state.abort_requested = Some(true);
        state.failure_reason.get_or_insert_with(|| reason.to_owned());
    })
}

fn changed(
    vmi: &VirtualMachineInstance,
    edit: impl FnOnce(&mut VirtualMachineInstanceMigrationState),
) -> Option<Value> {
    let mut status = vmi.status.clone()?;
    edit(status.migration_state.as_mut()?);
    let change = change(vmi, &status)?;
    body(patch(vmi, json!({}), Some(change)))
}

/// The contents of a patch.
fn body(action: Action) -> Option<Value> {
    if let Action::Patch(body) = action { Some(body) } else { None }
}

/// Removes what ended migrations leave: pods but for the [last one](left_pod), their UIDs, marks.
pub(super) fn tidy(observed: &Observed, launcher: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let Some(before) = vmi.status.as_ref().filter(|_| !is_moving(vmi)) else { return Plan::default() };
    let is_marked = before.evacuation_node_name.is_some() && before.evacuation_node_name != before.node_name;
    if state(vmi).is_none() && observed.others.is_empty() && before.active_pods.len() <= 1 && !is_marked {
        return Plan::default();
    }
    let ended = state(vmi).filter(|state| is_over(state)).and_then(|state| state.end_timestamp.as_ref());
    let since = ended.map(|ended| age(ended.0, observed.now));
    let left = observed.others.iter().filter(|other| !other.wanted && is_ours(&other.pod, vmi));
    let (going, staying): (Vec<_>, Vec<_>) = left
        .map(|other| (other, left_pod::retention(vmi, &other.pod, launcher, since.unwrap_or_default())))
        .partition(|(_, retention)| *retention == Retention::No);
    let mut plan = remove_others(going.into_iter().map(|(other, _)| other));
    for (other, retention) in staying {
        if let Retention::For(left) = retention {
            plan = plan.act_if(left_pod::end(vmi, &other.pod)).again_in(left);
        }
    }

    let mut status = before.clone();
    let may_run = |uid: &str, node: &str| {
        let found = observed.others.iter().find(|other| other.pod.metadata.uid.as_deref() == Some(uid));
        launcher.metadata.uid.as_deref() == Some(uid)
            || found.is_some_and(|other| {
                // A pod that was not handed over has no guest, and a pod of an ended migration may have none: if it stays
                // because its node does not answer, the next migration does not wait for it.
                let stays = !node.is_empty() && since.is_none_or(|since| since < MARKS_TIMEOUT);
                InstanceEnd::of(&other.pod).is_none() && (other.wanted || stays)
            })
    };
    status.active_pods.retain(|uid, node| may_run(uid, node));
    let settled = status.active_pods.len() <= 1
        || since.is_none_or(|since| since >= MARKS_TIMEOUT)
        || observed.others.iter().any(|other| other.wanted);
    let mut metadata = json!({});
    if settled {
        if vmi.labels().contains_key(MIGRATION_TARGET_NODE_LABEL) {
            metadata = json!({"labels": {MIGRATION_TARGET_NODE_LABEL: null}});
        }
        // Evictions name the node to leave.
        if is_marked {
            status.evacuation_node_name = None;
            eviction::note(&mut status, observed.now);
        }
        if since.is_some() {
            let image = launcher
                .spec
                .as_ref()
                .and_then(|spec| spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER))
                .and_then(|compute| compute.image.clone());
            status.launcher_container_image_version = image.or(status.launcher_container_image_version);
            let class = launcher.status.as_ref().and_then(|status| status.qos_class.clone());
            status.qos_class = class.or(status.qos_class);
        }
    } else if plan.again.is_none() {
        plan = plan.again_in(MARKS_TIMEOUT);
    }
    let change = change(vmi, &status);
    if change.is_some() || metadata != json!({}) {
        plan = plan.act(patch(vmi, metadata, change));
    }
    plan
}
