//! Status of a `VirtualMachineInstance`.

use super::{Condition, CpuTopology, Machine, MemoryStatus, VirtualMachineInstanceMigrationState};
use crate::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known about a run. The controller writes phases up to `Scheduled`, the node's handler the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When each phase was entered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<PhaseTransitionTimestamp>,
    /// Why it is in its phase, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Node that the launcher pod runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Launcher pods that may run, by UID, with their node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub active_pods: BTreeMap<String, String>,
    /// Network interfaces as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<NetworkInterfaceStatus>,
    /// User id that the launcher runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_user: Option<i64>,
    /// Quality-of-service class of the launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// Image of the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_container_image_version: Option<String>,
    /// Machine type that the guest was started with, without aliases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// CPU arrangement that the guest was started with.
    #[serde(rename = "currentCPUTopology", default, skip_serializing_if = "Option::is_none")]
    pub current_cpu_topology: Option<CpuTopology>,
    /// Guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Operating system, as the guest agent tells it.
    #[serde(rename = "guestOSInfo", default, skip_serializing_if = "Option::is_none")]
    pub guest_os_info: Option<GuestOsInfo>,
    /// Context ID under which the guest is reached over vsock, unique in the cluster. Becomes
    /// `vhost-vsock-pci,guest-cid=`.
    #[serde(rename = "VSOCKCID", default, skip_serializing_if = "Option::is_none")]
    pub vsockcid: Option<i64>,
    /// Whether changed blocks are tracked, and the latest backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
    /// Node the VMI has to leave; set by the system on an eviction and cleared after the migration. Not for
    /// users to edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// `frozen` after a freeze request, else empty. It records the request, not what the guest really does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
    /// Facts about the files for direct kernel boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_boot_status: Option<KernelBootStatus>,
    /// Volumes whose data moves to another claim in the current or next migration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
    /// `LiveMigration` when all disks are shared, `BlockMigration` when local disk contents must be copied as
    /// well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_method: Option<String>,
    /// Current or latest migration of this VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    /// `Unix` when migration data passes through a Unix socket and the proxy of virt-handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_transport: Option<String>,
    /// SELinux label under which the virt-launcher pod runs; `none` on a node without SELinux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// Node properties the guest was started with and a migration target must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_hints: Option<TopologyHints>,
    /// ControllerRevision with the VM spec this instance was started from; online snapshots use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_revision_name: Option<String>,
    /// State of every volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_status: Vec<VolumeStatus>,
}

/// When a phase was entered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTransitionTimestamp {
    /// The phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When it was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<Time>,
}

/// A network interface as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterfaceStatus {
    /// First address at which the guest is reached; the pod's with the masquerade binding.
    #[serde(rename = "ipAddress", default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All of them.
    #[serde(rename = "ipAddresses", default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// The guest's hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Name in the specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name in the guest, as the guest agent tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// Name in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_interface_name: Option<String>,
    /// Who told: `domain`, `guest-agent`, `multus-status`, several separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info_source: Option<String>,
    /// `up` or `down`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<String>,
    /// Number of queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_count: Option<i32>,
}

/// Operating system of the guest, as os-release and uname have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestOsInfo {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its name with its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretty_name: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its version's identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Release of its kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// Version of its kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// Processor architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// Notes that `phase` was entered at `now`, unless it is noted already.
pub fn record_phase_transition(timestamps: &mut Vec<PhaseTransitionTimestamp>, phase: &str, now: &Time) {
    if timestamps.iter().all(|stamp| stamp.phase.as_deref() != Some(phase)) {
        timestamps.push(PhaseTransitionTimestamp {
            phase: Some(phase.to_owned()),
            phase_transition_timestamp: Some(now.clone()),
        });
    }
}

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
    /// UID of that pod, which tells it from an earlier one of the same name.
    #[serde(rename = "attachPodUID", default, skip_serializing_if = "Option::is_none")]
    pub attach_pod_uid: Option<String>,
}

/// Details of the initial RAM disk for direct kernel boot (`-initrd`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitrdInfo {
    /// Deprecated: 32-bit checksum of the initrd file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<i64>,
}

/// Files found in the kernel boot container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelBootStatus {
    /// Facts about the initrd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd_info: Option<InitrdInfo>,
    /// Facts about the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_info: Option<KernelInfo>,
}

/// Details of the kernel image for direct kernel boot (`-kernel`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelInfo {
    /// Deprecated: 32-bit checksum of the kernel file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<i64>,
}

/// What the node needs to know about the claim behind a volume.
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
    /// Bytes that a new disk on it may have: no more than was asked for, and no more than there is. None where nothing is known.
    pub fn disk_bytes(&self) -> Option<u64> {
        let amounts = [&self.requests, &self.capacity].map(|amounts| amounts.get("storage"));
        amounts.into_iter().flatten().filter_map(|amount| quantity::bytes(amount).ok()).min()
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

/// Node properties the guest depends on, which limit where it can be scheduled or migrated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyHints {
    /// TSC frequency in Hz that the guest has to see. Becomes `-cpu ...,tsc-frequency=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_frequency: Option<i64>,
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
