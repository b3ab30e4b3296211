//! `VirtualMachine`: a machine that can be started and stopped.

use super::{
    ChangedBlockTrackingStatus, Condition, DataVolumeSource, Disk, PersistentVolumeClaimVolumeSource,
    StorageMigratedVolumeInfo, VirtualMachineInstanceSpec,
};
use crate::cdi::DataVolumeSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When the machine runs, and the instance that runs then. Exactly one of `running` and `runStrategy` is
/// given.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    plural = "virtualmachines",
    doc = "A virtual machine that can be started and stopped; each run is a VirtualMachineInstance of the same name.",
    namespaced,
    status = "VirtualMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vm",
    shortname = "vms",
    category = "all",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Status","description":"Human Readable Status","type":"string","jsonPath":".status.printableStatus"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#
)]
pub struct VirtualMachineSpec {
    /// The older form of `runStrategy`: true means `Always`, false means `Halted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// `Always`: runs, and is started again whenever it ends. `RerunOnFailure`: started again only after a
    /// failure. `Once`: started once, and not again. `Halted`: does not run. `Manual`: only the start, stop
    /// and restart commands decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    /// Template of the instance.
    pub template: VirtualMachineInstanceTemplateSpec,
    /// DataVolumes to create for this VM; volumes refer to them by name. They are deleted with the VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_volume_templates: Vec<DataVolumeTemplateSpec>,
    /// Instance type that sets CPU and memory. The template must not set the same fields itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeMatcher>,
    /// Preference whose values fill in what the template leaves open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceMatcher>,
    /// What a changed volume list means: `Replacement` (default) swaps volumes at the next start, `Migration`
    /// copies data to the new claims while the VM runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_volumes_strategy: Option<String>,
}

impl VirtualMachineSpec {
    /// The run strategy that `running` or `runStrategy` stands for; `None` if neither is given.
    pub fn effective_run_strategy(&self) -> Option<&str> {
        match (&self.run_strategy, self.running) {
            (Some(strategy), _) => Some(strategy),
            (None, Some(true)) => Some(crate::names::RUN_STRATEGY_ALWAYS),
            (None, Some(false)) => Some(crate::names::RUN_STRATEGY_HALTED),
            (None, None) => None,
        }
    }
}

/// Template of an instance: its metadata and specification.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceTemplateSpec {
    /// Labels and annotations for the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Specification of the instance.
    #[serde(default)]
    pub spec: VirtualMachineInstanceSpec,
}

/// Observed state of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// Whether its instance exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
    /// Whether its instance runs and is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// One word for users, such as `Running` or `Stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Commands that the controller has not carried out yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Failed starts in a row, for the back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// Generation that the running instance was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The run strategy last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    /// Whether changed blocks are tracked for incremental backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
    /// Instance type in use, with its stored revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instancetype_ref: Option<InstancetypeStatusRef>,
    /// Latest memory dump request and its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_dump_request: Option<VirtualMachineMemoryDumpRequest>,
    /// Preference in use, with its stored revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference_ref: Option<InstancetypeStatusRef>,
    /// VirtualMachineRestore now writing to this VM; the VM cannot start meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_in_progress: Option<String>,
    /// VirtualMachineSnapshot now being taken of this VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_in_progress: Option<String>,
    /// Hotplug and unplug requests not yet carried into the template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_requests: Vec<VirtualMachineVolumeRequest>,
    /// For each volume, whether a snapshot can include it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
    /// Progress of a change to the volume list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_update_state: Option<VolumeUpdateState>,
}

/// A command for the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// `Start` or `Stop`.
    pub action: String,
    /// Details of the command.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Instance that a stop is meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Failed starts in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailure {
    /// Number of failed starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive_fail_count: Option<i32>,
    /// The instance that failed last.
    #[serde(rename = "lastFailedVMIUID", default, skip_serializing_if = "Option::is_none")]
    pub last_failed_vmi_uid: Option<String>,
    /// When the next start is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_timestamp: Option<Time>,
}

/// Body of the `addvolume` subresource: a volume to plug into a VM, and the disk that shows it to the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddVolumeOptions {
    /// Disk device for the volume: bus, serial, cache and so on. Becomes `blockdev-add` and `device_add`.
    pub disk: Disk,
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Name given to both the volume and its disk; a name inside `disk` is ignored.
    pub name: String,
    /// Storage to plug in: a PersistentVolumeClaim or a DataVolume.
    pub volume_source: HotplugVolumeSource,
}

/// Points to a ControllerRevision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerRevisionRef {
    /// ControllerRevision to use, in the namespace of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Empty object kept for compatibility with old clients. Has no effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeTemplateDummyStatus {}

/// DataVolume created together with the VM and deleted with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeTemplateSpec {
    /// Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Metadata of the DataVolume; the name is required, and a volume of the machine must use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Contents of the DataVolume, and its storage.
    pub spec: DataVolumeSpec,
    /// Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DataVolumeTemplateDummyStatus>,
}

impl DataVolumeTemplateSpec {
    /// Name of the DataVolume; empty if none is given.
    pub fn name(&self) -> &str {
        self.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default()
    }
}

/// Storage that can be plugged into a running VM; set exactly one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotplugVolumeSource {
    /// DataVolume to attach, by way of the claim it fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
    /// PersistentVolumeClaim to attach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
}

/// Selects the instance type that gives the VM its CPU, memory and related sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstancetypeMatcher {
    /// Volume whose DataVolume or claim names the instance type in the label
    /// `instancetype.kubevirt.io/default-instancetype`. Replaced by `name` once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// When inference fails: `Reject` (default) refuses the VM, `Ignore` goes on without an instance type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
    /// `VirtualMachineClusterInstancetype` (default) or `VirtualMachineInstancetype`; also the plural, in any
    /// case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Instance type to use, of the given kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// ControllerRevision that pins the contents of the instance type; filled in when the VM is first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
}

/// Instance type or preference that the VM uses at present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstancetypeStatusRef {
    /// Stored copy of the instance type or preference, which later edits do not touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_revision_ref: Option<ControllerRevisionRef>,
    /// Volume from which the name was inferred, when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// Policy in force for a failed inference: `Reject` or `Ignore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
    /// Kind of the instance type or preference, as the VM gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Instance type or preference in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Selects the preference that supplies defaults for devices, firmware and CPU topology.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreferenceMatcher {
    /// Volume whose DataVolume or claim names the preference in the label
    /// `instancetype.kubevirt.io/default-preference`. Replaced by `name` once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume: Option<String>,
    /// When inference fails: `Reject` (default) refuses the VM, `Ignore` goes on without a preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
    /// `VirtualMachineClusterPreference` (default) or `VirtualMachinePreference`; also the plural, in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Preference to use, of the given kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// ControllerRevision that pins the contents of the preference; filled in when the VM is first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
}

/// Body of the `removevolume` subresource: a hotplugged volume to unplug.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoveVolumeOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Volume to unplug together with its disk. Becomes `device_del` and `blockdev-del`.
    pub name: String,
}

/// Requested memory dump of a VM, and its progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineMemoryDumpRequest {
    /// PersistentVolumeClaim that receives the dump file; it has to be of mode `Filesystem`.
    pub claim_name: String,
    /// When the dump finished or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    /// File written on the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// Why the dump failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Progress: `Associating`, `InProgress`, `Unmounting`, `Completed`, `Dissociating` or `Failed`.
    pub phase: String,
    /// True when the claim is to be detached from the VM; the dump file stays on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,
    /// When QEMU began to write (`dump-guest-memory`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
}

/// One pending volume change; exactly one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineVolumeRequest {
    /// Volume to plug in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_volume_options: Option<AddVolumeOptions>,
    /// Volume to unplug.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_volume_options: Option<RemoveVolumeOptions>,
}

/// Volumes being moved to other claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMigrationState {
    /// Each moving volume with its old and its new claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
}

/// Tells whether one volume can be snapshotted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// True when the storage behind the volume has a usable VolumeSnapshotClass.
    pub enabled: bool,
    /// Volume, as named in the VM template.
    pub name: String,
    /// Why snapshots are not possible; empty when they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Progress of changes made to the volume list of a running VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeUpdateState {
    /// Volumes on the move under the strategy `Migration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_migration_state: Option<VolumeMigrationState>,
}
