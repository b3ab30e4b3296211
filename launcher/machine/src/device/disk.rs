//! Disks as the guest sees them: a drive on a bus.

use crate::device::blockdev::{Cache, Image, ReadMode};
use crate::layout::Port;
use crate::name;
use crate::props::Props;

/// What kind of drive the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// A hard disk.
    Disk,
    /// A CD drive with a medium in it.
    Cdrom,
}

/// A port of a SATA controller; each takes one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdeSlot {
    /// Controller: 0 is the chipset's, further ones are [`SataController`](crate::SataController)s.
    pub controller: u8,
    /// Port of it, 0 to 5.
    pub unit: u8,
}

impl IdeSlot {
    /// Ports of an AHCI controller.
    pub const UNITS: u8 = 6;

    fn bus(self) -> String {
        match self.controller {
            0 => format!("ide.{}", self.unit),
            more => format!("sata{more}.{}", self.unit),
        }
    }
}

/// How the drive is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// virtio-blk on PCI, behind a root port.
    Virtio(Port),
    /// SATA.
    Sata(IdeSlot),
    /// The machine's virtio-scsi controller, at this logical unit of target 0.
    Scsi {
        /// Logical unit number, 0 to 255.
        lun: u16,
    },
}

/// The guest's side of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDevice {
    /// Disk or CD drive.
    pub kind: DiskKind,
    /// Its connection.
    pub bus: Bus,
    /// Place in the boot order, lowest first.
    pub boot_index: Option<u32>,
    /// Serial number shown to the guest.
    pub serial: Option<String>,
}

/// One disk: the drive and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name of the disk in the manifest.
    pub name: String,
    /// Its bytes.
    pub image: Image,
    /// What the guest sees.
    pub device: DiskDevice,
}

impl Disk {
    /// The device's id.
    #[must_use]
    pub fn id(&self) -> String {
        name::device("disk", &self.name)
    }

    pub(crate) fn props(&self) -> Props {
        let cdrom = self.device.kind == DiskKind::Cdrom;
        let id = self.id();
        let props = match self.device.bus {
            Bus::Virtio(port) => Props::device("virtio-blk-pci", &id).behind(port),
            Bus::Sata(slot) => {
                Props::device(if cdrom { "ide-cd" } else { "ide-hd" }, &id).with("bus", slot.bus())
            }
            Bus::Scsi { lun } => Props::device(if cdrom { "scsi-cd" } else { "scsi-hd" }, &id)
                .with("bus", "scsi0.0")
                .with("scsi-id", 0)
                .with("lun", lun),
        };
        let props = props
            .with("drive", self.image.node())
            .maybe("bootindex", self.device.boot_index)
            .maybe("serial", self.device.serial.clone());
        if self.image.mode == ReadMode::ReadOnly {
            return props;
        }
        // The API's default when an image cannot be read or written: the guest is paused, not told.
        props
            .with("write-cache", if self.image.cache == Cache::WriteThrough { "off" } else { "on" })
            .with("werror", "stop")
            .with("rerror", "stop")
    }
}
