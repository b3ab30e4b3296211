//! Volumes: the contents of disks.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, LocalObjectReference};
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
    /// Cloud-init disk in ConfigDrive layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_config_drive: Option<CloudInitConfigDriveSource>,
    /// Contents of a ConfigMap as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolumeSource>,
    /// Directory of the virt-launcher container, shared by virtiofs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_path: Option<ContainerPathVolumeSource>,
    /// Disk on a DataVolume, that is, on a claim CDI fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
    /// Pod fields as files.
    #[serde(rename = "downwardAPI", default, skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardApiVolumeSource>,
    /// Host metrics for the guest on a small disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetricsVolumeSource>,
    /// Claim with a throw-away layer for writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSource>,
    /// Image file on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_disk: Option<HostDisk>,
    /// Claim for a memory dump; added by the system when one is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_dump: Option<MemoryDumpVolumeSource>,
    /// Disk on a PersistentVolumeClaim; writes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// Contents of a Secret as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolumeSource>,
    /// Token of a ServiceAccount as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountVolumeSource>,
    /// Answer files for unattended Windows setup, on a CD-ROM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<SysprepSource>,
}

/// The claim of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeClaim<'a> {
    /// Its name, in the namespace of the instance.
    pub name: &'a str,
    /// Whether the pod mounts it read-only.
    pub is_read_only: bool,
    /// Whether the guest's writes are lost with the instance.
    pub is_ephemeral: bool,
    /// Whether a DataVolume of the same name fills it.
    pub is_filled: bool,
}

impl Volume {
    /// The claim of the volume, if it has one.
    pub fn claim(&self) -> Option<VolumeClaim<'_>> {
        let ephemeral = self.ephemeral.as_ref().and_then(|source| source.persistent_volume_claim.as_ref());
        if let Some(source) = self.persistent_volume_claim.as_ref().or(ephemeral) {
            return Some(VolumeClaim {
                name: &source.claim_name,
                is_read_only: source.read_only.unwrap_or(false),
                is_ephemeral: self.persistent_volume_claim.is_none(),
                is_filled: false,
            });
        }
        self.data_volume.as_ref().map(|source| VolumeClaim {
            name: &source.name,
            is_read_only: false,
            is_ephemeral: false,
            is_filled: true,
        })
    }

    /// Whether the volume can be plugged and unplugged while the guest runs. Such a volume is not part of the
    /// launcher's pod.
    pub fn is_hotpluggable(&self) -> bool {
        let claim = self.persistent_volume_claim.as_ref().and_then(|source| source.hotpluggable);
        let data_volume = self.data_volume.as_ref().and_then(|source| source.hotpluggable);
        claim.or(data_volume).unwrap_or(false)
    }
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
    /// User data in clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// User data in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// Secret with network data under the key `networkdata` or `networkData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalSecret>,
    /// Network data in clear text.
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

/// Cloud-init data on a read-only disk labelled `config-2`, in OpenStack ConfigDrive layout. Give user data
/// in one form and network data in at most one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInitConfigDriveSource {
    /// Network configuration in clear text, at most 2048 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<String>,
    /// Network configuration in base64, at most 2048 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data_base64: Option<String>,
    /// Secret with the network configuration under the key `networkdata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalObjectReference>,
    /// Secret with the user data under the key `userdata`; not limited to 2048 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalObjectReference>,
    /// User data in clear text, such as a `#cloud-config` document; at most 2048 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// User data in base64, at most 2048 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
}

/// Shows a ConfigMap to the guest, one file per key: as a read-only disk, or by virtiofs when listed under
/// filesystems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapVolumeSource {
    /// ConfigMap in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Start the VM even when the ConfigMap does not exist; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Filesystem label of the disk, by which the guest finds it: `cidata`, `config-2` or `OEMDRV` for
    /// instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// Shares a directory of the virt-launcher container with the guest by virtiofs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPathVolumeSource {
    /// Absolute path without `..`, at most 4096 characters, lying inside a volume mount of the compute
    /// container.
    pub path: String,
    /// Always true, which is the default; sharing for writing is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Disk on the claim that a CDI DataVolume fills. The VM waits until the import is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSource {
    /// True when the volume was added at run time and can be removed again; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
    /// DataVolume and, by the same name, its claim, in the namespace of the VMI.
    pub name: String,
}

/// Shows pod fields to the guest as files: on a read-only disk, or by virtiofs when listed under filesystems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownwardApiVolumeSource {
    /// Files to write, each from a pod field such as `metadata.labels`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<DownwardAPIVolumeFile>,
    /// Filesystem label of the disk, by which the guest finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// Small read-only disk with host metrics in vhostmd format, refreshed while the guest runs. No settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownwardMetricsVolumeSource {}

/// Copy-on-write layer over a claim: the claim stays untouched and all writes are lost when the VMI ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralVolumeSource {
    /// Claim used read-only as the backing image of a qcow2 overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
}

/// Raw disk image on the node's own filesystem. Ties the VM to that node unless shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDisk {
    /// Size of the sparse image to create, such as `10Gi`; only allowed with type `DiskOrCreate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Absolute path of the image file on the node.
    pub path: String,
    /// True when all nodes see the same file under this path, so that migration copies nothing. False by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// `Disk` wants an existing image, `DiskOrCreate` makes one when it is missing.
    pub type_: String,
}

/// Longest path on Linux, in bytes.
const PATH_LIMIT: usize = 4095;
const FILE_LIMIT: usize = 255;

impl HostDisk {
    /// The type of a disk whose image is created if it is missing.
    pub const OR_CREATE: &str = "DiskOrCreate";
    /// The type of a disk whose image exists.
    pub const EXISTS: &str = "Disk";

    /// Directory of the image on the node and its file name; `None` if the path is not a file's path in its
    /// shortest form.
    pub fn place(&self) -> Option<(&str, &str)> {
        let is_name = |part: &str| {
            !matches!(part, "" | "." | "..") && part.len() <= FILE_LIMIT && !part.contains(char::is_control)
        };
        let beneath = self.path.strip_prefix('/')?;
        if self.path.len() > PATH_LIMIT || !beneath.split('/').all(is_name) {
            return None;
        }
        let (directory, file) = self.path.rsplit_once('/')?;
        Some((if directory.is_empty() { "/" } else { directory }, file))
    }

    /// Whether the image is created if it is missing.
    pub fn makes(&self) -> bool {
        self.type_ == Self::OR_CREATE
    }
}

/// Claim mounted to receive a memory dump; it is not a disk of the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryDumpVolumeSource {
    /// PersistentVolumeClaim of mode `Filesystem`, in the namespace of the VMI.
    pub claim_name: String,
    /// True when the claim was attached at run time, the usual case for dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
    /// Mount for reading only; false by default, and a dump needs false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Disk on a PersistentVolumeClaim: the device itself in mode `Block`, the file `disk.img` in mode
/// `Filesystem`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaimVolumeSource {
    /// PersistentVolumeClaim in the namespace of the VMI.
    pub claim_name: String,
    /// True when the volume was added at run time and can be removed again; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotpluggable: Option<bool>,
    /// Mount the claim in the pod for reading only; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Shows a Secret to the guest, one file per key: as a read-only disk, or by virtiofs when listed under
/// filesystems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretVolumeSource {
    /// Start the VM even when the Secret does not exist; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Secret in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// Filesystem label of the disk, by which the guest finds it: `cidata`, `config-2` or `OEMDRV` for
    /// instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_label: Option<String>,
}

/// Shows the token of a ServiceAccount to the guest: as a read-only disk, or by virtiofs. At most one per
/// VMI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountVolumeSource {
    /// ServiceAccount in the namespace of the VMI; the pod runs under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// CD-ROM labelled `unattendCD` with Windows answer files; the source needs `autounattend.xml` or
/// `unattend.xml`. Set one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SysprepSource {
    /// ConfigMap with the answer files, one per key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<LocalObjectReference>,
    /// Secret with the answer files, one per key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<LocalObjectReference>,
}

/// Claim mounted into the virt-launcher pod for an operation such as a backup; the guest does not see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UtilityVolume {
    /// PersistentVolumeClaim in the namespace of the VMI.
    pub claim_name: String,
    /// Unique among utility volumes and ordinary volumes of the VMI.
    pub name: String,
    /// Mount for reading only; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Purpose: `Backup` or `MemoryDump`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}
