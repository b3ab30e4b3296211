use super::*;
use crate::cpu::CpuModel;
use crate::device::blockdev::{Cache, FileSource, ImageFormat};
use crate::device::nic::{NetBackend, TapFd};
use crate::facts::Accelerator;
use crate::facts::{FirmwareFacts, InterfaceFacts, Monitors, VolumeFacts};
use crate::layout::Seat;
use crate::units::Fd;
use barevirt_api::settings::Smbios;
use barevirt_api::v1::VirtualMachineInstance;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// An instance with these disks, each on its own containerDisk, and one interface.
pub(super) fn vmi(disks: &[Value]) -> Value {
    let volumes: Vec<Value> = disks
        .iter()
        .map(|disk| json!({ "name": disk["name"], "containerDisk": { "image": "image" } }))
        .collect();
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "vm", "namespace": "ns" },
        "spec": {
            "domain": {
                "memory": { "guest": "64Mi" },
                "devices": { "disks": disks, "interfaces": [{ "name": "default", "masquerade": {} }] },
            },
            "networks": [{ "name": "default", "pod": {} }],
            "volumes": volumes,
        },
    })
}

pub(super) fn valid(vmi: Value) -> ValidVmi {
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    ValidVmi::new(vmi).unwrap()
}

fn disk(name: &str, bus: &str) -> Value {
    json!({ "name": name, "disk": { "bus": bus } })
}

pub(super) fn facts(vmi: &ValidVmi) -> Facts {
    let volume = |volume: &barevirt_api::v1::Volume| VolumeFacts {
        name: volume.name.clone(),
        source: FileSource::Path(format!("/images/{}", volume.name)),
        format: ImageFormat::Raw,
        read_only: true,
        overlay: Some(FileSource::Path(format!("/overlays/{}", volume.name))),
        cache: Cache::Disposable,
        thick: false,
        blocks: None,
    };
    let interface = |interface: &barevirt_api::valid::ValidInterface| InterfaceFacts {
        name: interface.interface.name.clone(),
        mac: "02:00:00:00:00:01".into(),
        mtu: Some(1500),
        backend: NetBackend::Tap(vec![TapFd::Number(Fd(9))]),
    };
    Facts {
        accelerator: Accelerator::Tcg { buffer: Bytes::mib(128) },
        fd_sets: Vec::new(),
        monitors: Monitors { control: Fd(3), people: Fd(4) },
        serial: Fd(5),
        guest_agent: Fd(6),
        downward_metrics: None,
        vhost_vsock: None,
        context_id: None,
        host_devices: Vec::new(),
        filesystems: Vec::new(),
        vnc_socket: "/vnc".into(),
        usb_sockets: std::array::from_fn(|slot| format!("/usb{slot}")),
        interfaces: vmi.interfaces().iter().map(interface).collect(),
        volumes: vmi.volumes().iter().map(volume).collect(),
        network_boot: false,
        firmware: FirmwareFacts::default(),
        machine_type: None,
        sockets: None,
        smbios: Smbios::default(),
        free_page_reporting: true,
        rtc_base: None,
        host_cpu: None,
        host_cpus: None,
        layout: None,
    }
}

fn planned(vmi: &ValidVmi) -> Machine {
    plan(vmi, &facts(vmi)).unwrap()
}

#[test]
fn without_a_boot_order_disks_are_tried_as_listed() {
    let machine = planned(&valid(vmi(&[disk("a", "virtio"), disk("b", "sata")])));
    let indices: Vec<_> = machine.disks.iter().map(|disk| disk.device.boot_index).collect();
    assert_eq!(indices, [Some(1), Some(2)]);
    assert_eq!(machine.nics[0].boot_index, None);
}

#[test]
fn with_a_boot_order_only_those_in_it_are_tried() {
    let mut second = disk("b", "virtio");
    second["bootOrder"] = json!(7);
    let machine = planned(&valid(vmi(&[disk("a", "virtio"), second])));
    let indices: Vec<_> = machine.disks.iter().map(|disk| disk.device.boot_index).collect();
    assert_eq!(indices, [None, Some(7)]);
}

#[test]
fn network_boot_without_boot_roms_is_refused_by_name() {
    let mut manifest = vmi(&[disk("a", "virtio")]);
    manifest["spec"]["domain"]["devices"]["interfaces"][0]["bootOrder"] = json!(1);
    let vmi = valid(manifest);
    let error = plan(&vmi, &facts(&vmi)).unwrap_err();
    assert!(error.to_string().starts_with("spec.domain.devices.interfaces[0].bootOrder: "), "{error}");

    let with_roms = Facts { network_boot: true, ..facts(&vmi) };
    assert_eq!(plan(&vmi, &with_roms).unwrap().nics[0].boot_index, Some(1));
}

#[test]
fn an_unprepared_volume_is_named() {
    let vmi = valid(vmi(&[disk("a", "virtio"), disk("b", "virtio")]));
    let mut without_volume = facts(&vmi);
    without_volume.volumes.remove(1);
    let error = plan(&vmi, &without_volume).unwrap_err();
    assert_eq!(error.to_string(), "spec.domain.devices.disks[1]: volume b has not been prepared");

    let without_interface = Facts { interfaces: Vec::new(), ..facts(&vmi) };
    let error = plan(&vmi, &without_interface).unwrap_err();
    let text = "spec.domain.devices.interfaces[0]: interface default has not been prepared";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_writable_disk_on_a_read_only_image_needs_an_overlay() {
    let vmi = valid(vmi(&[disk("a", "virtio")]));
    let mut facts = facts(&vmi);
    facts.volumes[0].overlay = None;
    let error = plan(&vmi, &facts).unwrap_err();
    let text = "spec.domain.devices.disks[0]: volume a is read-only and the disk is not";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_cd_drive_reads_the_image_and_leaves_the_overlay_alone() {
    let machine = planned(&valid(vmi(&[json!({ "name": "a", "cdrom": { "bus": "sata" } })])));
    let image = machine.disks[0].image.as_ref().unwrap();
    assert_eq!((image.mode, &image.overlay), (crate::ReadMode::ReadOnly, &None));
}

#[test]
fn native_io_needs_cache_none() {
    let mut wrong = disk("a", "virtio");
    wrong["io"] = json!("native");
    let right = {
        let mut right = wrong.clone();
        right["cache"] = json!("none");
        valid(vmi(&[right]))
    };
    assert_eq!(planned(&right).disks[0].image.as_ref().unwrap().aio, crate::Aio::Native);
    let mut manifest: VirtualMachineInstance = serde_json::from_value(vmi(&[wrong])).unwrap();
    // Validation may fill in or refuse the cache mode; the planner does not depend on it.
    if let Ok(vmi) = ValidVmi::new(std::mem::take(&mut manifest)) {
        let error = plan(&vmi, &facts(&vmi)).unwrap_err();
        assert!(error.to_string().starts_with("spec.domain.devices.disks[0].io: \"native\""), "{error}");
    }
}

#[test]
fn a_guest_that_has_grown_has_the_queues_that_it_started_with() {
    let disk = |name: &str, bus: &str| json!({"name": name, "disk": {"bus": bus}});
    let manifest = |sockets: u32| {
        let domain = json!({"memory": {"guest": "64Mi"}, "cpu": {"sockets": sockets, "cores": 2, "maxSockets": 4},
            "devices": {"disks": [disk("a", "virtio"), disk("b", "scsi")]}});
        let volume = |name: &str| json!({"name": name, "emptyDisk": {"capacity": "1Gi"}});
        let object = json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {"domain": domain, "volumes": [volume("a"), volume("b")]}});
        ValidVmi::new(serde_json::from_value(object).unwrap()).unwrap()
    };
    let vmi = manifest(1);
    let mut facts = crate::expected(&vmi, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
    let started = crate::plan(&vmi, &facts).unwrap();
    assert_eq!((started.layout.sockets(), started.queues), (Some(1), None));
    let command = |machine: &Machine| crate::argv(machine).join(" ");
    assert!(!command(&started).contains("queues"), "{}", command(&started));
    (facts.layout, facts.sockets) = (Some(started.layout.clone()), Some(3));
    let come = crate::plan(&vmi, &facts).unwrap();
    let text = command(&come);
    assert!(text.contains("-smp cpus=6,maxcpus=8") && text.contains("\"num_queues\":2"), "{text}");
    assert_eq!(text.matches("num-queues").count(), 1, "{text}");
    assert_eq!((come.layout.sockets(), come.queues), (Some(1), Some(2)));
    // A machine with as many sockets as at its start, and one that cannot grow.
    facts.sockets = Some(1);
    assert_eq!(crate::plan(&vmi, &facts).unwrap().queues, None);
}

#[test]
fn sata_has_an_end() {
    let disks: Vec<Value> = (0..25).map(|number| disk(&format!("d{number}"), "sata")).collect();
    let machine = planned(&valid(vmi(&disks[..24])));
    assert_eq!(machine.controllers.sata.len(), 3);
    // With one more, the manifest is already invalid.
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi(&disks)).unwrap();
    let causes = ValidVmi::new(vmi).unwrap_err();
    assert_eq!(causes[0].field, "spec.domain.devices.disks");
}

#[test]
fn emulation_has_no_host_cpu() {
    let vmi = valid(vmi(&[disk("a", "virtio")]));
    assert_eq!(planned(&vmi).cpu.model, CpuModel::Max);
    let kvm = Facts { accelerator: Accelerator::Kvm { device: None }, ..facts(&vmi) };
    assert_eq!(plan(&vmi, &kvm).unwrap().cpu.model, CpuModel::Host);
}

#[test]
fn a_restart_gives_every_device_its_old_place() {
    let first = planned(&valid(vmi(&[disk("a", "virtio"), disk("b", "virtio"), disk("c", "virtio")])));
    let fewer = valid(vmi(&[disk("c", "virtio"), disk("new", "virtio"), disk("a", "virtio")]));
    let again = plan(&fewer, &Facts { layout: Some(first.layout.clone()), ..facts(&fewer) }).unwrap();
    let bus = |machine: &Machine, name: &str| {
        machine.disks.iter().find(|disk| disk.name == name).map(|disk| disk.device.bus)
    };
    for name in ["a", "c"] {
        assert_eq!(bus(&again, name), bus(&first, name), "{name}");
    }
    assert!(first.disks.iter().all(|disk| Some(disk.device.bus) != bus(&again, "new")));
    assert_eq!(again.root_ports[..first.root_ports.len()], first.root_ports);
}

#[test]
fn a_device_that_is_put_elsewhere_leaves_its_port() {
    let first = planned(&valid(vmi(&[disk("a", "virtio"), disk("b", "virtio")])));
    let mut moved = disk("a", "virtio");
    moved["disk"]["pciAddress"] = json!("0000:00:10.0");
    let moved = valid(vmi(&[moved, disk("b", "virtio"), disk("c", "virtio")]));
    let again = plan(&moved, &Facts { layout: Some(first.layout.clone()), ..facts(&moved) }).unwrap();
    let seat = |machine: &Machine, name: &str| {
        let disk = machine.disks.iter().find(|disk| disk.name == name).unwrap();
        let Bus::Virtio(seat, _) = disk.device.bus else { panic!("{:?}", disk.device.bus) };
        seat
    };
    assert_eq!(seat(&again, "a"), Seat::Root { slot: 0x10, function: 0, shared: false });
    assert_eq!(seat(&again, "b"), seat(&first, "b"));
    assert_eq!(seat(&again, "c"), seat(&first, "a"));
}

/// Every `"key":value` of the JSON arguments of an option.
fn values(argv: &[String], option: &str, key: &str) -> Vec<Value> {
    let arguments = argv.windows(2).filter(|pair| pair[0] == option && pair[1].starts_with('{'));
    arguments
        .map(|pair| serde_json::from_str::<Value>(&pair[1]).unwrap())
        .filter_map(|props| props.get(key).cloned())
        .collect()
}

proptest! {
    #[test]
    fn ids_nodes_and_addresses_are_never_given_twice(
        names in proptest::collection::btree_set("[a-z]([a-z0-9-]{0,40}[a-z0-9])?", 1..20),
        buses in proptest::collection::vec(0..3_usize, 20),
        rng: bool,
        graphics: bool,
    ) {
        let disks: Vec<Value> = names.iter().zip(buses).map(|(name, bus)| match bus {
            0 => disk(name, "virtio"),
            1 => disk(name, "sata"),
            _ => json!({ "name": name, "cdrom": { "bus": "sata" } }),
        }).collect();
        let mut manifest = vmi(&disks);
        manifest["spec"]["domain"]["devices"]["autoattachGraphicsDevice"] = json!(graphics);
        if rng {
            manifest["spec"]["domain"]["devices"]["rng"] = json!({});
        }
        let argv = crate::argv(&planned(&valid(manifest)));
        for (option, key) in [("-device", "id"), ("-blockdev", "node-name"), ("-device", "drive"), ("-device", "chassis")] {
            let found = values(&argv, option, key);
            let distinct: BTreeSet<String> = found.iter().map(Value::to_string).collect();
            prop_assert_eq!(found.len(), distinct.len(), "{} {}", option, key);
        }
        // Bus and address together are one place; SATA ports have no address and take one drive each.
        let devices: Vec<Value> = argv.windows(2)
            .filter(|pair| pair[0] == "-device")
            .map(|pair| serde_json::from_str(&pair[1]).unwrap())
            .collect();
        let places: Vec<String> = devices.iter()
            .filter(|device| device.get("bus").is_some())
            .map(|device| format!("{} {}", device["bus"], device.get("addr").unwrap_or(&Value::Null)))
            .collect();
        prop_assert_eq!(places.len(), places.iter().collect::<BTreeSet<_>>().len(), "{:?}", places);
        // Every device is plugged into something that exists.
        let argv_text = argv.join("\n");
        for device in &devices {
            if let Some(bus) = device["bus"].as_str().filter(|bus| bus.starts_with("rp") || bus.starts_with("sata")) {
                let controller = bus.split('.').next().unwrap_or(bus);
                let controller_id = format!("\"id\":\"{controller}\"");
                prop_assert!(argv_text.contains(&controller_id), "{}", controller);
            }
        }
    }
}

#[test]
fn the_guest_reads_what_the_installation_says_of_its_system() {
    let vmi = valid(vmi(&[]));
    let smbios = |facts: &Facts| {
        let arguments = crate::argv(&plan(&vmi, facts).unwrap());
        let place = arguments.iter().position(|argument| argument == "-smbios").unwrap();
        arguments[place + 1].clone()
    };
    let uuid = vmi.firmware_uuid();
    let usual = format!("type=1,manufacturer=KubeVirt,product=None,uuid={uuid},family=KubeVirt");
    assert_eq!(smbios(&facts(&vmi)), usual);
    let own = Smbios {
        manufacturer: "Acme, Inc.".into(),
        version: Some("2".into()),
        sku: Some("7".into()),
        ..Smbios::default()
    };
    let own = Facts { smbios: own, ..facts(&vmi) };
    let expected =
        format!("type=1,manufacturer=Acme,, Inc.,product=None,version=2,uuid={uuid},sku=7,family=KubeVirt");
    assert_eq!(smbios(&own), expected);
}

#[test]
fn older_devices_than_there_are_io_ports_for_are_refused_by_name() {
    let older = |disks: usize, bus: &str| {
        let disks: Vec<_> = (0..disks).map(|number| disk(&format!("d{number}"), bus)).collect();
        let mut manifest = vmi(&disks);
        manifest["spec"]["domain"]["devices"]["useVirtioTransitional"] = json!(true);
        let vmi = valid(manifest);
        plan(&vmi, &facts(&vmi)).map(|machine| crate::argv(&machine).join("\n"))
    };
    // The interface, the controllers and the balloon count as well.
    let fits = older(9, "virtio").unwrap();
    assert_eq!(fits.matches("-transitional").count(), 12);
    let error = older(10, "virtio").unwrap_err().to_string();
    assert!(error.starts_with("spec.domain.devices.useVirtioTransitional: "), "{error}");
    assert_eq!(older(20, "scsi").unwrap().matches("-transitional").count(), 4);
}

#[test]
fn a_guest_that_moves_reports_free_pages_as_at_its_start() {
    let on = |value: &str| {
        let mut manifest = vmi(&[disk("a", "virtio")]);
        manifest["metadata"]["annotations"] = json!({ NO_FREE_PAGES_ANNOTATION: value });
        valid(manifest)
    };
    let reports = |vmi: &ValidVmi, layout: Option<Layout>| {
        let machine = plan(vmi, &Facts { layout, ..facts(vmi) }).unwrap();
        (machine.balloon.unwrap().free_page_reporting, machine.layout)
    };
    for (there, here) in [("true", "false"), ("false", "true")] {
        let (before, layout) = reports(&on(there), None);
        assert_eq!(before, there == "false");
        let layout = Layout::saved(&layout.to_saved()).unwrap();
        assert_eq!(reports(&on(here), Some(layout.clone().for_arrival())).0, before, "{there}");
        assert_ne!(reports(&on(here), Some(layout.for_start())).0, before, "{there}");
    }
}

#[test]
fn settings_keep_guests_that_start_from_reporting_free_pages_and_no_others() {
    let vmi = valid(vmi(&[disk("a", "virtio")]));
    let reports = |free_page_reporting: bool, layout: Option<Layout>| {
        let machine = plan(&vmi, &Facts { layout, free_page_reporting, ..facts(&vmi) }).unwrap();
        (machine.balloon.unwrap().free_page_reporting, machine.layout)
    };
    for there in [true, false] {
        let (before, layout) = reports(there, None);
        assert_eq!(before, there);
        let layout = Layout::saved(&layout.to_saved()).unwrap();
        assert_eq!(reports(!there, Some(layout.clone().for_arrival())).0, there);
        assert_eq!(reports(!there, Some(layout.for_start())).0, !there);
    }
}

#[test]
fn a_guest_that_moves_has_its_pci_memory_where_its_start_put_it() {
    let on = |value: &str| {
        let mut manifest = vmi(&[]);
        manifest["metadata"]["annotations"] = json!({ NO_PCI_HOLE64_ANNOTATION: value });
        valid(manifest)
    };
    for (there, here) in [("true", "false"), ("false", "true")] {
        let source = planned(&on(there));
        let layout = Layout::saved(&source.layout.to_saved()).unwrap();
        let vmi = on(here);
        let high = |layout| plan(&vmi, &Facts { layout: Some(layout), ..facts(&vmi) }).unwrap().pci_hole64;
        assert_eq!(high(layout.clone().for_arrival()), source.pci_hole64, "{there}");
        assert_ne!(high(layout.for_start()), source.pci_hole64, "{there}");
    }
}

#[test]
fn pci_memory_stays_low_if_the_annotation_says_so() {
    let argv = |value: &str| {
        let mut manifest = vmi(&[]);
        manifest["metadata"]["annotations"] = json!({ NO_PCI_HOLE64_ANNOTATION: value });
        crate::argv(&planned(&valid(manifest)))
    };
    let hole = "q35-pcihost.pci-hole64-size=0".to_owned();
    assert!(argv("true").contains(&hole) && argv("TRUE").contains(&hole));
    assert!(!argv("false").contains(&hole) && !argv("").contains(&hole));
}
