//! An instance with two launcher pods: single cases.

use super::*;
use crate::vmi::moving::{abort, failed};
use barevirt_api::names::{
    EVICTION_IN_PROGRESS_ANNOTATION, MIGRATION_JOB_LABEL, MIGRATION_TARGET_NODE_LABEL,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const TARGET: &str = "virt-launcher-a-target";

fn with(mut object: Value, change: &Value) -> Value {
    crate::merge::apply(&mut object, change);
    object
}

/// An instance that was handed over, with two pods.
fn handed(state: Value) -> VirtualMachineInstance {
    let record = json!({"migrationUid": "m1", "sourcePod": pod::name("a", "u1"), "sourceNode": "node01",
        "targetPod": TARGET, "targetNode": "node02"});
    let mut vmi = vmi(json!({"phase": "Running", "nodeName": "node01",
        "activePods": {"p1": "node01", "t1": "node02"}, "migrationState": with(record, &state)}));
    vmi.metadata.labels = Some([(MIGRATION_TARGET_NODE_LABEL.to_owned(), "node02".to_owned())].into());
    vmi
}

fn target() -> Pod {
    let mut pod = running();
    pod.metadata.name = Some(TARGET.to_owned());
    pod.metadata.uid = Some("t1".to_owned());
    pod.metadata.labels.as_mut().unwrap().insert(MIGRATION_JOB_LABEL.to_owned(), "m1".to_owned());
    pod.spec.as_mut().unwrap().containers[0].image = Some("newer".to_owned());
    pod
}

fn ended(mut pod: Pod) -> Pod {
    let status =
        json!({"phase": "Failed", "containerStatuses": container(json!({"terminated": {"exitCode": 0}}))});
    pod.status = pod_with(status).status;
    pod
}

fn moving(state: Value, source: Option<Pod>, how: Target) -> Observed {
    let mut observed = observed(handed(state), source);
    observed.others = vec![Other { wanted: true, ..other(target()) }];
    (observed.target, observed.is_asked_to_move) = (how, true);
    observed
}

fn over() -> Value {
    json!({"completed": true, "endTimestamp": text(NOW)})
}

/// After the switch: the target is the launcher.
fn moved(others: Vec<Pod>) -> Observed {
    let mut vmi = handed(over());
    vmi.status.as_mut().unwrap().node_name = Some("node02".to_owned());
    let mut observed = observed(vmi, Some(target()));
    observed.others = others.into_iter().map(other).collect();
    observed
}

#[test]
fn the_end_of_the_source_is_not_the_instances_while_the_guest_may_be_elsewhere() {
    let started = json!({"targetNodeAddress": "10.0.0.9", "startTimestamp": text(NOW)});
    let gone_node = |mut observed: Observed| {
        observed.node = Some(NodeState::Gone);
        observed
    };
    for observed in [
        moving(started.clone(), None, Target::Lives),
        moving(started.clone(), Some(ended(running())), Target::Lives),
        gone_node(moving(started.clone(), Some(running()), Target::Lives)),
        // It may run there, but that is not known.
        moving(started.clone(), None, Target::Unknown),
    ] {
        let asks = plan(&observed);
        let status = &patch_of(&asks)["status"];
        assert_eq!(*status, json!({"migrationState": {"abortRequested": true}}));
        // Only once.
        let mut asked = observed.clone();
        asked.vmi = handed(with(started.clone(), &json!({"abortRequested": true})));
        assert!(plan(&asked).actions.is_empty() && plan(&asked).again.is_some());
    }
    let missing = moving(started, None, Target::Missing(Duration::from_secs(29)));
    assert_eq!(plan(&missing), Plan::default().again_in(Duration::from_secs(1)));
}

#[test]
fn a_target_that_is_gone_for_certain_has_failed() {
    let prepared = || json!({"targetNodeAddress": "10.0.0.9"});
    let says = |state: Value, how: Target| {
        let plan = plan(&moving(state, Some(running()), how));
        (!plan.actions.is_empty()).then(|| patch_of(&plan)["status"]["migrationState"].clone())
    };
    let seconds = Duration::from_secs;
    assert_eq!(says(prepared(), Target::Ended(seconds(9))), None, "handlers come first");
    let said = says(prepared(), Target::Ended(seconds(10))).unwrap();
    assert_eq!((&said["failed"], &said["completed"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&said["endTimestamp"], &said["failureReason"]),
        (&json!(text(NOW)), &json!("Target pod is down"))
    );
    assert_eq!(says(prepared(), Target::Missing(seconds(29))), None, "it may still run");
    assert!(says(prepared(), Target::Missing(seconds(30))).is_some());
    // The source cannot have begun.
    assert!(
        says(json!({}), Target::Ended(seconds(0))).is_some()
            && says(json!({}), Target::Missing(seconds(0))).is_some()
    );
    for how in [Target::Unknown, Target::Lives] {
        assert_eq!(says(json!({}), how), None);
    }
}

#[test]
fn an_unwanted_migration_is_ended_or_aborted() {
    let mut forgotten = moving(json!({"targetNodeAddress": "10.0.0.9"}), Some(running()), Target::Lives);
    forgotten.is_asked_to_move = false;
    let state = patch_of(&plan(&forgotten))["status"]["migrationState"].clone();
    assert_eq!(state, json!({"abortRequested": true}));
    forgotten.vmi = handed(json!({"targetNodeAddress": "10.0.0.9", "abortRequested": true}));
    assert!(plan(&forgotten).actions.is_empty());
    let alone = abort(&handed(json!({})), at(NOW)).unwrap();
    assert_eq!(alone["metadata"]["resourceVersion"], "7");
    assert_eq!(alone["status"]["migrationState"]["failureReason"], "Live migration aborted");
    // A former report stays.
    let said = handed(
        json!({"failureReason": "told", "startTimestamp": text(NOW - 2), "endTimestamp": text(NOW - 1)}),
    );
    let patch = failed(&said, "x", at(NOW)).unwrap();
    assert_eq!(patch["status"]["migrationState"], json!({"completed": true, "failed": true}));
    let unsaid = failed(&handed(json!({})), "x", at(NOW)).unwrap()["status"]["migrationState"].clone();
    assert_eq!((&unsaid["startTimestamp"], &unsaid["endTimestamp"]), (&json!(text(NOW)), &json!(text(NOW))));
}

#[test]
fn after_the_switch_the_target_is_the_launcher_and_the_source_leaves_its_log() {
    // The launcher of the source ends by itself.
    let mut source = moved(vec![running()]);
    source.now = at(NOW + 3);
    assert_eq!(plan(&source), Plan::default().again_in(Duration::from_secs(7)));
    source.now = at(NOW + 10);
    let goes = plan(&source);
    assert!(
        matches!(&goes.actions[..], [Action::DeletePod { uid, grace: 10, .. }] if uid == "p1"),
        "{goes:?}"
    );
    let gone = plan(&moved(vec![]));
    let body = patch_of(&gone);
    assert_eq!(body["status"]["activePods"], json!({"p1": null}));
    assert_eq!(body["status"]["launcherContainerImageVersion"], "newer");
    assert_eq!(body["metadata"]["labels"], json!({MIGRATION_TARGET_NODE_LABEL: null}));
    assert_eq!(body["status"].get("phase"), None);
    // A source that has ended has no guest, and stays as the record of the last migration.
    let record = moved(vec![ended(running())]);
    assert_eq!(patch_of(&plan(&record))["status"]["activePods"], json!({"p1": null}));
    let deletes = |observed: &Observed| {
        let actions = plan(observed).actions;
        matches!(&actions[..], [Action::DeletePod { uid, grace: 0, .. }, Action::Patch(_)] if uid == "p1")
    };
    let state = |observed: &mut Observed, change: Value| {
        let state = observed.vmi.status.as_mut().unwrap().migration_state.as_mut().unwrap();
        *state = serde_json::from_value(with(serde_json::to_value(&*state).unwrap(), &change)).unwrap();
    };
    let mut later = record.clone();
    state(&mut later, json!({"migrationUid": "m2", "sourcePod": TARGET, "targetPod": "other"}));
    assert!(deletes(&later), "a later migration has ended");
    let mut with_old_claim = record;
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "old"}}]);
    with_old_claim.others[0].pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
    assert!(deletes(&with_old_claim), "the guest has left that claim");
    // The kubelet removes a deleted pod.
    let mut going = ended(running());
    going.metadata.deletion_timestamp = Some(Time(at(NOW)));
    going.metadata.deletion_grace_period_seconds = Some(10);
    let going = plan(&moved(vec![going]));
    assert!(matches!(&going.actions[..], [Action::Patch(_)]), "{going:?}");
    // The end of the target is the end of the instance.
    let mut lost = moved(vec![]);
    lost.pod = Some(ended(target()));
    assert_eq!(patch_of(&plan(&lost))["status"]["phase"], "Succeeded");
}

/// After a failed migration, this long ago: the guest is at the source.
fn failed_back(target: Pod, since: i64) -> Observed {
    let mut back = observed(handed(with(over(), &json!({"failed": true}))), Some(running()));
    back.others = vec![other(target)];
    back.now = at(NOW + since);
    back
}

fn deletes_target(observed: &Observed) -> bool {
    let deletes = |action: &Action| matches!(action, Action::DeletePod { uid, .. } if uid == "t1");
    plan(observed).actions.iter().any(deletes)
}

#[test]
fn a_failed_migration_leaves_the_source_and_the_log_of_the_target() {
    let ends = Action::EndPod { name: TARGET.to_owned(), uid: "t1".to_owned() };
    let seven = Duration::from_secs(7);
    assert_eq!(plan(&failed_back(target(), 3)), Plan::default().act(ends).again_in(seven));
    let mut told = target();
    told.spec.as_mut().unwrap().active_deadline_seconds = Some(1);
    assert_eq!(plan(&failed_back(told, 3)), Plan::default().again_in(seven), "once");
    assert!(deletes_target(&failed_back(target(), 10)), "it does not end");
    let record = failed_back(ended(target()), 3600);
    let plan = plan(&record);
    assert_eq!(patch_of(&plan)["status"]["activePods"], json!({"t1": null}));
    assert!(!deletes_target(&record));

    // Not where something else would stay with it.
    let mut plugged = record.clone();
    let disk = json!({"name": "d", "persistentVolumeClaim": {"claimName": "d", "hotpluggable": true}});
    plugged.vmi.spec.volumes.push(serde_json::from_value(disk).unwrap());
    assert!(deletes_target(&plugged));
    let mut own_claim = record.clone();
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "new"}}]);
    let with_claim = |pod: &mut Pod| {
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes.clone()).unwrap();
    };
    with_claim(&mut own_claim.others[0].pod);
    assert!(deletes_target(&own_claim));
    with_claim(own_claim.pod.as_mut().unwrap());
    assert!(!deletes_target(&own_claim), "the guest has that claim too");

    // A later migration has ended.
    let mut later = record.clone();
    let state = later.vmi.status.as_mut().unwrap().migration_state.as_mut().unwrap();
    (state.migration_uid, state.target_pod) = (Some("m2".to_owned()), Some("other".to_owned()));
    assert!(deletes_target(&later));
}

#[test]
fn a_failed_target_whose_node_does_not_answer_is_not_waited_for() {
    let mut back = failed_back(target(), 30);
    back.others[0].pod.metadata.deletion_timestamp = Some(Time(at(NOW)));
    let body = plan(&back).actions.into_iter().find_map(|action| match action {
        Action::Patch(body) => Some(body),
        _ => None,
    });
    assert_eq!(body.unwrap()["status"]["activePods"], json!({"t1": null}));
}

#[test]
fn marks_go_with_what_they_are_about() {
    let marked = |node: &str| {
        let mut observed = moved(vec![]);
        observed.vmi.status.as_mut().unwrap().evacuation_node_name = Some(node.to_owned());
        let patch = |action| if let Action::Patch(body) = action { Some(body) } else { None };
        plan(&observed).actions.into_iter().find_map(patch).unwrap()["status"].clone()
    };
    assert_eq!(marked("node01").get("evacuationNodeName"), Some(&Value::Null));
    assert_eq!(marked("node02").get("evacuationNodeName"), None);
    // An instance that never moved is left alone.
    let calm = json!({"phase": "Running", "nodeName": "node01", "activePods": {"p1": "node01"}});
    assert_eq!(plan(&observed(vmi(calm), Some(running()))), Plan::default());
}

#[test]
fn a_pod_that_a_migration_waits_for_stays() {
    let noted = json!({"phase": "Running", "nodeName": "node01", "activePods": {"p1": "node01", "t1": ""}});
    let mut waits = observed(vmi(noted), Some(running()));
    waits.others = vec![Other { wanted: true, ..other(target()) }];
    assert!(plan(&waits).actions.is_empty());
    // The migration has ended: no guest was ever brought there.
    waits.others[0].wanted = false;
    let goes = plan(&waits);
    assert!(matches!(&goes.actions[..], [Action::DeletePod { .. }, Action::Patch(_)]), "{goes:?}");
}

#[test]
fn both_pods_go_with_the_instance_each_as_its_node_is() {
    let started = json!({"targetNodeAddress": "10.0.0.9"});
    let mut going = moving(started, Some(running()), Target::Lives);
    going.vmi = deleting(going.vmi);
    going.node = Some(NodeState::Gone);
    let actions = plan(&going).actions;
    let graces: Vec<(&str, u32)> = actions
        .iter()
        .map(|action| match action {
            Action::DeletePod { uid, grace, .. } => (uid.as_str(), *grace),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(graces, [("p1", 0), ("t1", 40)]);
}

#[test]
fn an_eviction_and_its_end_are_reported_by_event_and_descheduler_annotation() {
    let calm = json!({"phase": "Running", "nodeName": "node01", "activePods": {"p1": "node01"}});
    let marked = with(calm.clone(), &json!({"evacuationNodeName": "node01"}));
    let begun = plan(&observed(vmi(marked.clone()), Some(running())));
    let [Action::AnnotatePod { uid, annotation, value: Some(value), .. }, Action::Patch(body)] =
        &begun.actions[..]
    else {
        panic!("{begun:?}")
    };
    assert_eq!((uid.as_str(), *annotation, value.as_str()), ("p1", EVICTION_IN_PROGRESS_ANNOTATION, "true"));
    let condition = &body["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("EvictionRequested"), &json!("True")));
    // Only once.
    let mut pod = running();
    let note = (EVICTION_IN_PROGRESS_ANNOTATION.to_owned(), "true".to_owned());
    pod.metadata.annotations.get_or_insert_default().extend([note]);
    let told = with(marked, &json!({"conditions": body["status"]["conditions"]}));
    assert_eq!(plan(&observed(vmi(told.clone()), Some(pod.clone()))), Plan::default());
    // The mark was removed.
    let cancelled = plan(&observed(vmi(with(told, &json!({"evacuationNodeName": null}))), Some(pod)));
    let [
        Action::AnnotatePod { annotation: EVICTION_IN_PROGRESS_ANNOTATION, value: None, .. },
        Action::Patch(body),
    ] = &cancelled.actions[..]
    else {
        panic!("{cancelled:?}")
    };
    assert_eq!(body["status"]["conditions"], Value::Null);
}

#[test]
fn state_that_has_moved_is_settled_before_a_deleted_instance_is_gone() {
    let names = json!({"sourcePersistentStatePVCName": "here", "targetPersistentStatePVCName": "there"});
    let last = |end: Value| {
        let mut observed = observed(deleting(handed(with(names.clone(), &end))), None);
        observed.others = vec![];
        plan(&observed)
    };
    let settled = last(over());
    assert!(
        matches!(&settled.actions[..], [Action::SettleState(moved), Action::Patch(_)] if moved.to == "there"),
        "{settled:?}"
    );
    let stayed = last(with(over(), &json!({"failed": true})));
    assert!(matches!(&stayed.actions[..], [Action::Patch(_)]), "{stayed:?}");
}

#[test]
fn an_instance_whose_volumes_move_gives_way_until_it_is_handed_over() {
    let volumes = json!([{"volumeName": "d", "destinationPVCInfo": {"claimName": "new"}}]);
    let condition = |reason: Option<&str>, message: &str| {
        json!([{"type": "VolumesChange", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": text(NOW)}])
    };
    let waits = |reason, message, first: Option<&str>| {
        let status = json!({"phase": "Running", "nodeName": "node01", "activePods": {"p1": "node01"},
            "migratedVolumes": volumes.clone(), "conditions": condition(reason, message)});
        let mut observed = observed(vmi(status), Some(running()));
        // Also while its own migration has made a pod.
        observed.others = vec![Other { wanted: true, ..other(target()) }];
        observed.goes_first = first.map(str::to_owned);
        observed
    };
    let told = |observed: &Observed| {
        let plan = plan(observed);
        let mut bodies = plan.actions.iter().filter_map(|action| {
            let Action::Patch(body) = action else { return None };
            let told = &body["status"]["conditions"][0];
            (told["type"] == "VolumesChange").then(|| (told["reason"].clone(), told["message"].clone()))
        });
        (bodies.next(), plan.notes.len(), plan.again)
    };
    let again = Some(Duration::from_secs(5));
    assert_eq!(told(&waits(None, "migrate volumes", None)), (None, 0, again));
    let yields = Some((json!("ClaimInUse"), json!("why")));
    assert_eq!(told(&waits(None, "migrate volumes", Some("why"))), (yields, 1, again));
    assert_eq!(told(&waits(Some("ClaimInUse"), "why", Some("why"))), (None, 0, again));
    let taken_back = Some((Value::Null, json!("migrate volumes")));
    assert_eq!(told(&waits(Some("ClaimInUse"), "why", None)), (taken_back, 0, again));
    let mut moving = moving(json!({}), Some(running()), Target::Lives);
    moving.goes_first = Some("why".to_owned());
    moving.vmi.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(volumes).unwrap();
    assert_eq!(plan(&moving), Plan::default());
}
