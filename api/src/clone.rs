//! `clone.kubevirt.io`: copies of virtual machines.

use crate::v1::Condition;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to clone, the name of the copy, and the differences between the two.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "clone.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineClone",
    plural = "virtualmachineclones",
    doc = "Makes a virtual machine from another one or from a snapshot.",
    namespaced,
    status = "VirtualMachineCloneStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmclone",
    shortname = "vmclones",
    category = "all",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"SourceVirtualMachine","type":"string","jsonPath":".spec.source.name"}"#,
    printcolumn = r#"{"name":"TargetVirtualMachine","type":"string","jsonPath":".spec.target.name"}"#
)]
pub struct VirtualMachineCloneSpec {
    /// Regular expressions of annotation keys to keep; `!` in front drops the matches. All are kept when not
    /// given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotation_filters: Vec<String>,
    /// Regular expressions of label keys to keep; `!` in front drops the matches. All are kept when not
    /// given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_filters: Vec<String>,
    /// MAC address of the copy's interfaces, by interface name. Those not listed get a fresh one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub new_mac_addresses: BTreeMap<String, String>,
    /// System serial number shown to the copy's guest (QEMU: `-smbios type=1,serial=`); a new one is made
    /// when not given.
    #[serde(rename = "newSMBiosSerial", default, skip_serializing_if = "Option::is_none")]
    pub new_sm_bios_serial: Option<String>,
    /// JSON patches, one per entry, applied to the copy before it is created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<String>,
    /// VirtualMachine (`kubevirt.io`) or VirtualMachineSnapshot (`snapshot.kubevirt.io`) to copy.
    pub source: TypedLocalObjectReference,
    /// VirtualMachine to create. Without it the copy gets a generated name, shown in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TypedLocalObjectReference>,
    /// Filters for labels and annotations under `spec.template.metadata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineCloneTemplateFilters>,
    /// Names of the copy's claims: `RandomizeNames` (default) or `PrefixTargetName` (the copy's name, then
    /// the volume's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name_policy: Option<String>,
}

/// Progress and outcome of a clone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineCloneStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Time of the clone. KubeVirt's own controller leaves it empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// `SnapshotInProgress`, `CreatingTargetVM`, `RestoreInProgress`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Temporary VirtualMachineRestore that builds the copy; emptied once it is cleaned up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_name: Option<String>,
    /// VirtualMachineSnapshot being copied; a temporary one when the source is a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_name: Option<String>,
    /// Name of the copy, generated when the spec gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_name: Option<String>,
}

/// Which labels and annotations of the instance template the copy keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineCloneTemplateFilters {
    /// Regular expressions of template annotation keys to keep; `!` in front drops the matches. All are kept
    /// when not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotation_filters: Vec<String>,
    /// Regular expressions of template label keys to keep; `!` in front drops the matches. All are kept when
    /// not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_filters: Vec<String>,
}
