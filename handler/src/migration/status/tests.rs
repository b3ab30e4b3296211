use barevirt_api::names::{BLOCK_TARGET_ANNOTATION, FAIL_MIGRATION_ANNOTATION};
use barevirt_protocol::v1::MigrationSlow;
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
    assert!(by_source(&done, &launcher(Stage::Over, Phase::Running), None).get("failureReason").is_none());
    let refused = by_source(&none, &fresh, Some("nobody answers"));
    assert_eq!(refused["failureReason"], "nobody answers");
    assert_eq!(refused["startTimestamp"], refused["endTimestamp"]);
}

#[test]
fn a_slow_migration_is_a_condition_until_either_side_or_the_controller_ends_it() {
    let slow = |change: &Value| {
        let mut vmi = vmi(change);
        let conditions = json!([{"type": "MigrationSlow", "status": "True"}]);
        vmi.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
        vmi
    };
    let has_condition = |status: &VirtualMachineInstanceStatus| {
        Condition::is_set(&status.conditions, CONDITION_MIGRATION_SLOW)
    };
    let by_source = |change: &Value, stage| {
        let vmi = slow(change);
        let mut launcher = launcher(stage, Phase::Running);
        let told = MigrationSlow { bottleneck: 1, text: "limited".to_owned() };
        launcher.migration.as_mut().unwrap().slow = Some(told);
        let mut status = vmi.status.clone().unwrap();
        source(&mut status, &vmi, "a", &launcher, None, &now());
        has_condition(&status)
    };
    let (none, completed) = (json!({}), json!({"completed": true}));
    assert!(by_source(&none, Stage::Sending) && !by_source(&none, Stage::Over));
    assert!(!by_source(&completed, Stage::Sending));
    let by_target = |stage, phase| {
        let launcher = launcher(stage, phase);
        let launcher = Some(&launcher);
        let seen = Target { node: "b", address: "10.0.0.2", launcher, listens: true, pod: Some("t") };
        has_condition(&target(&slow(&none), seen, &now()))
    };
    assert!(by_target(Stage::Received, Phase::Starting));
    assert!(!by_target(Stage::Arrived, Phase::Running) && !by_target(Stage::Receiving, Phase::Failed));
}

#[test]
fn migrations_fail_or_do_not_get_ready_where_annotations_say_so() {
    let asked = |annotation: &str, change: Value| {
        let mut vmi = vmi(&change);
        vmi.metadata.annotations = Some([(annotation.to_owned(), String::new())].into());
        vmi
    };
    let by_source = |change: Value| {
        let vmi = asked(FAIL_MIGRATION_ANNOTATION, change);
        let mut status = vmi.status.clone().unwrap();
        source(&mut status, &vmi, "a", &LauncherStatus::default(), None, &now());
        status.migration_state.unwrap().failure_reason
    };
    assert_eq!(by_source(json!({})), None);
    let reason = by_source(json!({"targetNodeAddress": "10.0.0.2"})).unwrap();
    assert_eq!(reason, "Failed migration to satisfy functional test condition");
    let vmi = asked(BLOCK_TARGET_ANNOTATION, json!({}));
    let launcher = launcher(Stage::Awaited, Phase::Starting);
    let (address, launcher) = ("10.0.0.2", Some(&launcher));
    let seen = Target { node: "b", address, launcher, listens: true, pod: Some("t") };
    assert_eq!(Some(target(&vmi, seen, &now())), vmi.status);
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
    let state = |stage| by_target(&aborts, Some(&launcher(stage, Phase::Starting))).migration_state.unwrap();
    let ended = state(Stage::Awaited);
    assert_eq!(
        (ended.completed, ended.failed, ended.abort_status.as_deref()),
        (Some(true), Some(true), Some("Succeeded"))
    );
    let overdue = json!({"abortRequested": true, "failureReason": "the source node did not begin"});
    let reason = |stage, phase| {
        by_target(&overdue, Some(&launcher(stage, phase))).migration_state.unwrap().failure_reason
    };
    let told = Some("the source node did not begin".to_owned());
    assert_eq!(reason(Stage::Awaited, Phase::Starting), told);
    assert_eq!(reason(Stage::Receiving, Phase::Failed), told);
    // It began after all.
    assert_eq!(reason(Stage::Arrived, Phase::Running), None);
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
    let handed = json!({"targetMemoryOverhead": "98Mi"});
    let before = by_target(&handed, Some(&launcher(Stage::Received, Phase::Starting)));
    assert_eq!(before.memory, None);
    let arrived = by_target(&handed, Some(&launcher(Stage::Arrived, Phase::Running)));
    assert_eq!(arrived.node_name.as_deref(), Some("b"));
    let memory = arrived.memory.as_ref().and_then(|memory| memory.memory_overhead.as_ref());
    assert_eq!(memory.map(|overhead| overhead.0.as_str()), Some("98Mi"));
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
            (told.persistent_volume_claim_info.as_ref().unwrap().claim_name.as_deref().unwrap(), told.size)
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
        let info = target(&vmi, seen, &now()).volume_status[0].persistent_volume_claim_info.clone().unwrap();
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
