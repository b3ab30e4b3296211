//! Progress of a migration, on both sides.

use super::VmimConfigurationOptions;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a migration that the sending side publishes.
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

/// Course of a migration as recorded by both nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationState {
    /// True once the migration object is deleted or cancellation was requested.
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

impl VirtualMachineInstanceMigrationState {
    /// Whether the target has reported that it waits for the guest: the source may have begun.
    pub fn is_prepared(&self) -> bool {
        self.target_node_address.as_ref().is_some_and(|address| !address.is_empty())
    }
}

/// State of a migration that the receiving side publishes.
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
