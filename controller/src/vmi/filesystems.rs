//! Directories that the guest mounts by virtiofs: volumes that cannot be shared, and volumes that are no longer shared.
//! Pure.

use super::action::Plan;
use super::claims::Claims;
use super::observed::Observed;
use super::status::{note_trouble, status_patch};
use barevirt_api::filesystem;
use barevirt_api::names::{CONDITION_SYNCHRONIZED, REASON_FILESYSTEM_ENDED};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::claims::Mode;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::json;

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

/// Directories of the container `compute` that nobody has mounted there, or that are none that can be shared.
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

/// Reports a container that ended before its guest. Its volume is out of the guest's reach until the guest is started again.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let Some(message) = filesystem::of(&vmi.spec).find_map(|volume| ended(pod, &volume.name)) else {
        return Plan::default();
    };
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(
        &mut status,
        &mut notes,
        CONDITION_SYNCHRONIZED,
        REASON_FILESYSTEM_ENDED,
        &message,
        observed.now,
    );
    let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

/// How the container of a volume ended, unless it ended with its guest: then it exits successfully.
fn ended(pod: &Pod, volume: &str) -> Option<String> {
    let name = filesystem::container(volume);
    let mut statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let container = statuses.find(|container| container.name == name)?;
    let end = container.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code != 0)?;
    let ContainerStateTerminated { exit_code, reason, message, .. } = end;
    let why = reason.as_deref().filter(|reason| !matches!(*reason, "" | "Error"));
    let how = why.map_or_else(|| format!("exit code {exit_code}"), str::to_owned);
    let last = message.as_deref().and_then(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
    let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    Some(format!("volume {volume} is not shared any more: container {name} ended with {how}{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(terminated: &serde_json::Value) -> Pod {
        let container = json!({"name": "virtiofs-data", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}});
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn a_directory_that_nobody_has_put_into_the_pod_is_named() {
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

    #[test]
    fn a_container_that_ends_before_its_guest_is_told_and_one_that_ends_with_it_is_not() {
        assert_eq!(ended(&pod(&json!({"exitCode": 0})), "data"), None);
        assert_eq!(ended(&pod(&json!({"exitCode": 1})), "other"), None);
        let killed = ended(&pod(&json!({"exitCode": 137, "reason": "OOMKilled"})), "data").unwrap();
        assert_eq!(
            killed,
            "volume data is not shared any more: container virtiofs-data ended with OOMKilled"
        );
        let failed = json!({"exitCode": 1, "reason": "Error", "message": "first\nlast words\n"});
        let failed = ended(&pod(&failed), "data").unwrap();
        assert!(failed.ends_with("ended with exit code 1: last words"), "{failed}");
    }
}
