//! The state of a migration's target pod.

use barevirt_api::names::COMPUTE_CONTAINER;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Whether all its containers are ready. The launcher's container may have a probe that asks the guest.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut others = statuses.filter(|container| container.name != COMPUTE_CONTAINER);
    others.all(|container| {
        container.ready || container.state.as_ref().is_some_and(|state| state.terminated.is_some())
    })
}

/// Since when the launcher of a pod runs.
pub(super) fn started(pod: &Pod) -> Option<&Time> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut compute = statuses.filter(|container| container.name == COMPUTE_CONTAINER);
    compute.next()?.state.as_ref()?.running.as_ref()?.started_at.as_ref()
}
