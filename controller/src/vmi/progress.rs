//! The progress of a pod according to its status.

use barevirt_api::names::{COMPUTE_CONTAINER, CONDITION_POD_SCHEDULED, REASON_UNSCHEDULABLE};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Whether nothing of the pod runs any more, or ever will.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Why the scheduler found no node.
pub(crate) fn unschedulable(pod: &Pod) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == CONDITION_POD_SCHEDULED && condition.status == "False")?;
    Some((
        condition.reason.clone().unwrap_or_else(|| REASON_UNSCHEDULABLE.to_owned()),
        condition.message.clone().unwrap_or_default(),
    ))
}

/// A container that waits for something that will not resolve itself.
pub(super) fn stuck_container(pod: &Pod) -> Option<(String, String)> {
    const NORMAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];
    let status = pod.status.as_ref()?;
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers
        .filter_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)))
        .find_map(|(container, waiting)| {
            let reason = waiting.reason.clone().filter(|reason| !NORMAL.contains(&reason.as_str()))?;
            let text = waiting.message.clone().unwrap_or_default();
            Some((reason, format!("container {} ({}): {text}", container.name, container.image)))
        })
}

/// Whether the launcher runs, every helper was started, and the pod can be reached.
pub(crate) fn runs(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let started = |container: &ContainerStatus| {
        container.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    let containers: Vec<&ContainerStatus> = status.container_statuses.iter().flatten().collect();
    status.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty())
        && pod.spec.as_ref().is_some_and(|spec| spec.containers.len() == containers.len())
        && containers.iter().all(|container| started(container))
        && containers.iter().any(|container| {
            container.name == COMPUTE_CONTAINER
                && container.state.as_ref().is_some_and(|state| state.running.is_some())
        })
}
