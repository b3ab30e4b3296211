use super::super::tests::{facts, valid, vmi};
use super::super::{nics, plan};
use crate::device::disk::Bus;
use crate::device::host::{HostPlace, HostSource};
use crate::device::nic::{NetBackend, TapFd};
use crate::error::PlanError;
use crate::facts::{Facts, InterfaceFacts};
use crate::layout::{Layout, Seat};
use crate::machine::Machine;
use crate::plan::hot_disk::HotDisks;
use crate::plan::hot_disk::tests::ready;
use crate::units::Fd;
use barevirt_api::pci::ON_ROOT_ANNOTATION;
use barevirt_api::valid::ValidVmi;
use serde_json::{Value, json};

/// An instance with so many virtio disks, and this value of the annotation.
fn with_disks(count: usize, annotation: &str) -> Value {
    let disk = |number| json!({ "name": format!("d{number}"), "disk": { "bus": "virtio" } });
    let disks: Vec<Value> = (0..count).map(disk).collect();
    let mut manifest = vmi(&disks);
    manifest["metadata"]["annotations"] = json!({ ON_ROOT_ANNOTATION: annotation });
    manifest
}

fn manifest(annotation: &str) -> Value {
    with_disks(3, annotation)
}

fn seat(slot: u16) -> Seat {
    Seat::Root { slot, function: 0, shared: false }
}

/// Places of the disks.
fn disks(machine: &Machine) -> Vec<Seat> {
    let place = |disk: &crate::Disk| match disk.device.bus {
        Bus::Virtio(seat, _) => seat,
        other => panic!("{other:?}"),
    };
    machine.disks.iter().map(place).collect()
}

#[test]
fn all_devices_are_on_the_root_complex_if_the_annotation_says_true() {
    let planned = |annotation: &str| {
        let vmi = valid(manifest(annotation));
        plan(&vmi, &facts(&vmi)).unwrap()
    };
    let machine = planned("true");
    assert!(machine.root_ports.is_empty() && machine.layout.is_on_root());
    assert_eq!((machine.nics[0].seat, disks(&machine)), (seat(2), vec![seat(3), seat(4), seat(5)]));
    let controllers = (machine.controllers.scsi, machine.controllers.serial);
    assert_eq!((controllers, machine.balloon.unwrap().seat), ((Some(seat(6)), seat(7)), seat(8)));
    for other in ["false", "", "True"] {
        assert!(!planned(other).root_ports.is_empty(), "{other:?}");
    }
}

#[test]
fn without_hotplug_there_is_no_controller_to_plug_into() {
    let mut manifest = manifest("true");
    manifest["spec"]["domain"]["devices"]["disableHotplug"] = json!(true);
    let vmi = valid(manifest);
    assert_eq!(plan(&vmi, &facts(&vmi)).unwrap().controllers.scsi, None);
}

#[test]
fn a_guest_that_moves_has_its_devices_where_they_were() {
    let on = |annotation: &str| valid(manifest(annotation));
    for (there, here) in [("true", "false"), ("false", "true")] {
        let source = plan(&on(there), &facts(&on(there))).unwrap();
        let layout = Layout::saved(&source.layout.to_saved()).unwrap();
        let planned = |layout: Layout| {
            let facts = Facts { layout: Some(layout), ..facts(&on(here)) };
            plan(&on(here), &facts).unwrap()
        };
        // Another value of the annotation, or none, counts for the next start.
        assert_eq!(crate::argv(&planned(layout.clone().for_arrival())), crate::argv(&source), "{there}");
        assert_ne!(disks(&planned(layout.for_start())), disks(&source), "{there}");
    }
}

#[test]
fn a_device_keeps_its_slot_while_it_is_there() {
    let first = valid(manifest("true"));
    let machine = plan(&first, &facts(&first)).unwrap();
    let mut next = manifest("true");
    for list in ["/spec/volumes", "/spec/domain/devices/disks"] {
        next.pointer_mut(list).unwrap().as_array_mut().unwrap().remove(0);
    }
    let next = valid(next);
    let facts = Facts { layout: Some(machine.layout.clone()), ..facts(&next) };
    let again = plan(&next, &facts).unwrap();
    assert_eq!(disks(&again), disks(&machine)[1..]);
}

#[test]
fn an_sriov_card_is_on_the_root_complex_too() {
    let mut manifest = manifest("true");
    let spec = &mut manifest["spec"];
    spec["domain"]["devices"]["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "fast", "sriov": {}}));
    spec["networks"].as_array_mut().unwrap().push(json!({"name": "fast", "multus": {"networkName": "fast"}}));
    let vmi = valid(manifest);
    let mut facts = facts(&vmi);
    facts.host_devices = vec![(nics::field(1), vec![HostSource::Pci("0000:65:00.1".parse().unwrap())])];
    let machine = plan(&vmi, &facts).unwrap();
    assert_eq!(machine.host_devices[0].place, HostPlace::Pci(seat(9)));
}

#[test]
fn what_needs_a_root_port_is_refused_by_the_annotation() {
    let error = |manifest: Value| {
        let vmi = valid(manifest);
        plan(&vmi, &facts(&vmi)).unwrap_err()
    };
    let field = format!("metadata.annotations[{ON_ROOT_ANNOTATION}]");
    let mut placed = manifest("true");
    placed["spec"]["domain"]["devices"]["disks"][1]["disk"]["pciAddress"] = json!("0000:03:00.0");
    assert_eq!(error(placed).field(), field);
    // Twenty-five places: for an interface, two controllers, the balloon, and the disks.
    let fits = valid(with_disks(21, "true"));
    assert_eq!(disks(&plan(&fits, &facts(&fits)).unwrap()).len(), 21);
    let full = error(with_disks(22, "true"));
    assert_eq!((full.field(), matches!(full, PlanError::Layout { .. })), (field.as_str(), true));
}

#[test]
fn as_many_older_devices_fit_as_there_are_places() {
    let mut manifest = with_disks(21, "true");
    manifest["spec"]["domain"]["devices"]["useVirtioTransitional"] = json!(true);
    let vmi = valid(manifest);
    let argv = crate::argv(&plan(&vmi, &facts(&vmi)).unwrap()).join("\n");
    assert_eq!(argv.matches("-transitional").count(), 25);
    assert!(!argv.contains("disable-legacy"), "{argv}");
}

/// An instance that is to get a disk on each bus and a card while it runs.
fn grows() -> ValidVmi {
    let mut manifest = manifest("true");
    let spec = &mut manifest["spec"];
    for (name, bus) in [("one", "scsi"), ("two", "virtio")] {
        let volume =
            json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
        spec["volumes"].as_array_mut().unwrap().push(volume);
        let disk = json!({"name": name, "disk": {"bus": bus}});
        spec["domain"]["devices"]["disks"].as_array_mut().unwrap().push(disk);
    }
    spec["domain"]["devices"]["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "red", "bridge": {}}));
    spec["networks"].as_array_mut().unwrap().push(json!({"name": "red", "multus": {"networkName": "red"}}));
    valid(manifest)
}

#[test]
fn only_disks_on_scsi_are_plugged_into_a_machine_without_root_ports() {
    let started = valid(manifest("true"));
    let vmi = grows();
    let room = HotDisks::of(&plan(&started, &facts(&started)).unwrap(), &vmi);
    let one = room.plan(&vmi, &ready("one")).unwrap();
    assert_eq!(one.disk.device.bus, Bus::Scsi { lun: 0 });
    assert!(one.steps.iter().all(|step| step.forward.arguments["id"] != "scsi0"));
    let none = |field: &str| PlanError::NothingPlugged { field: format!("spec.domain.devices.{field}") };
    assert_eq!(room.plan(&vmi, &ready("two")).unwrap_err(), none("disks[4]"));
    let card = InterfaceFacts {
        name: "red".to_owned(),
        mac: "02:00:00:00:00:02".to_owned(),
        mtu: None,
        backend: NetBackend::Tap(vec![TapFd::Number(Fd(9))]),
    };
    assert_eq!(room.plan_nic(&vmi, &card, false).unwrap_err(), none("interfaces[1]"));
}
