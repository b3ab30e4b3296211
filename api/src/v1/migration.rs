//! `VirtualMachineInstanceMigration`: the move of a running instance to another pod.

use super::Condition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Stepwise raising of the allowed downtime while memory copying fails to converge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DowntimeTuningOptions {
    /// Seconds that must pass between two raises; 10 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_seconds: Option<i32>,
    /// Allowed downtime at the start, in milliseconds; 150 when not given, and never above `maxDowntimeMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_ms: Option<i64>,
    /// Passes over the memory to wait for before the first raise; 3 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after_iteration: Option<i64>,
    /// Number of equal raises between `initialMs` and `maxDowntimeMs`; 7 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<i32>,
}

/// Migration settings on trial, which may change or vanish.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentalMigrationOptions {
    /// Compression of the migration stream: `none` (default) or `zstd` (QEMU: `multifd-compression`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Raises `downtime-limit` in steps during a migration. Off when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_tuning: Option<DowntimeTuningOptions>,
    /// Watches for migrations that stop converging and acts on them. Off when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_detector: Option<StallDetectorOptions>,
}

/// Thresholds for deciding that a migration has stopped converging, and for what follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StallDetectorOptions {
    /// Multiple of the completion timeout within which a forced switchover must be able to end; 2 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_factor: Option<Quantity>,
    /// Weight of the newest sample in the running bandwidth average, above 0 and up to 1; 0.4 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ewma_alpha: Option<Quantity>,
    /// Shrinks the waiting time after each loosening of the best remaining-bytes mark; 0.5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_window_decay_factor: Option<Quantity>,
    /// How many times `maxDowntimeMs` the estimated downtime may be for a switchover to be tried, not
    /// aborted; 1.5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precopy_possible_factor: Option<Quantity>,
    /// Act only near a low point of the remaining bytes, not at once on a stall; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_local_minima: Option<bool>,
    /// Percentage, 0 to 100, by which remaining bytes must beat the earlier minimum to count as progress; 4
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_margin: Option<i64>,
    /// Length in seconds of the window in which progress is looked for; 40 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_progress_timeout: Option<i64>,
    /// Seconds a triggered switchover may take before the migration is aborted; 60 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover_timeout: Option<i64>,
}

/// Settings in force for one migration: the cluster's, overlaid with the matching policy's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmimConfigurationOptions {
    /// Slow the guest's vCPUs down until its memory can be copied (QEMU: `auto-converge`); false when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// On completion timeout, run the guest on the target and fetch memory on demand (QEMU: `postcopy-ram`);
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// On completion timeout, pause the guest or go to post-copy instead of cancelling. Follows
    /// `allowPostCopy` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Bytes per second a migration may send (QEMU: `max-bandwidth`); `0` (default) sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds a migration may take per GiB of data to copy; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// Send the migration stream between nodes unencrypted; false when not given.
    #[serde(rename = "disableTLS", default, skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    /// Settings on trial: compression, downtime tuning, stall detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experimental: Option<ExperimentalMigrationOptions>,
    /// Give the target pod the source pod's SELinux level; true when not given. With false the runtime picks
    /// one.
    #[serde(rename = "matchSELinuxLevelOnMigration", default, skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
    /// Longest pause at switchover in milliseconds, 1 to 2000000 (QEMU: `downtime-limit`); 900 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<i64>,
    /// NetworkAttachmentDefinition whose network carries migrations; the pod network when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Taint that marks a node to be emptied by migrations; `kubevirt.io/drain` when not given. Eviction is
    /// the preferred way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    /// Migrations that may run at once in the cluster; 5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<i64>,
    /// Migrations that may leave one node at once; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<i64>,
    /// Seconds without progress after which a migration is cancelled; 150 when not given, `0` never cancels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// Migrate even if a check finds a danger to the guest, such as a host cache on shared disks; false when
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    /// Seconds a pending migration waits for utility volumes to be detached before it fails; 150 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
}

/// When a migration entered one of its phases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationPhaseTransitionTimestamp {
    /// Phase that was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Time of entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<Time>,
}

/// Sending half of a migration to another namespace or cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationSource {
    /// Address of the receiving side's synchronization controller, as `host:port`.
    #[serde(rename = "connectURL")]
    pub connect_url: String,
    /// Identifier shared with the receiving half, by which the two find each other.
    #[serde(rename = "migrationID")]
    pub migration_id: String,
}

/// What the sending side publishes about a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationSourceState {
    /// Internal name of the guest on the sending side, made of namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    /// Namespace of the sending instance, for rewriting paths when the receiver's differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    /// UID of the migration object on the sending side.
    #[serde(rename = "migrationUID", default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// Node the guest leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Node labels the receiving pod must ask for, such as those of the CPU model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selectors: BTreeMap<String, String>,
    /// Claim with the guest's TPM and EFI state on the sending side, if it has one.
    #[serde(rename = "persistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    /// Pod the guest leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// SELinux context of the sending pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// Address and port at which the sending side's synchronization controller is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    /// UID of the sending instance.
    #[serde(rename = "virtualMachineInstanceUID", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
}

/// Request to move a running guest to another node. Deleting the object cancels the move.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceMigration",
    plural = "virtualmachineinstancemigrations",
    doc = "One move of a running instance to another launcher pod.",
    namespaced,
    status = "VirtualMachineInstanceMigrationStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmim",
    shortname = "vmims",
    category = "all",
    printcolumn = r#"{"name":"Phase","description":"The current phase of VM instance migration","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"VMI","description":"The name of the VMI to perform the migration on","type":"string","jsonPath":".spec.vmiName"}"#
)]
pub struct VirtualMachineInstanceMigrationSpec {
    /// Further node labels the target must have. Cannot override the virtual machine's own node selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
    /// Place in the queue: `system-critical` first, then `user-triggered`, then `system-maintenance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Makes this the receiving half of a migration from another namespace or cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<VirtualMachineInstanceMigrationTarget>,
    /// Makes this the sending half of a migration to another namespace or cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_to: Option<VirtualMachineInstanceMigrationSource>,
    /// Running instance of the same namespace to move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vmi_name: Option<String>,
}

/// Course of a migration as recorded by both nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationState {
    /// True once the migration object is deleted or cancelling was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_requested: Option<bool>,
    /// Result of cancelling: `Aborting`, `Succeeded` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_status: Option<String>,
    /// True when the migration is over, with or without success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<bool>,
    /// When the migration ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    /// True when the migration did not succeed. The guest normally keeps running on the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
    /// Text of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Settings in force for this migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_configuration: Option<VmimConfigurationOptions>,
    /// Network that carries the data: `Pod` or `Migration` (a dedicated one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_network_type: Option<String>,
    /// MigrationPolicy that applied; empty when none matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_policy_name: Option<String>,
    /// UID of the migration object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// How memory is moved: `PreCopy`, `PostCopy` or `Paused` (guest stopped so that copying can end).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Node the guest leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Claim with the TPM and EFI state on the source side, if there is one.
    #[serde(rename = "sourcePersistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub source_persistent_state_pvc_name: Option<String>,
    /// Pod the guest leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_pod: Option<String>,
    /// Details kept by the source node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_state: Option<VirtualMachineInstanceMigrationSourceState>,
    /// When the migration began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// UID of the pod that brings hotplugged volumes to the target node.
    #[serde(rename = "targetAttachmentPodUID", default, skip_serializing_if = "Option::is_none")]
    pub target_attachment_pod_uid: Option<String>,
    /// Host CPUs reserved on the target node, by number; only with dedicated CPU placement.
    #[serde(rename = "targetCPUSet", default, skip_serializing_if = "Vec::is_empty")]
    pub target_cpu_set: Vec<i32>,
    /// TCP ports open on the target node, each mapped to its channel: `0` control, `49152` memory, `49153`
    /// disks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub target_direct_migration_node_ports: BTreeMap<String, i32>,
    /// Memory the target pod gets on top of the guest's, for QEMU itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_memory_overhead: Option<Quantity>,
    /// Node the guest moves to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// IP address of the target node on the migration network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node_address: Option<String>,
    /// True once the target node has seen its QEMU with the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node_domain_detected: Option<bool>,
    /// When the guest became active on the target node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node_domain_ready_timestamp: Option<Time>,
    /// NUMA layout of the target node as JSON; only with dedicated CPU placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node_topology: Option<String>,
    /// Claim with the TPM and EFI state on the target side, if there is one.
    #[serde(rename = "targetPersistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub target_persistent_state_pvc_name: Option<String>,
    /// Pod the guest moves to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_pod: Option<String>,
    /// Details kept by the target node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_state: Option<VirtualMachineInstanceMigrationTargetState>,
}

/// Progress and outcome of a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Copy of the instance's own record of this migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    /// `Pending`, `Scheduling`, `Scheduled`, `PreparingTarget`, `TargetReady`, `Running`, `Succeeded`,
    /// `Failed`, `WaitingForSync` or `Synchronizing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Times at which each phase was entered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<VirtualMachineInstanceMigrationPhaseTransitionTimestamp>,
    /// Addresses, with port, of this cluster's synchronization controller; one goes into `connectURL` of the
    /// sending half.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub synchronization_addresses: Vec<String>,
}

/// Receiving half of a migration from another namespace or cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationTarget {
    /// Identifier shared with the sending half, by which the two find each other.
    #[serde(rename = "migrationID")]
    pub migration_id: String,
}

/// What the receiving side publishes about a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationTargetState {
    /// UID of the pod that brings hotplugged volumes to the receiving node.
    #[serde(rename = "attachmentPodUID", default, skip_serializing_if = "Option::is_none")]
    pub attachment_pod_uid: Option<String>,
    /// Host CPUs reserved on the receiving node, by number; only with dedicated CPU placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_set: Vec<i32>,
    /// TCP ports open on the receiving node, each mapped to its channel: `0` control, `49152` memory, `49153`
    /// disks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub direct_migration_node_ports: BTreeMap<String, i32>,
    /// True once the receiving node has seen its QEMU with the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_detected: Option<bool>,
    /// Internal name of the guest on the receiving side, made of namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    /// Namespace of the receiving instance, into which paths from the sender are rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    /// When the guest became active on the receiving node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_ready_timestamp: Option<Time>,
    /// UID of the migration object on the receiving side.
    #[serde(rename = "migrationUID", default, skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// Node the guest moves to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// IP address of the receiving node on the migration network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_address: Option<String>,
    /// NUMA layout of the receiving node as JSON; only with dedicated CPU placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_topology: Option<String>,
    /// Claim with the guest's TPM and EFI state on the receiving side, if it has one.
    #[serde(rename = "persistentStatePVCName", default, skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    /// Pod the guest moves to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// SELinux context of the receiving pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<String>,
    /// Address and port at which the receiving side's synchronization controller is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    /// UID of the receiving instance.
    #[serde(rename = "virtualMachineInstanceUID", default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
}
