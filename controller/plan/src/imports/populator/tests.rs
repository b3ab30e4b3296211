//! Claims with a populator: single cases, then random worlds.

mod world;

use super::*;

/// The claim of the tests, as it is changed.
pub(super) fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
    let mut value = json!({
        "metadata": { "name": "root", "namespace": "ns", "uid": "c1", "resourceVersion": "7", "annotations": {} },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "local",
            "dataSourceRef": { "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "image" },
        },
        "status": { "phase": "Pending" },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

pub(super) fn image(change: impl FnOnce(&mut Value)) -> Source {
    let mut value = json!({
        "metadata": { "name": "image", "namespace": "ns" },
        "spec": { "source": { "http": { "url": "https://images.example/a.qcow2" } } },
    });
    change(&mut value);
    Source::Import(Box::new(serde_json::from_value(value).unwrap()))
}

pub(super) fn observed(claim: PersistentVolumeClaim) -> Observed {
    Observed {
        claim,
        source: Some(image(|_| {})),
        class: Class::Immediate,
        prime: None,
        prime_claim: None,
        volume: None,
    }
}

fn made(observed: &Observed) -> DataVolume {
    match plan(observed).step {
        Some(Step::MakePrime(prime)) => *prime,
        other => panic!("{other:?}"),
    }
}

/// The reason of the event, and what is noted on the claim.
fn told(observed: &Observed) -> (&'static str, String) {
    let Plan { step, event, .. } = plan(observed);
    let (Some(Step::Note(note)), Some(event)) = (step, event) else { panic!("{:?}", plan(observed)) };
    let annotations = &note["metadata"]["annotations"];
    assert_eq!(annotations[annotation::MESSAGE], json!(event.message));
    assert_eq!(annotations[annotation::REASON], json!(event.reason));
    (event.reason, event.message)
}

/// A DataVolume that fills the claim, in that phase.
fn prime(phase: &str) -> DataVolume {
    let mut prime = made(&observed(claim(|_| {})));
    prime.metadata.uid = Some("d1".to_owned());
    prime.status = serde_json::from_value(json!({
        "phase": phase, "progress": "41.53%", "restartCount": 2,
        "conditions": [{ "type": "Running", "status": "False", "reason": "Error", "message": "answers 404" }],
    }))
    .unwrap();
    prime
}

#[test]
fn a_data_volume_fills_a_volume_like_the_one_that_was_asked_for() {
    let prime = made(&observed(claim(|claim| {
        claim["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": "storage", "other": "x" });
        claim["spec"]["volumeMode"] = json!("Block");
        claim["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } });
    })));
    assert_eq!(prime.name_any(), "populator-c1");
    let owner = &prime.owner_references()[0];
    assert_eq!((owner.uid.as_str(), owner.controller, owner.block_owner_deletion), ("c1", Some(true), None));
    assert_eq!(
        serde_json::to_value(&prime.spec).unwrap(),
        json!({
            "pvc": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
                "storageClassName": "local", "volumeMode": "Block",
            },
            "source": { "http": { "url": "https://images.example/a.qcow2" } },
        })
    );
    assert!(prime.annotations().contains_key(annotation::BIND) && prime.labels().contains_key(LABEL));
    assert_eq!(prime.annotations()["k8s.v1.cni.cncf.io/networks"], "storage");
    assert!(!prime.annotations().contains_key("other"));
}

#[test]
fn what_a_source_says_goes_on_to_the_data_volume() {
    let archive = image(|source| {
        source["spec"]["contentType"] = json!("archive");
        source["spec"]["preallocation"] = json!(true);
    });
    let with = |source: Source| made(&Observed { source: Some(source), ..observed(claim(|_| {})) }).spec;
    let spec = with(archive);
    assert_eq!((spec.content_type.as_deref(), spec.preallocation), (Some("archive"), Some(true)));
    let copied = json!({
        "metadata": { "name": "golden" },
        "spec": { "source": { "kind": "PersistentVolumeClaim", "name": "golden" }, "priorityClassName": "low" },
    });
    let spec = with(Source::Clone(Box::new(serde_json::from_value(copied).unwrap())));
    let source = spec.source.unwrap().pvc.unwrap();
    assert_eq!((source.namespace.as_str(), source.name.as_str()), ("ns", "golden"));
    assert_eq!(spec.priority_class_name.as_deref(), Some("low"));
    let sent = json!({ "metadata": { "name": "sent" }, "spec": { "contentType": "kubevirt" } });
    let spec = with(Source::Upload(Box::new(serde_json::from_value(sent).unwrap())));
    assert!(spec.source.unwrap().upload.is_some() && spec.content_type.as_deref() == Some("kubevirt"));
}

#[test]
fn a_volume_is_made_where_the_claim_is_used() {
    let waits = |change: fn(&mut Value)| Observed { class: Class::Waits, ..observed(claim(change)) };
    assert_eq!(plan(&waits(|_| {})), Plan::default(), "no pod was placed yet");
    let placed = waits(|claim| claim["metadata"]["annotations"][NODE_ANNOTATION] = json!("node02"));
    assert_eq!(made(&placed).annotations()[NODE_ANNOTATION], "node02");
    // Bound at once, wherever.
    let anywhere = waits(|claim| claim["metadata"]["annotations"][annotation::BIND] = json!(""));
    assert_eq!(made(&anywhere).annotations().get(NODE_ANNOTATION), None);
    // A copy is made where its source is.
    let copied =
        json!({ "metadata": {}, "spec": { "source": { "kind": "PersistentVolumeClaim", "name": "a" } } });
    let source = Some(Source::Clone(Box::new(serde_json::from_value(copied).unwrap())));
    assert_eq!(made(&Observed { source, ..placed }).annotations().get(NODE_ANNOTATION), None);
    for class in [Class::NotNamed, Class::Missing] {
        assert_eq!(plan(&Observed { class, ..observed(claim(|_| {})) }).step, None, "{class:?}");
    }
}

#[test]
fn a_user_learns_once_why_a_claim_is_not_filled() {
    let missing = Observed { source: None, ..observed(claim(|_| {})) };
    assert_eq!(told(&missing), ("SourceNotFound", "there is no VolumeImportSource image".to_owned()));
    let mut known = missing.clone();
    let Some(Step::Note(note)) = plan(&missing).step else { panic!() };
    world::merge(&mut known.claim, &note);
    assert_eq!(plan(&known), Plan::default());
    // Once the source is there, that no longer stands on a claim that waits for a node.
    let there = Observed { source: Some(image(|_| {})), class: Class::Waits, ..known };
    let Some(Step::Note(note)) = plan(&there).step else { panic!() };
    assert_eq!(note["metadata"]["annotations"][annotation::REASON], "");

    let other = image(|source| source["spec"]["targetClaim"] = json!("other"));
    let other = Observed { source: Some(other), ..observed(claim(|_| {})) };
    assert_eq!(told(&other).0, "SourceOfOtherClaim");
    let own = image(|source| source["spec"]["targetClaim"] = json!("root"));
    made(&Observed { source: Some(own), ..observed(claim(|_| {})) });
    let elsewhere = claim(|claim| claim["spec"]["dataSourceRef"]["namespace"] = json!("golden"));
    assert!(told(&observed(elsewhere)).1.starts_with("spec.dataSourceRef.namespace:"));
    let none = claim(|claim| claim["spec"]["storageClassName"] = json!(""));
    assert_eq!(told(&observed(none)).0, "NoStorageClass");
    let snapshot = json!({
        "metadata": {},
        "spec": { "source": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s" } },
    });
    let snapshot = Source::Clone(Box::new(serde_json::from_value(snapshot).unwrap()));
    let snapshot = Observed { source: Some(snapshot), ..observed(claim(|_| {})) };
    assert!(told(&snapshot).1.contains("VolumeSnapshot"));
    let bound = claim(|claim| claim["status"]["phase"] = json!("Bound"));
    assert_eq!(told(&observed(bound)).0, "NotPopulated");
}

#[test]
fn a_claim_reports_the_progress_of_its_data_volume() {
    let with =
        |claim: PersistentVolumeClaim, phase: &str| Observed { prime: Some(prime(phase)), ..observed(claim) };
    let step = plan(&with(claim(|_| {}), "ImportInProgress")).step;
    let Some(Step::Note(note)) = step else { panic!("{step:?}") };
    let mut at_work = claim(|_| {});
    world::merge(&mut at_work, &note);
    for (name, value) in [
        (annotation::PHASE, "Running"),
        (annotation::PROGRESS, "41.53%"),
        (annotation::RESTARTS, "2"),
        (annotation::RUNNING, "false"),
        (annotation::MESSAGE, "answers 404"),
    ] {
        assert_eq!(annotated(&at_work, name), Some(value), "{name}");
    }
    // Small progress is no reason to write the claim.
    let mut further = prime("ImportInProgress");
    let mut goes = |progress: &str| {
        further.status.as_mut().unwrap().progress = Some(progress.to_owned());
        plan(&Observed { prime: Some(further.clone()), ..observed(at_work.clone()) }).step
    };
    assert_eq!(goes("49.99%"), None);
    assert!(goes("50.00%").is_some());
    // A failure causes one event.
    let failed = plan(&with(at_work.clone(), "Failed"));
    let (Some(Step::Note(note)), Some(event)) = (failed.step, failed.event) else { panic!() };
    assert!(event.warning && event.reason == "ImportFailed");
    assert!(
        event.message.contains("populator-c1") && event.message.contains("answers 404"),
        "{}",
        event.message
    );
    world::merge(&mut at_work, &note);
    let again = plan(&with(at_work, "Failed"));
    assert_eq!((again.step, again.event), (None, None));
}

#[test]
fn a_data_volume_of_another_owner_fills_nothing() {
    let mut foreign = prime("Succeeded");
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "c0".to_owned();
    let foreign = Observed { prime: Some(foreign), ..observed(claim(|_| {})) };
    assert_eq!(told(&foreign).0, "ErrDataVolumeNotOwned");
}

/// A filled DataVolume with its claim and its volume.
fn filled() -> Observed {
    let prime_claim = json!({
        "metadata": { "name": "populator-c1", "namespace": "ns", "uid": "p1", "ownerReferences": [
            { "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "populator-c1", "uid": "d1", "controller": true },
        ] },
        "spec": { "volumeName": "pv1" }, "status": { "phase": "Bound" },
    });
    let volume = json!({
        "metadata": { "name": "pv1", "uid": "v1", "resourceVersion": "3" },
        "spec": { "claimRef": { "namespace": "ns", "name": "populator-c1", "uid": "p1" } },
    });
    Observed {
        prime: Some(prime("Succeeded")),
        prime_claim: Some(serde_json::from_value(prime_claim).unwrap()),
        volume: Some(serde_json::from_value(volume).unwrap()),
        ..observed(claim(|_| {}))
    }
}

#[test]
fn a_filled_volume_becomes_the_claims() {
    let mut observed = filled();
    let noted = plan(&observed);
    let (Some(Step::Note(note)), Some(event)) = (noted.step, noted.event) else { panic!() };
    assert_eq!(event.reason, "ImportSucceeded");
    world::merge(&mut observed.claim, &note);
    let Some(Step::Rebind(name, patch)) = plan(&observed).step else { panic!() };
    assert_eq!(name, "pv1");
    assert_eq!(patch["metadata"], json!({ "uid": "v1", "resourceVersion": "3" }));
    assert_eq!(
        patch["spec"]["claimRef"],
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "root", "uid": "c1",
            "resourceVersion": "7",
        })
    );
    // It is the claim's: nothing is done until the claim is bound, whatever becomes of the DataVolume.
    let mut volume = serde_json::to_value(observed.volume.take()).unwrap();
    volume["spec"]["claimRef"]["uid"] = json!("c1");
    observed.volume = serde_json::from_value(volume).unwrap();
    assert_eq!(plan(&observed).step, None);
    assert_eq!(volume_name(&observed.claim, None, None), Some("pv1"));
    assert_eq!(plan(&Observed { prime: None, prime_claim: None, ..observed.clone() }).step, None);
    observed.claim.status.as_mut().unwrap().phase = Some("Bound".to_owned());
    assert_eq!(plan(&observed).step, Some(Step::RemovePrime("d1".to_owned())));
    assert_eq!(plan(&Observed { prime: None, ..observed }), Plan::default());
}

#[test]
fn a_name_that_no_volume_has_is_not_looked_up() {
    for wrong in ["", "/", "pv1/status", "../namespaces/ns/pods", "pv1?x=y", "pv 1"] {
        let noted = claim(|claim| claim["metadata"]["annotations"][VOLUME_ANNOTATION] = json!(wrong));
        assert_eq!(volume_name(&noted, None, None), None, "{wrong}");
        let own = claim(|claim| claim["spec"]["volumeName"] = json!(wrong));
        let done = prime(SUCCEEDED);
        assert_eq!(volume_name(&claim(|_| {}), Some(&done), Some(&own)), None, "{wrong}");
    }
}

#[test]
fn a_volume_is_taken_only_from_the_claim_that_the_data_volume_owns() {
    let changed = |change: fn(&mut Value, &mut Value)| {
        let observed = filled();
        let mut own = serde_json::to_value(&observed.prime_claim).unwrap();
        let mut volume = serde_json::to_value(&observed.volume).unwrap();
        change(&mut own, &mut volume);
        let prime_claim = serde_json::from_value(own).unwrap();
        plan(&Observed { prime_claim, volume: serde_json::from_value(volume).unwrap(), ..observed })
    };
    let refilled = Some(Step::RemovePrime("d1".to_owned()));
    // Users can make a claim of that name, and write the name of any volume into it.
    let foreign = changed(|own, _| own["metadata"]["ownerReferences"] = json!([]));
    assert_eq!(foreign.step, refilled);
    let taken = changed(|_, volume| volume["spec"]["claimRef"]["uid"] = json!("c9"));
    assert_eq!(taken.event.unwrap().reason, "ErrVolumeNotOwned");
    assert_eq!(changed(|_, volume| *volume = Value::Null).step, refilled);
    assert_eq!(changed(|own, _| *own = Value::Null).step, refilled);
    // The annotation alone gives nobody a volume.
    let noted = claim(|claim| claim["metadata"]["annotations"][VOLUME_ANNOTATION] = json!("pv1"));
    let Observed { volume, .. } = filled();
    made(&Observed { volume, ..observed(noted) });
}
