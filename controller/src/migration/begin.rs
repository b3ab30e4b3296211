//! A migration before its instance is handed over: waits for its turn, makes its target pod. Pure.
//!
//! ```text
//!   Pending ── its turn ──> settings recorded, pod created ──> Scheduling ── pod runs ──> handed over
//! ```
//!
//! No guest runs in the pod yet, so the pod may be deleted at any time. Only its UID proves that it is ours, as for every
//! launcher ([`crate::created_pods`]): our own request created it, or the instance's status names it.

use super::action::{Action, Plan};
use super::deadlines::{self, age};
use super::hand_over::{change, hand_over};
use super::held;
use super::observed::{Observed, Turn};
use super::settings::record;
use super::status::{
    BACK_OFF, BLOCKED_BY_BACKUP, NO_SUITABLE_NODES, REJECTED_BY_QUOTA, UNSCHEDULABLE, condition, copy, enter,
    fail, of, write,
};
use super::target::{is_ready, started};
use crate::migrations::row::{HELD, Phase, Priority};
use crate::node::NodeState;
use crate::vmi::{InstanceEnd, TargetDisks, TargetPod, is_settled, runs, unschedulable};
use barevirt_api::migratable::REASON_DISKS;
use barevirt_api::names::{
    CONDITION_HOT_MEMORY_CHANGE, CONDITION_HOT_VCPU_CHANGE, CONDITION_LIVE_MIGRATABLE, CREATED_BY_LABEL,
    PHASE_RUNNING, REASON_CLAIM_IN_USE, REASON_FAILED_CREATE, REASON_SUCCESSFUL_CREATE,
    REASON_SUCCESSFUL_DELETE, is_final_phase,
};
use barevirt_api::networks;
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use barevirt_component::notes::Note;
use barevirt_plan::phase;
use barevirt_plan::pod::claims::are_of;
use barevirt_plan::volume_migration::turn::gives_way;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::time::Duration;

/// How long a pod may take before its UID is written to the status: another process would not know it.
const UID_DELAY: Duration = Duration::from_secs(4);
/// How soon to look again where no event is expected.
const WAITS: Duration = Duration::from_secs(5);
/// How long a running target pod waits for cards that are being added to the guest or removed from it.
const CARDS: Duration = Duration::from_secs(15);
/// The same while disks are brought to the target.
const BRINGS: Duration = Duration::from_millis(500);
/// The same while a claim that a volume moves to is being filled.
const FILLS: Duration = Duration::from_secs(2);
/// How long a running target pod waits for a device that another guest has.
const WITHHELD: Duration = Duration::from_secs(30);
/// Seconds for a pod without a guest to end.
const GRACE: u32 = 10;

/// What keeps a migration from asking for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// The migration fails.
    Fails(String),
    /// A temporary one; when to look again.
    Waits(Duration),
    /// The same, and it is reported as a back-off of this length.
    BacksOff(Duration),
    /// A backup is in progress.
    Backup,
}

/// Whether it is to ask for its turn: there is no obstacle.
pub(super) fn asks(observed: &Observed, vmi: &VirtualMachineInstance, reached: Phase) -> bool {
    reached < Phase::Scheduling
        && observed.target.is_none()
        && observed.migration.metadata.deletion_timestamp.is_none()
        && ends(observed, vmi).is_none()
        && obstacle(observed, vmi).is_none()
}

/// Why the migration ends without a result, at any stage before the hand-over.
fn ends(observed: &Observed, vmi: &VirtualMachineInstance) -> Option<&'static str> {
    if observed.migration.metadata.deletion_timestamp.is_some() {
        Some("Migration failed due to being canceled")
    } else if is_final_phase(phase(vmi)) || vmi.metadata.deletion_timestamp.is_some() {
        Some("Migration failed vmi shutdown during migration.")
    } else {
        None
    }
}

fn obstacle(observed: &Observed, vmi: &VirtualMachineInstance) -> Option<Obstacle> {
    let spec = &observed.migration.spec;
    if spec.send_to.is_some() || spec.receive.is_some() {
        return Some(Obstacle::Fails("migrations between clusters are not supported".to_owned()));
    }
    if observed.has_rival {
        let message = "VMI is not eligible for migration because another migration job is in progress.";
        return Some(Obstacle::Fails(message.to_owned()));
    }
    if phase(vmi) != PHASE_RUNNING {
        return Some(Obstacle::Waits(WAITS));
    }
    let status = vmi.status.clone().unwrap_or_default();
    let movable = Condition::find(&status.conditions, CONDITION_LIVE_MIGRATABLE);
    // Disks that keep the guest on its node move to claims of the other node.
    let moves = |told: &Condition| {
        !status.migrated_volumes.is_empty() && told.reason.as_deref() == Some(REASON_DISKS)
    };
    if let Some(told) = movable.filter(|told| told.status == "False" && !moves(told)) {
        let (reason, message) = (told.reason.as_deref(), told.message.as_deref());
        return Some(Obstacle::Fails(format!(
            "Cannot migrate VMI, Reason: {}, Message: {}",
            reason.unwrap_or_default(),
            message.unwrap_or_default()
        )));
    }
    if let Some(why) = gives_way(vmi) {
        return Some(Obstacle::Fails(format!(
            "Cannot migrate VMI, Reason: {REASON_CLAIM_IN_USE}, Message: {why}"
        )));
    }
    let backup = status.changed_block_tracking.as_ref().and_then(|tracking| tracking.backup_status.as_ref());
    if backup.is_some_and(|backup| backup.completed != Some(true)) {
        return Some(Obstacle::Backup);
    }
    if !observed.back_off.is_zero() {
        return Some(Obstacle::BacksOff(observed.back_off));
    }
    // The target pod gets the guest's size at the time when it is made.
    let changes = [CONDITION_HOT_VCPU_CHANGE, CONDITION_HOT_MEMORY_CHANGE]
        .into_iter()
        .any(|type_| Condition::is_set(&status.conditions, type_));
    // Another pod of a former migration is being deleted.
    let others = status.active_pods.len() > 1;
    (changes || others || !is_settled(vmi)).then_some(Obstacle::Waits(WAITS))
}

/// Plans a migration that has not been handed over.
pub(super) fn plan(observed: &Observed, vmi: &VirtualMachineInstance, reached: Phase) -> Plan {
    if let Some(message) = ends(observed, vmi) {
        let mut plan = without_target(observed);
        let canceled = observed.migration.metadata.deletion_timestamp.is_some();
        if let Some(pod) = observed.target.as_ref().filter(|_| canceled && !plan.actions.is_empty()) {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let message = format!("migration canceled and pod {namespace}/{name} is deleted");
            plan = plan.tell(Note::normal(REASON_SUCCESSFUL_DELETE, message));
        }
        return fail(observed, plan, message);
    }
    let Some(pod) = &observed.target else {
        if reached >= Phase::Scheduling {
            let message = "Migration target pod was removed during active migration.";
            return fail(observed, Plan::default(), message);
        }
        return without_pod(observed, vmi, reached);
    };
    if pod.labels().get(CREATED_BY_LABEL) != vmi.metadata.uid.as_ref() {
        let name = pod.name_any();
        let message = format!("a pod with the name {name} exists and belongs to something else");
        return fail(observed, Plan::default(), message);
    }
    if !is_proven(observed, vmi, pod) {
        // No UID proves that it is ours, and no guest was ever brought there: it is replaced. A pod that was proven before
        // is not replaced.
        if reached >= Phase::Scheduling {
            let message = "Migration target pod was removed during active migration.";
            return fail(observed, delete(observed, pod), message);
        }
        return delete(observed, pod).again_in(WAITS);
    }
    if !are_of(pod, vmi) {
        let message = "Migration failed because volumes of the VMI are on other claims than when its target pod was made";
        return fail(observed, delete(observed, pod), message);
    }
    if InstanceEnd::of(pod).is_some() || observed.target_node.is_some_and(NodeState::is_lost) {
        let message = "Migration failed because target pod shutdown during migration";
        return fail(observed, delete(observed, pod), message);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        // The events of its end follow.
        return Plan::default();
    }
    let Some(effective) = observed.effective.as_ref().filter(|_| runs(pod) && is_ready(pod)) else {
        return await_pod(observed, vmi, pod, reached);
    };
    let left = CARDS.saturating_sub(age(started(pod), observed));
    // The target gets the cards that the guest has then.
    if !left.is_zero() && networks::are_on_their_way(vmi) {
        return Plan::default().again_in(left);
    }
    match &observed.target_disks {
        TargetDisks::Ready(uids) => hand_over(observed, vmi, pod, effective, uids),
        // Another instance gives way once it has looked; one that gives way itself does not wait for that.
        TargetDisks::Withheld(_) if gives_way(vmi).is_none() && age(started(pod), observed) < WITHHELD => {
            await_disks(observed, vmi, pod, reached, &[], FILLS)
        }
        TargetDisks::Failed(why) | TargetDisks::Withheld(why) => {
            let message =
                format!("Migration failed because its volumes cannot be brought to the target: {why}");
            fail(observed, delete(observed, pod), message)
        }
        TargetDisks::Unsettled => await_disks(observed, vmi, pod, reached, &[], BRINGS),
        TargetDisks::BeingFilled => await_disks(observed, vmi, pod, reached, &[], FILLS),
        TargetDisks::Waits(make) => await_disks(observed, vmi, pod, reached, make, BRINGS),
    }
}

/// The pod runs, and disks that were plugged into the guest, or the contents of a claim, are not there yet.
fn await_disks(
    observed: &Observed,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    reached: Phase,
    make: &[(Box<Pod>, String)],
    interval: Duration,
) -> Plan {
    if age(pod.metadata.creation_timestamp.as_ref(), observed) >= deadlines::pending(observed) {
        let message = "Migration failed because its volumes were not brought to the target in time";
        return fail(observed, delete(observed, pod), message);
    }
    let plan = await_pod(observed, vmi, pod, reached).again_in(interval);
    let attach = |(pod, volume): &(Box<Pod>, String)| {
        let (pod, volume) = (pod.clone(), volume.clone());
        Action::Attach { pod, volume }
    };
    make.iter().map(attach).fold(plan, Plan::act)
}

/// Deletes the migration's target pod, if there is one.
pub(super) fn without_target(observed: &Observed) -> Plan {
    let vmi = observed.vmi.as_ref();
    match &observed.target {
        Some(pod)
            if vmi.is_none_or(|vmi| pod.labels().get(CREATED_BY_LABEL) == vmi.metadata.uid.as_ref()) =>
        {
            delete(observed, pod)
        }
        _ => Plan::default(),
    }
}

fn delete(observed: &Observed, pod: &Pod) -> Plan {
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    let dead = observed.target_node.is_some_and(NodeState::is_known_dead);
    let grace = if dead || InstanceEnd::of(pod).is_some() { 0 } else { GRACE };
    let granted = pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
    if pod.metadata.deletion_timestamp.is_some() && granted <= i64::from(grace) {
        return Plan::default();
    }
    Plan::default().act(Action::Delete { name, uid, grace })
}

/// Whether this program made the pod.
fn is_proven(observed: &Observed, vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let named = || vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(uid));
    !uid.is_empty() && (observed.is_created_here || named())
}

fn without_pod(observed: &Observed, vmi: &VirtualMachineInstance, reached: Phase) -> Plan {
    let mut status = of(observed);
    if reached == Phase::Unset {
        enter(&mut status, Phase::Pending, observed.now);
    }
    copy(observed, &mut status);
    Condition::remove(&mut status.conditions, BLOCKED_BY_BACKUP);
    if !observed.turn.is_held() {
        Condition::remove(&mut status.conditions, HELD);
    }
    match obstacle(observed, vmi) {
        Some(Obstacle::Fails(message)) => return fail(observed, Plan::default(), message),
        Some(Obstacle::Waits(pause)) => {
            return Plan::default().act_if(write(observed, &status)).again_in(pause);
        }
        Some(Obstacle::BacksOff(left)) => {
            let plan = Plan::default().act_if(write(observed, &status)).again_in(left);
            let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
            // Written once.
            return if plan.actions.is_empty() {
                plan
            } else {
                plan.tell_vmi(Note::warning(BACK_OFF, format!("backoff migrating vmi {namespace}/{name}")))
            };
        }
        Some(Obstacle::Backup) => {
            let message = "Waiting for a backup to complete";
            condition(&mut status, BLOCKED_BY_BACKUP, "BackupInProgress", message, observed.now);
            return Plan::default().act_if(write(observed, &status)).again_in(WAITS);
        }
        None => {}
    }
    match &observed.turn {
        Turn::Now(TargetPod::Pod(pod, claim), chosen) => {
            record(&mut status, chosen);
            let note = Note::normal(
                REASON_SUCCESSFUL_CREATE,
                format!("Created migration target pod {}", pod.name_any()),
            );
            let claim = claim.clone().map(Action::CreateClaim);
            let plan = Plan::default().act_if(write(observed, &status)).act_if(claim);
            plan.act(Action::Create(pod.clone())).tell(note)
        }
        Turn::Now(TargetPod::Waits(message), _) => held::lacks(observed, status, message),
        Turn::Now(TargetPod::Fills(message), _) => held::fills(observed, status, message),
        Turn::Now(TargetPod::Invalid(message), _) => {
            let message = format!("failed to render launch manifest: {message}");
            fail(observed, Plan::default().tell_vmi(Note::warning(REASON_FAILED_CREATE, &message)), message)
        }
        Turn::NotAsked | Turn::Waits => {
            // KubeVirt's pauses; the end of another migration also starts the next one.
            let pause = match Priority::of(&observed.migration) {
                Priority::Critical => Duration::from_secs(1),
                Priority::User => Duration::from_secs(3),
                Priority::Maintenance => WAITS,
            };
            Plan::default().act_if(write(observed, &status)).again_in(pause)
        }
    }
}

/// The pod exists and does not run yet.
fn await_pod(observed: &Observed, vmi: &VirtualMachineInstance, pod: &Pod, reached: Phase) -> Plan {
    let mut plan = Plan::default();
    if reached < Phase::Scheduling {
        let mut status = of(observed);
        enter(&mut status, Phase::Scheduling, observed.now);
        copy(observed, &mut status);
        Condition::remove(&mut status.conditions, REJECTED_BY_QUOTA);
        plan = plan.act_if(write(observed, &status));
    }
    let age = age(pod.metadata.creation_timestamp.as_ref(), observed);
    let uid = pod.uid().unwrap_or_default();
    let named = vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(&uid));
    if !named && age >= UID_DELAY {
        plan = plan.act_if(change(vmi, |vmi| {
            vmi.status.get_or_insert_default().active_pods.insert(uid.clone(), String::new());
        }));
    } else if !named {
        plan = plan.again_in(UID_DELAY.saturating_sub(age).max(Duration::from_millis(100)));
    }
    let is_pending = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
    if !is_pending {
        return plan;
    }
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let given_up = |plan: Plan, why: &str| {
        let message = format!("{why} pod {namespace}/{name} timeout period exceeded");
        let Plan { actions, .. } = delete(observed, pod);
        let plan = actions.into_iter().fold(plan, Plan::act);
        plan.tell(Note::normal(REASON_SUCCESSFUL_DELETE, message))
    };
    let pending = deadlines::pending(observed);
    if unschedulable(pod).is_some_and(|(reason, _)| reason == "Unschedulable") {
        let limit = deadlines::unschedulable(observed);
        let message = format!(
            "Migration target pod for VMI [{}/{}] is currently unschedulable.",
            vmi.namespace().unwrap_or_default(),
            vmi.name_any()
        );
        plan = plan.tell(Note::warning(UNSCHEDULABLE, message));
        if let Some(labels) = &observed.unfit {
            let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            let what = "no node is suitable to run the required CPU model / required features";
            let message = format!("Migration cannot proceed since {what}: map[{}]", labels.join(" "));
            plan = plan.tell_vmi(Note::warning(NO_SUITABLE_NODES, message));
        }
        if age >= limit {
            return given_up(plan, "unschedulable");
        }
        plan = plan.again_in(limit.saturating_sub(age));
    }
    if age >= pending {
        return given_up(plan, "pending");
    }
    plan.again_in(pending.saturating_sub(age))
}
