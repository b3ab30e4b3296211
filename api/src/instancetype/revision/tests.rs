use super::*;
use crate::instancetype::VirtualMachineInstancetypeSpec;
use crate::preference::VirtualMachinePreferenceSpec;

fn vm(instancetype: Value, reference: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m"},
        "spec": {"runStrategy": "Always", "instancetype": instancetype,
            "template": {"spec": {"domain": {"devices": {}}}}},
        "status": {"instancetypeRef": reference},
    }))
    .unwrap()
}

fn matcher(vm: &VirtualMachine) -> Matcher<'_> {
    Family::Instancetype.matcher(vm).unwrap()
}

fn stored() -> ControllerRevision {
    let object = json!({
        "metadata": {"name": "small", "uid": "u", "generation": 3, "labels": {"a": "b"}, "annotations": {"c": "d"},
            "managedFields": [], "resourceVersion": "7"},
        "spec": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}},
    });
    let vm = vm(json!({"name": "small"}), Value::Null);
    let owner = OwnerReference { uid: "m".to_owned(), ..OwnerReference::default() };
    copy(&vm, owner, Family::Instancetype, Scope::Cluster, &object).unwrap()
}

#[test]
fn a_copy_is_named_and_labelled_as_kubevirts() {
    let revision = serde_json::to_value(stored()).unwrap();
    assert_eq!(
        revision["metadata"],
        json!({
            "name": "web-small-v1beta1-u-3", "namespace": "shop",
            "ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": "m"}],
            "labels": {
                "instancetype.kubevirt.io/object-generation": "3",
                "instancetype.kubevirt.io/object-kind": "VirtualMachineClusterInstancetype",
                "instancetype.kubevirt.io/object-name": "small",
                "instancetype.kubevirt.io/object-uid": "u",
                "instancetype.kubevirt.io/object-version": "v1beta1",
            },
        })
    );
    assert_eq!(
        revision["data"],
        json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "small", "uid": "u", "generation": 3, "resourceVersion": "7"},
            "spec": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}},
        })
    );
}

#[test]
fn a_controller_revision_is_read_by_its_kind() {
    let spec: VirtualMachineInstancetypeSpec = read(Family::Instancetype, &stored()).unwrap();
    assert_eq!(spec.cpu.guest, 2);
    let other: Result<VirtualMachinePreferenceSpec, String> = read(Family::Preference, &stored());
    assert_eq!(
        other.unwrap_err(),
        "ControllerRevision web-small-v1beta1-u-3: not a preference of instancetype.kubevirt.io/v1beta1 but \
         instancetype.kubevirt.io/v1beta1 VirtualMachineClusterInstancetype"
    );
    // A machine may name any revision: none of its content is shown.
    let foreign = ControllerRevision {
        metadata: ObjectMeta { name: Some("db-1".to_owned()), ..ObjectMeta::default() },
        data: Some(RawExtension(json!({"spec": {"password": "x"}}))),
        revision: 1,
    };
    let other: Result<VirtualMachineInstancetypeSpec, String> = read(Family::Instancetype, &foreign);
    assert!(!other.unwrap_err().contains("password"));
}

#[test]
fn the_copy_comes_before_the_object() {
    let kept = json!({"name": "small", "controllerRevisionRef": {"name": "r1"}});
    for (instancetype, reference, wanted) in [
        (json!({"name": "small"}), Value::Null, Ok(Source::Object(Scope::Cluster))),
        (
            json!({"name": "small", "kind": "VirtualMachineInstancetype"}),
            json!({"name": "small"}),
            Ok(Source::Object(Scope::Namespaced)),
        ),
        (json!({"name": "small"}), kept.clone(), Ok(Source::Revision("r1".to_owned()))),
        (json!({"name": "small", "revisionName": "r2"}), kept, Ok(Source::Revision("r2".to_owned()))),
        (
            json!({"name": "small", "kind": "Pod"}),
            Value::Null,
            Err("got unexpected kind in InstancetypeMatcher: Pod".to_owned()),
        ),
    ] {
        let vm = vm(instancetype, reference);
        assert_eq!(source(&vm, &matcher(&vm)), wanted);
    }
}

#[test]
fn a_copy_of_another_object_is_not_used_unless_asked_for() {
    let other = vm(json!({"name": "big"}), Value::Null);
    assert!(!is_of(&matcher(&other), &stored()));
    let same = vm(json!({"name": "small"}), Value::Null);
    assert!(is_of(&matcher(&same), &stored()));
    let asked = vm(json!({"name": "big", "revisionName": "x"}), Value::Null);
    assert!(is_of(&matcher(&asked), &stored()));
    // Without labels the object in the copy says it.
    let mut older = stored();
    older.metadata.labels = None;
    assert!(is_of(&matcher(&same), &older) && !is_of(&matcher(&other), &older));
}

#[test]
fn the_status_follows_the_matcher() {
    let revision = |name: &str| json!({"name": name});
    for (instancetype, before, after, recorded) in [
        (json!({"name": "a"}), Value::Null, json!({"name": "a"}), false),
        (
            json!({"name": "a"}),
            json!({"name": "a", "controllerRevisionRef": revision("r")}),
            json!({"name": "a", "controllerRevisionRef": revision("r")}),
            true,
        ),
        // Another name or kind: the copy is dropped.
        (
            json!({"name": "b"}),
            json!({"name": "a", "controllerRevisionRef": revision("r")}),
            json!({"name": "b"}),
            false,
        ),
        (
            json!({"name": "a", "kind": "VirtualMachineInstancetype"}),
            json!({"name": "a", "controllerRevisionRef": revision("r")}),
            json!({"name": "a", "kind": "VirtualMachineInstancetype"}),
            false,
        ),
        // A copy that was removed from the status is made again.
        (
            json!({"name": "a"}),
            json!({"name": "a", "controllerRevisionRef": {}}),
            json!({"name": "a"}),
            false,
        ),
        (
            json!({"name": "a", "revisionName": "s"}),
            json!({"name": "a", "controllerRevisionRef": revision("r")}),
            json!({"name": "a", "controllerRevisionRef": revision("s")}),
            false,
        ),
    ] {
        let vm = vm(instancetype, before);
        assert_eq!(serde_json::to_value(reference(&vm, &matcher(&vm))).unwrap(), after);
        assert_eq!(is_recorded(&vm, &matcher(&vm)), recorded);
    }
}

#[test]
fn a_copy_with_different_contents_is_not_the_same() {
    let mut other = stored();
    assert!(holds_the_same(&other, &stored()));
    other.data.as_mut().unwrap().0["spec"]["cpu"]["guest"] = json!(3);
    assert!(!holds_the_same(&other, &stored()));
    other.data = None;
    assert!(!holds_the_same(&other, &stored()));
}
