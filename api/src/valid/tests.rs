use super::*;
use serde_json::{Value, json};

fn read(value: Value) -> VirtualMachineInstance {
    serde_json::from_value(value).unwrap()
}

fn spec() -> Value {
    json!({
        "domain": {
            "memory": {"guest": "64Mi"}, "cpu": {"cores": 2, "model": "Nehalem"}, "features": {"acpi": {"enabled": false}},
            "devices": {
                "disks": [{"name": "b", "disk": {"bus": "virtio"}}, {"name": "a", "cdrom": {}}, {"name": "c", "disk": {"bus": "scsi"}}],
                "interfaces": [
                    {"name": "n", "masquerade": {}, "macAddress": "02-AA-00-00-00-01"},
                ],
            },
        },
        "networks": [{"name": "n", "pod": {}}],
        "volumes": [
            {"name": "a", "cloudInitNoCloud": {"userData": "x"}},
            {"name": "b", "containerDisk": {"image": "i"}},
            {"name": "c", "emptyDisk": {"capacity": "1Gi"}},
        ],
        "terminationGracePeriodSeconds": 0,
    })
}

#[test]
fn parts_are_paired_in_the_order_of_devices() {
    let vmi = ValidVmi::new(read(
        json!({"metadata": {"name": "vm.example", "namespace": "ns", "uid": "u"}, "spec": spec()}),
    ))
    .unwrap();
    let disks: Vec<_> = vmi.disks().iter().map(|disk| (disk.volume.name.as_str(), disk.bus)).collect();
    assert_eq!(disks, [("b", Bus::Virtio), ("a", Bus::Sata), ("c", Bus::Scsi)]);
    assert_eq!(vmi.drives().count(), 0);
    assert_eq!(vmi.interfaces()[0].mac, "02:aa:00:00:00:01");
    assert_eq!(vmi.interfaces()[0].network.name, "n");
    assert_eq!((vmi.name(), vmi.namespace(), vmi.uid()), ("vm.example", "ns", "u"));
    assert_eq!(vmi.hostname(), "vm");
    assert_eq!(vmi.grace_period_seconds(), 0);
    assert!(!vmi.acpi());
    assert_eq!(vmi.cpu_model(), "Nehalem");
    assert_eq!(vmi.machine_type(), "q35");
    assert_eq!(vmi.topology().vcpus(), 2);
    assert_eq!(vmi.firmware_uuid(), identity::uuid("ns", "vm.example"));
}

#[test]
fn a_uuid_without_dashes_is_one() {
    let uuids = |given: &str| {
        let mut object = spec();
        object["domain"]["firmware"] = json!({ "uuid": given });
        let vmi = ValidVmi::new(read(json!({"metadata": {"name": "vm"}, "spec": object}))).unwrap();
        (vmi.firmware_uuid(), vmi.named_uuid())
    };
    let (usual, plain) = ("5D307ca9-b3ef-428c-8861-06e72d69f223", "5D307ca9b3ef428c886106e72d69f223");
    assert_eq!(uuids(usual), (usual.to_owned(), usual.to_owned()));
    assert_eq!(uuids(plain), (usual.to_owned(), plain.to_owned()));
}

#[test]
fn a_drive_is_there_with_and_without_its_disc() {
    let hot = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
    let drives = |volumes: Value, places: &[usize]| {
        let mut object = spec();
        let drive = |name: &str| json!({"name": name, "cdrom": {}});
        object["domain"]["devices"]["disks"] = json!([drive("d"), {"name": "b", "disk": {}}, drive("e")]);
        object["volumes"] = volumes;
        let vmi = ValidVmi::new(read(json!({"metadata": {"name": "vm"}, "spec": object}))).unwrap();
        assert_eq!(vmi.drives().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["d", "e"]);
        assert_eq!(vmi.boot_disks().map(|disk| disk.at).collect::<Vec<_>>(), [1]);
        assert_eq!(vmi.disks().iter().map(|disk| disk.at).collect::<Vec<_>>(), places);
    };
    let system = json!({"name": "b", "emptyDisk": {"capacity": "1Mi"}});
    drives(json!([system]), &[1]);
    drives(json!([system, hot("e")]), &[1, 2]);
}

#[test]
fn an_address_that_is_not_given_is_derived_and_stays() {
    let mut object = spec();
    object["domain"]["devices"]["interfaces"][0].as_object_mut().unwrap().remove("macAddress");
    let make = |uid: &str| {
        let meta = json!({"name": "vm", "namespace": "ns", "uid": uid});
        ValidVmi::new(read(json!({"metadata": meta, "spec": object}))).unwrap()
    };
    assert_eq!(make("1").interfaces()[0].mac, make("2").interfaces()[0].mac);
    assert_eq!(make("1").interfaces()[0].mac, identity::mac("ns", "vm", "n"));
}

#[test]
fn every_cause_is_returned_and_a_name_is_needed() {
    let mut object = spec();
    object["domain"]["memory"] = Value::Null;
    object["volumes"][0]["name"] = json!("z");
    object["domain"]["devices"]["disks"][1] = json!({"name": "a", "disk": {}});
    let causes = ValidVmi::new(read(json!({"metadata": {}, "spec": object}))).unwrap_err();
    let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(fields, ["spec.domain.devices.disks[1].name", "spec.domain.memory.guest", "metadata.name"]);
}

#[test]
fn queues_follow_the_cpus_where_that_is_asked_for_and_the_card_has_them() {
    let queues = |multiqueue: Value, model: Value, sockets: u32| {
        let mut object = spec();
        object["domain"]["devices"]["networkInterfaceMultiqueue"] = multiqueue;
        object["domain"]["devices"]["interfaces"][0]["model"] = model;
        object["domain"]["cpu"] = json!({"sockets": sockets});
        let vmi = ValidVmi::new(read(json!({"metadata": {"name": "vm"}, "spec": object}))).unwrap();
        vmi.queues(&vmi.interfaces()[0].interface)
    };
    let mut passt = spec();
    passt["domain"]["devices"]["networkInterfaceMultiqueue"] = json!(true);
    passt["domain"]["devices"]["interfaces"] = json!([{"name": "n", "passtBinding": {}}]);
    passt["domain"]["cpu"] = json!({"sockets": 3});
    let vmi = ValidVmi::new(read(json!({"metadata": {"name": "vm"}, "spec": passt}))).unwrap();
    assert_eq!(vmi.queues(&vmi.interfaces()[0].interface), 1);
    for (multiqueue, model, sockets, wanted) in [
        (json!(true), json!(null), 3, 3),
        (json!(true), json!("virtio"), 1, 1),
        (json!(true), json!("virtio"), 255, 255),
        (json!(true), json!("e1000"), 3, 1),
        (json!(false), json!("virtio"), 3, 1),
        (json!(null), json!("virtio"), 3, 1),
    ] {
        assert_eq!(
            queues(multiqueue.clone(), model.clone(), sockets),
            wanted,
            "{multiqueue} {model} {sockets}"
        );
    }
}

#[test]
fn a_card_that_the_guest_has_keeps_its_queues_while_cpus_come_and_go() {
    let queues = |status: Value, sockets: u32| {
        let mut object = spec();
        object["domain"]["devices"]["networkInterfaceMultiqueue"] = json!(true);
        object["domain"]["cpu"] = json!({"sockets": sockets, "maxSockets": 8});
        let status =
            json!({"interfaces": [{"name": "other", "infoSource": "domain", "queueCount": 7}, status]});
        let vmi = json!({"metadata": {"name": "vm"}, "spec": object, "status": status});
        let vmi = ValidVmi::new(read(vmi)).unwrap();
        vmi.queues(&vmi.interfaces()[0].interface)
    };
    let card = |source: &str, count: Value| json!({"name": "n", "infoSource": source, "queueCount": count});
    for (status, sockets, wanted) in [
        (card("domain, guest-agent", json!(1)), 4, 1),
        (card("domain, multus-status", json!(4)), 2, 4),
        // Its network is attached, but the guest does not have the card.
        (card("multus-status", json!(4)), 2, 2),
        // Nobody has said how many it has, or a number that no card can have.
        (card("domain", Value::Null), 3, 3),
        (card("domain", json!(0)), 3, 1),
        (card("domain", json!(-1)), 3, 3),
    ] {
        assert_eq!(queues(status.clone(), sockets), wanted, "{status} {sockets}");
    }
}

#[test]
fn a_long_name_gives_a_host_name_that_fits() {
    let mut object = spec();
    object["hostname"] = json!("");
    let name = "a".repeat(62) + "-bc";
    let vmi = ValidVmi::new(read(json!({"metadata": {"name": name}, "spec": object}))).unwrap();
    assert_eq!(vmi.hostname(), "a".repeat(62));
}
