//! The path of the search, step by step.

use super::*;
use serde_json::json;

fn vm(volume: Value, templates: Value) -> VirtualMachine {
    let mut volume = volume;
    volume["name"] = json!("root");
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "runStrategy": "Always", "dataVolumeTemplates": templates,
            "instancetype": {"inferFromVolume": "root"}, "preference": {"inferFromVolume": "root"},
            "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "1Gi"}}, "volumes": [volume]}},
        },
    }))
    .unwrap()
}

/// Follows a machine's volume through a cluster of objects by their paths.
fn infer(vm: &VirtualMachine, cluster: &Value) -> Result<(String, Option<String>), (String, bool)> {
    let told = |failure: Failure| (failure.message, failure.may_be_ignored);
    let mut at = begin(vm, "root").map_err(told)?;
    for _ in 0..5 {
        let path = format!("{} {}/{}", at.kind.resource().kind, at.namespace, at.name);
        match follow(Family::Instancetype, "shop", &at, cluster.get(&path)).map_err(told)? {
            Next::Reference(next) => at = next,
            Next::Found(named) => return Ok((named.name, named.kind)),
        }
    }
    panic!("no end")
}

fn labelled(name: &str) -> Value {
    json!({"metadata": {"labels": {"instancetype.kubevirt.io/default-instancetype": name}}})
}

#[test]
fn labels_are_found_wherever_they_are() {
    let claim = json!({"persistentVolumeClaim": {"claimName": "disk"}});
    let data_volume = json!({"dataVolume": {"name": "disk"}});
    let template = |spec: Value| json!([{"metadata": {"name": "disk"}, "spec": spec}]);
    let pvc = json!({"source": {"pvc": {"namespace": "golden", "name": "image"}}});
    let snapshot = json!({"source": {"snapshot": {"namespace": "golden", "name": "image"}}});
    let by = json!({"sourceRef": {"kind": "DataSource", "namespace": "golden", "name": "fedora"}});
    let source = |of: Value| json!({"spec": {"source": of}});
    let none = json!([]);
    for (case, vm, cluster) in [
        ("a claim", vm(claim, none.clone()), json!({"PersistentVolumeClaim shop/disk": labelled("a")})),
        (
            "a DataVolume",
            vm(data_volume.clone(), none.clone()),
            json!({"DataVolume shop/disk": labelled("a")}),
        ),
        (
            "a DataVolume that is gone",
            vm(data_volume.clone(), none.clone()),
            json!({"PersistentVolumeClaim shop/disk": labelled("a")}),
        ),
        (
            "what a DataVolume copied",
            vm(data_volume.clone(), none),
            json!({"DataVolume shop/disk": {"spec": pvc}, "PersistentVolumeClaim golden/image": labelled("a")}),
        ),
        (
            "the claim of a template",
            vm(data_volume.clone(), template(pvc)),
            json!({"PersistentVolumeClaim golden/image": labelled("a")}),
        ),
        (
            "the snapshot of a template",
            vm(data_volume.clone(), template(snapshot)),
            json!({"VolumeSnapshot golden/image": labelled("a")}),
        ),
        (
            "a DataSource",
            vm(data_volume.clone(), template(by.clone())),
            json!({"DataSource golden/fedora": labelled("a")}),
        ),
        (
            "the claim of a DataSource",
            vm(data_volume.clone(), template(by.clone())),
            json!({
                "DataSource golden/fedora": source(json!({"pvc": {"name": "image"}})),
                "PersistentVolumeClaim golden/image": labelled("a"),
            }),
        ),
        (
            "the snapshot of the DataSource that a DataSource stands for",
            vm(data_volume, template(by)),
            json!({
                "DataSource golden/fedora": {
                    "spec": {"source": {"dataSource": {"name": "x", "namespace": "y"}}},
                    "status": {"source": {"snapshot": {"name": "image", "namespace": "vault"}}},
                },
                "VolumeSnapshot vault/image": labelled("a"),
            }),
        ),
    ] {
        assert_eq!(infer(&vm, &cluster), Ok(("a".to_owned(), None)), "{case}");
    }
}

#[test]
fn a_volume_without_defaults_is_an_error_that_can_be_ignored() {
    let template = |spec: Value| {
        vm(json!({"dataVolume": {"name": "disk"}}), json!([{"metadata": {"name": "disk"}, "spec": spec}]))
    };
    let ignored = |message: &str| Err((message.to_owned(), true));
    let image = vm(json!({"containerDisk": {"image": "i"}}), json!([]));
    assert_eq!(
        infer(&image, &json!({})),
        ignored("unable to infer defaults from volume root as type is not supported")
    );
    assert_eq!(
        infer(&template(json!({"source": {"blank": {}}})), &json!({})),
        ignored("unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported")
    );
    assert_eq!(
        infer(&template(json!({"sourceRef": {"kind": "Pod", "name": "x"}})), &json!({})),
        ignored("unable to infer defaults from DataVolumeSourceRef as Kind Pod is not supported")
    );
    let claim = vm(json!({"persistentVolumeClaim": {"claimName": "disk"}}), json!([]));
    assert_eq!(
        infer(&claim, &json!({"PersistentVolumeClaim shop/disk": {}})),
        ignored("unable to find required instancetype.kubevirt.io/default-instancetype label on the volume")
    );
    assert_eq!(
        infer(&claim, &json!({})),
        Err(("PersistentVolumeClaim shop/disk not found".to_owned(), false))
    );
    let named = begin(&claim, "other").unwrap_err();
    assert_eq!(
        (named.message.as_str(), named.may_be_ignored),
        ("unable to find volume other to infer defaults", false)
    );
    // Names become part of a path.
    let path = template(json!({"source": {"pvc": {"namespace": "a/../b", "name": "x?y"}}}));
    assert_eq!(
        infer(&path, &json!({})),
        Err(("PersistentVolumeClaim a/../b/x?y not found".to_owned(), false))
    );
}

#[test]
fn the_choice_takes_the_place_of_the_question() {
    let claim = json!({"persistentVolumeClaim": {"claimName": "disk"}});
    let mut machine = vm(claim, json!([]));
    let named = || Named { name: "u1.small".to_owned(), kind: Some("VirtualMachineInstancetype".to_owned()) };
    let matcher = |policy| Matcher {
        family: Family::Instancetype,
        name: None,
        kind: None,
        revision_name: None,
        infer_from_volume: Some("root"),
        infer_from_volume_failure_policy: policy,
    };
    let lacking = || Failure { message: "why".to_owned(), may_be_ignored: true };
    let fatal = || Failure { message: "why".to_owned(), may_be_ignored: false };
    assert_eq!(choose(&matcher(None), Ok(named())), Ok(Choice::Named(named(), false)));
    let cause = choose(&matcher(Some("Reject")), Err(lacking())).unwrap_err();
    assert_eq!((cause.field.as_str(), cause.message.as_str()), ("spec.instancetype.inferFromVolume", "why"));
    assert_eq!(choose(&matcher(Some("Ignore")), Err(lacking())), Ok(Choice::Without));
    assert!(choose(&matcher(Some("Ignore")), Err(fatal())).is_err());

    apply(Family::Preference, &Choice::Without, &mut machine.spec);
    assert_eq!(machine.spec.preference, None);
    apply(Family::Instancetype, &Choice::Named(named(), false), &mut machine.spec);
    let written = serde_json::to_value(&machine.spec.instancetype).unwrap();
    assert_eq!(written, json!({"name": "u1.small", "kind": "VirtualMachineInstancetype"}));
    assert!(machine.spec.template.spec.domain.memory.is_some());
    // The memory was only a fallback.
    let choice = choose(&matcher(Some("Ignore")), Ok(named())).unwrap();
    apply(Family::Instancetype, &choice, &mut machine.spec);
    assert_eq!(machine.spec.template.spec.domain.memory, None);
}
