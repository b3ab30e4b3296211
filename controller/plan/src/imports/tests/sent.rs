//! Copies from other namespaces.

use super::copies::golden;
use super::*;
use crate::data_volumes::Place;

/// A copy of `golden/image` whose own claim is bound.
fn far() -> World {
    let from = json!({ "pvc": { "name": "image", "namespace": "golden" } });
    let mut world = World::new(data_volume(|value| {
        value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        value["spec"] = json!({ "source": from, "storage": {} });
    }));
    let mut claim = golden(|value| {
        value["metadata"] = json!({ "name": "image", "namespace": "golden", "uid": "c9" });
    });
    claim.metadata.annotations = None;
    world.observed.copied = Copied::Claim(Box::new(SourceClaim {
        place: Place::new("claim", "golden", "image").unwrap(),
        claim: Some(claim),
        used_by: None,
        inferred: std::collections::BTreeMap::new(),
        sender: Some(Sender::default()),
    }));
    world.settle();
    world.claim_is("Bound");
    world
}

/// The status of a pod that runs, with a key of its own.
fn runs_with(key: &str) -> Value {
    let mut status = runs();
    let message = format!("-----BEGIN CERTIFICATE-----{key}");
    status["initContainerStatuses"] = json!([{
        "name": "keys", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "terminated": { "exitCode": 0, "message": message } },
    }]);
    status
}

/// Lets sender and importer run.
fn run(world: &mut World) {
    world.settle();
    world.sender_is(runs_with("S"));
    world.settle();
    world.pod_is(runs_with("R"));
    world.settle();
}

/// A copy in progress: the importer runs.
fn sending() -> World {
    let mut world = far();
    run(&mut world);
    world
}

#[test]
fn a_claim_of_another_namespace_is_sent_and_nothing_is_left_there() {
    let mut world = far();
    world.settle();
    assert_eq!(world.phase(), "CloneScheduled");
    assert!(world.observed.pod.is_none(), "its address is not known yet");
    assert!(condition(world.status(), "Running").2.contains("is not running yet"));
    let sender = world.sender().pod.clone().unwrap();
    insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&sender).unwrap()).unwrap());
    assert_eq!(asked_by(&sender), Some(("ns".to_owned(), "root".to_owned(), UID.to_owned())));
    // Without a key the importer could not tell the sender from another pod.
    world.sender_is(runs());
    world.settle();
    assert!(world.observed.pod.is_none());
    world.sender_is(runs_with("S"));
    world.settle();
    let importer = world.observed.pod.clone().unwrap();
    let spec = importer.spec.as_ref().unwrap();
    let job: Job =
        serde_json::from_str(spec.containers[0].env.as_ref().unwrap()[0].value.as_ref().unwrap()).unwrap();
    let certificate = "-----BEGIN CERTIFICATE-----S".to_owned();
    assert_eq!(job.source, Source::Sender { address: "10.0.0.1".to_owned(), port: 8443, certificate });
    assert_eq!((job.size, job.overhead), (1100 << 20, 0));
    let claims: Vec<_> =
        spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref()).collect();
    assert_eq!(claims.len(), 1, "a claim of another namespace cannot be mounted");
    assert!(
        !sender.annotations().contains_key(RECEIVER_ANNOTATION),
        "no client is accepted before its certificate is known"
    );
    world.pod_is(runs_with("R"));
    world.settle();
    assert_eq!(world.phase(), "CloneInProgress");
    let told = world.sender().pod.as_ref().unwrap().annotations()[RECEIVER_ANNOTATION].clone();
    assert_eq!(told, "-----BEGIN CERTIFICATE-----R");
    world.pod_is(json!({ "phase": "Succeeded" }));
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert!(world.observed.pod.is_none() && world.sender().pod.is_none());
}

#[test]
fn a_pod_that_looks_like_a_sender_names_nothing_but_a_data_volume() {
    let sender = |place: &str| -> Pod {
        let annotations = json!({ "import.barevirt.dev/for": place, "import.barevirt.dev/for-uid": UID });
        serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap()
    };
    assert!(asked_by(&sender("ns/root")).is_some());
    for wrong in
        ["", "ns", "ns/", "/root", "ns/root/status", "ns/../../secrets/a", "ns/a?b=c", "ns/a b", "n.s/a"]
    {
        assert_eq!(asked_by(&sender(wrong)), None, "{wrong}");
    }
}

#[test]
fn a_class_that_waits_for_a_consumer_is_waited_for_as_with_an_image() {
    let mut world = far();
    world.claim_is("Pending");
    world.observed.waits = true;
    world.settle();
    assert_eq!(world.phase(), "WaitForFirstConsumer");
    assert!(world.sender().pod.is_none());
}

#[test]
fn a_copy_that_cannot_be_sent_fails_and_is_cleaned_up() {
    let mut world = sending();
    let last = Outcome::failed(true, "too large").to_message();
    world.pod_is(
        json!({ "phase": "Running", "containerStatuses": container(0, &ended(2, &last), &json!({})) }),
    );
    world.settle();
    assert_eq!((world.phase(), condition(world.status(), "Ready").2), ("Failed", "too large"));
    assert!(world.observed.pod.is_none() && world.sender().pod.is_none());
}

#[test]
fn a_sender_that_ends_takes_its_importer_along_and_both_are_made_again_until_it_was_tried_often() {
    let mut world = sending();
    for time in 1..MOST_RESTARTS {
        world.sender_is(json!({ "phase": "Failed" }));
        world.step();
        assert!(world.observed.pod.is_none());
        assert_eq!(world.status().restart_count, Some(time));
        // The former sender is removed, and another one is made.
        world.step();
        assert!(world.sender().pod.is_none());
        run(&mut world);
        assert_eq!(world.phase(), "CloneInProgress");
    }
    *world.sender() = Sender::default();
    world.settle();
    assert_eq!(world.phase(), "Failed");
}

#[test]
fn a_changed_sender_gets_a_new_importer_and_gets_the_key_of_a_changed_importer() {
    let mut moved = runs_with("S");
    moved["podIP"] = json!("10.0.0.2");
    for status in [runs_with("other"), moved] {
        let mut world = sending();
        world.sender_is(status);
        world.step();
        assert!(world.observed.pod.is_none());
        assert_eq!(world.status().restart_count, Some(1));
    }
    // While the sender restarts, nothing is decided.
    let mut world = sending();
    world.sender_is(
        json!({ "phase": "Running", "containerStatuses": container(1, &ended(1, ""), &json!({})) }),
    );
    world.settle();
    assert!(world.observed.pod.is_some());
    let mut world = sending();
    world.pod_is(runs_with("new"));
    world.settle();
    let told = world.sender().pod.as_ref().unwrap().annotations()[RECEIVER_ANNOTATION].clone();
    assert_eq!(told, "-----BEGIN CERTIFICATE-----new");
}

#[test]
fn a_foreign_pod_with_the_senders_name_is_not_touched() {
    let mut world = far();
    let foreign = json!({ "metadata": { "name": "u1-source-pod", "uid": "x" }, "status": runs() });
    world.sender().pod = Some(serde_json::from_value(foreign).unwrap());
    world.settle();
    assert!(
        condition(world.status(), "Running").2.contains("golden/u1-source-pod is not of this DataVolume")
    );
    assert!(world.observed.pod.is_none() && world.sender().pod.is_some());
}

#[test]
fn only_what_was_made_while_it_was_asked_may_come_from_another_namespace() {
    let time = |text: &str| serde_json::from_value(json!(text)).unwrap();
    let of = |spec: Value| {
        data_volume(|value| {
            value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:10Z");
            value["spec"] = spec;
        })
    };
    let claim = of(json!({ "source": { "pvc": { "name": "image", "namespace": "golden" } } }));
    let by_name = of(json!({ "sourceRef": { "kind": "DataSource", "name": "tiny", "namespace": "golden" } }));
    let own = of(json!({ "sourceRef": { "kind": "DataSource", "name": "tiny" } }));
    let early = Some(time("2026-01-01T00:00:00Z"));
    for data_volume in [&claim, &by_name] {
        assert_eq!(permitted(data_volume, "golden", early.as_ref()), Ok(()));
        assert_eq!(permitted(data_volume, "ns", None), Ok(()));
        for since in [None, Some(time("2026-01-01T00:00:01Z")), Some(time("2026-01-01T00:00:11Z"))] {
            let why = permitted(data_volume, "golden", since.as_ref()).unwrap_err();
            assert!(why.contains("make it again"), "{why}");
        }
    }
    // Admission did not check copies from these namespaces.
    for (data_volume, from) in [(&own, "golden"), (&by_name, "third"), (&claim, "third")] {
        let why = permitted(data_volume, from, early.as_ref()).unwrap_err();
        assert!(why.contains("third namespace"), "{why}");
    }
}
