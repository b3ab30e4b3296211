//! Launcher pods of an instance beside its launcher: those that a migration moves it to, or moved it from.
//!
//! Their names are known: the watch of pods records those that migrations made, and the first pod's name follows from the
//! instance. If a pod that may have had the guest seems to be gone, the API server is asked.

use super::instance_end::InstanceEnd;
use super::places::node_state;
use crate::cluster::Cluster;
use crate::migrations::{Matter, Migrations};
use crate::node::NodeState;
use crate::pod;
use barevirt_api::names::{CREATED_BY_LABEL, MIGRATION_JOB_LABEL};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState};
use barevirt_component::request::{Error, call_opt};
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A pod beside the launcher.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    /// The pod.
    pub pod: Pod,
    /// The state of its node.
    pub node: Option<NodeState>,
    /// Whether an unfinished migration is to move the guest to it.
    pub wanted: bool,
}

/// The state of the target pod of a migrating guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// No guest is migrating, or the pod exists.
    Lives,
    /// Nothing runs in it, for this long: it has ended, or its node is off.
    Ended(Duration),
    /// It has been missing for this long, while its node answers.
    Missing(Duration),
    /// It is missing, and its node does not answer.
    Unknown,
}

/// The record of a migration that the instance was handed over to.
pub(crate) fn state(vmi: &VirtualMachineInstance) -> Option<&VirtualMachineInstanceMigrationState> {
    let state = vmi.status.as_ref()?.migration_state.as_ref()?;
    state.migration_uid.as_ref().is_some_and(|uid| !uid.is_empty()).then_some(state)
}

/// Whether that migration has ended.
pub(crate) fn is_over(state: &VirtualMachineInstanceMigrationState) -> bool {
    state.completed == Some(true) && state.end_timestamp.is_some()
}

/// Whether the guest may be migrating: it was handed over, and no result was reported.
pub(crate) fn is_moving(vmi: &VirtualMachineInstance) -> bool {
    state(vmi).is_some_and(|state| !is_over(state))
}

/// Looks for the pods. Only pods that may have had the guest are read from the API server.
pub(super) async fn look(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    launcher: Option<&Pod>,
) -> Result<Vec<Pod>, Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let own = launcher_name(vmi);
    let first = pod::name(&name, vmi.metadata.uid.as_deref().unwrap_or_default());
    let targets = cluster.migrations.targets(&namespace, &name);
    let mut names: BTreeSet<String> = targets.into_iter().map(String::from).collect();
    names.insert(first);
    names.remove(&own);
    let cached = |name: &String| {
        let pod = cluster.pods.get(&ObjectRef::new(name).within(&namespace))?;
        pod.unpack().ok()
    };
    let mut found: Vec<Pod> = names.iter().filter_map(cached).collect();
    let Some(status) = &vmi.status else { return Ok(found) };
    let is_known = |uid: &String, found: &[Pod]| {
        launcher.into_iter().chain(found).any(|pod| pod.metadata.uid.as_ref() == Some(uid))
    };
    let handed = status.active_pods.iter().filter(|(_, node)| !node.is_empty());
    if handed.clone().all(|(uid, _)| is_known(uid, &found)) {
        return Ok(found);
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let recorded = state(vmi).map(|state| [state.source_pod.clone(), state.target_pod.clone()]);
    for name in recorded.into_iter().flatten().flatten() {
        let is_found = found.iter().any(|pod| pod.name_any() == name);
        if name != own && !name.is_empty() && !is_found {
            found.extend(call_opt("get", || format!("pod {namespace}/{name}"), pods.get(&name)).await?);
        }
    }
    Ok(found)
}

/// Whether an unfinished migration is to move the guest to a pod.
pub(super) fn is_wanted(migrations: &Migrations, vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    let Some(job) = pod.labels().get(MIGRATION_JOB_LABEL) else { return false };
    let ended = state(vmi).filter(|state| is_over(state)).and_then(|state| state.migration_uid.as_ref());
    let namespace = vmi.namespace().unwrap_or_default();
    pod.labels().get(CREATED_BY_LABEL) == vmi.metadata.uid.as_ref()
        && ended != Some(job)
        && migrations.unfinished(&namespace, &vmi.name_any()).iter().any(|uid| **uid == **job)
}

/// Whether the migration that the guest was handed over to still exists.
pub(crate) fn is_asked(migrations: &Migrations, vmi: &VirtualMachineInstance) -> bool {
    let Some(uid) = state(vmi).and_then(|state| state.migration_uid.as_deref()) else { return false };
    let namespace = vmi.namespace().unwrap_or_default();
    migrations.unfinished(&namespace, &vmi.name_any()).iter().any(|known| **known == *uid)
}

/// The state of the target pod.
pub(super) async fn target(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    others: &[Other],
) -> Result<Target, Error> {
    let Some(state) = state(vmi).filter(|_| is_moving(vmi)) else { return Ok(Target::Lives) };
    let node = node_state(cluster, state.target_node.as_deref().unwrap_or_default()).await?;
    Ok(judge(&cluster.migrations, vmi, others, node, Instant::now()))
}

/// The same, given the state of its node.
pub(super) fn judge(
    migrations: &Migrations,
    vmi: &VirtualMachineInstance,
    others: &[Other],
    node: NodeState,
    now: Instant,
) -> Target {
    let Some(state) = state(vmi).filter(|_| is_moving(vmi)) else { return Target::Lives };
    let uid = state.migration_uid.as_deref().unwrap_or_default();
    let since = || migrations.noticed(uid, Matter::TargetLost, now);
    let found = others.iter().find(|other| is_target(vmi, state, &other.pod));
    let target = match (found, node) {
        (Some(other), _) if InstanceEnd::of(&other.pod).is_some() => Target::Ended(since()),
        (_, NodeState::Gone | NodeState::OutOfService) => Target::Ended(since()),
        (Some(_), _) => Target::Lives,
        (None, NodeState::Ready) => Target::Missing(since()),
        (None, NodeState::NotReady { .. } | NodeState::Lost) => Target::Unknown,
    };
    if matches!(target, Target::Lives | Target::Unknown) {
        migrations.passed(uid, Matter::TargetLost);
    }
    target
}

/// Whether the record names this pod, and not a later one of the same name.
fn is_target(vmi: &VirtualMachineInstance, state: &VirtualMachineInstanceMigrationState, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let active = vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(uid));
    active && state.target_pod.as_ref() == pod.metadata.name.as_ref()
}
