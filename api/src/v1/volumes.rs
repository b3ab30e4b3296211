//! Volumes: where the contents of disks come from.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Contents for the disk of the same name. Exactly one source is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name of the volume and of its disk; a DNS label.
    pub name: String,
    /// A disk in a container image; writes are lost when the instance ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDiskSource>,
    /// First-boot configuration for cloud-init, as its NoCloud data source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_no_cloud: Option<CloudInitNoCloudSource>,
    /// An empty disk that lives as long as the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<EmptyDiskSource>,
}

/// A disk in a container image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDiskSource {
    /// The image's reference.
    pub image: String,
    /// File in the image, absolute; the only file beneath `/disk` when not given. qcow2 or raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `Always`, `IfNotPresent` or `Never`; by the image's tag when not given, as for any container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Secret of the instance's namespace with the registry's credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
}

/// First-boot configuration for cloud-init. At most one user data and one network data source is given, and at least one
/// of all; inline data is limited to 2048 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInitNoCloudSource {
    /// Secret with user data under the key `userdata` or `userData`, and perhaps network data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalSecret>,
    /// User data, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// User data in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// Secret with network data under the key `networkdata` or `networkData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalSecret>,
    /// Network data, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<String>,
    /// Network data in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data_base64: Option<String>,
}

/// A secret of the instance's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalSecret {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// An empty disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDiskSource {
    /// Its size in bytes, as the guest sees it; it takes space as it is written to.
    pub capacity: Quantity,
}
