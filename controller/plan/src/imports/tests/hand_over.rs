//! What is not filled when CDI is installed.

use super::super::hand_over::{Left, Plan, Step, plan, unfinished};
use super::*;

const MANAGER: &str = "virt-controller";

/// A running import, as it is found with its claim changed.
fn left(change: impl FnOnce(&mut Value)) -> Left {
    let world = running();
    let mut claim = serde_json::to_value(world.observed.claim.unwrap()).unwrap();
    claim["metadata"]["uid"] = json!("c1");
    claim["metadata"]["resourceVersion"] = json!("7");
    claim["metadata"]["managedFields"] = json!([
        { "manager": MANAGER, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} } },
    ]);
    change(&mut claim);
    Left {
        data_volume: world.observed.data_volume,
        claim: serde_json::from_value(claim).unwrap(),
        pods: world.observed.pod.into_iter().collect(),
    }
}

fn pod(name: &str, phase: &str, claim: &str) -> Pod {
    let volume = json!({ "name": "disk", "persistentVolumeClaim": { "claimName": claim } });
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name },
        "spec": { "containers": [], "volumes": [volume] }, "status": { "phase": phase },
    }))
    .unwrap()
}

fn importer_goes() -> Step {
    Step::RemovePod { name: "importer-root".to_owned(), uid: "p1".to_owned() }
}

#[test]
fn an_import_that_runs_ends_and_its_claim_goes() {
    let left = left(|_| {});
    assert_eq!(unfinished(&left.claim, MANAGER), Some("root"));
    let expected = Plan { steps: vec![importer_goes(), Step::RemoveClaim], used_by: None };
    assert_eq!(plan(&left), expected);
    // So it is with one that waits.
    let mut waiting = left;
    waiting.pods.clear();
    waiting.data_volume.status.as_mut().unwrap().phase = Some("WaitForFirstConsumer".to_owned());
    assert_eq!(plan(&waiting).steps, [Step::RemoveClaim]);
}

#[test]
fn a_claim_that_another_pod_uses_stays_until_that_pod_has_ended() {
    let mut left = left(|_| {});
    left.pods.push(pod("guest", "Running", "root"));
    let expected = Plan { steps: vec![importer_goes()], used_by: Some("guest".to_owned()) };
    assert_eq!(plan(&left), expected);
    for (phase, claim) in [("Succeeded", "root"), ("Failed", "root"), ("Running", "other")] {
        left.pods.pop();
        left.pods.push(pod("guest", phase, claim));
        assert_eq!(plan(&left).steps, [importer_goes(), Step::RemoveClaim], "{phase} {claim}");
    }
    // A pod with the importer's name that is not its DataVolume's.
    left.pods = vec![pod("importer-root", "Running", "root")];
    assert_eq!(plan(&left), Plan { steps: vec![], used_by: Some("importer-root".to_owned()) });
}

#[test]
fn filled_claims_and_those_of_others_are_not_looked_at() {
    let annotated = |name: &str, value: &str| {
        left(|claim| claim["metadata"]["annotations"] = json!({ name: value })).claim
    };
    let by = |manager: &str, fields: Value| {
        left(|claim| {
            claim["metadata"]["managedFields"][0]["manager"] = json!(manager);
            claim["metadata"]["managedFields"][0]["fieldsV1"] = fields;
        })
        .claim
    };
    for (claim, why) in [
        (annotated("cdi.kubevirt.io/storage.populatedFor", "root"), "filled"),
        (annotated(annotation::PHASE, "Succeeded"), "uploaded"),
        (by("virt-cdi-controller", json!({ "f:spec": {} })), "made by CDI"),
        (by(MANAGER, json!({ "f:metadata": {} })), "only annotated here"),
        (left(|claim| claim["metadata"]["managedFields"] = Value::Null).claim, "nobody knows who made it"),
        (left(|claim| claim["metadata"]["ownerReferences"] = Value::Null).claim, "of no DataVolume"),
        (left(|claim| claim["metadata"]["ownerReferences"][0]["kind"] = json!("Set")).claim, "of another"),
    ] {
        assert_eq!(unfinished(&claim, MANAGER), None, "{why}");
    }
    assert_eq!(unfinished(&annotated(annotation::PHASE, "Running"), MANAGER), Some("root"));
}

#[test]
fn a_claim_that_cdi_fills_or_cannot_replace_stays_and_only_its_importer_goes() {
    let annotated =
        |name: &str| left(|claim| claim["metadata"]["annotations"] = json!({ name: "something" }));
    let source = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "a" });
    let changed = |change: &dyn Fn(&mut Value)| {
        let left = left(|_| {});
        let mut volume = serde_json::to_value(&left.data_volume).unwrap();
        change(&mut volume);
        Left { data_volume: serde_json::from_value(volume).unwrap(), ..left }
    };
    for (left, why) in [
        (annotated(annotation::UPLOAD), "an upload"),
        (annotated(annotation::ENDPOINT), "an import"),
        (annotated("cdi.kubevirt.io/storage.import.importPodName"), "an import that runs"),
        (annotated(annotation::CLONE_REQUEST), "a copy"),
        (annotated("cdi.kubevirt.io/storage.createdByController"), "made by CDI"),
        (left(|claim| claim["spec"]["dataSourceRef"] = source.clone()), "a populator"),
        (left(|claim| claim["spec"]["dataSource"] = source.clone()), "a source"),
        (changed(&|volume| volume["spec"]["storage"]["volumeName"] = json!("pv1")), "a volume of the user"),
        (
            changed(&|volume| volume["metadata"]["labels"] = json!({ (populator::LABEL): "" })),
            "filled for another claim",
        ),
    ] {
        assert_eq!(plan(&left), Plan { steps: vec![importer_goes()], used_by: None }, "{why}");
    }
}

#[test]
fn nothing_is_done_where_the_data_volume_has_ended_or_is_another_one() {
    let with = |change: &dyn Fn(&mut Left)| {
        let mut left = left(|_| {});
        change(&mut left);
        plan(&left)
    };
    let time = || Some(observed(data_volume(|_| {})).now);
    let phase = |left: &mut Left, phase: &str| {
        left.data_volume.status.as_mut().unwrap().phase = Some(phase.to_owned());
    };
    for (plan, why) in [
        (with(&|left| phase(left, "Succeeded")), "filled"),
        (with(&|left| phase(left, "Failed")), "given up"),
        (with(&|left| left.data_volume.metadata.uid = Some("u2".to_owned())), "made anew"),
        (with(&|left| left.data_volume.metadata.deletion_timestamp = time()), "deleted"),
        (with(&|left| left.claim.metadata.deletion_timestamp = time()), "its claim goes"),
    ] {
        assert_eq!(plan, Plan::default(), "{why}");
    }
}

#[test]
fn a_claim_that_was_filled_a_moment_ago_is_marked_and_stays() {
    let mut left = left(|_| {});
    let done = ended(0, r#"{"result":"done","size":1}"#);
    left.pods[0].status = serde_json::from_value(
        json!({ "phase": "Succeeded", "containerStatuses": container(0, &done, &json!({})) }),
    )
    .unwrap();
    let steps = plan(&left).steps;
    let [Step::MarkClaim(patch), removal] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(removal, &importer_goes());
    assert_eq!(patch["metadata"]["uid"], "c1");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["metadata"]["annotations"]["cdi.kubevirt.io/storage.populatedFor"], "root");
}
