//! Disks: how a volume is shown to the guest.

use super::FeatureState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the volume of the same name is shown to the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Name of the disk and of its volume.
    pub name: String,
    /// A hard disk; the default where no target is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    /// A CD drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<CdRomTarget>,
    /// Place in the boot order, from 1; unique among disks and interfaces. Where no device has one, disks are tried in
    /// their order in the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<i32>,
    /// Serial number that the guest sees; drives show its first 20 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `none`, `writethrough` or `writeback`: whether the host's page cache is used and when a write is acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// `threads` or `native`: how QEMU does input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<String>,
    /// Changes the sector sizes shown to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Records which blocks change, for incremental backups (a QEMU dirty bitmap); false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<bool>,
    /// Gives the disk an I/O thread no other disk uses (`-object iothread`); only on bus `virtio`. False when
    /// not given.
    #[serde(rename = "dedicatedIOThread", default, skip_serializing_if = "Option::is_none")]
    pub dedicated_io_thread: Option<bool>,
    /// On an I/O error: `stop` pauses the machine (default), `report` tells the guest, `ignore` drops it,
    /// `enospace` pauses only when space is out (`werror=`, `rerror=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_policy: Option<String>,
    /// Attaches the volume as a raw SCSI device: the guest's SCSI commands reach the storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<LunTarget>,
    /// Lets several machines write to the volume at once (`share-rw=on`, no image locks). Needs cache `none`;
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shareable: Option<bool>,
    /// Free text listed with the disk's address in the device metadata of the cloud-init config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A hard disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskTarget {
    /// `virtio`, `scsi` or `sata` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// The guest cannot write to it; not with `sata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// Fixed PCI address in the guest, such as `0000:81:01.0`; only for bus `virtio`. Chosen automatically
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
}

/// A CD drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CdRomTarget {
    /// `scsi` or `sata` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Always true in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// State of the drive's tray: `open` or `closed` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tray: Option<String>,
}

impl Disk {
    /// The bus of the target that is given.
    pub fn bus(&self) -> Option<&str> {
        match (&self.disk, &self.cdrom, &self.lun) {
            (Some(disk), _, _) => disk.bus.as_deref(),
            (None, Some(cdrom), _) => cdrom.bus.as_deref(),
            (None, None, Some(lun)) => lun.bus.as_deref(),
            (None, None, None) => None,
        }
    }

    /// Whether the guest sees a CD drive.
    pub fn is_cdrom(&self) -> bool {
        self.disk.is_none() && self.cdrom.is_some()
    }

    /// Whether the guest cannot write to it.
    pub fn is_readonly(&self) -> bool {
        let readonly = match (&self.disk, &self.lun) {
            (Some(disk), _) => disk.readonly,
            (None, lun) => lun.as_ref().and_then(|lun| lun.readonly),
        };
        self.is_cdrom() || readonly.unwrap_or(false)
    }

    /// Whether the guest sends SCSI commands to the device itself.
    pub fn is_lun(&self) -> bool {
        self.disk.is_none() && self.cdrom.is_none() && self.lun.is_some()
    }

    /// Whether the guest sees the block sizes of the volume. The blocks of a CD always have 2048 bytes, and a LUN has those
    /// of its device.
    pub fn matches_volume(&self) -> bool {
        let asks = |size: &BlockSize| {
            size.custom.is_none() && size.match_volume.as_ref().is_some_and(FeatureState::is_enabled)
        };
        self.block_size.as_ref().is_some_and(asks) && !self.is_cdrom() && !self.is_lun()
    }
}

/// Sector sizes the guest sees. Give one of the members; without it, QEMU's 512 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockSize {
    /// Sets the sizes by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomBlockSize>,
    /// Takes the sizes of the block device or file system below the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_volume: Option<FeatureState>,
}

/// Sector sizes in bytes; powers of two from 512 to 2097152, the logical one not above the physical one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomBlockSize {
    /// Bytes in which the guest can discard, a multiple of `logical` (`discard_granularity=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_granularity: Option<i32>,
    /// Smallest unit of reads and writes, in bytes (`logical_block_size=`). Must be 512 on `sata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logical: Option<i32>,
    /// Unit the medium really writes, in bytes; guests align to it (`physical_block_size=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical: Option<i32>,
}

/// A directory of the host side shared with the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    /// Name of the volume that is shared; also the tag the guest mounts it by.
    pub name: String,
    /// Shares by virtiofs: a virtiofsd process and the device `vhost-user-fs-pci`.
    pub virtiofs: FilesystemVirtiofs,
}

/// Presence selects virtiofs; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemVirtiofs {}

/// A block volume passed to the guest with its SCSI commands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LunTarget {
    /// Bus of the device: `scsi`, `sata` (default on amd64) or `virtio` (default elsewhere). `scsi` becomes a
    /// `scsi-block` device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Whether the guest is kept from writing; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// Allows SCSI persistent reservations, through a helper process (`-object pr-manager-helper`); false
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<bool>,
}
