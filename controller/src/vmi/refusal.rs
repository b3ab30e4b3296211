//! A launcher pod that its node's kubelet refused, and its replacement. Pure.
//!
//! ```text
//!   Failed, nothing of it ran ──> UID recorded on the instance, phase Pending, event ──> pause ──> deleted ──> the next pod
//! ```
//!
//! The scheduler and a kubelet may disagree for a moment: about a label, about free resources, about a device whose plugin
//! has just returned. A refused pod stays `Failed` forever and never ran. The record is written before the deletion, so
//! that each refusal counts once, whichever client deletes the pod; and an instance that was handed over to a node is never
//! started again.

use super::instance_end::bounded;
use super::proof::is_handed_over;
use super::status::age;
use barevirt_api::names::{PHASE_FAILED, PHASE_PENDING, PHASE_SCHEDULING, REFUSED_PODS_ANNOTATION};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::phase;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::time::Duration;

/// How many pods of an instance are replaced.
pub(super) const MOST: usize = 5;
/// Time between the creations of a pod and of its replacement; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Reasons of kubelets for a pod that they, or other nodes, may accept later; also all that begin with `OutOf`, such as
/// `OutOfcpu`. Other reasons do not change with retries.
const REASONS: [&str; 11] = [
    "Evicted",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeShutdown",
    "Preempting",
    "Shutdown",
    "TaintToleration",
    "Terminated",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnknownReason",
];
const OUT_OF: &str = "OutOf";

/// A pod that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The pod's UID.
    pub uid: String,
    /// The refusing node and its reason, for people.
    pub message: String,
}

impl Refusal {
    /// The refusal of a pod that was never handed over to a handler.
    pub(super) fn of(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<Self> {
        if is_handed_over(vmi) || ![PHASE_PENDING, PHASE_SCHEDULING].contains(&phase(vmi)) {
            return None;
        }
        let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some(PHASE_FAILED))?;
        let reason = status.reason.as_deref().filter(|reason| is_passing(reason))?;
        let mut containers =
            status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        if containers.any(began) {
            return None;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let why = status.message.as_deref().unwrap_or_default();
        let message = format!("node {node} refused the launcher pod {}: {reason}: {why}", pod.name_any());
        Some(Refusal { uid: pod.uid()?, message: bounded(&message) })
    }
}

fn is_passing(reason: &str) -> bool {
    REASONS.contains(&reason) || reason.starts_with(OUT_OF)
}

/// Whether a container runs or ever ran.
fn began(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state];
    container.started == Some(true)
        || container.restart_count > 0
        || states.into_iter().flatten().any(|state| state.running.is_some() || state.terminated.is_some())
}

/// UIDs of this instance's refused pods.
pub(super) fn noted(vmi: &VirtualMachineInstance) -> Vec<&str> {
    let list = vmi.annotations().get(REFUSED_PODS_ANNOTATION).map(String::as_str).unwrap_or_default();
    list.split(',').filter(|uid| !uid.is_empty()).collect()
}

/// Time until a pod, the last of `count` recorded ones, may be replaced.
pub(super) fn left(count: usize, pod: &Pod, now: Timestamp) -> Duration {
    let doublings = u32::try_from(count.saturating_sub(1).min(MOST)).unwrap_or(0);
    let pause = FIRST_PAUSE.saturating_mul(1 << doublings);
    let created = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    pause.saturating_sub(age(created, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(status: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"domain": {"devices": {}}},
            "status": status}))
        .unwrap()
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "virt-launcher-a-x", "uid": "p1"},
            "spec": {"nodeName": "node01", "containers": []}, "status": status}))
        .unwrap()
    }

    fn of(phase: &str, status: Value) -> Option<Refusal> {
        Refusal::of(&vmi(json!({"phase": phase})), &pod(status))
    }

    fn failed(reason: &str) -> Value {
        json!({"phase": "Failed", "reason": reason, "message": "Pod was rejected: no"})
    }

    #[test]
    fn temporary_kubelet_rejections_are_refusals() {
        for reason in
            ["NodeAffinity", "OutOfcpu", "OutOfpods", "OutOfdevices.kubevirt.io/kvm", "NodeShutdown"]
        {
            assert!(of("Pending", failed(reason)).is_some(), "{reason}");
        }
        for reason in ["", "SysctlForbidden", "PodOSNotSupported", "DeadlineExceeded"] {
            assert_eq!(of("Pending", failed(reason)), None, "{reason}");
        }
        let refusal = of("Scheduling", failed("NodeAffinity")).unwrap();
        let message =
            "node node01 refused the launcher pod virt-launcher-a-x: NodeAffinity: Pod was rejected: no";
        assert_eq!(refusal, Refusal { uid: "p1".to_owned(), message: message.to_owned() });
    }

    #[test]
    fn no_pod_is_refused_that_may_have_run() {
        for phase in ["Scheduled", "Running", "Failed"] {
            assert_eq!(of(phase, failed("NodeAffinity")), None, "{phase}");
        }
        let handed_over = vmi(json!({"phase": "Scheduling", "activePods": {"p0": "node01"}}));
        assert_eq!(Refusal::of(&handed_over, &pod(failed("NodeAffinity"))), None);
        for phase in ["Pending", "Running", "Unknown", "Succeeded"] {
            assert_eq!(of("Pending", json!({"phase": phase, "reason": "NodeAffinity"})), None, "{phase}");
        }
        let with = |list: &str, extra: Value| {
            let mut container =
                json!({"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0});
            container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let mut status = failed("Terminated");
            status[list] = json!([container]);
            of("Pending", status)
        };
        for list in ["containerStatuses", "initContainerStatuses"] {
            assert!(with(list, json!({"state": {"waiting": {"reason": "ContainerCreating"}}})).is_some());
            for extra in [
                json!({"state": {"running": {}}}),
                json!({"state": {"terminated": {"exitCode": 0}}}),
                json!({"lastState": {"terminated": {"exitCode": 0}}}),
                json!({"started": true}),
                json!({"restartCount": 1}),
            ] {
                assert_eq!(with(list, extra.clone()), None, "{list} {extra}");
            }
        }
    }

    #[test]
    fn pauses_double_from_one_creation_to_the_next() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut pod = pod(Value::Null);
        pod.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
        let pauses: Vec<u64> = (1..=MOST).map(|count| left(count, &pod, at(100)).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert_eq!(left(3, &pod, at(103)), Duration::from_secs(1));
        assert_eq!(left(3, &pod, at(104)), Duration::ZERO);
        assert_eq!(left(usize::MAX, &pod, at(100)), Duration::from_secs(32));
    }
}
