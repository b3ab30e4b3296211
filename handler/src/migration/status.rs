//! What both sides of a migration write into the instance's status. Pure.

use std::collections::BTreeMap;

use barevirt_api::firmware::STATE_VOLUME;
use barevirt_api::names::{CONDITION_POST_COPY_RECOVERY, CONDITION_VOLUMES_CHANGE};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceMigrationState as State,
    VirtualMachineInstanceStatus,
};
use barevirt_protocol::v1::{LauncherStatus, MigrationState as Stage, MigrationStatus, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{PORT, plan, recovery};

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
    if before.completed == Some(true) || status.node_name.as_deref() != Some(node) {
        return;
    }
    let told = plan::reported(launcher, uid);
    recovery::tell(&mut status.conditions, before, told, now);
    let Some(state) = status.migration_state.as_mut() else { return };
    let Some(told) = told else {
        if let Some(why) = refused {
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
    state.failure_reason = Some(why.to_owned());
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
    let is_ours = ours(&status);
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
    } else if stage == Stage::Awaited && seen.listens && state.target_node_address.is_none() {
        let ports = BTreeMap::from([(PORT.to_string(), MEMORY)]);
        state.target_node_address = Some(seen.address.to_owned());
        state.target_direct_migration_node_ports = ports.clone();
        let own = state.target_state.get_or_insert_default();
        own.node_address = Some(seen.address.to_owned());
        own.direct_migration_node_ports = ports;
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

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Time {
        Time(Timestamp::from_second(1000).unwrap())
    }

    fn vmi(change: &Value) -> VirtualMachineInstance {
        let mut state = json!({"migrationUid": "m", "sourceNode": "a", "targetNode": "b"});
        for (name, value) in change.as_object().unwrap() {
            state[name] = value.clone();
        }
        serde_json::from_value(json!({
            "metadata": {}, "spec": {"domain": {"devices": {}}},
            "status": {"nodeName": "a", "migrationState": state, "activePods": {"s": "a", "t": "b"}},
        }))
        .unwrap()
    }

    fn launcher(stage: Stage, phase: Phase) -> LauncherStatus {
        let told = MigrationStatus {
            uid: "m".to_owned(),
            state: stage.into(),
            reason: "why".to_owned(),
            ..MigrationStatus::default()
        };
        LauncherStatus { migration: Some(told), phase: phase.into(), ..LauncherStatus::default() }
    }

    fn by_source(change: &Value, launcher: &LauncherStatus, refused: Option<&str>) -> Value {
        let vmi = vmi(change);
        let mut status = vmi.status.clone().unwrap();
        source(&mut status, &vmi, "a", launcher, refused, &now());
        serde_json::to_value(status.migration_state).unwrap()
    }

    fn by_target(change: &Value, launcher: Option<&LauncherStatus>) -> VirtualMachineInstanceStatus {
        let seen = Target { node: "b", address: "10.0.0.2", launcher, listens: true, pod: Some("t") };
        target(&vmi(change), seen, &now())
    }

    #[test]
    fn the_source_writes_its_begin_and_its_failure() {
        let none = json!({});
        let fresh = LauncherStatus::default();
        assert_eq!(
            by_source(&none, &fresh, None),
            serde_json::to_value(vmi(&none).status.unwrap().migration_state).unwrap()
        );
        let sending = by_source(&none, &launcher(Stage::Sending, Phase::Running), None);
        assert_eq!(
            (&sending["mode"], &sending["startTimestamp"]),
            (&json!("PreCopy"), &json!("1970-01-01T00:16:40Z"))
        );
        assert!(sending.get("completed").is_none());
        let mut handed_over = launcher(Stage::Sent, Phase::Running);
        handed_over.migration.as_mut().unwrap().post_copy = true;
        let post_copy = by_source(&none, &handed_over, None);
        assert_eq!((&post_copy["mode"], post_copy.get("completed")), (&json!("PostCopy"), None));
        let over = by_source(&none, &launcher(Stage::Over, Phase::Running), None);
        assert_eq!(
            (&over["failed"], &over["completed"], &over["failureReason"]),
            (&json!(true), &json!(true), &json!("why"))
        );
        assert!(over["endTimestamp"].is_string() && over.get("abortStatus").is_none());
        // The migration is over already: nothing is added.
        let done = json!({"completed": true, "failed": true});
        assert!(
            by_source(&done, &launcher(Stage::Over, Phase::Running), None).get("failureReason").is_none()
        );
        let refused = by_source(&none, &fresh, Some("nobody answers"));
        assert_eq!(refused["failureReason"], "nobody answers");
    }

    #[test]
    fn an_abort_has_a_result() {
        let aborts = json!({"abortRequested": true});
        let mut over = launcher(Stage::Over, Phase::Running);
        over.migration.as_mut().unwrap().aborted = true;
        assert_eq!(by_source(&aborts, &over, None)["abortStatus"], "Succeeded");
        let late = by_source(&aborts, &launcher(Stage::Sent, Phase::Running), None);
        assert_eq!((&late["abortStatus"], late.get("completed")), (&json!("Failed"), None));
    }

    #[test]
    fn a_target_that_received_nothing_ends_an_aborted_migration() {
        let aborts = json!({"abortRequested": true, "targetNodeAddress": "10.0.0.2"});
        let state =
            |stage| by_target(&aborts, Some(&launcher(stage, Phase::Starting))).migration_state.unwrap();
        let ended = state(Stage::Awaited);
        assert_eq!(
            (ended.completed, ended.failed, ended.abort_status.as_deref()),
            (Some(true), Some(true), Some("Succeeded"))
        );
        // Once data arrives, the source's handler answers.
        for stage in [Stage::Receiving, Stage::Received, Stage::Unspecified] {
            assert_eq!(state(stage).completed, None, "{stage:?}");
        }
    }

    #[test]
    fn the_target_says_where_it_is_and_takes_over_in_one_write() {
        let none = json!({});
        let waiting = by_target(&none, Some(&launcher(Stage::Awaited, Phase::Starting)));
        let state = waiting.migration_state.unwrap();
        assert_eq!(state.target_node_address.as_deref(), Some("10.0.0.2"));
        assert_eq!(state.target_direct_migration_node_ports, BTreeMap::from([("8187".to_owned(), 49152)]));
        assert_eq!(state.target_state.unwrap().node_address.as_deref(), Some("10.0.0.2"));
        for stage in [Stage::Receiving, Stage::Received] {
            let status = by_target(&none, Some(&launcher(stage, Phase::Starting)));
            assert_eq!(Some(status), vmi(&none).status);
        }
        let arrived = by_target(&none, Some(&launcher(Stage::Arrived, Phase::Running)));
        assert_eq!(arrived.node_name.as_deref(), Some("b"));
        let state = arrived.migration_state.unwrap();
        assert_eq!(
            (state.completed, state.failed, state.target_node_domain_detected),
            (Some(true), None, Some(true))
        );
    }

    #[test]
    fn volumes_are_on_their_new_claims_from_the_moment_on_at_which_the_guest_is() {
        let moving = |stage| {
            let mut vmi = vmi(&json!({}));
            let status = json!({
                "migratedVolumes": [{"volumeName": "data", "sourcePVCInfo": {"claimName": "old"},
                    "destinationPVCInfo": {"claimName": "new"}}],
                "volumeStatus": [
                    {"name": "data", "target": "vda", "size": 5, "persistentVolumeClaimInfo": {"claimName": "old"}},
                    {"name": "more", "target": "", "persistentVolumeClaimInfo": {"claimName": "more"}}],
                "conditions": [{"type": "VolumesChange", "status": "True"},
                    {"type": "PostCopyRecovery", "status": "True"}, {"type": "Ready", "status": "True"}],
            });
            let mut stored = serde_json::to_value(vmi.status.clone()).unwrap();
            stored.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
            vmi.status = serde_json::from_value(stored).unwrap();
            let launcher = launcher(stage, Phase::Running);
            let seen =
                Target { node: "b", address: "x", launcher: Some(&launcher), listens: true, pod: Some("t") };
            target(&vmi, seen, &now())
        };
        assert_eq!(moving(Stage::Received).migrated_volumes.len(), 1);
        let status = moving(Stage::Arrived);
        assert!(status.migrated_volumes.is_empty());
        let claims: Vec<_> = status
            .volume_status
            .iter()
            .map(|told| {
                (
                    told.persistent_volume_claim_info.as_ref().unwrap().claim_name.as_deref().unwrap(),
                    told.size,
                )
            })
            .collect();
        assert_eq!(claims, [("new", None), ("more", None)]);
        let types: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!(types, ["Ready"]);
    }

    #[test]
    fn persistent_state_is_on_the_claim_of_the_pod_that_has_the_guest() {
        let claim = |stage, to: Option<&str>| {
            let mut vmi = vmi(&json!({"targetPersistentStatePVCName": to}));
            let told = json!([{"name": STATE_VOLUME, "target": "",
                "persistentVolumeClaimInfo": {"claimName": "old", "accessModes": ["ReadWriteOnce"]}}]);
            vmi.status.as_mut().unwrap().volume_status = serde_json::from_value(told).unwrap();
            let launcher = launcher(stage, Phase::Running);
            let seen =
                Target { node: "b", address: "x", launcher: Some(&launcher), listens: true, pod: Some("t") };
            let info =
                target(&vmi, seen, &now()).volume_status[0].persistent_volume_claim_info.clone().unwrap();
            assert_eq!(info.access_modes, ["ReadWriteOnce"]);
            info.claim_name.unwrap()
        };
        assert_eq!(claim(Stage::Received, Some("new")), "old");
        assert_eq!(claim(Stage::Arrived, Some("new")), "new");
        assert_eq!(claim(Stage::Arrived, None), "old");
    }

    #[test]
    fn a_target_that_ends_before_says_so_and_one_that_has_the_guest_does_not() {
        let none = json!({});
        let failed = by_target(&none, Some(&launcher(Stage::Receiving, Phase::Failed)));
        let state = failed.migration_state.unwrap();
        assert_eq!((state.failed, state.completed), (Some(true), Some(true)));
        assert_eq!(failed.node_name.as_deref(), Some("a"));
        assert_eq!((state.target_state.unwrap().domain_detected, state.abort_status), (Some(false), None));
        let aborts = json!({"abortRequested": true});
        let failed = by_target(&aborts, Some(&launcher(Stage::Receiving, Phase::Failed)));
        assert_eq!(failed.migration_state.unwrap().abort_status.as_deref(), Some("Succeeded"));
        // The guest ran here, so this node reports its end.
        let ended = by_target(&none, Some(&launcher(Stage::Arrived, Phase::Succeeded)));
        assert_eq!(ended.node_name.as_deref(), Some("b"));
        assert_eq!(ended.migration_state.unwrap().failed, None);
        assert_eq!(Some(by_target(&none, None)), vmi(&none).status);
        // There is no pod of this handler.
        let failed = launcher(Stage::Receiving, Phase::Failed);
        let seen = Target { node: "b", address: "x", launcher: Some(&failed), listens: true, pod: Some("u") };
        assert_eq!(Some(target(&vmi(&none), seen, &now())), vmi(&none).status);
    }
}
