//! Information from the guest agent: answers of subresource calls.

use super::GuestOsInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One command the guest agent knows, from `guest-info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgentCommandInfo {
    /// False when the agent's configuration blocks the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Agent command such as `guest-ping`.
    pub name: String,
}

/// Filesystem mounted in the guest, from `guest-get-fsinfo`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystem {
    /// Disks the filesystem lies on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<VirtualMachineInstanceFileSystemDisk>,
    /// Block device as the guest names it, such as `vda1`.
    pub disk_name: String,
    /// Type as the guest reports it: `ext4`, `xfs`, `NTFS`.
    pub file_system_type: String,
    /// Path or drive where the guest has mounted it.
    pub mount_point: String,
    /// Capacity in bytes; 0 when the agent does not report it.
    pub total_bytes: i64,
    /// Space in use, in bytes; 0 when the agent does not report it.
    pub used_bytes: i64,
}

/// Disk under a guest filesystem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemDisk {
    /// Bus as the guest agent reports it: `virtio`, `scsi`, `sata`, `usb`.
    pub bus_type: String,
    /// Serial number the guest reads from the disk; matches `serial` in the disk spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// Filesystems the guest agent reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemInfo {
    /// Mounted filesystems, one entry each.
    pub disks: Vec<VirtualMachineInstanceFileSystem>,
}

/// File systems of the guest, as the guest agent lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemList {
    /// The file systems.
    pub items: Vec<VirtualMachineInstanceFileSystem>,
    /// List metadata; always empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ListMeta>,
}

/// Information about the guest from the QEMU guest agent; answer of the `guestosinfo` subresource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestAgentInfo {
    /// `frozen` after a freeze request, else empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
    /// Mounted filesystems with their use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_info: Option<VirtualMachineInstanceFileSystemInfo>,
    /// Version of the agent in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent_version: Option<String>,
    /// Name the guest has given itself, from `guest-get-host-name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Operating system and kernel, from `guest-get-osinfo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<GuestOsInfo>,
    /// Commands the agent knows, with those that are blocked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supported_commands: Vec<GuestAgentCommandInfo>,
    /// Zone name and offset from UTC in seconds, from `guest-get-timezone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Users now logged in, from `guest-get-users`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_list: Vec<VirtualMachineInstanceGuestOsUser>,
}

/// User logged in to the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOsUser {
    /// Windows domain of the account; empty elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Earliest login still open, in seconds since 1970 with a fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_time: Option<f64>,
    /// Account name in the guest.
    pub user_name: String,
}

/// Users who are logged in, as the guest agent lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOsUserList {
    /// The users.
    pub items: Vec<VirtualMachineInstanceGuestOsUser>,
    /// List metadata; always empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ListMeta>,
}
