//! `backup.kubevirt.io`: backups of the volumes of running machines.

use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Mark from which changed blocks are counted (QEMU: one persistent dirty bitmap per disk).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupCheckpoint {
    /// When the mark was set; changes after it go into the next incremental backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Identifier of the mark, also the name of the dirty bitmaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Volumes the mark covers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<BackupVolumeInfo>,
}

/// Body of the internal `backup` request that starts, exports or aborts a backup job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupOptions {
    /// Certificate, in PEM form, that the guest's pod presents to the export server in pull mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_cert: Option<String>,
    /// Private key, in PEM form, that goes with `backupCert`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_key: Option<String>,
    /// VirtualMachineBackup the request is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_name: Option<String>,
    /// Creation time of the backup; distinguishes two backups of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_start_time: Option<Time>,
    /// CA certificate, in PEM form, with which the pod verifies the export server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
    /// Action: `Start`, `Export` (open a pull-mode backup for reading) or `Abort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// DNS name of the export server's Service, to which the pod connects in pull mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_server_addr: Option<String>,
    /// Host name expected in the export server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_server_name: Option<String>,
    /// Checkpoint from which to save only changed blocks. A full backup when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incremental: Option<String>,
    /// `Push` (QEMU writes files into `targetPath`) or `Pull` (QEMU serves the disks over NBD).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Do not freeze the guest's file systems before the backup point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_quiesce: Option<bool>,
    /// Directory in the pod for the backup files, or for the scratch files in pull mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_path: Option<String>,
}

/// One volume that is part of a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupVolumeInfo {
    /// URL of the volume's contents; pull mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_endpoint: Option<String>,
    /// URL of the list of block ranges that hold data or have changed; pull mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_endpoint: Option<String>,
    /// Volume of the virtual machine, by its name in the spec.
    pub volume_name: String,
}

/// What to back up and where to. Cannot be changed once created.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "backup.kubevirt.io",
    version = "v1alpha1",
    kind = "VirtualMachineBackup",
    plural = "virtualmachinebackups",
    doc = "A backup of the volumes of a running virtual machine.",
    namespaced,
    status = "VirtualMachineBackupStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmbackup",
    shortname = "vmbackups",
    category = "all",
    printcolumn = r#"{"name":"SourceKind","type":"string","jsonPath":".spec.source.kind"}"#,
    printcolumn = r#"{"name":"SourceName","type":"string","jsonPath":".spec.source.name"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".status.type"}"#,
    printcolumn = r#"{"name":"CheckpointName","type":"string","jsonPath":".status.checkpointName"}"#
)]
pub struct VirtualMachineBackupSpec {
    /// Copy all data even if the tracker has a checkpoint for an incremental backup; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force_full_backup: Option<bool>,
    /// `Push` (default) writes into the claim; `Pull` lets a client read through an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Claim for the backup's files in push mode and for scratch space in pull mode; needed in both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc_name: Option<String>,
    /// Do not freeze the guest's file systems first. The backup is then crash-consistent only; false when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_quiesce: Option<bool>,
    /// A VirtualMachine (full backup) or a VirtualMachineBackupTracker (incremental from its latest
    /// checkpoint).
    pub source: TypedLocalObjectReference,
    /// Secret with the token a client presents in pull mode; required there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// Lifetime of a pull-mode backup from its creation; 2 hours when not given. It is then closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_duration: Option<String>,
}

/// Progress and outcome of a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupStatus {
    /// Checkpoint set by this backup, base of the next incremental one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// CA certificate, in PEM form, with which to verify the pull-mode endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_cert: Option<String>,
    /// UID of the export that serves a pull-mode backup; a change means that it was recreated.
    #[serde(rename = "exportUID", default, skip_serializing_if = "Option::is_none")]
    pub export_uid: Option<String>,
    /// Volumes in the backup, with their URLs in pull mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub included_volumes: Vec<BackupVolumeInfo>,
    /// `Full` or `Incremental`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// Which machine's checkpoints are kept.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "backup.kubevirt.io",
    version = "v1alpha1",
    kind = "VirtualMachineBackupTracker",
    plural = "virtualmachinebackuptrackers",
    doc = "Remembers the newest checkpoint of a virtual machine, from which the next incremental backup starts.",
    namespaced,
    status = "VirtualMachineBackupTrackerStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmbackuptracker",
    shortname = "vmbackuptrackers",
    category = "all",
    printcolumn = r#"{"name":"SourceKind","type":"string","jsonPath":".spec.source.kind"}"#,
    printcolumn = r#"{"name":"SourceName","type":"string","jsonPath":".spec.source.name"}"#,
    printcolumn = r#"{"name":"LatestCheckpoint","type":"string","jsonPath":".status.latestCheckpoint.name"}"#,
    printcolumn = r#"{"name":"CheckpointTime","type":"date","jsonPath":".status.latestCheckpoint.creationTime"}"#
)]
pub struct VirtualMachineBackupTrackerSpec {
    /// The machine, of group `kubevirt.io` and kind `VirtualMachine`.
    pub source: TypedLocalObjectReference,
}

/// The newest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupTrackerStatus {
    /// The newest checkpoint; none before the first backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_checkpoint: Option<BackupCheckpoint>,
    /// The machine was started again, and its disks do not have the checkpoint yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_redefinition_required: Option<bool>,
}
