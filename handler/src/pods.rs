//! The facts about the launcher pods on this node that the handler needs.

use k8s_openapi::api::core::v1::Pod;

use barevirt_api::names::{COMPUTE_CONTAINER, CONDITION_READY, REASON_POD_TERMINATING};
use barevirt_api::network_status::{Noted, noted};

/// The launcher's argument by which the controller permits emulation.
const ALLOW_EMULATION: &str = "--allow-emulation";

/// The facts about a launcher pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherPod {
    /// Its UID.
    pub uid: String,
    /// Its name, for logs.
    pub name: String,
    /// The runtime's id of its running `compute` container; `None` while that does not run.
    pub container: Option<String>,
    /// Its IP addresses, the primary one first.
    pub addresses: Vec<String>,
    /// Whether the guest may be emulated.
    pub allow_emulation: bool,
    /// Whether its deletion was requested.
    pub deleted: bool,
    /// Whether it is ready, if the guest has a readiness probe or the pod's deletion was requested.
    pub readiness: Option<Readiness>,
    /// The links of its networks, as Multus reports them.
    pub links: Vec<Noted>,
}

/// The readiness of a pod, from its condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Whether it is ready.
    pub ready: bool,
    /// Why it is not, as one word.
    pub reason: String,
    /// Why it is not, as a message for users.
    pub message: String,
}

impl Readiness {
    /// Of a pod that is being deleted: services do not send anything to it any more.
    fn terminating() -> Self {
        Readiness {
            ready: false,
            reason: REASON_POD_TERMINATING.to_owned(),
            message: "virt-launcher pod is terminating".to_owned(),
        }
    }

    /// Whether the pod is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.reason == REASON_POD_TERMINATING
    }
}

impl LauncherPod {
    /// Reads the facts from the pod object. A pod without a UID does not exist in a cluster.
    pub fn read(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let compute = spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER)?;
        let container = status
            .and_then(|status| status.container_statuses.as_ref())
            .and_then(|all| all.iter().find(|one| one.name == COMPUTE_CONTAINER))
            .filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
            // The id has the form `containerd://<id>` or `cri-o://<id>`.
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
            readiness: if pod.metadata.deletion_timestamp.is_some() {
                Some(Readiness::terminating())
            } else {
                compute.readiness_probe.is_some().then(|| readiness(pod))
            },
            links: noted(pod).unwrap_or_default(),
        })
    }
}

fn readiness(pod: &Pod) -> Readiness {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let condition = conditions.into_iter().find(|condition| condition.type_ == CONDITION_READY);
    condition.map_or_else(Readiness::default, |condition| Readiness {
        ready: condition.status == "True",
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use barevirt_api::network_status::NETWORK_STATUS;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
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
    fn readiness_counts_where_the_guest_is_probed() {
        let mut pod = pod(json!({"running": {}}));
        pod.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [compute]"},
        ]))
        .unwrap();
        assert_eq!(LauncherPod::read(&pod).unwrap().readiness, None);
        pod.spec.as_mut().unwrap().containers[1].readiness_probe = Some(Default::default());
        let readiness = LauncherPod::read(&pod).unwrap().readiness.unwrap();
        assert_eq!((readiness.ready, readiness.reason.as_str()), (false, "ContainersNotReady"));
        pod.status.as_mut().unwrap().conditions = None;
        assert_eq!(LauncherPod::read(&pod).unwrap().readiness, Some(Readiness::default()));
        pod.spec.as_mut().unwrap().containers[1].readiness_probe = None;
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(LauncherPod::read(&pod).unwrap().readiness.unwrap().is_terminating());
    }

    #[test]
    fn only_a_running_compute_container_counts() {
        let running = LauncherPod::read(&pod(json!({"running": {}}))).unwrap();
        assert_eq!(running.container.as_deref(), Some("abc"));
        assert_eq!(running.addresses, ["10.244.0.5", "fd00::5"]);
        assert!(running.allow_emulation);
        assert_eq!(running.links, []);
        let mut noted = pod(json!({"running": {}}));
        let report = r#"[{"interface": "net1", "device-info": {"pci": {"pci-address": "0000:65:00.2"}}}]"#;
        noted.metadata.annotations = Some([(NETWORK_STATUS.to_owned(), report.to_owned())].into());
        let links = LauncherPod::read(&noted).unwrap().links;
        assert_eq!((links[0].link.as_str(), links[0].pci), ("net1", "0000:65:00.2".parse().ok()));
        let ended = LauncherPod::read(&pod(json!({"terminated": {"exitCode": 0}}))).unwrap();
        assert_eq!(ended.container, None);
    }
}
