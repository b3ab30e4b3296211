//! `snapshot.kubevirt.io`: back to a saved state.

use crate::v1::Condition;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which snapshot to put back, onto which virtual machine, and how its volumes are recreated.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "snapshot.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineRestore",
    plural = "virtualmachinerestores",
    doc = "Brings a virtual machine back to a snapshot.",
    namespaced,
    status = "VirtualMachineRestoreStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmrestore",
    shortname = "vmrestores",
    category = "all",
    printcolumn = r#"{"name":"TargetKind","type":"string","jsonPath":".spec.target.kind"}"#,
    printcolumn = r#"{"name":"TargetName","type":"string","jsonPath":".spec.target.name"}"#,
    printcolumn = r#"{"name":"Complete","type":"boolean","jsonPath":".status.complete"}"#,
    printcolumn = r#"{"name":"RestoreTime","type":"date","jsonPath":".status.restoreTime"}"#
)]
pub struct VirtualMachineRestoreSpec {
    /// JSON patches, one per entry, applied to the virtual machine when the restore has to create it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<String>,
    /// Virtual machine that receives the snapshot's state. It is created when it does not exist.
    pub target: TypedLocalObjectReference,
    /// When the target runs: `StopTarget` stops it, `WaitGracePeriod` (default) waits 5 minutes,
    /// `FailImmediate` fails, `WaitEventually` waits forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_readiness_policy: Option<String>,
    /// VirtualMachineSnapshot of the same namespace to restore from.
    pub virtual_machine_snapshot_name: String,
    /// Owner of the restored volumes: `Vm` (default) deletes them along with the virtual machine, `None`
    /// leaves them behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_ownership_policy: Option<String>,
    /// Name, labels or annotations to use for particular restored volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_restore_overrides: Vec<VolumeRestoreOverride>,
    /// Names of restored claims: `RandomizeNames` (default), `InPlace` (replaces the original claim) or
    /// `PrefixTargetName` (target's name, then the volume's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_restore_policy: Option<String>,
}

/// Progress and outcome of a restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineRestoreStatus {
    /// True once the volumes are back and the target uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// DataVolumes removed because the restored volumes took their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted_data_volumes: Vec<String>,
    /// When the restore finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_time: Option<Time>,
    /// Volumes being restored, each with its new claim and the snapshot it comes from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restores: Vec<VolumeRestore>,
}

/// One volume recreated from its volume snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRestore {
    /// DataVolume that wraps the new claim; empty when the volume used a plain claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume_name: Option<String>,
    /// Name of the claim made from the volume snapshot.
    pub persistent_volume_claim: String,
    /// Volume of the virtual machine, by its name in the spec.
    pub volume_name: String,
    /// VolumeSnapshot that provides the data.
    pub volume_snapshot_name: String,
}

/// Changes to the claim created for one restored volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRestoreOverride {
    /// Annotations added to the restored claim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels added to the restored claim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of the restored claim. Takes precedence over `volumeRestorePolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_name: Option<String>,
    /// Snapshotted volume to which the override applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}
