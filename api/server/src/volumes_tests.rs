//! Requested changes, and the patches that they lead to.

use super::*;

fn claim(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn asked(action: VolumeAction, body: &Value) -> Result<VolumeChange, (u16, String)> {
    let options = machine::given(body.to_string().as_bytes()).unwrap();
    change(action, options).map_err(|refusal| (refusal.code.as_u16(), refusal.message))
}

fn add(name: &str, source: &Value) -> VolumeChange {
    let body = json!({"name": name, "disk": {"disk": {}}, "volumeSource": source});
    asked(VolumeAction::Add, &body).unwrap()
}

fn spec() -> Value {
    let volumes = json!([
        {"name": "root", "containerDisk": {"image": "a"}},
        {"name": "fixed", "persistentVolumeClaim": {"claimName": "kept"}},
        {"name": "hot", "dataVolume": {"name": "data", "hotpluggable": true}},
    ]);
    let disks =
        json!([{"name": "root", "disk": {}}, {"name": "fixed", "disk": {}}, {"name": "hot", "lun": {}}]);
    json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})
}

/// The specification after the change, if the patch's tests succeed.
fn changed(spec: &Value, change: &VolumeChange) -> Result<Value, String> {
    let mut object = json!({ "spec": spec });
    let operations: json_patch::Patch = serde_json::from_value(patch("/spec", spec, change)?).unwrap();
    // In Kubernetes, a test of a missing member succeeds if its value is null.
    let absent = |operation: &json_patch::PatchOperation| matches!(operation, json_patch::PatchOperation::Test(test) if test.value.is_null());
    let (absent, operations): (Vec<_>, Vec<_>) = operations.0.into_iter().partition(absent);
    assert!(absent.iter().all(|operation| object.pointer(operation.path().as_str()).is_none()), "{absent:?}");
    json_patch::patch(&mut object, &operations).unwrap();
    Ok(object["spec"].take())
}

#[test]
fn an_added_volume_can_be_removed_again() {
    let body = json!({
        "name": "new", "volumeSource": {"dataVolume": {"name": "dv"}},
        "disk": {"name": "other", "serial": "S", "disk": {"bus": "virtio"}},
    });
    let VolumeChange::Add { volume, disk } = asked(VolumeAction::Add, &body).unwrap() else { panic!() };
    assert_eq!(volume, json!({"name": "new", "dataVolume": {"name": "dv", "hotpluggable": true}}));
    assert_eq!(disk, json!({"name": "new", "serial": "S", "disk": {"bus": "virtio"}}));
    for target in ["disk", "lun"] {
        let body = json!({"name": "new", "volumeSource": claim("c"), "disk": {target: {}}});
        let VolumeChange::Add { volume, disk } = asked(VolumeAction::Add, &body).unwrap() else { panic!() };
        assert_eq!(volume["persistentVolumeClaim"], json!({"claimName": "c", "hotpluggable": true}));
        assert_eq!(disk[target], json!({"bus": "scsi"}));
    }
}

#[test]
fn missing_options_are_named() {
    let source = claim("c");
    for (body, code, message) in [
        (json!({}), 400, "AddVolumeOptions requires name to be set"),
        (json!({"name": "a"}), 400, "AddVolumeOptions requires disk to not be nil"),
        (json!({"name": "a", "disk": {}}), 400, "AddVolumeOptions requires VolumeSource to not be nil"),
        (
            json!({"name": "a", "disk": {}, "volumeSource": {}}),
            400,
            "AddVolumeOptions requires volumeSource.dataVolume or volumeSource.persistentVolumeClaim",
        ),
        (
            json!({"name": "a", "disk": {}, "volumeSource": {"dataVolume": {}, "persistentVolumeClaim": {}}}),
            400,
            "AddVolumeOptions requires one object in volumeSource: dataVolume or persistentVolumeClaim",
        ),
        (
            json!({"name": "a", "disk": [], "volumeSource": source}),
            400,
            "AddVolumeOptions requires disk to be an object",
        ),
        (
            json!({"name": "a", "disk": {}, "volumeSource": source}),
            422,
            "AddVolume request for [a] requires diskDevice of type 'disk' or 'lun' to be used.",
        ),
        (
            json!({"name": "a", "disk": {"cdrom": {}}, "volumeSource": source}),
            422,
            "AddVolume request for [a] requires diskDevice of type 'disk' or 'lun' to be used.",
        ),
        (
            json!({"name": "a", "disk": {"disk": {"bus": "sata"}}, "volumeSource": source}),
            422,
            "AddVolume request for disk [a] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.",
        ),
        (
            json!({"name": "a", "disk": {"lun": {"bus": "virtio"}}, "volumeSource": source}),
            422,
            "AddVolume request for LUN [a] requires bus to be 'scsi'. [virtio] is not permitted.",
        ),
    ] {
        assert_eq!(asked(VolumeAction::Add, &body), Err((code, message.to_owned())), "{body}");
    }
    let refused = asked(VolumeAction::Remove, &json!({}));
    assert_eq!(refused, Err((400, "RemoveVolumeOptions requires name to be set".to_owned())));
}

#[test]
fn a_volume_comes_with_its_disk_and_goes_with_it() {
    let change = add("new", &claim("c"));
    let after = changed(&spec(), &change).unwrap();
    assert_eq!(after["volumes"].as_array().unwrap().len(), 4);
    assert_eq!(after["domain"]["devices"]["disks"][3], json!({"name": "new", "disk": {"bus": "scsi"}}));
    // By the volume's own name, and by that of its claim.
    for name in ["new", "c"] {
        assert_eq!(changed(&after, &VolumeChange::Remove(name.to_owned())), Ok(spec()), "{name}");
    }
    // A template without the lists, and one with empty lists.
    for bare in
        [json!({"domain": {"devices": {}}}), json!({"volumes": [], "domain": {"devices": {"disks": []}}})]
    {
        let after = changed(&bare, &change).unwrap();
        assert_eq!(after["volumes"][0]["name"], "new");
        assert_eq!(after["domain"]["devices"]["disks"][0]["name"], "new");
    }
}

#[test]
fn a_volume_is_found_by_name_before_claim() {
    let both = changed(&spec(), &add("data", &claim("c"))).unwrap();
    let after = changed(&both, &VolumeChange::Remove("data".to_owned())).unwrap();
    assert_eq!(after, spec());
}

#[test]
fn conflicts_are_kubevirts() {
    for (change, why) in [
        (
            add("root", &claim("c")),
            "Unable to add volume [root] because volume with that name already exists",
        ),
        (add("new", &claim("kept")), "Unable to add volume source [kept] because it already exists"),
        (
            add("new", &json!({"dataVolume": {"name": "data"}})),
            "Unable to add volume source [data] because it already exists",
        ),
        (VolumeChange::Remove("gone".to_owned()), "Unable to remove volume [gone] because it does not exist"),
        (
            VolumeChange::Remove("root".to_owned()),
            "Unable to remove volume [root] because it is not hotpluggable",
        ),
        (
            VolumeChange::Remove("fixed".to_owned()),
            "Unable to remove volume [fixed] because it is not hotpluggable",
        ),
    ] {
        assert_eq!(changed(&spec(), &change), Err(why.to_owned()));
    }
    let vm = json!({"spec": {"template": {"spec": spec()}}});
    let refusal = of_machine("web", &vm, &VolumeChange::Remove("gone".to_owned())).unwrap_err();
    assert_eq!(refusal.code.as_u16(), 409);
    assert!(
        refusal.message.starts_with("Operation cannot be fulfilled on virtualmachine.kubevirt.io \"web\": ")
    );
    assert!(
        of_machine("web", &vm, &VolumeChange::Remove("hot".to_owned())).unwrap()[0]["path"]
            == "/spec/template/spec/volumes"
    );
}

#[test]
fn volumes_are_added_only_to_running_instances_without_an_owner() {
    let vmi = |phase: &str, owner: Option<&str>| -> DynamicObject {
        let owners: Vec<Value> = owner
            .map(|kind| {
                json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "name": "web", "uid": "u", "controller": true})
            })
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web", "ownerReferences": owners}, "spec": spec(), "status": {"phase": phase},
        }))
        .unwrap()
    };
    let change = VolumeChange::Remove("hot".to_owned());
    let asked = |vmi: &DynamicObject| of_instance(("shop", "web"), vmi, &change, &Gates::default());
    assert!(asked(&vmi("Running", None)).is_ok());
    assert!(asked(&vmi("Running", Some("VirtualMachineInstanceReplicaSet"))).is_ok());
    let owned = asked(&vmi("Scheduled", Some("VirtualMachine"))).unwrap_err();
    assert_eq!((owned.code.as_u16(), owned.message.as_str()), (400, "VMI shop/web is owned by a VM"));
    let waiting = asked(&vmi("Scheduled", None)).unwrap_err();
    let words =
        "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"web\": VMI is not running";
    assert_eq!((waiting.code.as_u16(), waiting.message.as_str()), (409, words));
    let mut moving = vmi("Running", None);
    moving.data["status"]["migrationState"] = json!({"migrationUid": "m"});
    let refused = asked(&moving).unwrap_err();
    assert_eq!(refused.code.as_u16(), 409);
    assert!(refused.message.ends_with("Cannot handle volume requests while VMI migration is in progress"));
    moving.data["status"]["migrationState"] =
        json!({"migrationUid": "m", "completed": true, "endTimestamp": "2026-01-01T00:00:00Z"});
    assert!(asked(&moving).is_ok());
}

#[test]
fn an_instance_of_a_machine_gets_volumes_of_its_own_behind_the_gate() {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "u",
        "controller": true});
    let vmi = |annotations: Value| -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "ownerReferences": [owner], "annotations": annotations},
            "spec": spec(), "status": {"phase": "Running"},
        }))
        .unwrap()
    };
    let gates = Gates::new(["HotplugVolumes".to_owned()], []);
    let asked = |annotations: Value, change: &VolumeChange| {
        of_instance(("shop", "web"), &vmi(annotations), change, &gates)
            .map(|operations| operations.as_array().unwrap()[4..].to_vec())
            .map_err(|refusal| (refusal.code.as_u16(), refusal.message))
    };
    let new = add("new", &claim("c"));
    let (all, key) = ("/metadata/annotations", "barevirt.dev/ephemeral-volumes");
    let path = "/metadata/annotations/barevirt.dev~1ephemeral-volumes";
    assert_eq!(
        asked(Value::Null, &new).unwrap(),
        [
            json!({"op": "test", "path": all, "value": null}),
            json!({"op": "add", "path": all, "value": {key: "new"}}),
        ]
    );
    for (before, after) in [(Value::Null, "new"), (json!("a,z"), "a,new,z"), (json!("new"), "new")] {
        let mut annotations = json!({"other": "x"});
        if before.is_string() {
            annotations[key] = before.clone();
        }
        assert_eq!(
            asked(annotations, &new).unwrap(),
            [
                json!({"op": "test", "path": path, "value": before}),
                json!({"op": "add", "path": path, "value": after}),
            ]
        );
    }
    // By the name of its claim, too.
    for name in ["hot", "data"] {
        let gone = asked(json!({key: "hot"}), &VolumeChange::Remove(name.to_owned())).unwrap();
        let test = json!({"op": "test", "path": path, "value": "hot"});
        assert_eq!(gone, [test, json!({"op": "remove", "path": path})]);
    }
    let (code, message) = asked(json!({key: "new"}), &VolumeChange::Remove("hot".to_owned())).unwrap_err();
    assert_eq!(code, 409);
    assert!(message.ends_with("Unable to remove volume [hot] because it is a volume of the VM"), "{message}");
}
