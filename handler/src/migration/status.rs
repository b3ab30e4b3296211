//! What both sides of a migration write into the instance's status. Pure.

use std::collections::BTreeMap;

use barevirt_api::firmware::STATE_VOLUME;
use barevirt_api::names::{CONDITION_MIGRATION_SLOW, CONDITION_POST_COPY_RECOVERY, CONDITION_VOLUMES_CHANGE};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceMigrationState as State,
    VirtualMachineInstanceStatus,
};
use barevirt_protocol::v1::{LauncherStatus, MigrationState as Stage, MigrationStatus, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{PORT, plan, recovery, slow};

/// How the memory is moved, in KubeVirt's terms.
const PRE_COPY: &str = "PreCopy";
const PAUSED: &str = "Paused";
const POST_COPY: &str = "PostCopy";
/// Why a migration failed that was cancelled before anything was sent.
const GIVEN_UP: &str = "the migration was cancelled before the guest began to move";
/// The result of an abort.
const ABORTED: &str = "Succeeded";
const NOT_ABORTED: &str = "Failed";
/// The purpose of the target's ports, as KubeVirt's port numbers.
const MEMORY: i32 = 49152;

/// What the source's handler adds to the status. `refused` is the reason why the migration could not be
/// started for some time.
pub fn source(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    node: &str,
    launcher: &LauncherStatus,
    refused: Option<&str>,
    now: &Time,
) {
    let Some((before, uid)) = plan::outgoing(vmi, node) else { return };
    if status.node_name.as_deref() != Some(node) {
        return;
    }
    if before.completed == Some(true) {
        // The controller may have ended it.
        Condition::remove(&mut status.conditions, CONDITION_MIGRATION_SLOW);
        return;
    }
    let told = plan::reported(launcher, uid);
    recovery::set_condition(&mut status.conditions, before, told, now);
    slow::set_condition(&mut status.conditions, told, now);
    let Some(state) = status.migration_state.as_mut() else { return };
    let Some(told) = told else {
        let as_asked = plan::fails_as_asked(vmi).filter(|_| state.is_prepared());
        if let Some(why) = as_asked.or(refused) {
            fail(state, why, now);
        }
        return;
    };
    match told.state() {
        Stage::Sending | Stage::Switching | Stage::Sent | Stage::Left => {
            begun(state, told, now);
            if state.abort_requested == Some(true) && plan::is_away(launcher) {
                state.abort_status = Some(NOT_ABORTED.to_owned());
            }
        }
        Stage::Over => {
            begun(state, told, now);
            if state.abort_requested == Some(true) {
                let aborted = if told.aborted { ABORTED } else { NOT_ABORTED };
                state.abort_status = Some(aborted.to_owned());
            }
            fail(state, &told.reason, now);
        }
        Stage::Unspecified | Stage::Awaited | Stage::Receiving | Stage::Received | Stage::Arrived => {}
    }
}

fn begun(state: &mut State, told: &MigrationStatus, now: &Time) {
    state.start_timestamp.get_or_insert_with(|| now.clone());
    let mode = match (told.post_copy, told.paused) {
        (true, _) => POST_COPY,
        (false, true) => PAUSED,
        (false, false) => PRE_COPY,
    };
    state.mode = Some(mode.to_owned());
}

fn fail(state: &mut State, why: &str, now: &Time) {
    (state.failed, state.completed) = (Some(true), Some(true));
    // The controller says why it had it cancelled.
    state.failure_reason.get_or_insert_with(|| why.to_owned());
    // As in KubeVirt, each migration that has an end has a start.
    state.start_timestamp.get_or_insert_with(|| now.clone());
    state.end_timestamp = Some(now.clone());
}

/// What the target's handler has observed.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// This node.
    pub node: &'a str,
    /// Address of this handler.
    pub address: &'a str,
    /// The launcher's status; `None` without a connection.
    pub launcher: Option<&'a LauncherStatus>,
    /// The handler listens here for this guest.
    pub listens: bool,
    /// UID of the pod.
    pub pod: Option<&'a str>,
}

/// The status of an instance that arrives here, with the target's observations.
#[must_use]
pub fn target(vmi: &VirtualMachineInstance, seen: Target<'_>, now: &Time) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.clone().unwrap_or_default();
    let Some((uid, _)) = plan::incoming(vmi, seen.node) else { return status };
    let ours = |status: &VirtualMachineInstanceStatus| {
        seen.pod.is_some_and(|pod| status.active_pods.get(pod).map(String::as_str) == Some(seen.node))
    };
    let (is_ours, is_blocked) = (ours(&status), plan::is_target_blocked(vmi));
    let Some(state) = status.migration_state.as_mut().filter(|_| is_ours) else { return status };
    let told = seen.launcher.and_then(|launcher| plan::reported(launcher, uid));
    let stage = told.map_or(Stage::Unspecified, MigrationStatus::state);
    let phase = seen.launcher.map_or(Phase::Unspecified, LauncherStatus::phase);
    if stage == Stage::Arrived {
        // This also holds if the guest has ended since: it ran here, so this node reports its end.
        arrived(state, told.is_some_and(|told| told.post_copy), now);
        status.node_name = Some(seen.node.to_owned());
        Condition::remove(&mut status.conditions, CONDITION_POST_COPY_RECOVERY);
        settle_volumes(&mut status);
        settle_state(&mut status);
        settle_overhead(&mut status);
    } else if matches!(phase, Phase::Succeeded | Phase::Failed) {
        // Only the launcher's own last report shows that the guest never ran here. If it ends without one,
        // the controller decides.
        let said = seen.launcher.map_or("", |launcher| launcher.message.as_str());
        state.target_state.get_or_insert_default().domain_detected = Some(false);
        if state.abort_requested == Some(true) {
            // The guest stayed at the source, whichever side reports it first.
            state.abort_status = Some(ABORTED.to_owned());
        }
        fail(state, said, now);
    } else if stage == Stage::Awaited && state.abort_requested == Some(true) {
        // Nothing has arrived, and once this is written, no connection is admitted.
        state.abort_status = Some(ABORTED.to_owned());
        fail(state, GIVEN_UP, now);
    } else if stage == Stage::Awaited && seen.listens && !is_blocked && state.target_node_address.is_none() {
        let ports = BTreeMap::from([(PORT.to_string(), MEMORY)]);
        state.target_node_address = Some(seen.address.to_owned());
        state.target_direct_migration_node_ports = ports.clone();
        let own = state.target_state.get_or_insert_default();
        own.node_address = Some(seen.address.to_owned());
        own.direct_migration_node_ports = ports;
    }
    if status.migration_state.as_ref().is_some_and(|state| state.completed == Some(true)) {
        Condition::remove(&mut status.conditions, CONDITION_MIGRATION_SLOW);
    }
    status
}

fn arrived(state: &mut State, post_copy: bool, now: &Time) {
    // A migration that took no time was never reported as started.
    state.start_timestamp.get_or_insert_with(|| now.clone());
    if post_copy {
        state.mode = Some(POST_COPY.to_owned());
    }
    state.mode.get_or_insert_with(|| PRE_COPY.to_owned());
    state.completed = Some(true);
    state.failure_reason = None;
    state.end_timestamp = Some(now.clone());
    state.target_node_domain_ready_timestamp = Some(now.clone());
    state.target_node_domain_detected = Some(true);
    let own = state.target_state.get_or_insert_default();
    own.domain_detected = Some(true);
    own.domain_ready_timestamp = Some(now.clone());
}

/// Volumes that moved with the guest are on their new claims, and need no further work.
fn settle_volumes(status: &mut VirtualMachineInstanceStatus) {
    for moved in std::mem::take(&mut status.migrated_volumes) {
        let told = status.volume_status.iter_mut().find(|told| told.name == moved.volume_name);
        if let Some(told) = told {
            told.persistent_volume_claim_info = moved.destination_pvc_info;
            told.size = None;
        }
    }
    Condition::remove(&mut status.conditions, CONDITION_VOLUMES_CHANGE);
}

/// The state of firmware and TPM is on the claim of the target's pod.
fn settle_state(status: &mut VirtualMachineInstanceStatus) {
    let state = status.migration_state.as_ref();
    let Some(claim) = state.and_then(|state| state.target_persistent_state_pvc_name.clone()) else { return };
    let told = status.volume_status.iter_mut().find(|told| told.name == STATE_VOLUME);
    if let Some(info) = told.and_then(|told| told.persistent_volume_claim_info.as_mut()) {
        info.claim_name = Some(claim);
    }
}

/// The guest is in the target's pod, which was made with an overhead of its own.
fn settle_overhead(status: &mut VirtualMachineInstanceStatus) {
    let state = status.migration_state.as_ref();
    let Some(overhead) = state.and_then(|state| state.target_memory_overhead.clone()) else { return };
    status.memory.get_or_insert_default().memory_overhead = Some(overhead);
}

#[cfg(test)]
mod tests;
