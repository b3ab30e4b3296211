//! Directories that the guest mounts by virtiofs: volumes that cannot be shared. Pure.

use super::claims::Claims;
use barevirt_api::filesystem;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::claims::Mode;
use k8s_openapi::api::core::v1::Pod;

/// Message about a claim that is a device, and so has no directory.
pub(super) fn not_shared(vmi: &VirtualMachineInstance, claims: &Claims) -> Option<String> {
    filesystem::of(&vmi.spec).find_map(|volume| {
        let claim = volume.claim().filter(|claim| claims.mode(claim.name) == Mode::Block)?;
        Some(format!(
            "failed to render launch manifest: volume {} is shared as a directory, and its claim {} is of mode Block",
            volume.name, claim.name
        ))
    })
}

/// Message about shared directories of the container `compute` that are not mounted there, or whose volume cannot
/// be shared.
pub(super) fn unserved(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    let is_mounted = |volume: &str| {
        let (name, place) = (filesystem::container(volume), filesystem::container_path(volume));
        let container = containers.iter().find(|container| container.name == name);
        let mut mounts = container.into_iter().flat_map(|container| container.volume_mounts.iter().flatten());
        mounts.any(|mount| mount.mount_path == place)
    };
    let missing: Vec<(&str, &str)> = filesystem::of(&vmi.spec)
        .filter_map(|volume| Some((volume.name.as_str(), volume.container_path.as_ref()?.path.as_str())))
        .filter(|(volume, _)| !is_mounted(volume))
        .collect();
    let names: Vec<String> = missing.iter().map(|(volume, _)| filesystem::container(volume)).collect();
    let paths: Vec<&str> = missing.iter().map(|(_, path)| *path).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "pod is missing virtiofs containers for ContainerPath volumes: [{}]: no configMap, secret, projected, downwardAPI or \
             emptyDir volume is mounted in container compute at {}",
            names.join(" "),
            paths.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_shared_directory_is_named() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {
                "domain": {"devices": {"filesystems": [{"name": "conf", "virtiofs": {}}, {"name": "token", "virtiofs": {}}]}},
                "volumes": [{"name": "conf", "configMap": {"name": "c"}},
                    {"name": "token", "containerPath": {"path": "/var/run/secrets/cloud"}}],
            },
        }))
        .unwrap();
        let pod = |mounts: serde_json::Value| -> Pod {
            let containers = json!([{"name": "compute"}, {"name": "virtiofs-token", "volumeMounts": mounts}]);
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers}})).unwrap()
        };
        let sockets = json!({"name": "s", "mountPath": "/var/run/kubevirt/virtiofs-containers"});
        let message = unserved(&vmi, &pod(json!([sockets]))).unwrap();
        let wanted = "pod is missing virtiofs containers for ContainerPath volumes: [virtiofs-token]: ";
        assert!(message.starts_with(wanted) && message.ends_with("at /var/run/secrets/cloud"), "{message}");
        let token = json!({"name": "t", "mountPath": "/var/run/kubevirt-private/container-paths/token"});
        assert_eq!(unserved(&vmi, &pod(json!([sockets, token]))), None);
    }
}
