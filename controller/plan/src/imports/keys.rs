//! The key that a pod makes for itself before its work. It stays in the pod, in memory; the pod's status has the certificate:
//! only its kubelet writes that status. Who may read pods reads no key.

use super::facts::Installation;
use super::importer::mount;
use crate::pod::unprivileged;
use barevirt_import_job::copy::{KEYS, KEYS_CONTAINER, LONGEST_CERTIFICATE, MAKE_KEYS};
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const VOLUME: &str = "keys";

/// Has the pod make a key, with that name in its certificate; without one it is that of the two pods of a copy.
pub(super) fn give(pod: &mut Pod, installation: &Installation, name: Option<&str>) {
    let spec = pod.spec.get_or_insert_default();
    spec.init_containers = Some(vec![maker(installation, name)]);
    spec.volumes.get_or_insert_default().push(volume());
    for container in &mut spec.containers {
        container.volume_mounts.get_or_insert_default().push(mount(VOLUME, KEYS, true));
    }
}

fn maker(installation: &Installation, name: Option<&str>) -> Container {
    let arguments = [MAKE_KEYS].into_iter().chain(name);
    Container {
        name: KEYS_CONTAINER.to_owned(),
        image: Some(installation.image.clone()),
        image_pull_policy: installation.pull_policy.clone(),
        args: Some(arguments.map(str::to_owned).collect()),
        resources: Some(installation.resources.clone()),
        security_context: Some(unprivileged()),
        termination_message_policy: Some("File".to_owned()),
        volume_mounts: Some(vec![mount(VOLUME, KEYS, false)]),
        ..Container::default()
    }
}

/// In memory, never on a disk.
fn volume() -> Volume {
    let memory = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity("1Mi".to_owned())),
    };
    Volume { name: VOLUME.to_owned(), empty_dir: Some(memory), ..Volume::default() }
}

/// The certificate of a pod's key.
pub(super) fn certificate(pod: &Pod) -> Option<&str> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let ended = all.iter().find(|one| one.name == KEYS_CONTAINER)?.state.as_ref()?.terminated.as_ref()?;
    let message = ended.message.as_deref().filter(|_| ended.exit_code == 0)?;
    (message.len() <= LONGEST_CERTIFICATE && message.starts_with("-----BEGIN CERTIFICATE")).then_some(message)
}
