//! `VirtualMachineInstanceMigration`: the move of a running instance to another pod.

mod options;
mod state;

pub use options::{
    DowntimeTuningOptions, ExperimentalMigrationOptions, StallDetectorOptions, VmimConfigurationOptions,
};
pub use state::{
    VirtualMachineInstanceMigrationSourceState, VirtualMachineInstanceMigrationState,
    VirtualMachineInstanceMigrationTargetState,
};

use super::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// Request to move a running guest to another node. Deleting the object cancels the move.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceMigration",
    plural = "virtualmachineinstancemigrations",
    doc = "One live migration of a running instance to another launcher pod.",
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
