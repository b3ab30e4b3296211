mod claims;
mod copies;
mod hand_over;
mod kept;
mod pods;
mod sent;
mod world;

use self::world::{World, condition, phase_of};
use super::facts::{ADOPTION_ANNOTATION, MOST_RESTARTS};
use super::*;
use barevirt_api::cdi::{DataVolume, annotation};
use barevirt_api::v1::NodePlacement;
use barevirt_import_job::{Job, Network, Outcome, Source};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::Value;
use serde_json::json;

const UID: &str = "u1";

pub(super) fn installation() -> Installation {
    Installation {
        image: "registry/virt-importer:1".to_owned(),
        pull_policy: Some("IfNotPresent".to_owned()),
        pull_secrets: vec!["pull".to_owned()],
        image_volumes: true,
        insecure_registries: ["r.example:5000".to_owned()].into(),
        network: Network::default(),
        nodes: NodePlacement::default(),
        resources: resources::of(None),
        overhead: Overhead::default(),
        preallocation: false,
    }
}

pub(super) fn data_volume(change: impl FnOnce(&mut Value)) -> DataVolume {
    let mut value = json!({
        "metadata": { "name": "root", "namespace": "ns", "uid": UID, "labels": { "of": "template" } },
        "spec": {
            "source": { "http": { "url": "https://images.example/a.qcow2" } },
            "storage": { "resources": { "requests": { "storage": "1Gi" } } },
        },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

pub(super) fn observed(data_volume: DataVolume) -> Observed {
    let now = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Observed {
        profile: Profile::default(),
        kept: None,
        data_volume,
        claim: None,
        copied: Copied::Nothing,
        pod: None,
        waits: false,
        progress: None,
        now,
    }
}

pub(super) fn ended(code: i32, message: &str) -> Value {
    json!({ "terminated": { "exitCode": code, "message": message } })
}

pub(super) fn container(restarts: i32, state: &Value, last: &Value) -> Value {
    json!([{ "name": "importer", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
        "state": state, "lastState": last }])
}

fn runs() -> Value {
    json!({ "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": container(0, &json!({ "running": {} }), &json!({})) })
}

/// A DataVolume whose pod runs.
fn running() -> World {
    let mut world = World::new(data_volume(|_| {}));
    world.settle();
    world.claim_is("Bound");
    world.settle();
    world.pod_is(runs());
    world.settle();
    assert_eq!(world.phase(), "ImportInProgress");
    world
}

#[test]
fn a_program_that_is_done_has_filled_the_claim_before_its_pod_has_ended() {
    let mut world = running();
    let done = ended(0, r#"{"result":"done","size":1}"#);
    world.pod_is(json!({ "phase": "Running", "containerStatuses": container(0, &done, &json!({})) }));
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(world.events, ["Pending", "Bound", "ImportScheduled", "ImportInProgress", "ImportSucceeded"]);
    // The end of a try that failed is none.
    let mut world = running();
    let failed = ended(1, r#"{"result":"failed","last":false,"reason":"no"}"#);
    world.pod_is(json!({ "phase": "Running", "containerStatuses": container(0, &failed, &json!({})) }));
    world.settle();
    assert_eq!(world.phase(), "ImportInProgress");
    assert_eq!(condition(world.status(), "Running"), ("False", "Error", "no"));
}

/// A registry that refuses connections ends the importer before anybody has seen it run.
#[test]
fn an_import_whose_server_cannot_be_reached_is_in_progress_from_its_first_try_on() {
    let mut world = World::new(data_volume(|_| {}));
    world.settle();
    world.claim_is("Bound");
    world.settle();
    let failed = ended(1, &Outcome::failed(false, "connect to https://r.example: refused").to_message());
    world.pod_is(json!({ "phase": "Running", "containerStatuses": container(0, &failed, &json!({})) }));
    world.settle();
    assert_eq!(world.phase(), "ImportInProgress");
    assert_eq!(world.status().restart_count, None);
    assert_eq!(condition(world.status(), "Running").1, "Error");
    let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    world.pod_is(json!({ "phase": "Running", "containerStatuses": container(2, &waits, &failed) }));
    world.settle();
    assert_eq!((world.phase(), world.status().restart_count), ("ImportInProgress", Some(2)));
    assert_eq!(condition(world.status(), "Running").0, "False");
    // A pod that has not begun is only scheduled.
    let begins = json!({ "waiting": { "reason": "ContainerCreating" } });
    let mut world = World::new(data_volume(|_| {}));
    world.settle();
    world.claim_is("Bound");
    world.settle();
    world.pod_is(json!({ "phase": "Pending", "containerStatuses": container(0, &begins, &json!({})) }));
    world.settle();
    assert_eq!(world.phase(), "ImportScheduled");
}

#[test]
fn from_nothing_to_a_filled_claim() {
    let mut world = World::new(data_volume(|_| {}));
    world.settle();
    assert_eq!(world.phase(), "Pending");
    assert_eq!(condition(world.status(), "Bound"), ("False", "Pending", "PVC root Pending"));
    world.claim_is("Bound");
    world.settle();
    assert_eq!(world.phase(), "ImportScheduled");
    assert_eq!(world.status().progress.as_deref(), Some("N/A"));
    assert!(world.observed.pod.is_some());
    world.pod_is(runs());
    world.observed.progress = Some(41.5);
    let plan = world.step();
    assert_eq!(plan.again, Some(PROGRESS));
    assert_eq!(world.status().progress.as_deref(), Some("41.50%"));
    assert_eq!(condition(world.status(), "Running").0, "True");
    assert_eq!(condition(world.status(), "Ready"), ("False", "TransferRunning", ""));
    // Nothing has changed: nothing is written.
    assert_eq!(world.step().status, None);
    // The last progress is kept where a look finds none.
    world.observed.progress = None;
    assert_eq!(world.step().status, None);
    world.pod_is(json!({ "phase": "Succeeded", "containerStatuses": container(0, &ended(0, r#"{"result":"done","size":1}"#), &json!({})) }));
    world.settle();
    assert_eq!((world.phase(), world.status().progress.as_deref()), ("Succeeded", Some("100.0%")));
    assert_eq!(condition(world.status(), "Ready").0, "True");
    assert_eq!(world.observed.pod, None);
    let claim = world.observed.claim.as_ref().unwrap();
    assert!(is_filled(claim, "root"));
    assert_eq!(claim.annotations()["cdi.kubevirt.io/storage.pod.phase"], "Succeeded");
    assert_eq!(world.events, ["Pending", "Bound", "ImportScheduled", "ImportInProgress", "ImportSucceeded"]);
    // Whatever happens to the claim, it is not filled again.
    world.observed.claim = None;
    assert_eq!(world.step(), Plan::default());
}

#[test]
fn the_pod_of_a_filled_claim_stays_where_an_annotation_says_so_and_that_of_a_failed_one_does_not() {
    let annotated = |value: &str| {
        let annotations = json!({ (annotation::POD_STAYS): value });
        let mut world = World::new(data_volume(|value| value["metadata"]["annotations"] = annotations));
        world.settle();
        world.claim_is("Bound");
        world.settle();
        world
    };
    let ends = |mut world: World, code: i32, message: &str| {
        world.pod_is(json!({ "containerStatuses": container(0, &ended(code, message), &json!({})) }));
        world.settle();
        (world.phase().to_owned(), world.observed.pod.is_some())
    };
    let done = r#"{"result":"done","size":1}"#;
    assert_eq!(ends(annotated("true"), 0, done), ("Succeeded".to_owned(), true));
    assert_eq!(ends(annotated("false"), 0, done), ("Succeeded".to_owned(), false));
    let failed = r#"{"result":"failed","last":true,"reason":"no"}"#;
    assert_eq!(ends(annotated("true"), 2, failed), ("Failed".to_owned(), false));
}

#[test]
fn a_filled_claim_says_whether_its_space_was_allocated_in_advance() {
    let marked = |preallocation: Value, usual: bool| {
        let data_volume = data_volume(|value| value["spec"]["preallocation"] = preallocation);
        let installation = Installation { preallocation: usual, ..installation() };
        let preallocated = installation.preallocates(&data_volume.spec);
        let mut patch = claim::mark(&data_volume, &PersistentVolumeClaim::default(), preallocated);
        patch["metadata"]["annotations"]["cdi.kubevirt.io/storage.preallocation"].take()
    };
    assert_eq!((marked(json!(true), false), marked(json!(null), true)), (json!("true"), json!("true")));
    assert_eq!((marked(json!(false), true), marked(json!(null), false)), (json!(null), json!(null)));
}

#[test]
fn the_claim_is_marked_before_it_is_said_that_it_is_filled() {
    let mut world = running();
    world.pod_is(json!({ "phase": "Succeeded" }));
    let planned = plan(&world.observed, &installation());
    assert!(matches!(planned.step, Some(Step::PatchClaim(_))));
    assert!(matches!(planned.after, Some(Step::RemovePod(_))));
    // The status was not written, and the pod is gone: the claim's mark counts.
    world.does(planned.step);
    world.observed.pod = None;
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
}

#[test]
fn a_final_failure_fails_the_import_with_its_reason() {
    let outcome = Outcome::failed(true, "image is in vmdk format").to_message();
    for status in [
        json!({ "phase": "Running", "containerStatuses": container(0, &ended(2, &outcome), &json!({})) }),
        // The kubelet has already restarted the container.
        json!({ "phase": "Running", "containerStatuses": container(1, &json!({ "running": {} }), &ended(2, &outcome)) }),
        json!({ "phase": "Failed", "containerStatuses": container(0, &ended(2, &outcome), &json!({})) }),
    ] {
        let mut world = running();
        world.pod_is(status);
        let planned = plan(&world.observed, &installation());
        assert!(matches!(planned.after, Some(Step::RemovePod(_))) && planned.step.is_none());
        assert_eq!(planned.events[0].message, "Failed to import into PVC root: image is in vmdk format");
        assert!(planned.events[0].warning);
        world.settle();
        assert_eq!(world.phase(), "Failed");
        assert_eq!(condition(world.status(), "Running"), ("False", "Error", "image is in vmdk format"));
        assert_eq!(world.observed.pod, None);
    }
}

#[test]
fn a_temporary_failure_is_retried_a_limited_number_of_times() {
    let outcome = Outcome::failed(false, "connect to x: refused").to_message();
    let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let mut world = running();
    for restarts in 1..MOST_RESTARTS {
        world.pod_is(json!({ "phase": "Running", "containerStatuses": container(restarts, &waits, &ended(1, &outcome)) }));
        world.settle();
        assert_eq!(world.phase(), "ImportInProgress");
        assert_eq!(world.status().restart_count, Some(restarts));
        // With this the machine of this DataVolume shows DataVolumeError.
        assert_eq!(condition(world.status(), "Running"), ("False", "Error", "connect to x: refused"));
        world.pod_is(json!({ "phase": "Running", "podIP": "10.0.0.1",
            "containerStatuses": container(restarts, &json!({ "running": {} }), &ended(1, &outcome)) }));
        world.settle();
        assert_eq!(condition(world.status(), "Running").0, "True");
    }
    world.pod_is(json!({ "phase": "Running", "containerStatuses": container(MOST_RESTARTS, &waits, &ended(1, &outcome)) }));
    world.settle();
    assert_eq!(world.phase(), "Failed");
    assert_eq!(condition(world.status(), "Running").2, "given up after 10 restarts: connect to x: refused");
}

#[test]
fn an_evicted_pod_is_replaced_and_its_attempts_are_counted() {
    let mut world = running();
    for lost in 1..=MOST_RESTARTS {
        world.pod_is(
            json!({ "phase": "Failed", "reason": "Evicted", "message": "the node is low on memory" }),
        );
        world.settle();
        if world.phase() == "Failed" {
            assert_eq!(lost, MOST_RESTARTS);
            assert!(condition(world.status(), "Running").2.contains("the node is low on memory"));
            return;
        }
        assert_eq!(world.status().restart_count, Some(lost));
        let pod = world.observed.pod.as_ref().unwrap();
        assert_eq!(importer::running(pod).restarts, lost);
    }
    panic!("it is tried forever");
}

#[test]
fn a_pod_that_is_deleted_is_replaced_and_counts_as_none() {
    let mut world = running();
    world.observed.pod = None;
    world.settle();
    assert!(world.observed.pod.is_some() && world.status().restart_count.is_none());
}

#[test]
fn a_class_that_waits_for_a_consumer_is_waited_for() {
    let mut world = World::new(data_volume(|_| {}));
    world.observed.waits = true;
    world.settle();
    assert_eq!(world.phase(), "WaitForFirstConsumer");
    assert_eq!(world.observed.pod, None);
    // Another pod has bound it.
    world.claim_is("Bound");
    world.settle();
    assert!(world.observed.pod.is_some());
    // An annotation asks to bind it without a consumer.
    let immediate = data_volume(|value| value["metadata"]["annotations"] = json!({ (annotation::BIND): "" }));
    let mut world = World::new(immediate);
    world.observed.waits = true;
    world.settle();
    assert!(world.observed.pod.is_some());
    assert_eq!(world.phase(), "ImportScheduled");
}

#[test]
fn a_claim_of_another_owner_is_not_filled() {
    let mut world = World::new(data_volume(|_| {}));
    let claim = |owners: Value| {
        serde_json::from_value(json!({ "metadata": { "name": "root", "ownerReferences": owners } })).unwrap()
    };
    let owner = |uid: &str| json!([{ "apiVersion": "v1", "kind": "X", "name": "root", "uid": uid, "controller": true }]);
    for owners in [json!([]), owner("another"), owner("")] {
        world.observed.claim = Some(claim(owners));
        world.settle();
        assert_eq!(world.phase(), "Pending");
        assert_eq!(condition(world.status(), "Bound").1, "ErrClaimNotOwned");
        assert_eq!(world.observed.pod, None);
    }
    // A pod with the importer's name.
    let mut world = World::new(data_volume(|_| {}));
    world.settle();
    world.claim_is("Bound");
    let foreign =
        json!({ "metadata": { "name": "importer-root", "uid": "p9" }, "status": { "phase": "Succeeded" } });
    world.observed.pod = Some(serde_json::from_value(foreign).unwrap());
    world.settle();
    assert_eq!(world.phase(), "Pending");
    assert_eq!(condition(world.status(), "Running").1, "ErrPodNotOwned");
    assert!(world.observed.pod.is_some());
}

#[test]
fn a_claim_that_may_be_taken_over_is_taken_with_what_it_holds() {
    let adopts =
        || data_volume(|value| value["metadata"]["annotations"] = json!({ ADOPTION_ANNOTATION: "true" }));
    let mut world = World::new(adopts());
    world.observed.claim = Some(serde_json::from_value(json!({ "metadata": { "name": "root" } })).unwrap());
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(world.observed.claim.as_ref().unwrap().owner_references()[0].uid, UID);
    assert_eq!(world.observed.pod, None);
    // It is not taken from an owner.
    let mut world = World::new(adopts());
    let owned = json!({ "metadata": { "name": "root", "ownerReferences": [
        { "apiVersion": "v1", "kind": "X", "name": "y", "uid": "another", "controller": true }] } });
    world.observed.claim = Some(serde_json::from_value(owned).unwrap());
    world.settle();
    assert_eq!(world.phase(), "Pending");
}

#[test]
fn an_unsupported_import_fails_by_name_without_admission() {
    for (spec, word) in [
        (json!({ "source": { "vddk": {} } }), "spec.source.vddk"),
        (json!({ "source": { "blank": {}, "http": { "url": "" } } }), "exactly one source"),
        (json!({ "source": {} }), "exactly one source"),
        (
            json!({ "source": { "blank": {} }, "sourceRef": { "kind": "DataSource", "name": "a" } }),
            "exactly one of",
        ),
        (
            json!({ "sourceRef": { "kind": "DataSource", "name": "a" }, "contentType": "archive" }),
            "spec.contentType",
        ),
        (json!({ "source": { "blank": {} }, "contentType": "archive" }), "spec.contentType"),
        (
            json!({ "source": { "registry": { "url": "docker://a" } }, "contentType": "archive" }),
            "spec.contentType",
        ),
        (json!({ "source": { "http": { "url": "" } }, "contentType": "other" }), "spec.contentType"),
        (
            json!({ "source": { "http": { "url": "" } }, "contentType": "archive", "storage": { "volumeMode": "Block" } }),
            "needs a claim with a file system",
        ),
        (
            json!({ "source": { "upload": {} }, "contentType": "archive", "pvc": { "volumeMode": "Block" } }),
            "needs a claim with a file system",
        ),
        (json!({ "source": { "blank": {} } }), "exactly one of spec.pvc and spec.storage"),
        (json!({ "source": { "blank": {} }, "storage": {} }), "spec.storage.resources.requests.storage"),
        (
            json!({ "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "0" } } } }),
            "more than 0",
        ),
    ] {
        let mut world = World::new(data_volume(|value| value["spec"] = spec.clone()));
        world.settle();
        assert_eq!(world.phase(), "Failed", "{spec}");
        assert!(condition(world.status(), "Ready").2.contains(word), "{spec}: {:?}", world.status());
        assert_eq!(world.observed.claim, None);
    }
}

#[test]
fn a_refusal_by_the_api_server_is_reported_once() {
    let mut world = World::new(data_volume(|_| {}));
    let status = refused(&world.observed, true, "ErrExceededQuota", "exceeded quota: storage").unwrap();
    assert_eq!(
        (phase_of(&status), condition(&status, "Bound")),
        ("Pending", ("False", "ErrExceededQuota", "exceeded quota: storage"))
    );
    world.observed.data_volume.status = Some(status);
    assert_eq!(refused(&world.observed, true, "ErrExceededQuota", "exceeded quota: storage"), None);
    assert!(matches!(world.step().step, Some(Step::MakeClaim(_))), "it is tried again");
    let status = refused(&world.observed, false, "FailedCreate", "no").unwrap();
    assert_eq!(condition(&status, "Running").1, "FailedCreate");
}

#[test]
fn nothing_is_made_for_what_is_being_deleted() {
    let mut world = World::new(data_volume(|value| {
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }));
    assert_eq!(world.step(), Plan::default());
}

#[test]
fn a_lost_volume_is_a_failure() {
    let mut world = running();
    world.observed.pod = None;
    world.claim_is("Lost");
    world.settle();
    assert_eq!(world.phase(), "Failed");
}
