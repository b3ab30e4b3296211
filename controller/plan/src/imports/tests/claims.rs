//! The claims of DataVolumes.

use super::*;
use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;

#[test]
fn an_archive_has_a_claim_with_a_file_system_whatever_its_class_advises() {
    let set = |access: &str, mode: &str| barevirt_api::cdi::ClaimPropertySet {
        access_modes: vec![access.to_owned()],
        volume_mode: Some(mode.to_owned()),
    };
    for mode in [json!(null), json!("FromStorageProfile"), json!("Filesystem")] {
        let mut world = World::new(data_volume(|value| {
            value["spec"]["contentType"] = json!("archive");
            value["spec"]["storage"]["volumeMode"] = mode.clone();
        }));
        world.observed.profile.sets = vec![set("ReadWriteMany", "Block"), set("ReadWriteOnce", "Filesystem")];
        world.settle();
        let claim = world.observed.claim.as_mut().unwrap();
        let spec = claim.spec.as_ref().unwrap();
        assert_eq!(spec.volume_mode, None, "Kubernetes' default: Filesystem");
        assert_eq!(spec.access_modes.as_deref(), Some(&["ReadWriteOnce".to_owned()][..]));
        assert_eq!(claim.annotations()[annotation::CONTENT], "archive");
        claim.status = serde_json::from_value(json!({ "phase": "Bound" })).unwrap();
        world.settle();
        let pod = world.observed.pod.as_ref().unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let job = container.env.as_ref().unwrap()[0].value.as_deref().unwrap();
        let job: Job = serde_json::from_str(job).unwrap();
        assert_eq!((job.content, job.size), (barevirt_import_job::Content::Archive, 1 << 30));
    }
}

#[test]
fn a_claim_for_a_disk_has_room_for_the_file_system() {
    let requests = |spec: Value| {
        let data_volume = data_volume(|value| value["spec"] = spec);
        let claim = claim::of(&data_volume, None, &Profile::default()).unwrap().spec.unwrap();
        let asked =
            barevirt_api::quantity::bytes(&claim.resources.clone().unwrap().requests.unwrap()["storage"])
                .unwrap();
        (asked, claim)
    };
    let size = |size: &str| json!({ "requests": { "storage": size } });
    let (asked, claim) =
        requests(json!({ "source": { "blank": {} }, "storage": { "resources": size("1Gi") } }));
    assert_eq!(asked, (1u64 << 30) * 1000 / 940 + 1);
    assert_eq!((claim.access_modes, claim.volume_mode), (Some(vec!["ReadWriteOnce".to_owned()]), None));
    let (asked, claim) = requests(json!({ "source": { "blank": {} },
        "storage": { "volumeMode": "Block", "accessModes": ["ReadWriteMany"], "storageClassName": "fast", "resources": size("1G") } }));
    assert_eq!(asked, 954 << 20);
    assert_eq!(
        (claim.volume_mode.as_deref(), claim.storage_class_name.as_deref()),
        (Some("Block"), Some("fast"))
    );
    assert_eq!(claim.access_modes, Some(vec!["ReadWriteMany".to_owned()]));
    let larger = data_volume(|_| {});
    let profile = Profile { share: 500, ..Profile::default() };
    let larger = claim::of(&larger, None, &profile).unwrap().spec.unwrap().resources.unwrap();
    assert_eq!(barevirt_api::quantity::bytes(&larger.requests.unwrap()["storage"]), Ok(2 << 30));
    let (asked, _) = requests(
        json!({ "source": { "blank": {} }, "pvc": { "accessModes": ["ReadWriteOnce"], "resources": size("1Gi") } }),
    );
    assert_eq!(asked, 1 << 30);
}

#[test]
fn a_claim_takes_what_it_leaves_open_from_the_profile_of_its_class() {
    let data_volume = data_volume(|_| {});
    let sets = json!([{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }]);
    let sets = serde_json::from_value(sets).unwrap();
    let mut profile = Profile { class: Some("fast".to_owned()), sets, least: 1 << 20, ..Profile::default() };
    let claim = claim::of(&data_volume, None, &profile).unwrap().spec.unwrap();
    assert_eq!(claim.access_modes, Some(vec!["ReadWriteMany".to_owned()]));
    assert_eq!(claim.volume_mode.as_deref(), Some("Block"));
    assert_eq!(claim.storage_class_name.as_deref(), Some("fast"));
    // A device has no file system that takes space.
    let asked = |claim: PersistentVolumeClaimSpec| {
        barevirt_api::quantity::bytes(&claim.resources.unwrap().requests.unwrap()["storage"]).unwrap()
    };
    assert_eq!(asked(claim), 1 << 30);
    profile.least = 4 << 30;
    assert_eq!(asked(claim::of(&data_volume, None, &profile).unwrap().spec.unwrap()), 4 << 30);
}

#[test]
fn a_claim_without_access_modes_waits_for_a_volume_of_a_class_without_a_provisioner() {
    for source in [json!({ "upload": {} }), json!({ "blank": {} })] {
        let mut world = World::new(data_volume(|value| value["spec"]["source"] = source));
        world.observed.profile.without_modes = Some("disks".to_owned());
        world.settle();
        let (phase, claim) = (world.phase(), world.observed.claim.as_ref());
        assert_eq!((phase, claim.is_none()), ("Pending", true));
        let (status, reason, message) = condition(world.status(), "Bound");
        assert_eq!((status, reason), ("False", "ErrClaimNotValid"));
        assert!(
            message.starts_with("spec.storage.accessModes must be given: storage class disks"),
            "{message}"
        );
        assert_eq!(world.events, ["ErrClaimNotValid"]);
        assert!(world.step().again.is_some());
        // There is a volume.
        world.observed.profile.without_modes = None;
        world.settle();
        assert!(world.observed.claim.is_some());
        assert_eq!(condition(world.status(), "Bound").1, "Pending");
    }
    let mut world = World::new(data_volume(|value| {
        value["spec"]["storage"]["accessModes"] = json!(["ReadWriteOnce"]);
    }));
    world.observed.profile.without_modes = Some("disks".to_owned());
    world.settle();
    assert!(world.observed.claim.is_some());
}

#[test]
fn the_claim_has_what_the_data_volume_says_of_itself() {
    let data_volume = data_volume(|value| {
        value["metadata"]["annotations"] = json!({ "a": "b", "kubectl.kubernetes.io/last-applied-configuration": "x",
                "cdi.kubevirt.io/storage.populatedFor": "root", (annotation::PHASE): "Succeeded" });
    });
    let claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
    assert_eq!(claim.labels()["of"], "template");
    assert_eq!(claim.labels()[LABEL.0], LABEL.1);
    assert_eq!(claim.annotations().keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(claim.owner_references()[0].kind, "DataVolume");
}

#[test]
fn a_claim_that_has_changed_is_neither_taken_over_nor_marked() {
    let adopts =
        data_volume(|value| value["metadata"]["annotations"] = json!({ ADOPTION_ANNOTATION: "true" }));
    let mut world = World::new(adopts);
    let found = json!({ "metadata": { "name": "root", "uid": "c7", "resourceVersion": "7", "ownerReferences": [
        { "apiVersion": "v1", "kind": "X", "name": "y", "uid": "another" }] } });
    let found: PersistentVolumeClaim = serde_json::from_value(found).unwrap();
    world.observed.claim = Some(found.clone());
    let Some(Step::PatchClaim(adoption)) = plan(&world.observed, &installation()).step else { panic!() };
    let mark = claim::mark(&world.observed.data_volume, &found, false);
    // The API server refuses a patch of another version, or of another claim.
    for patch in [&adoption, &mark] {
        let metadata = &patch["metadata"];
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("c7"), &json!("7")));
    }
    let owners = adoption["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!((&owners[0]["uid"], &owners[1]["uid"]), (&json!("another"), &json!(UID)));
}
