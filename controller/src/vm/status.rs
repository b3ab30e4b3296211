//! A machine's status, computed whole from the observation and the result of the step.

use super::back_off;
use super::instancetype::References;
use super::plan::Observed;
use super::revision;
use crate::vmi::others::is_moving;
use crate::vmi::{NOT_RUNNING_MESSAGE, phase};
use barevirt_api::names::{
    ACTION_START, CONDITION_FAILURE, CONDITION_MANUAL_RECOVERY_REQUIRED, CONDITION_PAUSED,
    CONDITION_POD_SCHEDULED, CONDITION_PROVISIONING, CONDITION_READY, CONDITION_RESTART_REQUIRED,
    CONDITION_SYNCHRONIZED, PHASE_FAILED, PHASE_PENDING, PHASE_RUNNING, PHASE_SCHEDULED, PHASE_SCHEDULING,
    PHASE_WAITING_FOR_SYNC, REASON_DATA_VOLUME_NOT_READY, REASON_FAILED_DATA_VOLUME_IMPORT,
    REASON_GUEST_NOT_RUNNING, REASON_PVC_NOT_FOUND, REASON_UNSCHEDULABLE, REASON_VMI_NOT_EXISTS,
    RUN_STRATEGY_ALWAYS, RUN_STRATEGY_HALTED, RUN_STRATEGY_RERUN_ON_FAILURE, RUN_STRATEGY_WAIT_AS_RECEIVER,
    STATUS_CRASH_LOOP_BACK_OFF, STATUS_DATA_VOLUME_ERROR, STATUS_ERR_IMAGE_PULL, STATUS_IMAGE_PULL_BACK_OFF,
    STATUS_MIGRATING, STATUS_PAUSED, STATUS_PROVISIONING, STATUS_PVC_NOT_FOUND, STATUS_RUNNING,
    STATUS_STARTING, STATUS_STOPPED, STATUS_STOPPING, STATUS_TERMINATING, STATUS_UNKNOWN,
    STATUS_UNSCHEDULABLE, STATUS_WAITING_FOR_RECEIVER, STATUS_WAITING_FOR_VOLUME_BINDING, is_final_phase,
};
use barevirt_api::v1::{
    Condition, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, VolumeMigrationState,
    VolumeUpdateState, merge_condition,
};
use barevirt_plan::data_volumes::DataVolumes;
use barevirt_plan::live_update::{self, Live};
use barevirt_plan::requests;
use barevirt_plan::revision::Drift;
use barevirt_plan::volume_migration::{self, Move};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

/// The result of the step, as far as the status shows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing to add to the observation.
    Quiet,
    /// A start is planned and waits for the end of a former run's objects.
    Held,
    /// Copies of what the machine names are stored.
    Recorded(Box<References>),
    /// The step failed: reason and message of the Failure condition.
    Failed {
        /// Its reason, one word.
        reason: &'static str,
        /// Its message.
        message: String,
    },
}

/// Conditions that a machine does not copy from its instance.
const OWN_CONDITIONS: [&str; 4] =
    [CONDITION_READY, CONDITION_FAILURE, CONDITION_RESTART_REQUIRED, CONDITION_MANUAL_RECOVERY_REQUIRED];

/// Message of a machine that differs from its instance; KubeVirt's words.
const RESTART_REQUIRED_MESSAGE: &str = "a non-live-updatable field was changed in the template spec";

/// How long a start may take until `Starting` is written. Creation times are whole seconds, rounded down, so this is at
/// least two seconds.
const STARTS: Duration = Duration::from_secs(3);

/// Computes the status. `vmi` is the machine's instance after the step.
pub fn compute(
    observed: &Observed,
    vmi: Option<&VirtualMachineInstance>,
    outcome: &Outcome,
) -> VirtualMachineStatus {
    let vm = &observed.vm;
    let now = Time(observed.now);
    let mut status = vm.status.clone().unwrap_or_default();
    let strategy = vm.spec.effective_run_strategy().unwrap_or(RUN_STRATEGY_HALTED);

    // False is left out, as in KubeVirt.
    status.created = vmi.is_some().then_some(true);
    let ready = vmi.is_some_and(|vmi| Condition::is_set(conditions_of(vmi), CONDITION_READY));
    status.ready = ready.then_some(true);
    status.desired_generation = vm.metadata.generation;
    status.observed_generation = match vmi {
        Some(vmi) => revision::generation(vmi),
        None => vm.metadata.generation,
    };
    // Written from the first start on, so that a newly chosen strategy can be distinguished from one that was carried out.
    if status.run_strategy.is_some() || vmi.is_some() {
        status.run_strategy = Some(strategy.to_owned());
    }
    status.start_failure = back_off::record(status.start_failure.as_ref(), strategy, vmi, observed.now);

    status.state_change_requests = requests::left(&status.state_change_requests, vmi).to_vec();
    let failed =
        vmi.is_some_and(|vmi| phase(vmi) == PHASE_FAILED && vmi.metadata.deletion_timestamp.is_none());
    let asked = status.state_change_requests.iter().any(|request| request.action == ACTION_START);
    if strategy == RUN_STRATEGY_RERUN_ON_FAILURE && failed && !asked {
        status.state_change_requests.push(requests::start());
    }

    if let Outcome::Recorded(references) = outcome {
        let References { instancetype, preference } = &**references;
        // What is no longer named keeps its former value, as in KubeVirt.
        status.instancetype_ref = instancetype.clone().or(status.instancetype_ref);
        status.preference_ref = preference.clone().or(status.preference_ref);
    }
    let state = VolumeMigrationState { migrated_volumes: volume_migration::kept(vm, vmi) };
    status.volume_update_state = (!state.migrated_volumes.is_empty())
        .then_some(VolumeUpdateState { volume_migration_state: Some(state) });
    conditions(&mut status.conditions, vmi, outcome, &now);
    if volume_migration::needs_recovery(vm, vmi) {
        let reason = volume_migration::ENDED_WHILE_MOVING;
        let condition = Condition::new(CONDITION_MANUAL_RECOVERY_REQUIRED, true, reason, "");
        merge_condition(&mut status.conditions, condition, &now);
    } else {
        Condition::remove(&mut status.conditions, CONDITION_MANUAL_RECOVERY_REQUIRED);
    }
    restart_required(&mut status.conditions, vmi, observed, &now);
    let word = printable(vm, &status, vmi, strategy, outcome, &observed.data_volumes);
    status.printable_status = Some(word.to_owned());
    status
}

/// How long a guest may migrate until that is written.
const MOVES: Duration = Duration::from_secs(3);

/// How long `wanted` may wait, where the only change is that a start has begun, or that the guest migrates: mostly that is
/// over before a user reads it.
pub(super) fn passes(observed: &Observed, wanted: &VirtualMachineStatus) -> Option<Duration> {
    let vm = &observed.vm;
    if wanted.printable_status.as_deref() == Some(STATUS_MIGRATING) {
        let stays =
            VirtualMachineStatus { printable_status: Some(STATUS_RUNNING.to_owned()), ..wanted.clone() };
        let left = MOVES.saturating_sub(observed.moving_for);
        return (vm.status.as_ref() == Some(&stays) && !left.is_zero()).then_some(left);
    }
    if wanted.printable_status.as_deref() != Some(STATUS_STARTING)
        || vm.spec.effective_run_strategy() != Some(RUN_STRATEGY_ALWAYS)
        || Condition::find(&wanted.conditions, CONDITION_FAILURE).is_some()
    {
        return None;
    }
    let known = vm.status.clone().unwrap_or_default();
    let same = known.state_change_requests == wanted.state_change_requests
        && known.start_failure == wanted.start_failure
        && known.instancetype_ref == wanted.instancetype_ref
        && known.preference_ref == wanted.preference_ref;
    let created = observed.own_vmi().map_or(Some(observed.now), |vmi| {
        vmi.metadata.creation_timestamp.as_ref().map(|created| created.0)
    })?;
    let age = Duration::try_from(observed.now.duration_since(created)).unwrap_or_default();
    STARTS.checked_sub(age).filter(|left| same && !left.is_zero())
}

fn conditions(
    conditions: &mut Vec<Condition>,
    vmi: Option<&VirtualMachineInstance>,
    outcome: &Outcome,
    now: &Time,
) {
    let ready = match vmi {
        None => Condition::new(CONDITION_READY, false, REASON_VMI_NOT_EXISTS, "VMI does not exist"),
        Some(vmi) => match Condition::find(conditions_of(vmi), CONDITION_READY) {
            // The same words as in the instance, so that its first conditions change nothing.
            None => Condition::new(CONDITION_READY, false, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE),
            Some(ready) => Condition { last_transition_time: None, ..ready.clone() },
        },
    };
    merge_condition(conditions, ready, now);
    match outcome {
        Outcome::Failed { reason, message } => {
            merge_condition(conditions, Condition::new(CONDITION_FAILURE, true, reason, message), now);
        }
        Outcome::Quiet | Outcome::Held | Outcome::Recorded(_) => {
            Condition::remove(conditions, CONDITION_FAILURE);
        }
    }
    let copied: Vec<&Condition> = vmi
        .map(conditions_of)
        .unwrap_or_default()
        .iter()
        .filter(|condition| !OWN_CONDITIONS.contains(&condition.type_.as_str()))
        .collect();
    conditions.retain(|condition| {
        OWN_CONDITIONS.contains(&condition.type_.as_str())
            || copied.iter().any(|copied| copied.type_ == condition.type_)
    });
    for condition in copied {
        merge_condition(conditions, Condition { last_transition_time: None, ..condition.clone() }, now);
    }
}

/// The stored condition stays where it is not known what the instance was made from.
fn restart_required(
    conditions: &mut Vec<Condition>,
    vmi: Option<&VirtualMachineInstance>,
    observed: &Observed,
    now: &Time,
) {
    let runs =
        vmi.is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_none() && !is_final_phase(phase(vmi)));
    let refused = match (&observed.live, &observed.volumes) {
        (_, Move::Restart(why)) | (Live::Refused(why), _) => Some(why.clone()),
        (Live::Done | Live::Apply { .. } | Live::Wait, _) => vmi.and_then(live_update::failure),
    };
    if let (Some(why), true) = (refused, runs && observed.drift != Drift::Guest) {
        let condition = Condition::new(CONDITION_RESTART_REQUIRED, true, "", why);
        return merge_condition(conditions, condition, now);
    }
    match observed.drift {
        Drift::Guest if runs => {
            let condition = Condition::new(CONDITION_RESTART_REQUIRED, true, "", RESTART_REQUIRED_MESSAGE);
            merge_condition(conditions, condition, now);
        }
        Drift::Unknown if runs => {}
        Drift::Guest | Drift::Unknown | Drift::None | Drift::Generation | Drift::Metadata => {
            Condition::remove(conditions, CONDITION_RESTART_REQUIRED);
        }
    }
}

/// The printable status; the first that applies, in KubeVirt's order.
fn printable(
    vm: &VirtualMachine,
    status: &VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
    strategy: &str,
    outcome: &Outcome,
    data_volumes: &DataVolumes,
) -> &'static str {
    if vm.metadata.deletion_timestamp.is_some() {
        return STATUS_TERMINATING;
    }
    let backing_off = status.start_failure.is_some() && back_off::restarts(strategy);
    let filling = data_volumes.status();
    let ended = || if backing_off { STATUS_CRASH_LOOP_BACK_OFF } else { STATUS_STOPPED };
    let Some(vmi) = vmi else {
        return match (filling, outcome) {
            (Some(filling), _) => filling,
            (None, Outcome::Held) => STATUS_STARTING,
            (None, _) => ended(),
        };
    };
    let phase = phase(vmi);
    if is_final_phase(phase) {
        return filling.unwrap_or_else(ended);
    }
    if vmi.metadata.deletion_timestamp.is_some() {
        return STATUS_STOPPING;
    }
    let conditions = conditions_of(vmi);
    if phase == PHASE_RUNNING {
        if is_moving(vmi) {
            return STATUS_MIGRATING;
        }
        return if Condition::is_set(conditions, CONDITION_PAUSED) { STATUS_PAUSED } else { STATUS_RUNNING };
    }
    let reason = |type_: &str| {
        Condition::find(conditions, type_)
            .filter(|condition| condition.status == "False")
            .and_then(|condition| condition.reason.as_deref())
    };
    // DataVolumes that belong to no template are known only to the instance.
    let filling = filling.or(match reason(CONDITION_SYNCHRONIZED) {
        Some(REASON_FAILED_DATA_VOLUME_IMPORT) => Some(STATUS_DATA_VOLUME_ERROR),
        Some(REASON_DATA_VOLUME_NOT_READY) => Some(STATUS_PROVISIONING),
        _ => None,
    });
    let binds = data_volumes.wait_for_binding() || Condition::is_set(conditions, CONDITION_PROVISIONING);
    match (reason(CONDITION_SYNCHRONIZED), filling) {
        (Some(REASON_PVC_NOT_FOUND), None) => return STATUS_PVC_NOT_FOUND,
        (_, Some(STATUS_DATA_VOLUME_ERROR)) => return STATUS_DATA_VOLUME_ERROR,
        // The same condition tells of a claim that is missing, which a DataVolume is to make.
        (missing, _)
            if missing != Some(REASON_PVC_NOT_FOUND)
                && reason(CONDITION_POD_SCHEDULED) == Some(REASON_UNSCHEDULABLE) =>
        {
            return STATUS_UNSCHEDULABLE;
        }
        (_, Some(filling)) => return filling,
        _ if binds => return STATUS_WAITING_FOR_VOLUME_BINDING,
        _ => {}
    }
    match reason(CONDITION_SYNCHRONIZED) {
        Some(STATUS_ERR_IMAGE_PULL) => return STATUS_ERR_IMAGE_PULL,
        Some(STATUS_IMAGE_PULL_BACK_OFF) => return STATUS_IMAGE_PULL_BACK_OFF,
        _ => {}
    }
    match phase {
        PHASE_PENDING | PHASE_SCHEDULING | PHASE_SCHEDULED => STATUS_STARTING,
        PHASE_WAITING_FOR_SYNC if strategy == RUN_STRATEGY_WAIT_AS_RECEIVER => STATUS_WAITING_FOR_RECEIVER,
        _ => STATUS_UNKNOWN,
    }
}

fn conditions_of(vmi: &VirtualMachineInstance) -> &[Condition] {
    vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}
