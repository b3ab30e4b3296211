//! What the handler knows of the launcher pods on its node.

use k8s_openapi::api::core::v1::Pod;

use barevirt_api::names::COMPUTE_CONTAINER;

/// Argument of the launcher by which the controller says that emulation is allowed.
const ALLOW_EMULATION: &str = "--allow-emulation";

/// A launcher pod, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherPod {
    /// Its UID.
    pub uid: String,
    /// Its name, for logs.
    pub name: String,
    /// The runtime's id of its running `compute` container; nothing while that does not run.
    pub container: Option<String>,
    /// Its addresses, the primary one first.
    pub addresses: Vec<String>,
    /// Whether the guest may be emulated.
    pub allow_emulation: bool,
    /// Whether somebody has asked for its deletion.
    pub deleted: bool,
}

impl LauncherPod {
    /// Reads it from the pod object. A pod without UID does not exist in a cluster.
    pub fn read(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let compute = spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER)?;
        let container = status
            .and_then(|status| status.container_statuses.as_ref())
            .and_then(|all| all.iter().find(|one| one.name == COMPUTE_CONTAINER))
            .filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
            // `containerd://<id>`, `cri-o://<id>`.
            .and_then(|one| one.container_id.as_deref()?.split_once("://"))
            .map(|(_, id)| id.to_owned());
        let addresses = status
            .and_then(|status| status.pod_ips.as_ref())
            .map(|all| all.iter().map(|one| one.ip.clone()).collect())
            .unwrap_or_default();
        Some(Self {
            uid: pod.metadata.uid.clone()?,
            name: pod.metadata.name.clone().unwrap_or_default(),
            container,
            addresses,
            allow_emulation: compute.args.iter().flatten().any(|argument| argument == ALLOW_EMULATION),
            deleted: pod.metadata.deletion_timestamp.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(state: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": "u", "name": "virt-launcher-x"},
            "spec": {"containers": [{"name": "volumeroot"}, {"name": "compute", "args": ["--name", "x", "--allow-emulation"]}]},
            "status": {
                "podIPs": [{"ip": "10.244.0.5"}, {"ip": "fd00::5"}],
                "containerStatuses": [
                    {"name": "volumeroot", "containerID": "containerd://other", "state": {"running": {}},
                     "image": "", "imageID": "", "ready": true, "restartCount": 0},
                    {"name": "compute", "containerID": "containerd://abc", "state": state,
                     "image": "", "imageID": "", "ready": true, "restartCount": 0},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn only_a_running_compute_container_counts() {
        let running = LauncherPod::read(&pod(json!({"running": {}}))).unwrap();
        assert_eq!(running.container.as_deref(), Some("abc"));
        assert_eq!(running.addresses, ["10.244.0.5", "fd00::5"]);
        assert!(running.allow_emulation);
        let ended = LauncherPod::read(&pod(json!({"terminated": {"exitCode": 0}}))).unwrap();
        assert_eq!(ended.container, None);
    }
}
