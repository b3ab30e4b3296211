//! Plans for migrations: single cases, then random worlds.

mod afterwards;
mod chosen;
mod hand_over;
mod held;
mod world;

use super::action::{About, Action, Plan};
use super::observed::{Observed, Turn};
use super::plan::plan;
use crate::node::NodeState;
use crate::vmi::{TargetDisks, TargetPod};
use barevirt_api::names::{CREATED_BY_LABEL, MIGRATION_FINALIZER as FINALIZER, MIGRATION_JOB_LABEL};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_plan::migration::{Effective, effective};
use barevirt_plan::pod::target::target_name;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn text(second: i64) -> String {
    at(second).to_string()
}

fn with(mut object: Value, change: Value) -> Value {
    crate::merge::apply(&mut object, &change);
    object
}

fn migration(change: Value) -> VirtualMachineInstanceMigration {
    let object = json!({
        "metadata": {"name": "move", "namespace": "ns", "uid": "m1", "resourceVersion": "3",
            "creationTimestamp": text(NOW - 60), "finalizers": [FINALIZER], "labels": {"kubevirt.io/vmi-name": "web"}},
        "spec": {"vmiName": "web"},
    });
    serde_json::from_value(with(object, change)).unwrap()
}

fn in_phase(phase: &str) -> Value {
    json!({"status": {"phase": phase}})
}

fn canceled(phase: &str) -> Value {
    json!({"status": {"phase": phase}, "metadata": {"deletionTimestamp": text(NOW)}})
}

fn vmi(change: Value) -> VirtualMachineInstance {
    let object = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "7"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": "a", "activePods": {"s1": "a"},
            "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    });
    serde_json::from_value(with(object, change)).unwrap()
}

fn record(change: Value) -> Value {
    let state = json!({"migrationUid": "m1", "sourceNode": "a", "sourcePod": "s", "targetNode": "b",
        "targetPod": target_name("web", "m1")});
    json!({"status": {"migrationState": with(state, change), "activePods": {"t1": "b"}}})
}

fn target(status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": target_name("web", "m1"), "namespace": "ns", "uid": "t1",
            "creationTimestamp": text(NOW), "labels": {CREATED_BY_LABEL: "u1", MIGRATION_JOB_LABEL: "m1"}},
        "spec": {"nodeName": "b", "containers": [{"name": "compute"}]},
        "status": status,
    }))
    .unwrap()
}

fn runs() -> Pod {
    target(json!({"phase": "Running", "podIP": "10.0.0.2", "containerStatuses": [{"name": "compute",
        "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}}]}))
}

fn settings() -> Effective {
    effective(&serde_json::from_value(json!({})).unwrap(), &[], None, None)
}

fn observed(
    migration: VirtualMachineInstanceMigration,
    vmi: Option<VirtualMachineInstance>,
    target: Option<Pod>,
) -> Observed {
    Observed {
        migration,
        vmi,
        effective: target.as_ref().filter(|pod| crate::vmi::runs(pod)).map(|_| settings()),
        target_node: target.as_ref().map(|_| NodeState::Ready),
        target,
        is_created_here: true,
        has_rival: false,
        back_off: Duration::ZERO,
        turn: Turn::NotAsked,
        unfit: None,
        target_disks: TargetDisks::default(),
        phase_due: Duration::from_secs(9),
        surplus: vec![],
        now: at(NOW),
    }
}

fn now(target_pod: TargetPod) -> Turn {
    Turn::Now(target_pod, Box::new(settings()))
}

fn its_turn(mut observed: Observed) -> Observed {
    observed.turn = now(TargetPod::Pod(Box::new(target(Value::Null)), None));
    observed
}

fn status(plan: &Plan) -> Value {
    let bodies: Vec<&Value> = plan
        .actions
        .iter()
        .filter_map(|action| if let Action::Status(body) = action { Some(body) } else { None })
        .collect();
    match bodies.as_slice() {
        [body] => body["status"].clone(),
        other => panic!("{other:?} in {plan:?}"),
    }
}

fn of_vmi(plan: &Plan) -> Value {
    let bodies: Vec<&Value> = plan
        .actions
        .iter()
        .filter_map(|action| if let Action::Vmi(body) = action { Some(body) } else { None })
        .collect();
    match bodies.as_slice() {
        [body] => (*body).clone(),
        other => panic!("{other:?} in {plan:?}"),
    }
}

fn messages(plan: &Plan) -> Vec<&str> {
    plan.notes.iter().map(|(_, note)| note.message.as_str()).collect()
}

fn phases(status: &Value) -> Vec<&str> {
    let stamps = status["phaseTransitionTimestamps"].as_array();
    stamps.into_iter().flatten().map(|stamp| stamp["phase"].as_str().unwrap()).collect()
}

fn deletes(plan: &Plan) -> bool {
    matches!(plan.actions.first(), Some(Action::Delete { uid, grace: 10, .. }) if uid == "t1")
}

#[test]
fn a_new_one_gets_its_marks_first() {
    let bare = migration(json!({"metadata": {"finalizers": null, "labels": null}}));
    let marked = plan(&its_turn(observed(bare, Some(vmi(json!({}))), None)));
    assert_eq!(
        marked.actions,
        [Action::Meta(json!({"metadata": {"finalizers": [FINALIZER], "resourceVersion": "3",
            "labels": {"kubevirt.io/vmi-name": "web"}}}))]
    );
    // No finalizer can be added to an object that is being deleted; it ends without one.
    let going = migration(json!({"metadata": {"finalizers": null, "deletionTimestamp": text(NOW)}}));
    assert_eq!(status(&plan(&observed(going, Some(vmi(json!({}))), None)))["phase"], "Failed");
}

#[test]
fn it_waits_for_its_turn_and_then_makes_its_pod() {
    let waits = plan(&observed(migration(json!({})), Some(vmi(json!({}))), None));
    let told_of = status(&waits);
    assert_eq!((&told_of["phase"], phases(&told_of)), (&json!("Pending"), vec!["Pending"]));
    assert!(told_of["migrationState"]["sourcePod"].as_str().unwrap().starts_with("virt-launcher-web-"));
    assert_eq!(waits.again, Some(Duration::from_secs(3)));
    let made = plan(&its_turn(observed(migration(json!({})), Some(vmi(json!({}))), None)));
    assert!(matches!(made.actions[..], [Action::Status(_), Action::Create(_)]), "{made:?}");
    assert_eq!(status(&made)["phase"], "Pending");
    // The pod exists: phases that passed are recorded in one write.
    let pod = target(json!({"phase": "Pending"}));
    let there = plan(&observed(migration(json!({})), Some(vmi(json!({}))), Some(pod)));
    let there = status(&there);
    assert_eq!((&there["phase"], phases(&there)), (&json!("Scheduling"), vec!["Pending", "Scheduling"]));
}

#[test]
fn a_migration_waits_for_other_work_without_a_pod() {
    let cases = [
        json!({"status": {"phase": "Scheduled"}}),
        json!({"status": {"activePods": {"old": "c"}}}),
        json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "True"},
            {"type": "HotMemoryChange", "status": "True"}]}}),
        json!({"status": {"changedBlockTracking": {"state": "Enabled", "backupStatus": {"backupName": "b"}}}}),
    ];
    for case in cases {
        let plan = plan(&its_turn(observed(migration(in_phase("Pending")), Some(vmi(case.clone())), None)));
        assert!(!plan.actions.iter().any(|action| matches!(action, Action::Create(_))), "{case}");
        assert!(plan.again.is_some(), "{case}");
    }
    let backup = json!({"status": {"changedBlockTracking": {"state": "Enabled", "backupStatus": {"backupName": "b"}}}});
    let backup = status(&plan(&observed(migration(json!({})), Some(vmi(backup)), None)));
    assert_eq!(backup["conditions"][0]["type"], "migrationBlockedByBackup");
    let mut pauses = observed(migration(json!({})), Some(vmi(json!({}))), None);
    pauses.back_off = Duration::from_secs(17);
    let plan = plan(&its_turn(pauses));
    assert_eq!(
        (plan.again, status(&plan)["phase"].clone()),
        (Some(Duration::from_secs(17)), json!("Pending"))
    );
    let (about, note) = &plan.notes[0];
    assert_eq!((*about, note.message.as_str()), (About::Vmi, "backoff migrating vmi ns/web"));
}

#[test]
fn an_impossible_migration_fails_with_the_reason() {
    let mut rival = observed(migration(in_phase("Pending")), Some(vmi(json!({}))), None);
    rival.has_rival = true;
    let movable = json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "False",
        "reason": "HostDeviceNotLiveMigratable", "message": "no"}]}});
    let stuck = observed(migration(in_phase("Pending")), Some(vmi(movable)), None);
    let mut invalid = observed(migration(in_phase("Pending")), Some(vmi(json!({}))), None);
    invalid.turn = now(TargetPod::Invalid("no".to_owned()));
    for (observed, why) in [
        (rival, "another migration job is in progress"),
        (stuck, "Cannot migrate VMI, Reason: HostDeviceNotLiveMigratable, Message: no"),
        (invalid, "failed to render launch manifest: no"),
        (observed(migration(in_phase("Pending")), None, None), "vmi does not exist"),
        (
            observed(migration(in_phase("Pending")), Some(vmi(json!({"status": {"phase": "Failed"}}))), None),
            "vmi shutdown during migration",
        ),
    ] {
        let plan = plan(&observed);
        assert_eq!(status(&plan)["phase"], "Failed");
        assert!(messages(&plan).iter().any(|message| message.contains(why)), "{why}: {plan:?}");
    }
}

#[test]
fn volume_migration_ignores_unshared_source_disks() {
    let change = |reason: &str, moved: Value| {
        let condition =
            json!([{"type": "LiveMigratable", "status": "False", "reason": reason, "message": "no"}]);
        vmi(json!({"status": {"conditions": condition, "migratedVolumes": moved}}))
    };
    let moved = json!([{"volumeName": "data"}]);
    let phase = |vmi| status(&plan(&observed(migration(json!({})), Some(vmi), None)))["phase"].clone();
    assert_eq!(phase(change("DisksNotLiveMigratable", moved.clone())), "Pending");
    assert_eq!(phase(change("HostDeviceNotLiveMigratable", moved)), "Failed");
    assert_eq!(phase(change("DisksNotLiveMigratable", json!([]))), "Failed");
}

#[test]
fn a_pod_is_identified_by_its_uid_alone() {
    let mut not_ours = observed(migration(in_phase("Pending")), Some(vmi(json!({}))), Some(runs()));
    not_ours.is_created_here = false;
    let replaced = plan(&not_ours);
    assert!(deletes(&replaced) && replaced.actions.len() == 1, "{replaced:?}");
    // A pod that the status names is ours, whichever process leads.
    let named = json!({"status": {"activePods": {"t1": ""}}});
    not_ours.vmi = Some(vmi(named));
    assert_eq!(of_vmi(&plan(&not_ours))["status"]["activePods"], json!({"t1": "b"}));
    // Where our pod was, no other replaces it.
    not_ours.vmi = Some(vmi(json!({})));
    not_ours.migration = migration(in_phase("Scheduling"));
    let ended = plan(&not_ours);
    assert!(deletes(&ended) && status(&ended)["phase"] == "Failed");
}

#[test]
fn a_pod_that_takes_long_is_noted_and_one_that_takes_too_long_is_given_up() {
    let pending = |age: i64, change: Value| {
        let unschedulable = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "False", "reason": "Unschedulable"}]});
        let mut observed = observed(
            migration(with(in_phase("Scheduling"), change)),
            Some(vmi(json!({}))),
            Some(target(unschedulable)),
        );
        observed.now = at(NOW + age);
        plan(&observed)
    };
    assert_eq!(pending(1, json!({})).again, Some(Duration::from_secs(3)));
    let noted = pending(5, json!({}));
    assert_eq!(of_vmi(&noted)["status"], json!({"activePods": {"t1": ""}}));
    assert_eq!(noted.again, Some(Duration::from_secs(295)));
    assert!(messages(&noted).iter().any(|text| text.contains("is currently unschedulable")));
    let given_up = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::Delete { .. }));
    assert!(given_up(&pending(300, json!({}))) && !given_up(&pending(299, json!({}))));
    let soon = json!({"metadata": {"annotations": {
        "kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "60"}}});
    assert!(given_up(&pending(60, soon)));
    let longer = json!({"metadata": {"annotations": {
        "kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "1000",
        "kubevirt.io/migrationPendingPodTimeoutSeconds": "900"}}});
    assert!(given_up(&pending(900, longer.clone())) && !given_up(&pending(899, longer)));
}

#[test]
fn a_target_without_a_node_with_the_sources_processor_causes_an_event_of_the_instance() {
    let pending = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable"}]});
    let mut waits = observed(migration(in_phase("Scheduling")), Some(vmi(json!({}))), Some(target(pending)));
    assert!(plan(&waits).notes.iter().all(|(about, _)| *about == About::Migration));
    waits.unfit = Some(
        [("cpu-feature.node.kubevirt.io/vmx", "true"), ("cpu-model-migration.node.kubevirt.io/X", "true")]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .into(),
    );
    let plan = plan(&waits);
    let (_, note) = plan.notes.iter().find(|(about, _)| *about == About::Vmi).unwrap();
    assert_eq!(
        (note.reason.as_str(), note.message.as_str()),
        (
            "NoSuitableNodesForHostModelMigration",
            "Migration cannot proceed since no node is suitable to run the required CPU model / required features: \
             map[cpu-feature.node.kubevirt.io/vmx:true cpu-model-migration.node.kubevirt.io/X:true]"
        )
    );
}

#[test]
fn without_its_pod_it_fails() {
    let gone = plan(&observed(migration(in_phase("Scheduling")), Some(vmi(json!({}))), None));
    assert_eq!((status(&gone)["phase"].clone(), gone.actions.len()), (json!("Failed"), 1));
    let ended = target(json!({"phase": "Failed"}));
    let ended = plan(&observed(migration(in_phase("Scheduling")), Some(vmi(json!({}))), Some(ended)));
    assert_eq!(status(&ended)["phase"], "Failed");
    assert!(matches!(ended.actions[0], Action::Delete { grace: 0, .. }));
}

#[test]
fn before_the_hand_over_a_cancel_ends_it_at_once() {
    for phase in ["", "Pending", "Scheduling"] {
        let pod = (phase != "Pending").then(runs);
        let plan = plan(&observed(migration(canceled(phase)), Some(vmi(json!({}))), pod.clone()));
        assert_eq!(deletes(&plan), pod.is_some());
        let status = status(&plan);
        assert_eq!(
            (&status["phase"], &status["conditions"][0]["type"]),
            (&json!("Failed"), &json!("migrationAbortRequested"))
        );
    }
}

#[test]
fn an_ended_migration_releases_its_finalizer_and_collects_the_oldest() {
    let mut ended = observed(migration(in_phase("Succeeded")), Some(vmi(json!({}))), None);
    ended.surplus = vec![("old".to_owned(), "m0".to_owned())];
    let plan = super::plan::plan(&ended);
    let collect = Action::Collect { name: "old".to_owned(), uid: "m0".to_owned() };
    let release = Action::Meta(json!({"metadata": {"finalizers": [], "resourceVersion": "3"}}));
    assert_eq!(plan.actions, [collect, release]);
    ended.migration = migration(json!({"status": {"phase": "Failed"}, "metadata": {"finalizers": null}}));
    assert_eq!(super::plan::plan(&ended), Plan::default());
}

#[test]
fn between_clusters_is_refused() {
    let send = json!({"status": {"phase": "Pending"}, "spec": {"sendTo": {"connectURL": "h:1", "migrationID": "x"}}});
    let plan = plan(&its_turn(observed(migration(send), Some(vmi(json!({}))), None)));
    assert!(messages(&plan)[0].contains("not supported"));
    let waiting = migration(in_phase("WaitingForSync"));
    assert_eq!(super::plan::plan(&observed(waiting, None, None)), Plan::default());
}
