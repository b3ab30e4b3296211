use super::*;
use serde_json::json;

fn vm(annotations: Value, spec: Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "annotations": annotations},
        "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}},
    });
    vm["spec"]["template"]["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(vm).unwrap()
}

fn plain() -> VirtualMachine {
    vm(json!({}), json!({}))
}

fn spec(of: Value) -> DataVolumeSpec {
    serde_json::from_value(of).unwrap()
}

fn object(of: Value) -> DynamicObject {
    serde_json::from_value(of).unwrap()
}

/// The state of one template's DataVolume, which the machine owns.
fn owned(phase: &str, conditions: Value) -> DataVolumeState {
    state_of(json!([owner("VirtualMachine", "web", "m1")]), phase, conditions)
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true})
}

fn state_of(owners: Value, phase: &str, conditions: Value) -> DataVolumeState {
    let data_volume = object(json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {"name": "root", "ownerReferences": owners},
        "spec": {}, "status": {"phase": phase, "conditions": conditions},
    }));
    DataVolumeState::of(&data_volume, &plain())
}

#[test]
fn a_template_becomes_a_data_volume_with_all_that_it_says() {
    let template = json!({
        "metadata": {"name": "root", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e.f/g"]},
        "spec": {
            "contentType": "kubevirt", "preallocation": false, "finalCheckpoint": true,
            "checkpoints": [{"previous": "", "current": "s1"}],
            "source": {"vddk": {
                "backingFile": "b", "extraArgs": "x", "initImageURL": "i", "secretRef": "s", "thumbprint": "t", "url": "u",
                "uuid": "v",
            }},
            "storage": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": "FromStorageProfile", "volumeName": "pv",
                "storageClassName": "", "selector": {"matchLabels": {"k": "v"}},
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    });
    let read: DataVolumeTemplateSpec = serde_json::from_value(template.clone()).unwrap();
    let vm = vm(json!({}), json!({"priorityClassName": "high"}));
    let made = serde_json::to_value(manifest(&vm, &read, read.spec.clone())).unwrap();
    let mut wanted = template["spec"].clone();
    wanted["priorityClassName"] = json!("high");
    assert_eq!(made["spec"], wanted);
    assert_eq!(
        (&made["apiVersion"], &made["kind"]),
        (&json!("cdi.kubevirt.io/v1beta1"), &json!("DataVolume"))
    );
    assert_eq!(
        made["metadata"],
        json!({
            "name": "root", "namespace": "shop", "finalizers": ["e.f/g"],
            "labels": {"a": "b", "kubevirt.io/created-by": "m1"},
            "annotations": {"c": "d", "cdi.kubevirt.io/allowClaimAdoption": "true"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1",
                "controller": true, "blockOwnerDeletion": true}],
        })
    );
    let own = DataVolumeSpec { priority_class_name: Some("low".to_owned()), ..read.spec.clone() };
    assert_eq!(manifest(&vm, &read, own).data["spec"]["priorityClassName"], "low");
}

#[test]
fn a_copys_source_is_resolved_with_its_namespace() {
    let copied = |of: Value, found: Option<Value>| {
        let spec = resolved(&spec(of), "shop", found.as_ref())?;
        origin(&spec).map(|origin| (spec.source_ref, origin))
    };
    let place =
        |namespace: &str, name: &str| Place { namespace: namespace.to_owned(), name: name.to_owned() };
    let claim = |namespace, name| Ok((None, Some(Origin::Claim(place(namespace, name)))));
    let snapshot = |namespace, name| Ok((None, Some(Origin::Snapshot(place(namespace, name)))));

    assert_eq!(copied(json!({"source": {"blank": {}}}), None), Ok((None, None)));
    assert_eq!(copied(json!({"source": {"pvc": {"namespace": "a", "name": "b"}}}), None), claim("a", "b"));
    assert_eq!(copied(json!({"source": {"pvc": {"namespace": "", "name": "b"}}}), None), claim("shop", "b"));
    assert_eq!(
        copied(json!({"source": {"snapshot": {"namespace": "", "name": "b"}}}), None),
        snapshot("shop", "b")
    );

    let by = json!({"sourceRef": {"kind": "DataSource", "namespace": "golden", "name": "fedora"}});
    assert_eq!(data_source(&spec(by.clone()), "shop"), Ok(Some(place("golden", "fedora"))));
    let here = json!({"sourceRef": {"kind": "DataSource", "name": "fedora"}});
    assert_eq!(data_source(&spec(here.clone()), "shop"), Ok(Some(place("shop", "fedora"))));
    let source = |of: Value| Some(json!({"spec": {"source": of}}));
    let pvc = json!({"pvc": {"name": "image"}});
    assert_eq!(copied(by.clone(), source(pvc.clone())), claim("golden", "image"));
    assert_eq!(copied(here, source(pvc)), claim("shop", "image"));
    let elsewhere = json!({"snapshot": {"name": "s", "namespace": "vault"}});
    assert_eq!(copied(by.clone(), source(elsewhere)), snapshot("vault", "s"));
    let other = json!({
        "spec": {"source": {"dataSource": {"name": "x", "namespace": "y"}, "pvc": {"name": "not", "namespace": "this"}}},
        "status": {"source": {"pvc": {"name": "image", "namespace": "vault"}}},
    });
    assert_eq!(copied(by.clone(), Some(other)), claim("vault", "image"));
    for nothing in
        [json!({}), json!({"pvc": {}}), json!({"pvc": "image"}), json!({"dataSource": {"name": "x"}})]
    {
        assert_eq!(
            copied(by.clone(), source(nothing)),
            Err("DataSource golden/fedora stands for no claim and no snapshot".to_owned())
        );
    }
    assert!(copied(by, None).is_err());
    // Only valid names become part of a request's path.
    for (namespace, name) in [("a/../b", "x"), ("a", "x?y"), ("a", ".."), ("a", ""), ("A", "x")] {
        let named = json!({"namespace": namespace, "name": name});
        for kind in ["pvc", "snapshot"] {
            let why = copied(json!({"source": {kind: named}}), None).unwrap_err();
            assert!(why.starts_with("there is no "), "{why}");
            let why = copied(
                json!({"sourceRef": {"kind": "DataSource", "name": "fedora"}}),
                source(json!({kind: named})),
            );
            assert!(why.is_err(), "{named}");
        }
        let reference = json!({"sourceRef": {"kind": "DataSource", "namespace": namespace, "name": name}});
        assert!(data_source(&spec(reference), "shop").is_err(), "{named}");
    }
}

#[test]
fn the_machines_account_is_asked_about() {
    let robot = vm(json!({}), json!({"serviceAccountName": "robot"}));
    assert_eq!(account(&plain()), "system:serviceaccount:shop:default");
    assert_eq!(account(&robot), "system:serviceaccount:shop:robot");
    let shown = json!({"volumes": [{"name": "t", "serviceAccount": {"serviceAccountName": "shown"}}]});
    assert_eq!(account(&vm(json!({}), shown)), "system:serviceaccount:shop:shown");

    let place = |namespace: &str| Place { namespace: namespace.to_owned(), name: "image".to_owned() };
    assert_eq!(questions(&plain(), &Origin::Claim(place("shop"))), Vec::<Vec<_>>::new());
    let asked = |origin| -> Vec<Vec<Value>> {
        let questions = questions(&robot, &origin).into_iter();
        questions
            .map(|all| all.iter().map(|one| serde_json::to_value(&one.spec).unwrap()).collect())
            .collect()
    };
    let question = |attributes: Value| {
        let mut attributes = attributes;
        let place = json!({"verb": "create", "namespace": "golden", "name": "image"});
        attributes.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        json!({
            "user": "system:serviceaccount:shop:robot",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"],
            "resourceAttributes": attributes,
        })
    };
    let explicit =
        question(json!({"group": "cdi.kubevirt.io", "resource": "datavolumes", "subresource": "source"}));
    let pods = question(json!({"group": "", "resource": "pods"}));
    assert_eq!(asked(Origin::Claim(place("golden"))), [vec![explicit.clone()], vec![pods.clone()]]);
    let claims = question(json!({"group": "", "resource": "pvcs"}));
    assert_eq!(asked(Origin::Snapshot(place("golden"))), [vec![explicit], vec![pods, claims]]);
}

#[test]
fn every_phase_has_its_meaning() {
    let bound = json!([{"type": "Bound", "status": "True"}]);
    let stopped = |reason: &str| json!([{"type": "Running", "status": "False", "reason": reason}]);
    let none = json!([]);
    for (phase, conditions, ready, filled, status, binding) in [
        ("", &none, false, false, Some("Provisioning"), false),
        ("Pending", &none, false, false, Some("Provisioning"), false),
        ("ImportInProgress", &bound, false, false, Some("Provisioning"), false),
        ("CloneScheduled", &none, false, false, Some("Provisioning"), false),
        ("WaitForFirstConsumer", &none, true, false, None, true),
        ("WaitForFirstConsumer", &bound, true, false, Some("Provisioning"), false),
        ("PendingPopulation", &none, true, false, None, true),
        ("Succeeded", &bound, true, true, None, false),
        ("Failed", &none, false, false, Some("DataVolumeError"), false),
        ("ImportInProgress", &stopped("Error"), false, false, Some("DataVolumeError"), false),
        ("ImportInProgress", &stopped("ImagePullFailed"), false, false, Some("DataVolumeError"), false),
        ("ImportInProgress", &stopped("Completed"), false, false, Some("Provisioning"), false),
    ] {
        let all = DataVolumes(vec![Some(owned(phase, conditions.clone()))]);
        let case = format!("{phase} {conditions}");
        assert_eq!((all.are_ready(), all.are_filled()), (ready, filled), "{case}");
        assert_eq!((all.status(), all.wait_for_binding()), (status, binding), "{case}");
        assert_eq!(all.work(&plain(), true), None, "{case}");
        assert_eq!(all.failed().count(), usize::from(phase == "Failed"), "{case}");
    }
    let mut going = owned("Succeeded", bound);
    going.is_going = true;
    let going = DataVolumes(vec![Some(going)]);
    assert!(!going.are_ready() && !going.are_filled());
    assert_eq!(going.status(), Some("Provisioning"));
    // Nothing was looked up.
    let none = DataVolumes::default();
    assert!(none.are_ready() && none.work(&plain(), true).is_none() && none.status().is_none());
}

#[test]
fn the_owner_decides_whether_a_data_volume_is_used() {
    for (owners, nobodys, going) in [
        (json!([owner("VirtualMachine", "web", "m1")]), false, false),
        (json!([]), true, false),
        (json!([owner("DataImportCron", "c", "x")]), false, false),
        (json!([owner("VirtualMachine", "other", "m9")]), false, false),
        // Of a deleted machine of the same name.
        (json!([owner("VirtualMachine", "web", "m0")]), false, true),
    ] {
        let state = state_of(owners.clone(), "Succeeded", json!([]));
        assert_eq!((state.is_nobodys, state.is_going), (nobodys, going), "{owners}");
        assert_eq!(DataVolumes(vec![Some(state)]).are_ready(), !going, "{owners}");
    }
}

#[test]
fn missing_data_volumes_are_created_and_ownerless_ones_adopted() {
    let there = || Some(owned("Succeeded", json!([])));
    let mut free = owned("Pending", json!([]));
    free.is_nobodys = true;
    let make = |make: &[usize]| Some(Work { make: make.to_vec(), adopt: vec![] });
    let some = DataVolumes(vec![None, there(), None]);
    assert_eq!(some.work(&plain(), false), make(&[0, 2]));
    assert!(!some.are_ready());
    let later = vm(json!({"kubevirt.io/immediate-data-volume-creation": "false"}), json!({}));
    assert_eq!(some.work(&later, false), None);
    assert_eq!(some.work(&later, true), make(&[0, 2]));

    let adopt = Some(Work { make: vec![], adopt: vec!["root".to_owned()] });
    let nobodys = DataVolumes(vec![Some(free.clone())]);
    assert_eq!(nobodys.work(&plain(), false), adopt);
    assert!(
        !DataVolumes(vec![Some(DataVolumeState { phase: "Succeeded".to_owned(), ..free.clone() })])
            .are_filled()
    );
    free.is_going = true;
    assert_eq!(DataVolumes(vec![Some(free)]).work(&plain(), true), None);
}

#[test]
fn an_exceeded_quota_is_reported() {
    let full =
        json!([{"type": "Bound", "status": "Unknown", "reason": "ErrExceededQuota", "message": "no more"}]);
    let of = |phase: &str| {
        let all = DataVolumes(vec![Some(owned(phase, full.clone()))]);
        all.over_quota().map(|(state, why)| (state.name.clone(), why.to_owned()))
    };
    assert_eq!(of("Pending"), Some(("root".to_owned(), "no more".to_owned())));
    assert_eq!(of("ImportScheduled"), None);
}
