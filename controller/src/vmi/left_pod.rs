//! The pod that is left without the guest after a migration: the source's, or the target's if the migration failed. Its launcher
//! ends, and it stays so that people can read its log, as in KubeVirt: until the next migration has ended too, or until the
//! instance ends. Pure.

use super::action::Action;
use super::others::{is_over, state};
use super::progress;
use barevirt_api::names::MIGRATION_JOB_LABEL;
use barevirt_api::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the launcher has to end, once the migration is over.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a pod beside the launcher is left alone, and for how long if it has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// It is deleted.
    No,
    /// It has this time to end.
    For(Duration),
    /// It has ended, and has the log of the migration.
    AsRecord,
}

/// The decision about a pod that no unfinished migration waits for; `since` is the time since the end of the last one.
pub(super) fn retention(
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    launcher: &Pod,
    since: Duration,
) -> Retention {
    if pod.metadata.deletion_timestamp.is_some()
        || !(is_failed_target(vmi, pod) || is_left_source(vmi, pod))
        || has_more(vmi, pod, launcher)
    {
        return Retention::No;
    }
    if progress::is_over(pod) {
        return Retention::AsRecord;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let left = END_TIMEOUT.saturating_sub(since);
    if phase == Some("Running") && !left.is_zero() { Retention::For(left) } else { Retention::No }
}

/// Ends the launcher of a target, which may wait for the guest for minutes. Once: the pod then has a deadline. That of a source
/// ends by itself, and its pod is then `Succeeded`.
pub(super) fn end(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<Action> {
    let has_deadline = pod.spec.as_ref().is_some_and(|spec| spec.active_deadline_seconds.is_some());
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    (is_failed_target(vmi, pod) && !has_deadline).then_some(Action::EndPod { name, uid })
}

/// Whether the status of the instance names the pod as the target of its last migration, and that has failed.
fn is_failed_target(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    state(vmi).is_some_and(|state| {
        is_over(state)
            && state.failed == Some(true)
            && state.target_pod.as_ref() == pod.metadata.name.as_ref()
            && state.migration_uid.as_ref() == pod.labels().get(MIGRATION_JOB_LABEL)
    })
}

/// Whether the status names the pod as the source of the last migration, and that has succeeded.
fn is_left_source(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    state(vmi).is_some_and(|state| {
        is_over(state)
            && state.failed != Some(true)
            && state.source_pod.as_ref() == pod.metadata.name.as_ref()
    })
}

/// Whether something that the guest does not use would stay with the pod: its own claims, which Kubernetes does not delete while
/// a pod names them, and the pods with its plugged disks, which it owns.
fn has_more(vmi: &VirtualMachineInstance, pod: &Pod, launcher: &Pod) -> bool {
    let claims = |pod: &Pod| -> BTreeSet<String> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        volumes
            .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()))
            .collect()
    };
    vmi.spec.volumes.iter().any(|volume| volume.is_hotpluggable())
        || !claims(pod).is_subset(&claims(launcher))
}
