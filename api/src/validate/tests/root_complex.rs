use super::*;
use crate::pci::ON_ROOT_ANNOTATION;

/// The instance with its devices on the root complex, and these changes.
fn on_root(changes: &[(&str, Value)]) -> Value {
    let object = with(right(), "/metadata/annotations", json!({ON_ROOT_ANNOTATION: "true"}));
    changes.iter().fold(object, |object, (pointer, value)| with(object, pointer, value.clone()))
}

/// Messages about a new instance; a machine and a replica set of it have the same ones at their own paths.
fn refused(object: &Value) -> Vec<String> {
    let told = |causes: Vec<Cause>, at: &str| {
        let field = format!("{at}metadata.annotations[{ON_ROOT_ANNOTATION}]");
        assert!(causes.iter().all(|cause| cause.field == field), "{causes:?}");
        let message =
            |cause: Cause| cause.message.strip_prefix(&format!("{field} leaves ")).unwrap().to_owned();
        causes.into_iter().map(message).collect::<Vec<_>>()
    };
    let mut vmi = instance(object.clone());
    defaults::vmi(&mut vmi);
    let of_instance = told(vmi_create(&vmi, Requester::User, &Gates::default()), "");
    let metadata = json!({"annotations": object["metadata"]["annotations"], "labels": {"app": "a"}});
    let template = json!({"metadata": metadata, "spec": object["spec"]});
    let vm = machine(json!({"runStrategy": "Halted", "template": template}));
    let of_machine = vm_spec(&Path::new("spec"), &vm.spec, Requester::User, &Gates::default());
    assert_eq!(told(of_machine, "spec.template."), of_instance);
    let set = json!({"metadata": {"name": "a", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template}});
    let set = serde_json::from_value(set).unwrap();
    let of_set = kinds::replica_set::create(&set, Requester::User, &Gates::default());
    assert_eq!(told(of_set, "spec.template."), of_instance);
    of_instance
}

#[test]
fn addresses_behind_root_ports_are_none_on_the_root_complex() {
    let address = "/spec/domain/devices/interfaces/0/pciAddress";
    assert_eq!(refused(&on_root(&[])), [""; 0]);
    assert_eq!(refused(&on_root(&[(address, json!("0000:00:10.0"))])), [""; 0]);
    let elsewhere = on_root(&[(address, json!("0000:03:00.0"))]);
    let message = "no root ports: domain.devices.interfaces[0].pciAddress 0000:03:00.0 is not on bus 00";
    assert_eq!(refused(&elsewhere), [message]);
    // Another value of the annotation says nothing.
    for other in [json!({ON_ROOT_ANNOTATION: "True"}), Value::Null] {
        assert_eq!(refused(&with(elsewhere.clone(), "/metadata/annotations", other)), [""; 0]);
    }
}

#[test]
fn there_are_places_for_twenty_five_devices() {
    let tablets = |count: usize| {
        let tablet = |number| json!({"name": format!("t{number}"), "type": "tablet", "bus": "virtio"});
        json!((0..count).map(tablet).collect::<Vec<_>>())
    };
    let with = |count: usize| on_root(&[("/spec/domain/devices/inputs", tablets(count))]);
    // A disk, an interface, channels, the SCSI controller, the balloon.
    assert_eq!(refused(&with(20)), [""; 0]);
    assert_eq!(refused(&with(21)), ["places for 25 devices, and there are at least 26"]);
    // Functions of one slot.
    let inputs = |slots: usize| ("/spec/domain/devices/inputs", tablets(slots));
    let disk = ("/spec/domain/devices/disks/0/disk/pciAddress", json!("0000:00:10.0"));
    let card = ("/spec/domain/devices/interfaces/0/pciAddress", json!("0000:00:10.1"));
    assert_eq!(refused(&on_root(&[inputs(21), disk, card])), [""; 0]);
}

#[test]
fn virtio_disks_are_not_plugged_into_the_root_complex() {
    let volume = json!({"name": "d", "persistentVolumeClaim": {"claimName": "d", "hotpluggable": true}});
    let plugged = |bus: &str| {
        let disk = json!({"name": "d", "disk": {"bus": bus}});
        on_root(&[("/spec/volumes/-", volume.clone()), ("/spec/domain/devices/disks/-", disk)])
    };
    assert_eq!(refused(&plugged("scsi")), [""; 0]);
    let message = "no root ports: disk d is plugged in, and needs the bus scsi for that";
    assert_eq!(refused(&plugged("virtio")), [message]);
    // The same for a guest that runs.
    let update = |new: &Value| {
        let (mut old, mut new) = (instance(on_root(&[])), instance(new.clone()));
        defaults::vmi(&mut old);
        defaults::vmi(&mut new);
        vmi_update(&old, &new, Requester::Component, &Gates::default())
    };
    assert_eq!(update(&plugged("scsi")), []);
    let causes = update(&plugged("virtio"));
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0].field, format!("metadata.annotations[{ON_ROOT_ANNOTATION}]"));
}
