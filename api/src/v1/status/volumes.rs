//! Volumes in the status of an instance.

use crate::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of changed block tracking, which incremental backups build on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedBlockTrackingStatus {
    /// Backup that is running or that ran last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_status: Option<VirtualMachineInstanceBackupStatus>,
    /// `PendingRestart`, `Initializing`, `Enabled`, `Disabled`, `IncrementalBackupFeatureGateDisabled` or
    /// empty (never set up). When enabled, QEMU keeps dirty bitmaps.
    pub state: String,
}

/// Details of a container disk as found on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDiskInfo {
    /// Deprecated: 32-bit checksum of the disk image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<i64>,
}

/// Memory dump written to a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainMemoryDumpInfo {
    /// PersistentVolumeClaim holding the dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// When QEMU finished writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    /// When QEMU began to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// File written on the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_file_name: Option<String>,
}

/// Helper pod that brings a hotplugged volume to the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotplugVolumeStatus {
    /// Helper pod, in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_pod_name: Option<String>,
    /// UID of that pod, which distinguishes it from an earlier one of the same name.
    #[serde(rename = "attachPodUID", default, skip_serializing_if = "Option::is_none")]
    pub attach_pod_uid: Option<String>,
}

/// Facts about the claim of a volume that the node needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaimInfo {
    /// How nodes may mount it: `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany` or `ReadWriteOncePod`.
    /// `ReadWriteMany` lets the VM migrate without copying the disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Size the storage really provides, under the key `storage`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
    /// PersistentVolumeClaim in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Share of the claim kept free for the filesystem, a fraction from 0 to 1 such as `0.055`; the disk
    /// image gets the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<String>,
    /// True when the space was allocated in full beforehand; discards from the guest are then not passed on,
    /// to keep it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocated: Option<bool>,
    /// Size asked for in the claim, under the key `storage`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// `Block` for a raw device, `Filesystem` (default) for a `disk.img` file on a mount.
    /// `FromStorageProfile` leaves the choice to CDI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

impl PersistentVolumeClaimInfo {
    /// Size in bytes of a new disk on the claim: not more than requested, and not more than the capacity.
    /// `None` if neither is known.
    pub fn disk_bytes(&self) -> Option<u64> {
        let amounts = [&self.requests, &self.capacity].map(|amounts| amounts.get("storage"));
        amounts.into_iter().flatten().filter_map(|amount| quantity::bytes(amount).ok()).min()
    }

    /// The share of a claim that imports, and disks that grow, leave to its file system, in thousandths: CDI's default.
    pub const FILE_SYSTEM_SHARE: u16 = 60;

    /// Size in bytes up to which a disk that exists on the claim grows: the whole of a device, and of a file
    /// system what an import takes there. `None` if the claim has no size.
    pub fn grown_disk_bytes(&self) -> Option<u64> {
        let bytes = self.disk_bytes()?;
        if self.volume_mode.as_deref() == Some("Block") {
            return Some(bytes);
        }
        let left = u128::from(bytes) * u128::from(1000 - Self::FILE_SYSTEM_SHARE) / 1000;
        Some(u64::try_from(left).unwrap_or(bytes))
    }
}

/// One volume moving from a claim to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageMigratedVolumeInfo {
    /// Claim the data goes to.
    #[serde(rename = "destinationPVCInfo", default, skip_serializing_if = "Option::is_none")]
    pub destination_pvc_info: Option<PersistentVolumeClaimInfo>,
    /// Claim the data comes from.
    #[serde(rename = "sourcePVCInfo", default, skip_serializing_if = "Option::is_none")]
    pub source_pvc_info: Option<PersistentVolumeClaimInfo>,
    /// Volume, as named in the VMI spec.
    pub volume_name: String,
}

/// Progress and result of a backup of this VMI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceBackupStatus {
    /// Further information, such as the cause of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_msg: Option<String>,
    /// VirtualMachineBackup being carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_name: Option<String>,
    /// Checkpoint made by this backup, from which the next incremental one can start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// True once the backup is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<bool>,
    /// When the backup ended, well or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    /// True when the backup did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
    /// Result of freezing guest filesystems: `Succeeded`, `Failed` or `Skipped`. Without a freeze the backup
    /// is only crash-consistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_status: Option<String>,
    /// When the backup began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// Volumes the backup covers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VirtualMachineInstanceBackupVolumeInfo>,
}

/// Volume taking part in a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceBackupVolumeInfo {
    /// Volume, as named in the VMI spec.
    pub volume_name: String,
}

/// Observed state of one volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Facts about the image; only for container disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk_volume: Option<ContainerDiskInfo>,
    /// Helper pod in use; only for hotplugged volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotplug_volume: Option<HotplugVolumeStatus>,
    /// Facts about the dump; only for memory dump volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_dump_volume: Option<DomainMemoryDumpInfo>,
    /// Human readable detail on the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Volume, as named in the spec.
    pub name: String,
    /// Facts about the claim, when the volume is backed by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_info: Option<PersistentVolumeClaimInfo>,
    /// `Pending`, `Bound`, `AttachedToNode`, `MountedToPod`, `Ready`, `Detaching`, `UnMountedFromPod` or
    /// `MemoryDumpInProgress`, `MemoryDumpCompleted`, `MemoryDumpFailed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// One-word cause of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes taken by generated images such as cloud-init, ConfigMap and Secret disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// Device name in the style of `vda` or `sda`; empty until the disk is attached. The guest may name it
    /// otherwise.
    pub target: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn info(request: &str, capacity: &str, mode: &str) -> PersistentVolumeClaimInfo {
        let info =
            json!({"requests": {"storage": request}, "capacity": {"storage": capacity}, "volumeMode": mode});
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn a_disk_grows_to_its_claim_less_the_share_of_the_file_system() {
        let grown = |info: &PersistentVolumeClaimInfo| info.grown_disk_bytes();
        assert_eq!(grown(&info("1000", "2000", "Filesystem")), Some(940));
        assert_eq!(grown(&info("2000", "1000", "Filesystem")), Some(940));
        assert_eq!(grown(&info("2000", "1000", "Block")), Some(1000));
        // A claim for an import of 1 GiB: the import fills it, and nothing is left to grow.
        let claim = (1000_u64 << 30).div_ceil(940).to_string();
        let left = grown(&info(&claim, &claim, "")).unwrap() - (1 << 30);
        assert!(left < 1 << 20, "{left}");
        assert_eq!(grown(&PersistentVolumeClaimInfo::default()), None);
        assert_eq!(grown(&info("-1", "x", "")), None);
        let most = i64::MAX.to_string();
        assert_eq!(grown(&info(&most, &most, "Block")), u64::try_from(i64::MAX).ok());
    }
}
