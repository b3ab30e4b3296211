//! Disks as the guest sees them: drives on a bus.

use crate::blocks::Blocks;
use crate::device::blockdev::{Cache, Image, ReadMode};
use crate::device::controller::Controllers;
use crate::device::io_thread::Served;
use crate::device::virtio::Virtio;
use crate::layout::Seat;
use crate::name;
use crate::props::Props;

/// The kind of drive that the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// A hard disk.
    Disk,
    /// A CD drive.
    Cdrom,
    /// A SCSI device of the node, to which the guest's commands are passed on.
    Lun,
}

impl DiskKind {
    /// Its name in the API.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            DiskKind::Disk => "disk",
            DiskKind::Cdrom => "cdrom",
            DiskKind::Lun => "lun",
        }
    }

    /// Its driver on a SCSI bus.
    const fn on_scsi(self) -> &'static str {
        match self {
            DiskKind::Disk => "scsi-hd",
            DiskKind::Cdrom => "scsi-cd",
            DiskKind::Lun => "scsi-block",
        }
    }
}

/// A port of a SATA controller, for one drive.
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
    /// virtio-blk on PCI.
    Virtio(Seat, Virtio),
    /// SATA.
    Sata(IdeSlot),
    /// A USB stick on the machine's USB controller.
    Usb,
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
    /// Whether it starts without its medium, which `blockdev-insert-medium` inserts later.
    pub is_empty: bool,
    /// Its connection.
    pub bus: Bus,
    /// Place in the boot order, lowest first.
    pub boot_index: Option<u32>,
    /// Serial number shown to the guest.
    pub serial: Option<String>,
    /// The reaction to an error of its image.
    pub on_error: OnError,
    /// Sizes of its blocks, if they are not 512 bytes.
    pub blocks: Option<Blocks>,
    /// The threads that serve its queues; only virtio has queues.
    pub served: Served,
    /// Number of its queues, if it differs from QEMU's choice.
    pub queues: Option<u32>,
}

/// The reaction if an image cannot be read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The guest is paused and gets no error.
    #[default]
    Stop,
    /// The guest gets an error.
    Report,
    /// The error is dropped.
    Ignore,
    /// The guest is paused if there is no space left, and gets all other errors.
    Enospace,
}

impl OnError {
    /// The policy by its name in the API.
    #[must_use]
    pub fn from_api(name: &str) -> Option<Self> {
        Some(match name {
            "stop" => OnError::Stop,
            "report" => OnError::Report,
            "ignore" => OnError::Ignore,
            "enospace" => OnError::Enospace,
            _ => return None,
        })
    }

    /// QEMU's names for the reactions to write and read errors.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            OnError::Stop => ("stop", "stop"),
            OnError::Report => ("report", "report"),
            OnError::Ignore => ("ignore", "ignore"),
            OnError::Enospace => ("enospc", "report"),
        }
    }
}

/// Longest serial number of a SCSI disk, in characters: QEMU's limit for VPD page 0x80.
const SCSI_SERIAL: usize = 36;

/// One disk: the drive and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name of the disk in the manifest.
    pub name: String,
    /// Its bytes; `None` for a CD drive without a disc.
    pub image: Option<Image>,
    /// The drive that the guest sees.
    pub device: DiskDevice,
}

impl Disk {
    /// The device's id.
    #[must_use]
    pub fn id(&self) -> String {
        name::device("disk", &self.name)
    }

    /// Its serial number. A device of the node has its own, as with libvirt. QEMU cuts a serial number that
    /// is too long for the bus, except for SCSI disks, where it refuses it.
    fn serial(&self) -> Option<String> {
        let given = self.device.serial.as_ref().filter(|_| self.device.kind != DiskKind::Lun)?;
        let room = if matches!(self.device.bus, Bus::Scsi { .. }) { SCSI_SERIAL } else { usize::MAX };
        Some(given.chars().take(room).collect())
    }

    /// The name of a SCSI disk on VPD page 0x83, from which guests make names (`/dev/disk/by-id`): its serial
    /// number, else libvirt's name, so that a guest from libvirt finds its disks. It is always given, because
    /// QEMU only uses a serial number of at most 20 characters here by itself, and otherwise refuses the
    /// disk.
    fn device_id(&self) -> Option<String> {
        if !matches!(self.device.bus, Bus::Scsi { .. }) || self.device.kind == DiskKind::Lun {
            return None;
        }
        let serial = self.device.serial.clone().filter(|serial| !serial.is_empty());
        Some(serial.unwrap_or_else(|| format!("drive-ua-{}", self.name)))
    }

    /// The id of the thread that comes and goes with it, if it has one.
    #[must_use]
    pub fn own_thread(&self) -> Option<&str> {
        match &self.device.served {
            Served::ByOwn(id) => Some(id),
            Served::ByMainLoop | Served::By(_) | Served::ByPool(_) => None,
        }
    }

    /// Whether the guest may write to it.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.mode == ReadMode::ReadWrite)
    }

    pub(crate) fn props(&self) -> Props {
        let image = self.image.as_ref();
        let cdrom = self.device.kind == DiskKind::Cdrom;
        let id = self.id();
        let props = match self.device.bus {
            Bus::Virtio(seat, virtio) => {
                let driver = virtio.of("virtio-blk-pci", "virtio-blk-pci-transitional");
                Props::device(driver, &id).seated(seat, Some(virtio))
            }
            Bus::Sata(slot) => {
                Props::device(if cdrom { "ide-cd" } else { "ide-hd" }, &id).with("bus", slot.bus())
            }
            Bus::Usb => Props::device("usb-storage", &id).with("bus", format!("{}.0", Controllers::USB)),
            Bus::Scsi { lun } => Props::device(self.device.kind.on_scsi(), &id)
                .with("bus", "scsi0.0")
                .with("scsi-id", 0)
                .with("lun", lun),
        };
        let props = props
            .maybe("drive", image.filter(|_| !self.device.is_empty).map(Image::node))
            .maybe("bootindex", self.device.boot_index)
            .maybe("serial", self.serial())
            .maybe("device_id", self.device_id())
            .maybe("logical_block_size", self.device.blocks.map(|blocks| blocks.logical))
            .maybe("physical_block_size", self.device.blocks.map(|blocks| blocks.physical))
            .maybe("discard_granularity", self.device.blocks.and_then(|blocks| blocks.discard))
            .maybe("num-queues", self.device.queues)
            .maybe("share-rw", image.is_some_and(|image| image.is_shared).then_some(true))
            .served(&self.device.served);
        let Some(image) = image.filter(|_| self.is_written()) else { return props };
        let (on_write, on_read) = self.device.on_error.names();
        let write_cache = if image.cache == Cache::WriteThrough { "off" } else { "on" };
        // A device of the node decides about its own cache.
        let own_cache = self.device.kind != DiskKind::Lun;
        props
            .maybe("write-cache", own_cache.then_some(write_cache))
            .with("werror", on_write)
            .with("rerror", on_read)
    }
}
