//! Disks: how a volume is shown to the guest.

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
}

impl Disk {
    /// The bus of the target that is given.
    pub fn bus(&self) -> Option<&str> {
        match (&self.disk, &self.cdrom) {
            (Some(disk), _) => disk.bus.as_deref(),
            (None, Some(cdrom)) => cdrom.bus.as_deref(),
            (None, None) => None,
        }
    }

    /// Whether the guest sees a CD drive.
    pub fn is_cdrom(&self) -> bool {
        self.disk.is_none() && self.cdrom.is_some()
    }

    /// Whether the guest cannot write to it.
    pub fn is_readonly(&self) -> bool {
        self.is_cdrom() || self.disk.as_ref().is_some_and(|disk| disk.readonly.unwrap_or(false))
    }
}
