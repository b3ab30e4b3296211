//! Observes one migration: from caches, and from the API server where a stale answer could do harm.

use super::begin;
use super::course;
use super::observed::{Observed, Turn};
use super::plan::{Relation, relation};
use super::settings;
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::migrations::Matter;
use crate::migrations::row::{Phase, Row, is_held};
use crate::vmi::{TargetDisks, build_target_pod, runs, target_disks, unschedulable};
use barevirt_api::names::{CPU_FEATURE_LABEL, CPU_MODEL_MIGRATION_LABEL, MIGRATION_FINALIZER as FINALIZER};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::request::{Error, call_opt};
use barevirt_plan::migration::Limits;
use barevirt_plan::pod::target::{Target, launcher_name, target_name};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Ended migrations of an instance that are kept. KubeVirt's number.
const STAY: usize = 5;

/// The observation; `None` while caches lag behind our own writes.
pub(super) async fn observe(
    cluster: &Cluster,
    migration: VirtualMachineInstanceMigration,
) -> Result<Option<Observed>, Error> {
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let uid = migration.uid().unwrap_or_default();
    let vmi_name = migration.spec.vmi_name.clone().unwrap_or_default();
    let target_name = target_name(&vmi_name, &uid);
    let instant = Instant::now();
    let owes = |kind, name: &str| cluster.expectations.owes(&Key::new(kind, &namespace, name), instant);
    if owes(Kind::Vmi, &vmi_name) || owes(Kind::Pod, &target_name) {
        return Ok(None);
    }
    let reached = Phase::of(&migration);
    let is_final = reached.is_none_or(Phase::is_final);
    let mut observed = Observed {
        vmi: instance(cluster, &migration, &vmi_name, reached).await?,
        target: None,
        is_created_here: false,
        target_node: None,
        has_rival: false,
        back_off: Duration::ZERO,
        turn: Turn::NotAsked,
        unfit: None,
        effective: None,
        target_disks: TargetDisks::default(),
        phase_due: Duration::ZERO,
        surplus: vec![],
        now: Timestamp::now(),
        migration,
    };
    if is_final {
        observed.surplus = surplus(cluster, &namespace, &vmi_name, &name);
        return Ok(Some(observed));
    }
    let cached = cluster.pods.get(&ObjectRef::new(&target_name).within(&namespace));
    observed.target = cached.and_then(|pod| pod.unpack().ok());
    if observed.target.is_none() && reached >= Some(Phase::Scheduling) {
        // If the pod is gone, the migration ends; so the API server is asked.
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
        let subject = || format!("pod {namespace}/{target_name}");
        observed.target = call_opt("get", subject, pods.get(&target_name)).await?;
    }
    if let Some(pod) = &observed.target {
        observed.is_created_here =
            cluster.created_pods.knows(pod.metadata.uid.as_deref().unwrap_or_default());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        observed.target_node = node.map(|node| cluster.nodes.state(node, instant));
    }
    let (Some(vmi), Some(reached)) = (observed.vmi.clone(), reached) else { return Ok(Some(observed)) };
    match relation(&vmi, &observed.migration) {
        Relation::NotHandedOver => {
            observed.has_rival = has_rival(cluster, &namespace, &vmi_name, &name);
            let seconds = observed.now.as_second();
            observed.back_off = cluster.migrations.back_off(&namespace, &name, seconds);
            if begin::asks(&observed, &vmi, reached) {
                observed.turn = turn(cluster, &observed, &vmi).await?;
            } else if reached < Phase::Scheduling && observed.target.is_none() {
                cluster.migrations.give_back(&namespace, &name);
            }
            if let Some(pod) = observed.target.as_ref().filter(|pod| unschedulable(pod).is_some()) {
                observed.unfit = unfit(cluster, &vmi, pod);
            }
            if let Some(pod) = observed.target.as_ref().filter(|pod| runs(pod)) {
                observed.effective = Some(match settings::recorded(&observed.migration) {
                    Some(recorded) => recorded,
                    // An earlier version made the pod.
                    None => settings::choose(&cluster.client, &cluster.migration_settings(), &vmi).await?,
                });
                observed.target_disks = target_disks(cluster, &vmi, pod).await?;
            }
        }
        Relation::HandedOver => {
            let matter = Matter::Phase(course::reported_phase(&vmi));
            observed.phase_due = cluster.migrations.noticed(&uid, matter, instant);
        }
        Relation::Moved | Relation::Stayed => {}
    }
    Ok(Some(observed))
}

/// The instance. The API server is asked if the cache has none, or another one than was handed over.
async fn instance(
    cluster: &Cluster,
    migration: &VirtualMachineInstanceMigration,
    name: &str,
    reached: Option<Phase>,
) -> Result<Option<VirtualMachineInstance>, Error> {
    let namespace = migration.namespace().unwrap_or_default();
    let cached = cluster.vmis.get(&ObjectRef::new(name).within(&namespace));
    let cached = cached.and_then(|vmi| vmi.unpack().ok());
    let is_as_expected = |vmi: &VirtualMachineInstance| {
        reached < Some(Phase::PreparingTarget) || relation(vmi, migration) != Relation::NotHandedOver
    };
    if cached.as_ref().is_some_and(is_as_expected) || reached.is_none_or(Phase::is_final) || name.is_empty() {
        return Ok(cached);
    }
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
    call_opt("get", || format!("virtual machine instance {namespace}/{name}"), vmis.get(name)).await
}

/// Whether another migration of the instance comes first: one that has begun, otherwise the older one.
fn has_rival(cluster: &Cluster, namespace: &str, vmi: &str, name: &str) -> bool {
    let all = cluster.migrations.of_instance(namespace, vmi);
    let Some((_, own)) = all.iter().find(|(other, _)| **other == *name) else { return false };
    is_behind(name, own, &all)
}

/// The same, decided by their rows. Pure.
pub(super) fn is_behind(name: &str, own: &Row, all: &[(Box<str>, Row)]) -> bool {
    let others = all.iter().filter(|(other, row)| **other != *name && !row.phase.is_final());
    let mut others = others.map(|(other, row)| {
        let began = |row: &Row| row.phase.is_under_way();
        match (began(row), began(own)) {
            (true, false) => true,
            (false, true) => false,
            _ => (row.created, &**other) < (own.created, name),
        }
    });
    others.any(|comes_first| comes_first)
}

/// Surplus ended migrations, the oldest ones.
fn surplus(cluster: &Cluster, namespace: &str, vmi: &str, name: &str) -> Vec<(String, String)> {
    let mut ended: Vec<(i64, Box<str>, Box<str>)> = cluster
        .migrations
        .of_instance(namespace, vmi)
        .into_iter()
        .filter(|(other, row)| (row.phase.is_final() || **other == *name) && !row.going)
        .map(|(other, row)| (row.created, other, row.uid))
        .collect();
    ended.sort();
    let many = ended.len().saturating_sub(STAY);
    // Its own finalizer is removed first.
    let older = ended.into_iter().take(many).filter(|(_, other, _)| **other != *name);
    older.map(|(_, name, uid)| (name.into(), uid.into())).collect()
}

/// Asks for the turn; where it is granted, returns the target pod.
async fn turn(cluster: &Cluster, observed: &Observed, vmi: &VirtualMachineInstance) -> Result<Turn, Error> {
    let migration = &observed.migration;
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    // Without its finalizer it makes nothing; the finalizer is added first.
    if !migration.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Turn::NotAsked);
    }
    let limits = Limits::of(&cluster.migration_settings());
    let has_target =
        |namespace: &str, vmi: &str, uid: &str| cluster.has_pod(namespace, &target_name(vmi, uid));
    // One that is held has no place in the queue. It looks whether its pod can be made, and then asks for its turn.
    let held = is_held(migration);
    if !held && !cluster.migrations.take_turn(&namespace, &name, &limits, has_target, Instant::now()) {
        return Ok(Turn::Waits);
    }
    let source_name = launcher_name(vmi);
    let source = cluster.pods.get(&ObjectRef::new(&source_name).within(&namespace));
    let Some(source) = source.and_then(|pod| pod.unpack().ok()) else { return Ok(Turn::NotAsked) };
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
    let node = cluster.node(node);
    let labels = node.as_ref().and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
    let info = node.as_ref().and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let kernel = info.map(|info| info.boot_id.as_str()).unwrap_or_default();
    let chosen = settings::choose(&cluster.client, &cluster.migration_settings(), vmi).await?;
    let same_selinux_level = chosen.configuration.match_se_linux_level_on_migration != Some(false);
    let post_copy = chosen.configuration.allow_post_copy == Some(true);
    let source = &source;
    let target = Target { migration, source, node_labels: &labels, kernel, same_selinux_level, post_copy };
    let turn = Turn::Now(build_target_pod(cluster, vmi, target).await?, Box::new(chosen));
    if turn.is_held() {
        cluster.migrations.give_back(&namespace, &name);
    } else if held {
        return Ok(Turn::Waits);
    }
    Ok(turn)
}

/// The labels of the source's processor that the pod asks for, where no other node has them.
fn unfit(cluster: &Cluster, vmi: &VirtualMachineInstance, pod: &Pod) -> Option<BTreeMap<String, String>> {
    let asked = pod.spec.as_ref()?.node_selector.as_ref()?.iter().filter(|(label, _)| {
        label.starts_with(CPU_MODEL_MIGRATION_LABEL) || label.starts_with(CPU_FEATURE_LABEL)
    });
    let asked: BTreeMap<String, String> =
        asked.map(|(label, value)| (label.clone(), value.clone())).collect();
    let of_host = asked.keys().any(|label| label.starts_with(CPU_MODEL_MIGRATION_LABEL));
    let home = vmi.status.as_ref().and_then(|status| status.node_name.as_ref());
    let fits = |labels: &BTreeMap<String, String>| {
        asked.iter().all(|(label, value)| labels.get(label) == Some(value))
    };
    let mut others = cluster.nodes_known().into_iter().filter(|node| node.metadata.name.as_ref() != home);
    let found = others.any(|node| node.metadata.labels.as_ref().is_some_and(fits));
    (of_host && !found).then_some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(created: i64, phase: Phase) -> Row {
        let mut row = Row::of(&VirtualMachineInstanceMigration::default());
        (row.created, row.phase) = (created, phase);
        row
    }

    #[test]
    fn of_two_migrations_of_an_instance_one_gives_way() {
        let (old, young) = (row(1, Phase::Pending), row(2, Phase::Pending));
        let began = row(3, Phase::Scheduling);
        let all = vec![("b".into(), old.clone()), ("a".into(), young.clone())];
        assert!(!is_behind("b", &old, &all) && is_behind("a", &young, &all));
        let all = vec![("b".into(), old.clone()), ("c".into(), began.clone())];
        assert!(is_behind("b", &old, &all) && !is_behind("c", &began, &all));
        let all = vec![("b".into(), old.clone()), ("c".into(), row(0, Phase::Failed))];
        assert!(!is_behind("b", &old, &all));
        // Created in the same second: the name decides.
        let all = vec![("b".into(), old.clone()), ("d".into(), old.clone())];
        assert!(!is_behind("b", &old, &all) && is_behind("d", &old, &all));
    }
}
