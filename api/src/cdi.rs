//! `cdi.kubevirt.io`: claims that are filled with data. CDI's controller fills them, or our own in clusters
//! without CDI.

pub mod annotation;
mod config;
mod data_source;
mod definition;
mod import_cron;
mod populator;
mod status;
mod storage_profile;

pub use config::{
    CONFIG, CONFIG_DEFINITION, CONFIG_KIND, CdiConfig, CdiConfigSpec, CdiConfigStatus, FilesystemOverhead,
    ImportProxy, TlsSecurityProfile, WAITS_FOR_CONSUMER, config_definition,
};
pub use data_source::{
    DataSource, DataSourceRefSourceDataSource, DataSourceSource, DataSourceSpec, DataSourceStatus,
    data_source_definition,
};
pub use definition::definition;
pub use import_cron::{
    DESIRED_DIGEST, DataImportCron, DataImportCronSpec, DataImportCronStatus, IMPORT_CRON,
    IMPORT_CRON_CLEANUP_LABEL, IMPORT_CRON_DEFINITION, IMPORT_CRON_LABEL, ImportStatus, LAST_CRON_TIME,
    LAST_USE_TIME, NEXT_CRON_TIME, import_cron_definition,
};
pub use populator::{
    CLONE_SOURCE, CLONE_SOURCE_DEFINITION, IMPORT_SOURCE, IMPORT_SOURCE_DEFINITION, ImportSourceType,
    PopulatorKind, PopulatorStatus, UPLOAD_SOURCE, UPLOAD_SOURCE_DEFINITION, VolumeCloneSource,
    VolumeCloneSourceSpec, VolumeImportSource, VolumeImportSourceSpec, VolumeUploadSource,
    VolumeUploadSourceSpec, clone_source_definition, import_source_definition, populator, prime_name,
    upload_source_definition,
};
pub use status::{DataVolumeCondition, DataVolumeStatus};
pub use storage_profile::{
    ClaimPropertySet, STORAGE_PROFILE, STORAGE_PROFILE_DEFINITION, StorageProfile, StorageProfileSpec,
    StorageProfileStatus, storage_profile_definition,
};

use crate::names::{MANAGED_BY_LABEL, OPERATOR};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::{ApiResource, GroupVersionKind};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The group.
pub const GROUP: &str = "cdi.kubevirt.io";
/// The group of requests for tokens of uploads.
pub const UPLOAD_GROUP: &str = "upload.cdi.kubevirt.io";
/// The only version of that group.
pub const UPLOAD_VERSION: &str = "v1beta1";

/// Name of the definition of DataVolumes.
pub const DATA_VOLUME_DEFINITION: &str = "datavolumes.cdi.kubevirt.io";
/// Name of the definition of DataSources.
pub const DATA_SOURCE_DEFINITION: &str = "datasources.cdi.kubevirt.io";
/// Name of the definition of the kind that configures CDI's operator. CDI is installed if this definition
/// exists.
pub const CDI_DEFINITION: &str = "cdis.cdi.kubevirt.io";

/// Whether the labels of a definition of the group say that virt-operator made it, in a cluster without CDI.
#[must_use]
pub fn is_own_definition(labels: &BTreeMap<String, String>) -> bool {
    labels.get(MANAGED_BY_LABEL).is_some_and(|by| by == OPERATOR)
}

/// The kind of claims that are filled with data.
pub const DATA_VOLUME: &str = "DataVolume";
/// The kind of named sources to copy; the only kind that a `sourceRef` may name.
pub const DATA_SOURCE: &str = "DataSource";

/// Objects of one of the group's kinds, in the version that its clients use.
#[must_use]
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1beta1", kind))
}

/// The source that a DataSource, as the API server returns it, stands for: a member `pvc` or `snapshot` if it
/// is valid. If it names another DataSource, its status has the source that the other one stands for.
#[must_use]
pub fn stands_for(data_source: &Value) -> &Value {
    let said = &data_source["spec"]["source"];
    if said["dataSource"].is_object() { &data_source["status"]["source"] } else { said }
}

/// An empty raw disk. It takes no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeBlankImage {}

/// One step of a warm import: the changes between two snapshots of the source disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeCheckpoint {
    /// Identifier of the snapshot this step copies up to.
    pub current: String,
    /// Identifier of the snapshot the step before ended at; empty for the first, which copies the whole disk.
    pub previous: String,
}

/// Where the contents of a volume come from. Exactly one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSource {
    /// Starts with an empty disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank: Option<DataVolumeBlankImage>,
    /// Downloads the image from Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<DataVolumeSourceGcs>,
    /// Downloads the image from a web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<DataVolumeSourceHttp>,
    /// Fetches a disk from oVirt through its ImageIO service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imageio: Option<DataVolumeSourceImageIo>,
    /// Clones another claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<DataVolumeSourcePvc>,
    /// Takes the disk out of a container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<DataVolumeSourceRegistry>,
    /// Downloads the image from an S3 bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<DataVolumeSourceS3>,
    /// Restores from a VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<DataVolumeSourceSnapshot>,
    /// Waits for a client to send the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<DataVolumeSourceUpload>,
    /// Copies a disk from VMware vCenter or ESXi with the VDDK library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vddk: Option<DataVolumeSourceVddk>,
}

/// An image in Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceGcs {
    /// Secret that holds the service account's credentials; none is needed for a public bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Address of the object, such as `gs://bucket/disk.qcow2`.
    pub url: String,
}

/// An image on a web server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceHttp {
    /// ConfigMap with PEM certificates of authorities to trust for `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// `algorithm:digest` that the file must have as the server sends it: `md5`, `sha1`, `sha256` or `sha512`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Header lines sent with each request, each written `Name: value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_headers: Vec<String>,
    /// When true the server's certificate is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure_skip_verify: Option<bool>,
    /// Secrets that hold further header lines, for values such as tokens that must stay private.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_extra_headers: Vec<String>,
    /// Secret for basic authentication: keys `accessKeyId` (user) and `secretKey` (password).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Address of the image, `http://` or `https://`.
    pub url: String,
}

/// A disk in oVirt, fetched through ImageIO.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceImageIo {
    /// ConfigMap with the engine's certificate authority in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// Identifier oVirt gives the disk.
    pub disk_id: String,
    /// When true the engine's certificate is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure_skip_verify: Option<bool>,
    /// Secret with the engine login: keys `accessKeyId` (user) and `secretKey` (password).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Address of the oVirt engine's API.
    pub url: String,
}

/// A claim to clone from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourcePvc {
    /// Claim to clone.
    pub name: String,
    /// Where that claim lives. Cloning from another namespace needs permission there.
    pub namespace: String,
}

/// Points to a DataSource, which in turn says where the contents are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceRef {
    /// Kind of the object to follow: `DataSource`.
    pub kind: String,
    /// DataSource to follow.
    pub name: String,
    /// Where the DataSource lives; the DataVolume's own namespace when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A container image with a disk inside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceRegistry {
    /// ConfigMap with PEM certificates of authorities to trust for the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// OpenShift image stream to use instead of `url`. Goes with `pullMethod` `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_stream: Option<String>,
    /// Chooses among the variants of a multi-platform image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformOptions>,
    /// Who pulls the image: `pod` (default), the importer itself, or `node`, the node's container runtime
    /// with its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_method: Option<String>,
    /// Secret for the registry: keys `accessKeyId` (user) and `secretKey` (password).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Address of the image, starting with `docker://` or `oci-archive://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// An image in an S3 bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceS3 {
    /// ConfigMap with PEM certificates of authorities to trust for the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// Secret with the S3 credentials: `accessKeyId` and `secretKey`. None is needed for a public object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Address of the object, endpoint and bucket included.
    pub url: String,
}

/// A VolumeSnapshot to restore from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceSnapshot {
    /// VolumeSnapshot to restore.
    pub name: String,
    /// Where that VolumeSnapshot lives.
    pub namespace: String,
}

/// Contents sent by a client, for example `virtctl image-upload`. It takes no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceUpload {}

/// A VMware disk, read through the VDDK library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSourceVddk {
    /// Path of the disk on its datastore, such as `[store] vm/vm.vmdk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing_file: Option<String>,
    /// ConfigMap with more arguments for the VDDK library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_args: Option<String>,
    /// Container image that carries the VDDK library; replaces the one set for the cluster in ConfigMap
    /// `v2v-vmware`.
    #[serde(rename = "initImageURL", default, skip_serializing_if = "Option::is_none")]
    pub init_image_url: Option<String>,
    /// Secret with the login for vCenter or ESXi: keys `accessKeyId` (user) and `secretKey` (password).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Fingerprint that the server's TLS certificate must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thumbprint: Option<String>,
    /// Address of vCenter or of the ESXi host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// UUID of the VMware VM that owns the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// A claim to create and the contents to fill it with.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "DataVolume",
    plural = "datavolumes",
    doc = "A claim and the source of its contents.",
    namespaced,
    status = "DataVolumeStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "dv",
    shortname = "dvs",
    category = "all",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Progress","type":"string","jsonPath":".status.progress"}"#,
    printcolumn = r#"{"name":"Restarts","type":"integer","jsonPath":".status.restartCount"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct DataVolumeSpec {
    /// Steps of a warm import, in the order they are copied. Only for `imageio` and `vddk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<DataVolumeCheckpoint>,
    /// `kubevirt` (default) for a disk image, or `archive` for a tar file that is unpacked into the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// When true the last entry of `checkpoints` ends the import; otherwise more steps are awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_checkpoint: Option<bool>,
    /// Whether all space is reserved up front instead of on first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
    /// Priority class of the pods that import, clone or receive the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Full claim as Kubernetes has it. Excludes `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PersistentVolumeClaimSpec>,
    /// Origin of the contents. Excludes `sourceRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DataVolumeSource>,
    /// ServiceAccount of the pods that import or receive the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Indirect origin by way of a DataSource. Excludes `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<DataVolumeSourceRef>,
    /// Claim whose gaps are filled from the storage class's StorageProfile. Excludes `pvc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
}

/// Platform that a container image is picked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformOptions {
    /// CPU architecture to pull, for example `amd64` or `arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// A claim that may be left partly open; the StorageProfile of the class supplies the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany` or `ReadWriteOncePod`. Live migration needs
    /// `ReadWriteMany`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// VolumeSnapshot or claim in the same namespace that the provisioner copies from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source: Option<TypedLocalObjectReference>,
    /// As `dataSource`, but also for objects of a volume populator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedObjectReference>,
    /// Size of the volume, in `requests.storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<VolumeResourceRequirements>,
    /// Labels an existing PersistentVolume must carry to be bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Storage class of the claim; the cluster's default when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// `Block`, `Filesystem` or `FromStorageProfile`. The last takes what the class's StorageProfile advises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// PersistentVolume to bind, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}
