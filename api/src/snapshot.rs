//! `snapshot.kubevirt.io`: saved states of virtual machines.

use crate::v1::{Condition, VirtualMachineSpec, VirtualMachineStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, TypedLocalObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most recent failure of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Error {
    /// Text of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the failure was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Claim as it was when the snapshot was taken, used as a template for the restored one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaim {
    /// Name, labels and annotations of the original claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::v1::embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Size, access modes, storage class and volume mode of the original claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<PersistentVolumeClaimSpec>,
}

/// Division of the virtual machine's volumes into those captured and those left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotVolumesLists {
    /// Volumes without a copy, such as those whose storage class cannot snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_volumes: Vec<String>,
    /// Volumes that have a copy in the snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub included_volumes: Vec<String>,
}

/// One note about the source's state at snapshot time, from which to judge consistency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceIndication {
    /// `Online`, `GuestAgent`, `NoGuestAgent`, `QuiesceTimeout`, `Paused` or `PartialSnapshot`.
    pub indication: String,
    /// Human-readable explanation of the indication.
    pub message: String,
}

/// Saved definition of the snapshotted object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceSpec {
    /// Virtual machine as it was defined at snapshot time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<VirtualMachine>,
}

/// Copy of a virtual machine kept inside a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachine {
    /// Name, labels and annotations at snapshot time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::v1::embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Specification at snapshot time, which a restore brings back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineSpec>,
    /// Status at snapshot time, for information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<VirtualMachineStatus>,
}

/// Content of a snapshot: the machine's definition and a list of volume copies.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "snapshot.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineSnapshotContent",
    plural = "virtualmachinesnapshotcontents",
    doc = "The contents of a snapshot: the saved machine and a volume snapshot for each volume.",
    namespaced,
    status = "VirtualMachineSnapshotContentStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmsnapshotcontent",
    shortname = "vmsnapshotcontents",
    category = "all",
    printcolumn = r#"{"name":"ReadyToUse","type":"boolean","jsonPath":".status.readyToUse"}"#,
    printcolumn = r#"{"name":"CreationTime","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.error.message"}"#
)]
pub struct VirtualMachineSnapshotContentSpec {
    /// Saved definition from which a restore rebuilds the machine.
    pub source: SourceSpec,
    /// VirtualMachineSnapshot this content belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_snapshot_name: Option<String>,
    /// One entry per captured volume, with its claim and VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_backups: Vec<VolumeBackup>,
}

/// State of the stored snapshot data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSnapshotContentStatus {
    /// When the volume copies were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Latest failure, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// True when every VolumeSnapshot can be restored from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// State of each VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_snapshot_status: Vec<VolumeSnapshotStatus>,
}

/// Which virtual machine to snapshot, how long it may take and what deletion does.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "snapshot.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineSnapshot",
    plural = "virtualmachinesnapshots",
    doc = "A saved state of a virtual machine: its specification and its volumes at one moment.",
    namespaced,
    status = "VirtualMachineSnapshotStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmsnapshot",
    shortname = "vmsnapshots",
    category = "all",
    printcolumn = r#"{"name":"SourceKind","type":"string","jsonPath":".spec.source.kind"}"#,
    printcolumn = r#"{"name":"SourceName","type":"string","jsonPath":".spec.source.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"ReadyToUse","type":"boolean","jsonPath":".status.readyToUse"}"#,
    printcolumn = r#"{"name":"CreationTime","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Error","type":"string","jsonPath":".status.error.message"}"#
)]
pub struct VirtualMachineSnapshotSpec {
    /// What happens to the stored data when the snapshot is deleted: `Delete` (default) or `Retain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<String>,
    /// Time allowed for the snapshot, as a duration such as `10m`; 5 minutes when not given. Past it the
    /// snapshot is `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_deadline: Option<String>,
    /// Virtual machine to snapshot. When it runs, its file systems are frozen through the guest agent, if
    /// there is one.
    pub source: TypedLocalObjectReference,
}

/// Progress and outcome of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSnapshotStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Point in time the snapshot represents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Latest failure, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// Deprecated: read `sourceIndications`. Names of the remarks without their messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indications: Vec<String>,
    /// `InProgress`, `Succeeded`, `Failed`, `Deleting` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// True when a restore can start from this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// Volumes captured and volumes left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<SnapshotVolumesLists>,
    /// Remarks on the source at snapshot time, such as running or frozen by the guest agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_indications: Vec<SourceIndication>,
    /// UID of the snapshotted virtual machine; distinguishes it from a later one with the same name.
    #[serde(rename = "sourceUID", default, skip_serializing_if = "Option::is_none")]
    pub source_uid: Option<String>,
    /// VirtualMachineSnapshotContent that holds the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_snapshot_content_name: Option<String>,
}

/// Copy of one volume: what its claim looked like and where its data is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeBackup {
    /// Original claim, from which the restored one is modelled.
    pub persistent_volume_claim: PersistentVolumeClaim,
    /// Volume of the virtual machine, by its name in the spec.
    pub volume_name: String,
    /// VolumeSnapshot made of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_name: Option<String>,
}

/// State of one VolumeSnapshot, taken over from the storage driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// When the storage driver made the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Failure reported by the storage driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// True when a new claim can be filled from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// VolumeSnapshot described by this entry.
    pub volume_snapshot_name: String,
}
