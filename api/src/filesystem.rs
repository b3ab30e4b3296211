//! Directories that a guest mounts by virtiofs: each is served by a virtiofsd in its own container, which has
//! this volume and nothing else.
//!
//! ```text
//!  volume ─ kubelet ─► directory of container virtiofs-<volume> ─ virtiofsd ─► SOCKETS/<volume>.sock ─ launcher ─► QEMU ─► guest
//! ```
//!
//! Names and paths are KubeVirt's, except the path of claims: KubeVirt mounts them at the root, where a claim
//! named `usr` would hide a directory.

use crate::names::CLAIMS;
use crate::object_volume::{self, DIRECTORY};
use crate::v1::{VirtualMachineInstanceSpec, Volume};

/// Directory of the sockets, in these containers and in the launcher's container.
pub const SOCKETS: &str = "/var/run/kubevirt/virtiofs-containers";
/// Longest tag that a guest can mount by, in bytes; a limit of virtio.
pub const TAG_LIMIT: usize = 36;

/// The name of the container that serves a volume.
pub fn container(volume: &str) -> String {
    format!("virtiofs-{volume}")
}

/// The name of its socket.
pub fn socket(volume: &str) -> String {
    format!("{volume}.sock")
}

/// Where the container has a volume mounted; `None` for a kind of volume that is not shared.
pub fn directory(volume: &Volume) -> Option<String> {
    if let Some(object) = object_volume::of(volume).filter(|_| volume.sysprep.is_none()) {
        return Some(format!("{DIRECTORY}/{}", object.files()));
    }
    let is_claim = volume.persistent_volume_claim.is_some() || volume.data_volume.is_some();
    is_claim.then(|| format!("{CLAIMS}/{}", volume.name))
}

/// Whether a volume is mounted read-only in its pod.
pub fn is_read_only(volume: &Volume) -> bool {
    volume.claim().is_none_or(|claim| claim.is_read_only)
}

/// Whether a volume is shared by virtiofs.
pub fn is_shared(spec: &VirtualMachineInstanceSpec, volume: &str) -> bool {
    spec.domain.devices.filesystems.iter().any(|shared| shared.name == volume)
}

/// The volumes that are shared, in the order of the list.
pub fn of(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &Volume> {
    let volume = |name: &str| spec.volumes.iter().find(|volume| volume.name == name);
    spec.domain.devices.filesystems.iter().filter_map(move |shared| volume(&shared.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_directory_is_that_of_its_kind() {
        let of = |source: &str, value: Value| {
            let volume: Volume = serde_json::from_value(json!({"name": "v", source: value})).unwrap();
            (directory(&volume), is_read_only(&volume))
        };
        let private = |path: &str| Some(format!("/var/run/kubevirt-private/{path}"));
        assert_eq!(of("configMap", json!({"name": "a"})), (private("config-map/v"), true));
        assert_eq!(of("secret", json!({"secretName": "a"})), (private("secret-volume/v"), true));
        assert_eq!(of("dataVolume", json!({"name": "a"})), (private("vmi-disks/v"), false));
        let claim = |read_only: bool| json!({"claimName": "a", "readOnly": read_only});
        assert_eq!(of("persistentVolumeClaim", claim(true)), (private("vmi-disks/v"), true));
        assert_eq!(of("persistentVolumeClaim", claim(false)), (private("vmi-disks/v"), false));
        assert_eq!(of("sysprep", json!({"secret": {"name": "a"}})).0, None);
        assert_eq!(of("emptyDisk", json!({"capacity": "1Gi"})).0, None);
    }
}
