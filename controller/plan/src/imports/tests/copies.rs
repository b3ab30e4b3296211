//! Copies of claims of the same namespace.

use super::*;
use std::collections::BTreeMap;

/// A copy of the claim `golden`.
pub(super) fn copy(storage: &Value) -> World {
    let from = json!({ "pvc": { "name": "golden", "namespace": "ns" } });
    let mut world =
        World::new(data_volume(|value| value["spec"] = json!({ "source": from, "storage": storage })));
    world.observed.copied = source(None, None);
    world
}

/// Facts about the claim `golden`.
pub(super) fn source(claim: Option<PersistentVolumeClaim>, used_by: Option<&str>) -> Copied {
    let place = crate::data_volumes::Place::new("claim", "ns", "golden").unwrap();
    let used_by = used_by.map(|pod| User { pod: pod.to_owned(), writes_since: None });
    Copied::Claim(Box::new(SourceClaim { place, claim, used_by, inferred: BTreeMap::new(), sender: None }))
}

/// The claim that is copied.
pub(super) fn golden(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
    let mut value = json!({
        "metadata": { "name": "golden" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1100Mi" } } },
        "status": { "phase": "Bound" },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_copy_without_a_size_has_the_modes_that_its_class_advises() {
    let sets = |sets: Value| Profile { sets: serde_json::from_value(sets).unwrap(), ..Profile::default() };
    let made = |storage: Value, golden: PersistentVolumeClaim, profile: Profile| {
        let mut world = copy(&storage);
        world.observed.copied = source(Some(golden), None);
        world.observed.profile = profile;
        world.settle();
        let spec = world.observed.claim.unwrap().spec.unwrap();
        let size = spec.resources.unwrap().requests.unwrap()["storage"].clone();
        (
            spec.access_modes.unwrap().join(","),
            spec.volume_mode,
            barevirt_api::quantity::bytes(&size).unwrap(),
        )
    };
    let (many, device) = ("ReadWriteMany".to_owned(), Some("Block".to_owned()));
    let shared = json!([{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }]);
    let files = golden(|_| {});
    assert_eq!(made(json!({}), files.clone(), sets(shared)), (many.clone(), device.clone(), 1100 << 20));
    // Nothing is known of the class: as the source.
    let as_source = made(json!({}), files.clone(), sets(json!([])));
    assert_eq!(as_source, ("ReadWriteOnce".to_owned(), None, 1100 << 20));
    let least = Profile { least: 4 << 30, ..Profile::default() };
    assert_eq!(made(json!({}), files, least).2, 4 << 30);
    let block = golden(|value| {
        value["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        value["spec"]["volumeMode"] = json!("Block");
        value["status"]["capacity"] = json!({ "storage": "2Gi" });
    });
    assert_eq!(made(json!({}), block.clone(), sets(json!([]))), (many.clone(), device, 2 << 30));
    // A file system takes its share.
    let files = json!([{ "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem" }]);
    assert_eq!(made(json!({}), block, sets(files)), (many, None, (2u64 << 30) * 1000 / 940 + 1));
}

#[test]
fn a_copy_has_the_labels_from_which_machines_infer_unless_its_data_volume_has_some() {
    let labelled = golden(|value| {
        value["metadata"]["labels"] = json!({
            "instancetype.kubevirt.io/default-instancetype": "u1.medium",
            "instancetype.kubevirt.io/default-preference": "fedora", "other": "x",
        });
    });
    let labels = |own: Value, of_data_source: Value| {
        let mut world = copy(&json!({}));
        world.observed.data_volume.metadata.labels = serde_json::from_value(own).unwrap();
        let Copied::Claim(mut copied) = source(Some(labelled.clone()), None) else { panic!() };
        let all: BTreeMap<String, String> = serde_json::from_value(of_data_source).unwrap();
        copied.inferred = inferred(&all);
        world.observed.copied = Copied::Claim(copied);
        world.settle();
        serde_json::to_value(world.observed.claim.unwrap().metadata.labels).unwrap()
    };
    let expected = json!({
        "app": "containerized-data-importer", "instancetype.kubevirt.io/default-instancetype": "u1.medium",
        "instancetype.kubevirt.io/default-preference": "fedora",
    });
    assert_eq!(labels(json!({}), json!({})), expected);
    // A DataSource speaks for its claim.
    assert_eq!(labels(json!({}), json!({ "more": "y" })), expected);
    let of_data_source = json!({ "instancetype.kubevirt.io/default-instancetype": "u1.large", "more": "y" });
    let larger = json!({
        "app": "containerized-data-importer", "instancetype.kubevirt.io/default-instancetype": "u1.large",
    });
    assert_eq!(labels(json!({}), of_data_source.clone()), larger);
    let own = json!({ "instancetype.kubevirt.io/default-preference": "centos" });
    let expected = json!({
        "app": "containerized-data-importer", "instancetype.kubevirt.io/default-preference": "centos",
    });
    assert_eq!(labels(own, of_data_source), expected);
}

#[test]
fn a_claim_is_copied_once_it_is_there_and_filled_and_nobody_uses_it() {
    let mut world = copy(&json!({}));
    world.observed.profile.class = Some("fast".to_owned());
    world.settle();
    assert_eq!(world.phase(), "Pending");
    assert_eq!(condition(world.status(), "Running").1, "SourceNotReady");
    assert!(world.observed.claim.is_none());
    // It exists, and is being filled.
    let owner = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "golden", "uid": "g", "controller": true }]);
    let unfilled = golden(|value| value["metadata"]["ownerReferences"] = owner);
    world.observed.copied = source(Some(unfilled.clone()), None);
    world.settle();
    let claim = world.observed.claim.clone().unwrap().spec.unwrap();
    assert_eq!(claim.resources.unwrap().requests.unwrap()["storage"].0, "1100Mi");
    assert_eq!(claim.storage_class_name.as_deref(), Some("fast"));
    assert_eq!(
        (world.phase(), condition(world.status(), "Running").2),
        ("CloneScheduled", "claim golden is not filled yet")
    );
    // It is filled, and a pod uses it.
    let mut filled = unfilled;
    filled.annotations_mut().insert("cdi.kubevirt.io/storage.populatedFor".to_owned(), "golden".to_owned());
    world.observed.copied = source(Some(filled.clone()), Some("virt-launcher-vm"));
    assert_eq!(world.step().again, Some(SOURCE));
    assert_eq!(condition(world.status(), "Running").2, "claim golden is used by pod virt-launcher-vm");
    assert!(world.observed.pod.is_none());
    // A client sends it, as `virtctl image-upload pvc` has it: no DataVolume owns the claim.
    let uploaded = |phase: Option<&str>| {
        golden(|value| {
            value["metadata"]["annotations"]["cdi.kubevirt.io/storage.upload.target"] = json!("");
            if let Some(phase) = phase {
                value["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"] = json!(phase);
            }
        })
    };
    for phase in [None, Some("Running"), Some("Failed")] {
        world.observed.copied = source(Some(uploaded(phase)), None);
        world.settle();
        assert_eq!(condition(world.status(), "Running").2, "claim golden waits for an upload");
        assert!(world.observed.pod.is_none());
    }
    world.observed.copied = source(Some(uploaded(Some("Succeeded"))), Some("virt-launcher-vm"));
    world.settle();
    assert_eq!(condition(world.status(), "Running").2, "claim golden is used by pod virt-launcher-vm");
    // The copy's pod is the consumer that the copy's claim waits for.
    world.observed.copied = source(Some(filled), None);
    world.observed.waits = true;
    world.settle();
    let pod = world.observed.pod.clone().unwrap().spec.unwrap();
    assert_eq!(
        pod.volumes.as_ref().unwrap()[1].persistent_volume_claim.as_ref().unwrap().claim_name,
        "golden"
    );
    let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
    assert!(mounts.iter().any(|mount| mount.mount_path == "/source" && mount.read_only == Some(true)));
    let job: Job =
        serde_json::from_str(pod.containers[0].env.as_ref().unwrap()[0].value.as_ref().unwrap()).unwrap();
    assert_eq!((job.source, job.size, job.overhead), (Source::Claim {}, 1100 << 20, 0));
    world.claim_is("Bound");
    world.pod_is(runs());
    world.settle();
    assert_eq!(world.phase(), "CloneInProgress");
    world.pod_is(json!({ "phase": "Succeeded" }));
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(world.events, ["CloneScheduled", "CloneInProgress", "CloneSucceeded"]);
}

/// A copy that runs, and what its source is.
fn copying() -> (World, PersistentVolumeClaim) {
    let (mut world, golden) = (copy(&json!({})), golden(|_| {}));
    world.observed.copied = source(Some(golden.clone()), None);
    world.settle();
    world.claim_is("Bound");
    world.settle();
    world.pod_is(runs());
    world.settle();
    assert_eq!(world.phase(), "CloneInProgress");
    (world, golden)
}

/// The source as it is used by a pod that may write since then.
fn written(golden: &PersistentVolumeClaim, since: Option<&str>) -> Copied {
    let Copied::Claim(mut copied) = source(Some(golden.clone()), Some("virt-launcher-vm")) else { panic!() };
    let since = since.map(|since| serde_json::from_value(json!(since)).unwrap());
    copied.used_by.as_mut().unwrap().writes_since = since;
    Copied::Claim(copied)
}

#[test]
fn a_copy_whose_source_is_written_meanwhile_begins_anew_once_the_source_is_free() {
    let (mut world, golden) = copying();
    // A pod that only reads, or has no node yet, changes nothing.
    world.observed.copied = written(&golden, None);
    world.settle();
    assert!(world.observed.pod.is_some());
    world.observed.copied = written(&golden, Some("2026-01-01T00:00:05Z"));
    assert_eq!(world.step().again, Some(SOURCE));
    assert!(world.observed.pod.is_none(), "it copies two states");
    let (status, reason, message) = condition(world.status(), "Running");
    assert_eq!((status, reason), ("False", "SourceNotReady"));
    assert!(message.contains("virt-launcher-vm"), "{message}");
    world.settle();
    assert_eq!((world.phase(), world.status().restart_count), ("CloneScheduled", None));
    world.observed.copied = source(Some(golden), None);
    world.settle();
    assert!(world.observed.pod.is_some());
    world.pod_is(runs());
    world.settle();
    world.pod_is(json!({ "phase": "Succeeded" }));
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(
        world.events,
        ["CloneScheduled", "CloneInProgress", "CloneSourceInUse", "CloneInProgress", "CloneSucceeded"]
    );
}

#[test]
fn a_copy_that_was_done_before_its_source_was_written_is_complete() {
    for (since, phase) in [
        ("2026-01-01T00:00:04Z", "CloneScheduled"),
        ("2026-01-01T00:00:05Z", "CloneScheduled"),
        ("2026-01-01T00:00:06Z", "Succeeded"),
    ] {
        let (mut world, golden) = copying();
        let mut done = ended(0, r#"{"result":"done","size":1}"#);
        done["terminated"]["finishedAt"] = json!("2026-01-01T00:00:05Z");
        world.pod_is(json!({ "phase": "Succeeded", "containerStatuses": container(0, &done, &json!({})) }));
        world.observed.copied = written(&golden, Some(since));
        world.settle();
        assert_eq!(world.phase(), phase, "{since}");
    }
}

#[test]
fn a_copy_may_be_larger_and_of_another_kind() {
    let mut world =
        copy(&json!({ "volumeMode": "Block", "resources": { "requests": { "storage": "2Gi" } } }));
    world.observed.copied = source(Some(golden(|_| {})), None);
    world.settle();
    world.claim_is("Bound");
    world.settle();
    let pod = world.observed.pod.clone().unwrap().spec.unwrap();
    assert_eq!(pod.containers[0].volume_devices.as_ref().unwrap()[0].device_path, "/dev/cdi-block-volume");
    let mut world = copy(&json!({}));
    let block = golden(|value| value["spec"]["volumeMode"] = json!("Block"));
    world.observed.copied = source(Some(block), None);
    world.settle();
    world.claim_is("Bound");
    world.settle();
    let pod = world.observed.pod.clone().unwrap().spec.unwrap();
    let devices: Vec<_> =
        pod.containers[0].volume_devices.iter().flatten().map(|device| device.device_path.as_str()).collect();
    assert_eq!(devices, ["/dev/cdi-block-volume", "/dev/cdi-source-volume"]);
}

/// A DataSource `tiny` in `ns`: `source` is in its spec, `resolved` in its status.
fn tiny(source: &Value, resolved: &Value) -> barevirt_api::cdi::DataSource {
    let value = json!({
        "metadata": { "name": "tiny", "namespace": "ns" }, "spec": { "source": source },
        "status": { "source": resolved },
    });
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_data_source_is_followed_until_the_claim_is_made_and_not_after() {
    let by_name = data_volume(|value| {
        value["spec"] = json!({ "sourceRef": { "kind": "DataSource", "name": "tiny" }, "storage": {} });
    });
    let mut world = World::new(by_name.clone());
    let Named::DataSource(place) = named(&by_name, None) else { panic!() };
    assert_eq!(place.to_string(), "ns/tiny");
    world.observed.copied = followed(&place, None).unwrap_err();
    world.settle();
    assert_eq!(world.phase(), "Pending");
    assert_eq!(condition(world.status(), "Running").2, "there is no DataSource ns/tiny");
    assert_eq!(world.step().again, Some(SOURCE));
    let pvc = json!({ "pvc": { "name": "golden", "namespace": "ns" } });
    let found = followed(&place, Some(&tiny(&pvc, &json!({})))).unwrap();
    assert_eq!(found.to_string(), "ns/golden");
    world.observed.copied = source(Some(golden(|_| {})), None);
    world.settle();
    let claim = world.observed.claim.clone();
    assert_eq!(named(&by_name, claim.as_ref()), Named::Claim(found));
    world.claim_is("Bound");
    world.settle();
    assert!(world.observed.pod.is_some());
    assert_eq!(world.phase(), "CloneScheduled");
}

#[test]
fn a_data_source_stands_for_a_claim_by_itself_or_by_another_one() {
    let place = crate::data_volumes::Place::new("DataSource", "ns", "tiny").unwrap();
    let pvc = json!({ "pvc": { "name": "golden", "namespace": "ns" } });
    let other = json!({ "dataSource": { "name": "b", "namespace": "ns" } });
    assert_eq!(followed(&place, Some(&tiny(&other, &pvc))).unwrap().to_string(), "ns/golden");
    // Its spec counts more than its status.
    let stale = json!({ "pvc": { "name": "old", "namespace": "ns" } });
    assert_eq!(followed(&place, Some(&tiny(&pvc, &stale))).unwrap().to_string(), "ns/golden");
    let snapshot = json!({ "snapshot": { "name": "s", "namespace": "ns" } });
    for (source, resolved, refused) in [
        (&other, &json!({}), false),
        (&json!({}), &pvc, false),
        (&json!({ "pvc": { "name": "../x", "namespace": "ns" } }), &json!({}), false),
        (&snapshot, &json!({}), true),
        (&other, &snapshot, true),
    ] {
        let copied = followed(&place, Some(&tiny(source, resolved))).unwrap_err();
        assert_eq!(matches!(copied, Copied::Refused(_)), refused, "{source}: {copied:?}");
    }
}

#[test]
fn a_forbidden_copy_fails() {
    let mut world = copy(&json!({}));
    world.observed.copied = Copied::Refused("not this one".to_owned());
    world.settle();
    assert_eq!((world.phase(), condition(world.status(), "Ready").2), ("Failed", "not this one"));
    assert!(world.observed.claim.is_none());
}
