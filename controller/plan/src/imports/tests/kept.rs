//! Contents that were there before the DataVolume: of a backup, or of a volume that names the claim.

use super::*;
use k8s_openapi::api::core::v1::PersistentVolume;

fn annotated(annotation: &str) -> DataVolume {
    data_volume(|value| value["metadata"]["annotations"] = json!({ annotation: "" }))
}

/// A volume that names the claim of the DataVolume.
fn volume(change: impl FnOnce(&mut Value)) -> PersistentVolume {
    let mut value = json!({
        "metadata": { "name": "pv1" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "2Gi" }, "storageClassName": "fast",
            "claimRef": { "namespace": "ns", "name": "root" },
        },
        "status": { "phase": "Available" },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_claim_of_a_backup_is_awaited_and_never_created() {
    let mut world = World::new(annotated(annotation::RESTORED));
    world.settle();
    assert_eq!((world.phase(), world.observed.claim.as_ref()), ("Pending", None));
    let (status, reason, message) = condition(world.status(), "Bound");
    assert_eq!((status, reason), ("False", "NotFound"));
    assert!(message.contains(annotation::RESTORED), "{message}");
    // It comes with the mark that it had.
    world.observed.claim = serde_json::from_value(json!({
        "metadata": { "name": "root", "namespace": "ns",
            "annotations": { "cdi.kubevirt.io/storage.populatedFor": "root" } },
        "spec": {}, "status": { "phase": "Bound" },
    }))
    .unwrap();
    world.settle();
    assert_eq!((world.phase(), world.observed.pod.as_ref()), ("Succeeded", None));
}

#[test]
fn a_volume_that_names_the_claim_is_taken_and_not_filled_again() {
    let mut world = World::new(annotated(annotation::STATIC));
    world.observed.kept = Some(volume(|_| {}));
    // The image that it was made from may be gone.
    world.settle();
    let claim = world.observed.claim.clone().unwrap();
    let spec = claim.spec.clone().unwrap();
    assert_eq!(
        (spec.volume_name.as_deref(), spec.storage_class_name.as_deref()),
        (Some("pv1"), Some("fast"))
    );
    assert!(is_filled(&claim, "root"));
    assert_eq!((world.phase(), condition(world.status(), "Bound").1), ("Pending", "Pending"));
    world.claim_is("Bound");
    world.settle();
    assert_eq!((world.phase(), world.observed.pod.as_ref()), ("Succeeded", None));
    assert_eq!(condition(world.status(), "Bound").1, "Bound");
}

#[test]
fn a_volume_that_was_a_copy_is_taken_without_its_source() {
    let reference = json!({ "kind": "DataSource", "name": "golden" });
    let copy = |storage: Value, kept: PersistentVolume| {
        let mut world = World::new(data_volume(|value| {
            value["metadata"]["annotations"] = json!({ (annotation::STATIC): "" });
            value["spec"] = json!({ "sourceRef": reference, "storage": storage });
        }));
        world.observed.copied = Copied::Unknown("there is no DataSource ns/golden".to_owned());
        world.observed.kept = Some(kept);
        world.settle();
        world
    };
    let sized = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    let taken = copy(sized.clone(), volume(|_| {}));
    assert!(is_filled(taken.observed.claim.as_ref().unwrap(), "root"));
    // How large it has to be is not known, or the volume is another one than is asked for.
    let other = volume(|volume| volume["spec"]["volumeMode"] = json!("Block"));
    for waits in [copy(json!({}), volume(|_| {})), copy(sized, other)] {
        assert_eq!((waits.phase(), waits.observed.claim.as_ref()), ("Pending", None));
        assert_eq!(condition(waits.status(), "Running").1, "SourceNotReady");
    }
}

#[test]
fn a_volume_that_is_not_what_the_claim_asks_for_is_left_alone() {
    let changes: [fn(&mut Value); 3] = [
        |volume| volume["spec"]["capacity"]["storage"] = json!("1Gi"),
        |volume| volume["spec"]["accessModes"] = json!(["ReadOnlyMany"]),
        |volume| volume["spec"]["volumeMode"] = json!("Block"),
    ];
    for change in changes {
        let mut world = World::new(annotated(annotation::STATIC));
        world.observed.kept = Some(volume(change));
        world.settle();
        let claim = world.observed.claim.clone().unwrap();
        assert!(!is_filled(&claim, "root") && claim.spec.unwrap().volume_name.is_none());
    }
    let other = data_volume(|value| {
        value["metadata"]["annotations"] = json!({ (annotation::STATIC): "" });
        value["spec"]["storage"]["storageClassName"] = json!("slow");
    });
    let mut world = World::new(other);
    world.observed.kept = Some(volume(|_| {}));
    world.settle();
    assert!(!is_filled(world.observed.claim.as_ref().unwrap(), "root"));
}

#[test]
fn a_volume_that_is_named_is_not_replaced_by_one_that_was_kept() {
    let taken = |name: &str| {
        let mut world = World::new(data_volume(|value| {
            value["metadata"]["annotations"] = json!({ (annotation::STATIC): "" });
            value["spec"]["storage"]["volumeName"] = json!(name);
        }));
        world.observed.kept = Some(volume(|_| {}));
        world.settle();
        let claim = world.observed.claim.unwrap();
        let filled = is_filled(&claim, "root");
        (filled, claim.spec.unwrap().volume_name)
    };
    assert_eq!(taken("pv1"), (true, Some("pv1".to_owned())));
    assert_eq!(taken("pv2"), (false, Some("pv2".to_owned())));
}

#[test]
fn only_a_free_volume_for_that_very_claim_is_kept_for_it() {
    let asking = annotated(annotation::STATIC);
    assert!(is_kept_looked_for(&asking) && !is_kept_looked_for(&data_volume(|_| {})));
    let others: [fn(&mut Value); 4] = [
        |value| value["status"] = json!({ "phase": "Succeeded" }),
        |value| value["status"] = json!({ "phase": "Failed" }),
        |value| value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        |value| value["metadata"]["annotations"][annotation::RESTORED] = json!(""),
    ];
    for change in others {
        let other = data_volume(|value| {
            value["metadata"]["annotations"] = json!({ (annotation::STATIC): "" });
            change(value);
        });
        assert!(!is_kept_looked_for(&other), "{other:?}");
    }
    let changes: [fn(&mut Value); 5] = [
        |volume| volume["status"]["phase"] = json!("Released"),
        |volume| volume["spec"]["claimRef"]["name"] = json!("other"),
        |volume| volume["spec"]["claimRef"]["namespace"] = json!("other"),
        |volume| volume["spec"]["claimRef"]["uid"] = json!("c1"),
        |volume| volume["spec"]["claimRef"] = json!(null),
    ];
    let others: Vec<_> = changes.map(volume).into();
    assert_eq!(kept_volume(&asking, others.clone()), None);
    let own = volume(|volume| volume["metadata"]["name"] = json!("pv9"));
    let found = kept_volume(&asking, others.into_iter().chain([own.clone()]).collect());
    assert_eq!(found, Some(own));
}

#[test]
fn a_missing_source_is_checked_with_growing_pauses_where_all_volumes_are_listed() {
    let again = |annotations: Value, made: &str| {
        let mut observed = observed(data_volume(|value| {
            value["metadata"]["annotations"] = annotations;
            value["metadata"]["creationTimestamp"] = json!(made);
        }));
        observed.copied = Copied::Unknown("there is no DataSource ns/golden".to_owned());
        plan(&observed, &installation()).again.map(|pause| pause.as_secs())
    };
    let made =
        ["2025-12-31T23:59:40Z", "2025-12-31T23:55:00Z", "2025-12-01T00:00:00Z", "2026-01-01T00:00:09Z"];
    let asking = json!({ (annotation::STATIC): "" });
    assert_eq!(made.map(|made| again(asking.clone(), made)), [Some(5), Some(30), Some(60), Some(5)]);
    assert_eq!(made.map(|made| again(json!({}), made)), [Some(5); 4]);
}
