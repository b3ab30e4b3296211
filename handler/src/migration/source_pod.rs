//! Decides whether the pod that a guest left is certainly gone. Pure.
//!
//! If a source ends after it has sent everything, but before its handler has passed that on, the complete
//! guest is on the target and nothing lets it run. Once the source's pod can no longer run it, the target's
//! handler lets it run.

use barevirt_api::names::{COMPUTE_CONTAINER, CONDITION_PAUSED, REASON_PAUSED_BY_USER};
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;

/// Name and UID of the pod that the guest comes from. The UID is `None` if the controller no longer knows it.
#[must_use]
pub fn named<'a>(vmi: &'a VirtualMachineInstance, source: &str) -> (&'a str, Option<&'a str>) {
    let status = vmi.status.as_ref();
    let state = status.and_then(|status| status.migration_state.as_ref());
    let name = state.and_then(|state| state.source_pod.as_deref()).unwrap_or_default();
    let mut pods = status.into_iter().flat_map(|status| &status.active_pods);
    (name, pods.find(|(_, node)| node.as_str() == source).map(|(uid, _)| uid.as_str()))
}

/// Whether the pod with that UID no longer runs anything, judged by what the API server has under its name.
#[must_use]
pub fn is_gone(found: Option<&Pod>, uid: Option<&str>) -> bool {
    let Some(pod) = found.filter(|pod| pod.metadata.uid.as_deref() == uid && uid.is_some()) else {
        return true;
    };
    let Some(status) = pod.status.as_ref() else { return false };
    let ended = status.container_statuses.iter().flatten().any(|one| {
        one.name == COMPUTE_CONTAINER && one.state.as_ref().is_some_and(|state| state.terminated.is_some())
    });
    ended || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Whether a user has paused the guest, according to its status.
#[must_use]
pub fn is_paused(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    Condition::find(conditions, CONDITION_PAUSED)
        .is_some_and(|paused| paused.is_true() && paused.reason.as_deref() == Some(REASON_PAUSED_BY_USER))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": uid}, "status": status})).unwrap()
    }

    #[test]
    fn only_a_pod_that_runs_nothing_is_gone() {
        let compute = |state: Value| {
            json!({"phase": "Running", "containerStatuses": [
                {"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]})
        };
        let uid = Some("s");
        let runs = pod("s", compute(json!({"running": {}})));
        let ended = pod("s", compute(json!({"terminated": {"exitCode": 137}})));
        assert!(!is_gone(Some(&runs), uid) && is_gone(Some(&ended), uid));
        assert!(is_gone(Some(&pod("s", json!({"phase": "Failed"}))), uid));
        assert!(!is_gone(Some(&pod("s", json!({"phase": "Unknown"}))), uid));
        // A pod with the same name but another UID, and no pod.
        assert!(is_gone(Some(&pod("t", json!({"phase": "Running"}))), uid) && is_gone(None, uid));
    }
}
