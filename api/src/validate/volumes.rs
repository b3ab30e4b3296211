//! Rules for volumes and their sources.

use super::memory::not_negative;
use super::supported::given;
use super::{Cause, CauseKind, Path, cloud_init, firmware, object_volumes};
use crate::filesystem::private_prefix;
use crate::gates::Gates;
use crate::syntax::{DNS_LABEL, is_dns_label, is_dns_subdomain, quoted};
use crate::v1::{
    ContainerDiskSource, HostDisk, PersistentVolumeClaimVolumeSource, VirtualMachineInstanceSpec, Volume,
};
use std::collections::{HashMap, HashSet};

/// The names of volumes become parts of container and pod volume names (`volume<name>`, `<name>-udata`),
/// which are DNS labels.
const NAME_LIMIT: usize = 57;
/// Largest empty disk: the limit of qcow2 with its usual cluster size is 2 PiB.
const EMPTY_DISK_LIMIT: u64 = 1 << 50;
/// Longest path of a directory of the launcher's container, in characters.
const CONTAINER_PATH_LIMIT: usize = 4096;

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let field = path.child("volumes");
    let devices = &spec.domain.devices;
    let disks: HashSet<&str> = devices.disks.iter().map(|disk| disk.name.as_str()).collect();
    let filesystems: HashSet<&str> = devices.filesystems.iter().map(|shared| shared.name.as_str()).collect();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let name = volume.name.as_str();
        let field_volume = field.index(index);
        let field_name = field_volume.child("name");
        match first.get(name) {
            Some(earlier) => causes.push(Cause::invalid(
                &field_name,
                format!("{field_volume} and {} must not have the same Name.", field.index(*earlier)),
            )),
            None => {
                first.insert(name, index);
            }
        }
        // If a disk has the same name, the cause is at the disk.
        let label = is_dns_label(name) || (disks.contains(name) && !name.is_empty());
        if !label || name.len() > NAME_LIMIT {
            causes.push(Cause::invalid(
                &field_name,
                format!("{field_name} '{}' is not {DNS_LABEL}, or longer than {NAME_LIMIT}", quoted(name)),
            ));
        }
        source(&field_volume, volume, causes);
        container_path(&field_volume, volume, disks.contains(name), filesystems.contains(name), causes);
    }
    at_most_one(&field, &spec.volumes, causes);
    // While the gate is off, the cause about the gate is enough.
    if !spec.utility_volumes.is_empty() && gates.is_on("UtilityVolumes") {
        causes.push(Cause::invalid(
            &path.child("utilityVolumes"),
            "cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug",
        ));
    }
    shared(path, spec, gates, causes);
}

/// Kinds of volumes that an instance can have only once.
fn at_most_one(field: &Path, volumes: &[Volume], causes: &mut Vec<Cause>) {
    let count = |is: fn(&Volume) -> bool| volumes.iter().filter(|volume| is(volume)).count();
    for (count, what) in [
        (count(|volume| volume.service_account.is_some()), "serviceAccount"),
        (count(|volume| volume.downward_metrics.is_some()), "downwardMetric"),
        (count(|volume| volume.memory_dump.is_some()), "memory dump"),
    ] {
        if count > 1 {
            causes.push(Cause::invalid(field, format!("{field} must have max one {what} volume set")));
        }
    }
}

/// Sharing a claim as a directory needs a gate.
fn shared(path: &Path, spec: &VirtualMachineInstanceSpec, gates: &Gates, causes: &mut Vec<Cause>) {
    const GATE: &str = "EnableVirtioFsStorageVolumes";
    let is_claim = |volume: &Volume| volume.persistent_volume_claim.is_some() || volume.data_volume.is_some();
    let claims = |name: &str| spec.volumes.iter().any(|volume| volume.name == name && is_claim(volume));
    if !gates.is_on(GATE) && spec.domain.devices.filesystems.iter().any(|shared| claims(&shared.name)) {
        causes.push(Cause::invalid(
            &path.child("domain.devices.filesystems"),
            format!("virtiofs is not allowed: virtiofs feature gate is not enabled for PVC: {GATE}"),
        ));
    }
}

/// A directory of the launcher's container that is shared unchanged. It must not be one of Barevirt's own.
fn container_path(
    field: &Path,
    volume: &Volume,
    on_disk: bool,
    as_filesystem: bool,
    causes: &mut Vec<Cause>,
) {
    let Some(source) = &volume.container_path else { return };
    let name = quoted(&volume.name);
    if on_disk {
        causes.push(Cause::invalid(
            field,
            format!("ContainerPath volume '{name}' must be mapped to a filesystem, not a disk"),
        ));
    }
    if !as_filesystem {
        causes.push(Cause::invalid(
            field,
            format!(
                "ContainerPath volume '{name}' must have a matching filesystem defined in spec.domain.devices.filesystems"
            ),
        ));
    }
    let field_path = field.child("containerPath.path");
    if let Some(prefix) = private_prefix(&source.path) {
        causes.push(Cause::invalid(
            &field_path,
            format!("ContainerPath volume '{name}' uses reserved path prefix '{prefix}'"),
        ));
    }
    // KubeVirt has these rules in its CustomResourceDefinition.
    let wrong = if !source.path.starts_with('/') {
        Some("path must be absolute (start with '/')".to_owned())
    } else if source.path.contains("..") {
        Some("path must not contain '..'".to_owned())
    } else if source.path.chars().count() > CONTAINER_PATH_LIMIT {
        Some(format!("path must have at most {CONTAINER_PATH_LIMIT} characters"))
    } else {
        None
    };
    causes.extend(wrong.map(|why| Cause::invalid(&field_path, why)));
    if source.read_only == Some(false) {
        causes.push(Cause::invalid(
            &field.child("containerPath.readOnly"),
            "readOnly must be true, write access is not supported",
        ));
    }
}

fn source(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    let count = given(volume).iter().filter(|name| *name != "name").count();
    if count != 1 {
        causes.push(Cause::invalid(field, format!("{field} must have exactly one source type set")));
    }
    if let Some(source) = &volume.container_disk {
        container(&field.child("containerDisk"), source, causes);
    }
    cloud_init::validate(field, volume, causes);
    if let Some(source) = &volume.empty_disk {
        let field = field.child("emptyDisk.capacity");
        match not_negative(&field, Some(&source.capacity), causes) {
            Some(0) => causes.push(Cause::invalid(&field, format!("{field} must be greater than 0"))),
            Some(bytes) if bytes > EMPTY_DISK_LIMIT => {
                causes.push(Cause::invalid(
                    &field,
                    format!("{field} '{}' is more than 1Pi", quoted(&source.capacity.0)),
                ));
            }
            _ => {}
        }
    }
    if let Some(source) = &volume.host_disk {
        host_disk(&field.child("hostDisk"), source, causes);
    }
    if volume.data_volume.as_ref().is_some_and(|source| source.name.is_empty()) {
        causes.push(Cause::required(&field.child("dataVolume.name"), "DataVolume 'name' must be set"));
    }
    claim(field, volume, causes);
    object_volumes::validate(field, volume, causes);
}

/// The name of a claim must be valid. As in KubeVirt, it may have capital letters, though no claim can have such a name: the
/// instance then says that it waits for the claim.
fn claim(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    let ephemeral = volume.ephemeral.as_ref().map(|source| source.persistent_volume_claim.as_ref());
    if ephemeral == Some(None) {
        let field = field.child("ephemeral.persistentVolumeClaim");
        causes.push(Cause::required(&field, format!("{field} is a required field")));
    }
    let claim =
        |source: Option<&'_ PersistentVolumeClaimVolumeSource>| source.map(|on| on.claim_name.clone());
    let sources = [
        ("persistentVolumeClaim.claimName", claim(volume.persistent_volume_claim.as_ref())),
        ("ephemeral.persistentVolumeClaim.claimName", claim(ephemeral.flatten())),
        // KubeVirt has its own message for an empty name.
        (
            "dataVolume.name",
            volume.data_volume.as_ref().map(|on| on.name.clone()).filter(|name| !name.is_empty()),
        ),
    ];
    for (name, source) in sources {
        let field = field.child(name);
        match source.as_deref() {
            Some("") => causes.push(Cause::required(&field, format!("{field} is a required field"))),
            Some(claim) if !is_dns_subdomain(&claim.to_ascii_lowercase()) => causes.push(Cause::invalid(
                &field,
                format!("{field} '{}' is not the name of a claim", quoted(claim)),
            )),
            _ => {}
        }
    }
}

fn host_disk(field: &Path, source: &HostDisk, causes: &mut Vec<Cause>) {
    const EXISTS: &str = HostDisk::EXISTS;
    const OR_CREATE: &str = HostDisk::OR_CREATE;
    let (field_path, field_type) = (field.child("path"), field.child("type"));
    if source.path.is_empty() {
        causes.push(Cause::new(
            CauseKind::NotFound,
            &field_path,
            format!("{field_path} is required for hostDisk volume"),
        ));
    } else if source.place().is_none() {
        causes.push(Cause::invalid(
            &field_path,
            format!(
                "{field_path} '{}' is not the absolute path of a file, without '.', '..' and empty parts",
                quoted(&source.path)
            ),
        ));
    }
    if !matches!(source.type_.as_str(), EXISTS | OR_CREATE) {
        causes.push(Cause::invalid(
            &field_type,
            format!(
                "{field_type} has invalid value '{}', allowed are '{EXISTS}' or '{OR_CREATE}'",
                quoted(&source.type_)
            ),
        ));
    }
    let field_capacity = field.child("capacity");
    let capacity = not_negative(&field_capacity, source.capacity.as_ref(), causes);
    if source.type_ == EXISTS && capacity.is_some_and(|bytes| bytes > 0) {
        causes.push(Cause::invalid(
            &field_capacity,
            format!("{field_capacity} is allowed to pass only with {field_type} equal to '{OR_CREATE}'"),
        ));
    }
}

fn container(field: &Path, source: &ContainerDiskSource, causes: &mut Vec<Cause>) {
    let field_image = field.child("image");
    if source.image.is_empty() {
        causes.push(Cause::required(&field_image, format!("{field_image} is a required field")));
    } else if source.image.len() > 1024 || source.image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        causes.push(Cause::invalid(
            &field_image,
            format!("{field_image} '{}' is not an image reference", quoted(&source.image)),
        ));
    }
    if let Some(path) = source.path.as_deref().filter(|path| !path.is_empty()) {
        firmware::file(field, path, causes);
    }
    if let Some(policy) = source.image_pull_policy.as_deref()
        && !matches!(policy, "" | "Always" | "IfNotPresent" | "Never")
    {
        let field = field.child("imagePullPolicy");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} has invalid value {}, allowed are Always, IfNotPresent and Never",
                quoted(policy)
            ),
        ));
    }
    if let Some(secret) =
        source.image_pull_secret.as_deref().filter(|name| !name.is_empty() && !is_dns_subdomain(name))
    {
        let field = field.child("imagePullSecret");
        causes.push(Cause::invalid(
            &field,
            format!("{field} '{}' is not the name of a secret", quoted(secret)),
        ));
    }
}
