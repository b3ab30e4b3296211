use super::facts::{ADOPTION_ANNOTATION, MOST_RESTARTS};
use super::*;
use barevirt_api::cdi::{DataVolume, annotation};
use barevirt_import_job::{Job, Outcome, Source};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::Value;
use serde_json::json;

mod sent;

const UID: &str = "u1";

pub(super) fn installation() -> Installation {
    Installation {
        image: "registry/virt-importer:1".to_owned(),
        pull_policy: Some("IfNotPresent".to_owned()),
        pull_secrets: vec!["pull".to_owned()],
        image_volumes: true,
        insecure_registries: ["r.example:5000".to_owned()].into(),
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
        data_volume,
        claim: None,
        copied: Copied::Nothing,
        pod: None,
        waits: false,
        progress: None,
        now,
    }
}

fn phase_of(status: &DataVolumeStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

fn condition<'a>(status: &'a DataVolumeStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (&found.status, found.reason.as_deref().unwrap_or_default(), found.message.as_deref().unwrap_or_default())
}

/// A DataVolume, followed step by step as the cluster would do it.
struct World {
    observed: Observed,
    events: Vec<&'static str>,
}

impl World {
    fn new(data_volume: DataVolume) -> Self {
        World { observed: observed(data_volume), events: vec![] }
    }

    /// Plans, and carries the plan out.
    fn step(&mut self) -> Plan {
        let plan = plan(&self.observed, &installation());
        self.does(plan.step.clone());
        if let Some(status) = plan.status.clone() {
            self.observed.data_volume.status = Some(status);
        }
        self.does(plan.after.clone());
        self.does(plan.last.clone());
        self.events.extend(plan.events.iter().map(|event| event.reason));
        plan
    }

    /// Plans until nothing is left to be done.
    fn settle(&mut self) {
        for _ in 0..5 {
            let plan = self.step();
            if !plan.changes() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.step());
    }

    fn does(&mut self, step: Option<Step>) {
        match step {
            None => {}
            Some(Step::MakeClaim(claim)) => {
                assert!(self.observed.claim.is_none());
                self.observed.claim = Some(*claim);
            }
            Some(Step::PatchClaim(patch)) => {
                let mut claim = serde_json::to_value(self.observed.claim.as_ref().unwrap()).unwrap();
                for (part, values) in patch["metadata"].as_object().unwrap() {
                    match values.as_object() {
                        Some(values) => values
                            .iter()
                            .for_each(|(key, value)| claim["metadata"][part][key] = value.clone()),
                        None => claim["metadata"][part] = values.clone(),
                    }
                }
                self.observed.claim = Some(serde_json::from_value(claim).unwrap());
            }
            Some(Step::MakePod(mut pod)) => {
                assert!(self.observed.pod.is_none());
                pod.metadata.uid = Some("p1".to_owned());
                self.observed.pod = Some(*pod);
            }
            Some(Step::RemovePod(uid)) => {
                assert_eq!(self.observed.pod.as_ref().unwrap().metadata.uid, Some(uid));
                self.observed.pod = None;
            }
            Some(Step::MakeSender(mut pod)) => {
                pod.metadata.uid = Some("s1".to_owned());
                let sender = self.sender();
                assert!(sender.pod.is_none());
                sender.pod = Some(*pod);
            }
            Some(Step::Introduce { certificate, .. }) => {
                let sender = self.sender().pod.as_mut().unwrap();
                sender.annotations_mut().insert(RECEIVER_ANNOTATION.to_owned(), certificate);
            }
            Some(Step::RemoveSender { uid, .. }) => {
                let sender = self.sender();
                assert_eq!(sender.pod.as_ref().unwrap().metadata.uid, Some(uid));
                *sender = Sender::default();
            }
        }
    }

    fn sender(&mut self) -> &mut Sender {
        match &mut self.observed.copied {
            Copied::Claim(source) => source.sender.as_mut().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn sender_is(&mut self, status: Value) {
        self.sender().pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn claim_is(&mut self, phase: &str) {
        let claim = self.observed.claim.as_mut().unwrap();
        claim.status.get_or_insert_default().phase = Some(phase.to_owned());
    }

    fn pod_is(&mut self, status: Value) {
        self.observed.pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn phase(&self) -> &str {
        phase_of(self.status())
    }

    fn status(&self) -> &DataVolumeStatus {
        self.observed.data_volume.status.as_ref().unwrap()
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
fn a_pod_that_somebody_ends_is_replaced_and_the_tries_are_counted_on() {
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
    panic!("it is tried for ever");
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
    let (asked, _) = requests(
        json!({ "source": { "blank": {} }, "pvc": { "accessModes": ["ReadWriteOnce"], "resources": size("1Gi") } }),
    );
    assert_eq!(asked, 1 << 30);
}

#[test]
fn a_claim_takes_what_it_leaves_open_from_the_profile_of_its_class() {
    let data_volume = data_volume(|_| {});
    let sets = json!([{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }]);
    let profile = Profile { class: Some("fast".to_owned()), sets: serde_json::from_value(sets).unwrap() };
    let claim = claim::of(&data_volume, None, &profile).unwrap().spec.unwrap();
    assert_eq!(claim.access_modes, Some(vec!["ReadWriteMany".to_owned()]));
    assert_eq!(claim.volume_mode.as_deref(), Some("Block"));
    assert_eq!(claim.storage_class_name.as_deref(), Some("fast"));
    // A device has no file system that takes space.
    let asked = barevirt_api::quantity::bytes(&claim.resources.unwrap().requests.unwrap()["storage"]);
    assert_eq!(asked.unwrap(), 1 << 30);
}

#[test]
fn an_object_of_s3_is_asked_for_with_the_keys_of_its_secret() {
    let pod = pod(
        |value| {
            value["spec"]["source"] = json!({ "s3": {
                "url": "https://s3.example/bucket/a.img", "secretRef": "keys", "certConfigMap": "ca",
            } });
        },
        false,
    );
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    let job: Job = serde_json::from_str(spec["containers"][0]["env"][0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(job.source, Source::S3 { url: "https://s3.example/bucket/a.img".to_owned() });
    let text = spec["volumes"].to_string();
    assert!(text.contains(r#""secretName":"keys""#) && text.contains(r#""name":"ca""#), "{text}");
}

#[test]
fn the_claim_has_what_the_data_volume_says_of_itself() {
    let data_volume = data_volume(|value| {
        value["metadata"]["annotations"] =
            json!({ "a": "b", "kubectl.kubernetes.io/last-applied-configuration": "x" });
    });
    let claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
    assert_eq!(claim.labels()["of"], "template");
    assert_eq!(claim.labels()[LABEL.0], LABEL.1);
    assert_eq!(claim.annotations().keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(claim.owner_references()[0].kind, "DataVolume");
}

fn pod(change: impl FnOnce(&mut Value), block: bool) -> Pod {
    let data_volume = data_volume(change);
    let mut claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
    if block {
        claim.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
    }
    importer::of(&data_volume, (&claim, None), &installation(), Some(3))
}

#[test]
fn a_pod_with_everything() {
    let pod = pod(
        |value| {
            value["spec"]["priorityClassName"] = json!("high");
            value["spec"]["serviceAccountName"] = json!("robot");
            value["spec"]["source"] = json!({ "http": {
                "url": "https://images.example/a", "checksum": "sha256:00", "secretRef": "login", "certConfigMap": "ca",
                "extraHeaders": ["X-A: b"], "secretExtraHeaders": ["h1", "h2"],
            } });
        },
        false,
    );
    insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap());
}

#[test]
fn a_block_device_is_given_as_one_with_room_beside_it() {
    let pod = pod(
        |value| value["spec"]["source"] = json!({ "registry": { "url": "docker://r.example:5000/a:1" } }),
        true,
    );
    let spec = pod.spec.unwrap();
    let container = &spec.containers[0];
    assert_eq!(container.volume_devices.as_ref().unwrap()[0].device_path, "/dev/cdi-block-volume");
    assert_eq!(container.volume_mounts.as_ref().unwrap()[0].mount_path, "/scratch");
    let job: Job = serde_json::from_str(container.env.as_ref().unwrap()[0].value.as_ref().unwrap()).unwrap();
    assert_eq!(
        job.source,
        Source::Registry {
            url: "docker://r.example:5000/a:1".to_owned(),
            architecture: None,
            insecure: true
        }
    );
    assert_eq!((job.size, job.overhead, job.owner.as_str()), (1 << 30, 60, UID));
}

#[test]
fn a_long_name_is_cut_and_stays_another_one() {
    let (one, other) = ("x".repeat(253), format!("{}y", "x".repeat(252)));
    assert_eq!(pod_name("root"), "importer-root");
    assert!(pod_name(&one).len() <= 63);
    assert_ne!(pod_name(&one), pod_name(&other));
}

/// A copy of the claim `golden`.
fn copy(storage: &Value) -> World {
    let from = json!({ "pvc": { "name": "golden", "namespace": "ns" } });
    let mut world =
        World::new(data_volume(|value| value["spec"] = json!({ "source": from, "storage": storage })));
    world.observed.copied = source(None, None);
    world
}

/// Facts about the claim `golden`.
fn source(claim: Option<PersistentVolumeClaim>, used_by: Option<&str>) -> Copied {
    let place = crate::data_volumes::Place::new("claim", "ns", "golden").unwrap();
    Copied::Claim(Box::new(SourceClaim { place, claim, used_by: used_by.map(str::to_owned), sender: None }))
}

/// The claim that is copied.
fn golden(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
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
fn a_claim_is_copied_once_it_is_there_and_filled_and_nobody_uses_it() {
    let mut world = copy(&json!({}));
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

#[test]
fn an_image_of_the_node_is_a_volume_of_the_pod() {
    let by_node = |value: &mut Value| {
        value["spec"]["source"] =
            json!({ "registry": { "url": "docker://localhost/disk:1", "pullMethod": "node" } });
    };
    let pod = pod(by_node, false);
    let image = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[1].image.clone().unwrap();
    assert_eq!(image.reference.as_deref(), Some("localhost/disk:1"));
    // Where the cluster has no such volumes, the status says so.
    let mut world = World::new(data_volume(by_node));
    world.settle();
    world.claim_is("Bound");
    let without = Installation { image_volumes: false, ..installation() };
    let planned = plan(&world.observed, &without);
    assert!(planned.step.is_none());
    assert_eq!(condition(&planned.status.unwrap(), "Running").1, "SourceNotReady");
}
