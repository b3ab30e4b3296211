//! Disks that are plugged and unplugged while the machine runs, and their places.
//!
//! A virtio disk takes a free root port. A SCSI disk takes a free unit of the controller, which is plugged in
//! with the first such disk if the machine started without it: guests without such disks do not have to pay
//! for it. The other buses do not support hotplug.
//!
//! Where all devices are on the root complex there are no root ports: the machine starts with the SCSI controller.
//!
//! A CD drive stays, and only its disc comes and goes, on any bus.
//!
//! The layout stores the port and the unit of each disk, and the target of a migration starts with them
//! ([`came`]).

use std::collections::{BTreeMap, BTreeSet};

use barevirt_api::disk_names;
use barevirt_api::valid::{Bus as ApiBus, ValidDisk, ValidVmi};

use super::addresses::Addresses;
use super::blocks;
use super::disks::{self, Connection, SCSI_UNITS};
use super::ports::{DEVICES, Ports, virtio};
use crate::device::controller::Controllers;
use crate::device::disk::{Bus, Disk};
use crate::device::io_thread::Served;
use crate::error::PlanError;
use crate::facts::{Facts, VolumeFacts};
use crate::hotplug::{Step, attach_device, attach_disk, insert_disc};
use crate::layout::{Layout, LayoutError, Port, Seat};
use crate::machine::Machine;
use crate::name;

/// Free places in a running machine.
#[derive(Clone, Debug)]
pub struct HotDisks {
    layout: Layout,
    has_ports: bool,
    has_scsi: bool,
    /// Whether the machine started with the controller.
    scsi_is_fixed: bool,
    units: BTreeSet<u16>,
    /// Number of queues if it differs from QEMU's choice.
    queues: Option<u32>,
    /// Kernel-style names of disks, by the names of the disks.
    targets: BTreeMap<String, String>,
    /// The CD drives whose discs come and go, by their names.
    drives: BTreeMap<String, Disk>,
}

/// The plan for plugging in a disk.
#[derive(Clone, Debug)]
pub struct HotDisk {
    /// The disk.
    pub disk: Disk,
    /// Commands that plug it in.
    pub steps: Vec<Step>,
    /// The free places afterwards.
    pub room: HotDisks,
    /// Its kernel-style name, such as `sda`; the guest may use another name.
    pub target: String,
}

impl HotDisks {
    /// The free places of a machine that has just started.
    #[must_use]
    pub fn of(machine: &Machine, vmi: &ValidVmi) -> Self {
        let mut room = Self {
            layout: machine.layout.clone(),
            has_ports: vmi.spec().domain.devices.disable_hotplug != Some(true),
            has_scsi: machine.controllers.scsi.is_some(),
            scsi_is_fixed: machine.controllers.scsi.is_some() && !machine.layout.is_scsi_plugged(),
            units: BTreeSet::new(),
            queues: machine.queues,
            targets: BTreeMap::new(),
            drives: BTreeMap::new(),
        };
        let drives: BTreeSet<&str> = vmi.drives().map(|drive| drive.name.as_str()).collect();
        for disk in &machine.disks {
            room.take(disk);
            if drives.contains(disk.name.as_str()) {
                room.drives.insert(disk.name.clone(), disk.clone());
            }
        }
        room
    }

    /// Id of the SCSI controller.
    pub const SCSI: &str = Controllers::SCSI;

    /// Records whether the SCSI controller exists.
    pub fn set_scsi(&mut self, there: bool) {
        self.has_scsi = there;
        self.layout.note_scsi(there && !self.scsi_is_fixed);
    }

    /// The kernel-style name of a disk that the machine has.
    #[must_use]
    pub fn target(&self, disk: &str) -> Option<&str> {
        self.targets.get(disk).map(String::as_str)
    }

    /// The current places of devices.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Plans a disk of the specification.
    ///
    /// # Errors
    /// If there is no place for it, or its settings do not fit its kind.
    pub fn plan(&self, vmi: &ValidVmi, ready: &VolumeFacts) -> Result<HotDisk, PlanError> {
        let found = vmi.disks().iter().find(|disk| disk.volume.name == ready.name);
        let valid = found.ok_or_else(|| PlanError::VolumeMissing {
            field: format!("{DEVICES}.disks"),
            volume: ready.name.clone(),
        })?;
        let field = format!("{DEVICES}.disks[{}]", valid.at);
        let id = name::device("disk", &ready.name);
        let mut next = self.clone();
        let virtio = virtio(&vmi.spec().domain.devices);
        let image = disks::image(valid, ready, &field)?;
        if let Some(drive) = self.drives.get(&ready.name) {
            let disk = Disk { image: Some(image), ..drive.clone() };
            let target = self.target(&disk.name).unwrap_or_default().to_owned();
            return Ok(HotDisk { steps: insert_disc(&disk), disk, room: next, target });
        }
        let mut steps = Vec::new();
        let connection = match valid.bus {
            ApiBus::Virtio => {
                next.occupy(&id, &field)?;
                Connection::Virtio
            }
            ApiBus::Scsi => {
                if !next.has_scsi {
                    let port = next.occupy(Controllers::SCSI, &field)?;
                    steps.push(attach_device(&Controllers::scsi(
                        Seat::Behind(port),
                        virtio,
                        &Served::ByMainLoop,
                        next.queues,
                    )));
                    next.set_scsi(true);
                }
                let is_free = |unit: &u16| !next.units.contains(unit);
                let former = next.layout.unit(&id).filter(is_free);
                let unit = former.or_else(|| (0..SCSI_UNITS).find(is_free));
                let full = PlanError::BusFull { field: field.clone(), bus: "scsi", limit: SCSI_UNITS };
                let unit = unit.ok_or(full)?;
                next.layout.note_unit(&id, unit);
                Connection::Scsi(unit)
            }
            ApiBus::Sata | ApiBus::Usb => return Err(not_there(valid, &field)),
        };
        let blocks = blocks::plan(&valid.disk, Some(ready), None, &field)?;
        blocks::note(&valid.disk, blocks, &mut next.layout);
        let planned = disks::planned(&valid.disk, Some(image), connection, blocks, &field)?;
        let planned = planned.with_queues(next.queues).with_own_thread(&valid.disk);
        let disk =
            planned.finish(&Ports { layout: &next.layout, addresses: &Addresses::default() }, virtio)?;
        next.take(&disk);
        steps.extend(attach_disk(&disk));
        let target = next.targets.get(&disk.name).cloned().unwrap_or_default();
        Ok(HotDisk { disk, steps, room: next, target })
    }

    /// Frees the place of a disk that is gone. The drive of a disc stays.
    pub fn free(&mut self, disk: &Disk) {
        if self.drives.contains_key(&disk.name) {
            return;
        }
        self.layout.forget(&disk.id());
        if let Bus::Scsi { lun } = disk.device.bus {
            self.units.remove(&lun);
        }
        self.targets.remove(&disk.name);
    }

    /// Frees the port of a device.
    pub(super) fn vacate(&mut self, id: &str) {
        self.layout.forget(id);
    }

    pub(super) fn occupy(&mut self, id: &str, field: &str) -> Result<Port, PlanError> {
        if self.layout.is_on_root() {
            return Err(PlanError::NothingPlugged { field: field.to_owned() });
        }
        let ports = self.layout.port_count();
        let full = || PlanError::Layout {
            field: field.to_owned(),
            source: LayoutError::Full { wanted: usize::from(ports) + 1, limit: ports },
        };
        let (layout, port) = self.layout.occupy(id).filter(|_| self.has_ports).ok_or_else(full)?;
        self.layout = layout;
        Ok(port)
    }

    fn take(&mut self, disk: &Disk) {
        let prefix = match disk.device.bus {
            Bus::Virtio(..) => "vd",
            Bus::Sata(_) | Bus::Usb => "sd",
            Bus::Scsi { lun } => {
                self.units.insert(lun);
                "sd"
            }
        };
        let taken: BTreeSet<&str> = self.targets.values().map(String::as_str).collect();
        let free = disk_names::first_free(prefix, |name| !taken.contains(name));
        self.targets.insert(disk.name.clone(), free);
    }
}

/// Why a disk cannot be plugged in on its bus.
pub(super) fn not_there(valid: &ValidDisk, field: &str) -> PlanError {
    PlanError::Unsupported {
        field: format!("{field}.{}.bus", disks::kind(&valid.disk).target()),
        value: valid.disk.bus().unwrap_or_default().to_owned(),
        why: "what is plugged into a running machine is on virtio or scsi",
    }
}

/// Prepared disks of the manifest that an incoming guest got while it ran. The discs of its CD drives are not among them:
/// the drives are there from the start.
pub(super) fn came<'a>(
    vmi: &'a ValidVmi,
    facts: &'a Facts,
) -> impl Iterator<Item = (&'a ValidDisk, &'a VolumeFacts)> {
    let hot = vmi.disks().iter().filter(|disk| disk.volume.is_hotpluggable() && !disk.disk.is_cdrom());
    hot.filter_map(|disk| Some((disk, prepared(facts, &disk.disk.name)?)))
}

/// The facts about a volume that was prepared.
pub(super) fn prepared<'a>(facts: &'a Facts, name: &str) -> Option<&'a VolumeFacts> {
    facts.volumes.iter().find(|ready| ready.name == name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::blockdev::{Cache, FileSource, ImageFormat};
    use crate::expected;
    use crate::facts::Accelerator;
    use crate::units::Bytes;
    use barevirt_api::settings::Smbios;
    use serde_json::{Value, json};

    fn vmi(devices: &Value) -> ValidVmi {
        let mut devices = devices.clone();
        let hot = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
        devices["disks"] = json!([
            {"name": "root", "disk": {"bus": "virtio"}}, {"name": "one", "disk": {"bus": "scsi"}},
            {"name": "two", "disk": {"bus": "virtio"}, "serial": "S"}, {"name": "three", "disk": {"bus": "scsi"}},
            {"name": "four", "disk": {"bus": "sata"}},
        ]);
        let volumes = json!([{"name": "root", "emptyDisk": {"capacity": "1Gi"}}, hot("one"), hot("two"), hot("three"), hot("four")]);
        let object = json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": devices}, "volumes": volumes},
        });
        ValidVmi::new(serde_json::from_value(object).unwrap()).unwrap()
    }

    /// What is prepared for a volume of this name.
    pub(in crate::plan) fn ready(name: &str) -> VolumeFacts {
        VolumeFacts {
            name: name.to_owned(),
            source: FileSource::FdSet(1000),
            format: ImageFormat::Raw,
            read_only: false,
            overlay: None,
            cache: Cache::None,
            thick: false,
            blocks: None,
        }
    }

    fn room(vmi: &ValidVmi) -> HotDisks {
        let facts = expected(vmi, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
        let machine = crate::plan(vmi, &facts).unwrap();
        assert_eq!(machine.disks.len(), 1, "what is plugged in later is not there at the start");
        HotDisks::of(&machine, vmi)
    }

    fn commands(disk: &HotDisk) -> Vec<String> {
        let name = |step: &Step| {
            let of = &step.forward.arguments;
            let what = of["id"].as_str().or(of["node-name"].as_str()).unwrap_or_default();
            format!("{} {what}", step.forward.execute)
        };
        disk.steps.iter().map(name).collect()
    }

    #[test]
    fn the_first_disk_on_scsi_brings_its_controller() {
        let vmi = vmi(&json!({}));
        let one = room(&vmi).plan(&vmi, &ready("one")).unwrap();
        assert_eq!(
            commands(&one),
            ["device_add scsi0", "blockdev-add file-one", "blockdev-add disk-one", "device_add disk-one"]
        );
        assert_eq!((one.target.as_str(), &one.disk.device.bus), ("sda", &Bus::Scsi { lun: 0 }));
        let three = one.room.plan(&vmi, &ready("three")).unwrap();
        assert_eq!(three.steps.len(), 3);
        assert_eq!((three.target.as_str(), &three.disk.device.bus), ("sdb", &Bus::Scsi { lun: 1 }));
        let mut room = three.room;
        room.free(&one.disk);
        let again = room.plan(&vmi, &ready("one")).unwrap();
        assert_eq!((again.target.as_str(), &again.disk.device.bus), ("sda", &Bus::Scsi { lun: 0 }));
    }

    #[test]
    fn a_disk_on_virtio_takes_a_port_and_gives_it_back() {
        let vmi = vmi(&json!({}));
        let room = room(&vmi);
        let before = room.layout().clone();
        let two = room.plan(&vmi, &ready("two")).unwrap();
        let mut room = two.room;
        assert_eq!(two.target, "vdb");
        let device = &two.steps.last().unwrap().forward.arguments;
        assert_eq!(
            (device["driver"].as_str(), device["serial"].as_str()),
            (Some("virtio-blk-pci"), Some("S"))
        );
        assert_ne!(*room.layout(), before);
        room.free(&two.disk);
        assert_eq!(*room.layout(), before);
    }

    #[test]
    fn the_thread_of_a_disk_is_added_and_removed_with_it() {
        let mut object = vmi(&json!({})).into_inner();
        for disk in &mut object.spec.domain.devices.disks {
            disk.dedicated_io_thread = (disk.name == "two").then_some(true);
        }
        let vmi = ValidVmi::new(object).unwrap();
        let mut facts = expected(&vmi, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
        let machine = crate::plan(&vmi, &facts).unwrap();
        assert!(machine.io_threads.is_empty(), "no disk of the start has one");
        let two = HotDisks::of(&machine, &vmi).plan(&vmi, &ready("two")).unwrap();
        assert_eq!(
            commands(&two),
            [
                "object-add iothread-two",
                "blockdev-add file-two",
                "blockdev-add disk-two",
                "device_add disk-two"
            ]
        );
        assert_eq!(two.steps.last().unwrap().forward.arguments["iothread"], "iothread-two");
        assert_eq!(two.steps[0].inverse.execute, "object-del");
        // A guest that moves has it on the other node, too.
        facts.layout = Some(Layout::saved(&two.room.layout().to_saved()).unwrap());
        facts.volumes.push(ready("two"));
        let there = crate::plan(&vmi, &facts).unwrap();
        assert_eq!(there.disks.last().unwrap().device, two.disk.device);
        let line = crate::argv(&there);
        let thread = r#"{"qom-type":"iothread","id":"iothread-two"}"#;
        assert!(line.iter().any(|argument| argument == thread), "{line:?}");
    }

    #[test]
    fn a_disc_goes_into_its_drive_and_takes_no_place() {
        let drive =
            json!([{"name": "one", "cdrom": {"bus": "scsi"}}, {"name": "two", "cdrom": {"bus": "sata"}}]);
        let mut object = vmi(&json!({})).into_inner();
        object.spec.domain.devices.disks = serde_json::from_value(drive).unwrap();
        object.spec.volumes.retain(|volume| volume.name == "one");
        let vmi = ValidVmi::new(object).unwrap();
        let mut facts = expected(&vmi, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
        let machine = crate::plan(&vmi, &facts).unwrap();
        assert!(machine.disks.iter().all(|disk| disk.image.is_none()));
        let mut room = HotDisks::of(&machine, &vmi);
        let disc = room.plan(&vmi, &ready("one")).unwrap();
        assert_eq!(
            commands(&disc),
            [
                "blockdev-add file-one",
                "blockdev-add disk-one",
                "blockdev-open-tray disk-one",
                "blockdev-insert-medium disk-one",
                "blockdev-close-tray disk-one"
            ]
        );
        assert_eq!((disc.target.as_str(), &disc.disk.device), ("sda", &machine.disks[0].device));
        assert_eq!(disc.room.layout(), room.layout());
        room.free(&disc.disk);
        assert_eq!(room.plan(&vmi, &ready("one")).unwrap().target, "sda");
        // A guest that moves with a disc has it in the same drive.
        facts.volumes.push(ready("one"));
        let there = crate::plan(&vmi, &facts).unwrap();
        assert_eq!((there.disks[0].image.is_some(), there.disks.len()), (true, 2));
        assert_eq!(there.disks[0].device, machine.disks[0].device);
    }

    #[test]
    fn a_guest_that_moves_has_its_disks_where_they_were() {
        let vmi = vmi(&json!({}));
        let mut there = room(&vmi);
        let mut plugged = Vec::new();
        for name in ["one", "two", "three"] {
            let next = there.plan(&vmi, &ready(name)).unwrap();
            there = next.room;
            plugged.push(next.disk);
        }
        // The first one is removed, and the others keep their places.
        there.free(&plugged.remove(0));
        let mut facts = expected(&vmi, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
        facts.layout = Some(Layout::saved(&there.layout().to_saved()).unwrap());
        facts.volumes.extend(["two", "three"].map(ready));
        let machine = crate::plan(&vmi, &facts).unwrap();
        let came: Vec<&Disk> = machine.disks.iter().filter(|disk| disk.name != "root").collect();
        assert_eq!(came.iter().map(|disk| &disk.device).collect::<Vec<_>>(), {
            plugged.iter().map(|disk| &disk.device).collect::<Vec<_>>()
        });
        assert_eq!(came[1].device.bus, Bus::Scsi { lun: 1 });
        assert_eq!(machine.controllers.scsi, there.layout().seat(Controllers::SCSI));
        // The controller moves along even without a disk, and still counts as plugged in later.
        facts.volumes.retain(|volume| volume.name == "root");
        let alone = crate::plan(&vmi, &facts).unwrap();
        assert_eq!(alone.controllers.scsi, there.layout().seat(Controllers::SCSI));
        let again = HotDisks::of(&alone, &vmi).plan(&vmi, &ready("three")).unwrap();
        assert_eq!((again.steps.len(), &again.disk.device.bus), (3, &Bus::Scsi { lun: 1 }));
        assert!(again.room.layout().is_scsi_plugged());
        // At its next start it is plugged in with the first disk again.
        facts.layout = facts.layout.map(Layout::for_start);
        assert_eq!(crate::plan(&vmi, &facts).unwrap().controllers.scsi, None);
    }

    #[test]
    fn where_there_is_no_room_nothing_is_taken() {
        let without = vmi(&json!({"disableHotplug": true}));
        let room = room(&without);
        assert!(room.plan(&without, &ready("two")).is_err() && room.plan(&without, &ready("one")).is_err());
        let vmi = vmi(&json!({}));
        let room = super::tests::room(&vmi);
        let error = room.plan(&vmi, &ready("four")).unwrap_err();
        assert_eq!(error.field(), "spec.domain.devices.disks[4].disk.bus");
    }
}
