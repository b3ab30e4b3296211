//! The claim with a machine's persistent state (UEFI variables, TPM), in its pod.

use super::parts::mount;
use barevirt_api::firmware::STATE_DIRECTORY;
use barevirt_api::names::COMPUTE_CONTAINER;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, Volume};

/// Name of the volume in the pod; the same as KubeVirt's.
const VOLUME: &str = "vm-state";

/// Mounts the claim where the launcher looks for it.
pub fn add(pod: &mut Pod, claim: &str) {
    let Some(spec) = &mut pod.spec else { return };
    let source = PersistentVolumeClaimVolumeSource { claim_name: claim.to_owned(), read_only: None };
    let volume =
        Volume { name: VOLUME.to_owned(), persistent_volume_claim: Some(source), ..Volume::default() };
    spec.volumes.get_or_insert_default().push(volume);
    for container in spec.containers.iter_mut().filter(|container| container.name == COMPUTE_CONTAINER) {
        container.volume_mounts.get_or_insert_default().push(mount(VOLUME, STATE_DIRECTORY));
    }
}

/// The state claim of a pod.
pub fn claim(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let volume = volumes.iter().find(|volume| volume.name == VOLUME)?;
    Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str())
}
