//! Status of a `VirtualMachineInstance`.

mod kernel;
mod volumes;

pub use kernel::{InitrdInfo, KernelBootStatus, KernelInfo};
pub use volumes::{
    ChangedBlockTrackingStatus, ContainerDiskInfo, DomainMemoryDumpInfo, HotplugVolumeStatus,
    PersistentVolumeClaimInfo, StorageMigratedVolumeInfo, VirtualMachineInstanceBackupStatus,
    VirtualMachineInstanceBackupVolumeInfo, VolumeStatus,
};

use super::{Condition, CpuTopology, Machine, MemoryStatus, VirtualMachineInstanceMigrationState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Observed state of a run. The controller writes phases up to `Scheduled`, the node's handler the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When each phase was entered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<PhaseTransitionTimestamp>,
    /// Why the instance is in its phase, as one word.
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
    /// Network interfaces as observed.
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
    /// Operating system, as the guest agent reports it.
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

impl VirtualMachineInstanceStatus {
    /// Facts about the claim of a volume.
    pub fn claim_info(&self, volume: &str) -> Option<&PersistentVolumeClaimInfo> {
        self.volume_status.iter().find(|told| told.name == volume)?.persistent_volume_claim_info.as_ref()
    }

    /// Size in bytes of a volume's disk, if the status has it.
    pub fn disk_bytes(&self, volume: &str) -> Option<u64> {
        let size = self.volume_status.iter().find(|told| told.name == volume)?.size?;
        u64::try_from(size).ok().filter(|size| *size > 0)
    }

    /// Size in bytes of the new disk of a volume that moves to another claim with its guest: that of the present disk in whole
    /// mebibytes, else that of any new disk on the claim. `None` if the volume does not move.
    pub fn moved_disk_bytes(&self, volume: &str) -> Option<u64> {
        let moved = self.migrated_volumes.iter().find(|moved| moved.volume_name == volume)?;
        let present = self.disk_bytes(volume).map(|size| size.next_multiple_of(1 << 20));
        present.or_else(|| moved.destination_pvc_info.as_ref()?.disk_bytes())
    }
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

/// A network interface as observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterfaceStatus {
    /// First address at which the guest is reached; the pod's with the masquerade binding.
    #[serde(rename = "ipAddress", default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All addresses.
    #[serde(rename = "ipAddresses", default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// The guest's hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Name in the specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name in the guest, as the guest agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// Name in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_interface_name: Option<String>,
    /// Sources of the information: `domain`, `guest-agent`, `multus-status`, several separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info_source: Option<String>,
    /// `up` or `down`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<String>,
    /// Number of queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_count: Option<i32>,
}

/// Operating system of the guest, as reported by os-release and uname.
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

/// Records that `phase` was entered at `now`, unless it is already recorded.
pub fn record_phase_transition(timestamps: &mut Vec<PhaseTransitionTimestamp>, phase: &str, now: &Time) {
    if timestamps.iter().all(|stamp| stamp.phase.as_deref() != Some(phase)) {
        timestamps.push(PhaseTransitionTimestamp {
            phase: Some(phase.to_owned()),
            phase_transition_timestamp: Some(now.clone()),
        });
    }
}

/// Node properties the guest depends on, which limit where it can be scheduled or migrated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyHints {
    /// TSC frequency in Hz that the guest has to see. Becomes `-cpu ...,tsc-frequency=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_frequency: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_new_disk_of_a_volume_that_moves_is_as_large_as_the_present_one() {
        let sizes = |size: i64| {
            let status: VirtualMachineInstanceStatus = serde_json::from_value(json!({
                "volumeStatus": [{"name": "data", "target": "", "size": size}, {"name": "seed", "target": "", "size": size}],
                "migratedVolumes": [{"volumeName": "data", "destinationPVCInfo": {"requests": {"storage": "9Mi"}}}],
            }))
            .unwrap();
            (status.disk_bytes("data"), ["data", "seed", "other"].map(|name| status.moved_disk_bytes(name)))
        };
        assert_eq!(sizes((5 << 20) - 1), (Some((5 << 20) - 1), [Some(5 << 20), None, None]));
        // It is not reported.
        for size in [0, -1] {
            assert_eq!(sizes(size), (None, [Some(9 << 20), None, None]), "{size}");
        }
    }
}
