//! `export.kubevirt.io`: downloads of volumes and manifests.

use crate::v1::Condition;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One volume of a pull-mode backup, open for reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportBackup {
    /// URLs for the volume's data and its map of blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<VirtualMachineExportBackupEndpoint>,
    /// Volume of the virtual machine, by its name in the spec.
    pub name: String,
}

/// One URL of a pull-mode backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportBackupEndpoint {
    /// What the URL serves: `data` (the contents) or `map` (which block ranges hold data or have changed).
    pub endpoint: String,
    /// Address to read from, with the export's token.
    pub url: String,
}

/// Download addresses as seen from one side, in the cluster or outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportLink {
    /// Volumes of a pull-mode backup with their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<VirtualMachineExportBackup>,
    /// CA certificate, in PEM form, with which to verify the server behind the URLs.
    pub cert: String,
    /// Addresses that serve Kubernetes manifests for recreating the source elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<VirtualMachineExportManifest>,
    /// Volumes for download, with one address per format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VirtualMachineExportVolume>,
}

/// Download addresses, by where the client is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportLinks {
    /// Addresses for clients outside the cluster, through an Ingress or Route; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<VirtualMachineExportLink>,
    /// Addresses for clients inside the cluster, through the export's Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<VirtualMachineExportLink>,
}

/// One address that serves manifests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportManifest {
    /// `all` (every object but the token secret), `auth-header-secret` (the token as a secret for importing)
    /// or `oci` (an OCI image layout as a tar).
    pub type_: String,
    /// Address to fetch from, with the export's token.
    pub url: String,
}

/// What to offer for download, the token that guards it and for how long.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "export.kubevirt.io",
    version = "v1",
    kind = "VirtualMachineExport",
    plural = "virtualmachineexports",
    doc = "Makes the volumes and the manifest of a virtual machine available for download.",
    namespaced,
    status = "VirtualMachineExportStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmexport",
    shortname = "vmexports",
    category = "all",
    printcolumn = r#"{"name":"SourceKind","type":"string","jsonPath":".spec.source.kind"}"#,
    printcolumn = r#"{"name":"SourceName","type":"string","jsonPath":".spec.source.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#
)]
pub struct VirtualMachineExportSpec {
    /// Object to export: a VirtualMachine, VirtualMachineSnapshot, PersistentVolumeClaim or
    /// VirtualMachineBackup.
    pub source: TypedLocalObjectReference,
    /// Secret of the same namespace with the download token under the key `token`. One is generated when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// Lifetime counted from creation, as a duration such as `30m`; 2 hours when not given. The export is
    /// deleted afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_duration: Option<String>,
}

/// State of an export and the addresses to download from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Download addresses, filled in while the export is `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<VirtualMachineExportLinks>,
    /// `Pending`, `Ready`, `Terminated` or `Skipped` (there is nothing that could be served).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Service in front of the export server, used in the internal addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Secret that holds the download token, either given or generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// When the export will be deleted: creation plus its lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_expiration_time: Option<Time>,
    /// Virtual machine the data comes from, when the source is one or a snapshot of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_name: Option<String>,
}

/// One volume for download.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportVolume {
    /// Formats on offer, each with its address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<VirtualMachineExportVolumeFormat>,
    /// Name of the volume; usually the claim it is stored in.
    pub name: String,
}

/// One way to download a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineExportVolumeFormat {
    /// `raw` (disk image), `gzip` (compressed disk image), `dir` (browsable directory) or `tar.gz` (archive
    /// of the directory).
    pub format: String,
    /// Address to download from, with the export's token.
    pub url: String,
}
