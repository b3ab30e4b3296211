//! What several containers and pods have in common: security, pull secrets, mounts.

use crate::config::Config;
use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::settings::Seccomp;
use k8s_openapi::api::core::v1::{
    Capabilities, EmptyDirVolumeSource, LocalObjectReference, PodSecurityContext, SeccompProfile,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Limit of a folder with sockets: they are files without contents.
pub(super) const SOCKETS_SIZE: &str = "1Mi";
/// Limit of the launcher's own files: 4 MiB of serial console, UEFI variables, TPM state, tables for firmware.
pub(super) const PRIVATE_SIZE: &str = "64Mi";
/// Limit of the helper's program.
pub(super) const PROGRAM_SIZE: &str = "16Mi";

/// A folder on the node's disk with a size limit. The kubelet evicts a pod that exceeds it.
pub(super) fn empty_dir(name: &str, size: &str) -> Volume {
    let size_limit = Some(Quantity(size.to_owned()));
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() }),
        ..Volume::default()
    }
}

/// Where the launcher waits for container disks; the same path in all containers that mount it.
pub(super) const CONTAINER_DISKS: &str = "/var/run/kubevirt/container-disks";

fn seccomp(profile: &Seccomp) -> SeccompProfile {
    match profile {
        Seccomp::RuntimeDefault => {
            SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }
        }
        Seccomp::Localhost(path) => {
            SeccompProfile { type_: "Localhost".to_owned(), localhost_profile: Some(path.clone()) }
        }
    }
}

/// What `restricted` requires of the pod.
pub(super) fn pod_security(config: &Config) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(LAUNCHER_UID),
        run_as_group: Some(LAUNCHER_UID),
        fs_group: Some(LAUNCHER_UID),
        seccomp_profile: Some(seccomp(&config.settings.pods.seccomp)),
        ..PodSecurityContext::default()
    }
}

/// What `restricted` requires of each container, and a read-only root file system.
pub(crate) fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: Some(LAUNCHER_UID),
        run_as_group: Some(LAUNCHER_UID),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// The disks' secrets come first; the installation's are looked up in the instance's namespace, and may be missing.
pub(super) fn pull_secrets(
    mut secrets: Vec<LocalObjectReference>,
    config: &Config,
) -> Vec<LocalObjectReference> {
    for name in &config.settings.image_pull_secrets {
        let secret = LocalObjectReference { name: name.clone() };
        if !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    secrets
}

/// A volume of the pod mounted at a path.
pub(super) fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

/// A list in Kubernetes' form: `None` where it is empty.
pub(super) fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}
