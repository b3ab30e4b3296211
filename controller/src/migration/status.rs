//! Changes of a migration's status that several plans make, and the names used in it.

use super::action::{Action, Plan};
use super::observed::Observed;
use crate::merge;
use crate::migrations::row::Phase;
use crate::vmi::others::state;
use barevirt_api::names::{CONDITION_MIGRATION_SLOW, CONDITION_POST_COPY_RECOVERY};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceMigrationPhaseTransitionTimestamp,
    VirtualMachineInstanceMigrationState, VirtualMachineInstanceMigrationStatus, merge_condition,
};
use barevirt_component::notes::Note;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Event reason: it failed. All these names are KubeVirt's.
pub(super) const FAILED_MIGRATION: &str = "FailedMigration";
/// Event reason: the guest is on the target.
pub(super) const SUCCESSFUL_MIGRATION: &str = "SuccessfulMigration";
/// Event reason: the source's handler is asked to cancel it.
pub(super) const SUCCESSFUL_ABORT: &str = "SuccessfulAbortMigration";
/// Event reason: the target's handler is to prepare.
pub(super) const SUCCESSFUL_HAND_OVER: &str = "SuccessfulHandOver";
/// Event reason: no node takes the target pod.
pub(super) const UNSCHEDULABLE: &str = "migrationTargetPodUnschedulable";
/// Event reason: no node has the source's processor.
pub(super) const NO_SUITABLE_NODES: &str = "NoSuitableNodesForHostModelMigration";
/// Event reason: an instance rests after failures.
pub(super) const BACK_OFF: &str = "MigrationBackoff";
/// Condition: a user deleted it.
pub(super) const ABORT_REQUESTED: &str = "migrationAbortRequested";
/// Condition: a quota of the namespace refuses the target pod.
pub(super) const REJECTED_BY_QUOTA: &str = "migrationRejectedByResourceQuota";
/// Condition: a backup of the guest is in progress.
pub(super) const BLOCKED_BY_BACKUP: &str = "migrationBlockedByBackup";

/// Conditions of an instance that its migration has as well while the handlers carry it out.
const OF_INSTANCE: [&str; 2] = [CONDITION_POST_COPY_RECOVERY, CONDITION_MIGRATION_SLOW];

/// Phases in order, where nothing fails.
const COURSE: [Phase; 6] = [
    Phase::Pending,
    Phase::Scheduling,
    Phase::Scheduled,
    Phase::PreparingTarget,
    Phase::TargetReady,
    Phase::Running,
];

/// The present status.
pub(super) fn of(observed: &Observed) -> VirtualMachineInstanceMigrationStatus {
    observed.migration.status.clone().unwrap_or_default()
}

/// Enters a phase. Phases that passed too quickly to be written are recorded as well.
pub(super) fn enter(status: &mut VirtualMachineInstanceMigrationStatus, phase: Phase, now: Timestamp) {
    let known = |status: &VirtualMachineInstanceMigrationStatus, phase: Phase| {
        let mut stamps = status.phase_transition_timestamps.iter();
        stamps.any(|stamp| stamp.phase.as_deref() == Some(phase.name()))
    };
    let passed = COURSE.into_iter().filter(|passed| *passed < phase && phase != Phase::Failed);
    for phase in passed.chain([phase]) {
        if !known(status, phase) {
            status.phase_transition_timestamps.push(
                VirtualMachineInstanceMigrationPhaseTransitionTimestamp {
                    phase: Some(phase.name().to_owned()),
                    phase_transition_timestamp: Some(Time(now)),
                },
            );
        }
    }
    status.phase = Some(phase.name().to_owned());
}

/// Copies the instance's record of it, once there is one; until then the guest's node.
pub(super) fn copy(observed: &Observed, status: &mut VirtualMachineInstanceMigrationStatus) {
    let Some(vmi) = &observed.vmi else { return };
    match state(vmi).filter(|state| state.migration_uid == observed.migration.metadata.uid) {
        Some(state) => {
            status.migration_state = Some(state.clone());
            copy_conditions(vmi, status);
        }
        None if status.migration_state.is_none() => {
            status.migration_state = Some(VirtualMachineInstanceMigrationState {
                source_pod: Some(launcher_name(vmi)),
                ..VirtualMachineInstanceMigrationState::default()
            });
        }
        None => {}
    }
}

/// Copies the instance's conditions about the migration that its record is about, and removes those that do not hold any more.
pub(super) fn copy_conditions(
    vmi: &VirtualMachineInstance,
    status: &mut VirtualMachineInstanceMigrationStatus,
) {
    let is_under_way = state(vmi).is_some_and(|state| state.completed != Some(true));
    let told = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let conditions = &mut status.conditions;
    for type_ in OF_INSTANCE {
        let Some(told) = Condition::find(told, type_).filter(|_| is_under_way) else {
            Condition::remove(conditions, type_);
            continue;
        };
        match conditions.iter_mut().find(|own| own.type_ == type_) {
            Some(own) => own.clone_from(told),
            None => conditions.push(told.clone()),
        }
    }
}

/// Sets a condition.
pub(super) fn condition(
    status: &mut VirtualMachineInstanceMigrationStatus,
    type_: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    merge_condition(&mut status.conditions, Condition::new(type_, true, reason, message), &Time(now));
}

/// Writes the status, where it differs from the stored one.
pub(super) fn write(observed: &Observed, status: &VirtualMachineInstanceMigrationStatus) -> Option<Action> {
    // Our types always have a JSON form: their maps have only string keys.
    let old = serde_json::to_value(of(observed)).unwrap_or_default();
    let new = serde_json::to_value(status).unwrap_or_default();
    let change = merge::difference(&old, &new)?;
    Some(Action::Status(json!({
        "metadata": {"resourceVersion": observed.migration.metadata.resource_version}, "status": change
    })))
}

/// Writes metadata, which apply only to the observed version.
pub(super) fn metadata(observed: &Observed, mut metadata: Value) -> Action {
    metadata["resourceVersion"] = json!(observed.migration.metadata.resource_version);
    Action::Meta(json!({ "metadata": metadata }))
}

/// Fails the migration after these steps.
pub(super) fn fail(observed: &Observed, plan: Plan, message: impl Into<String>) -> Plan {
    let mut status = of(observed);
    enter(&mut status, Phase::Failed, observed.now);
    copy(observed, &mut status);
    if observed.migration.metadata.deletion_timestamp.is_some() {
        condition(&mut status, ABORT_REQUESTED, "", "", observed.now);
    }
    plan.act_if(write(observed, &status)).tell(Note::warning(FAILED_MIGRATION, message))
}
