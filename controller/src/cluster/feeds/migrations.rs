//! What changes of migrations, and of what they make, are noted and whom they concern.

use super::place;
use crate::cluster::{Cluster, Vmi, Vmim};
use crate::migrations::queue::Key;
use crate::migrations::row::Row;
use barevirt_api::migratable::SERVED;
use barevirt_api::names::{DOMAIN_ANNOTATION, MIGRATION_JOB_LABEL};
use barevirt_plan::migration::Limits;
use barevirt_plan::pod::target::target_name;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

/// Whom a change concerns.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Concerned {
    /// The instance.
    pub(super) vmi: Option<Box<str>>,
    /// Migrations that wait, of any namespace.
    pub(super) waiting: Vec<Key>,
}

impl Cluster {
    /// Notes a migration as it is.
    pub(super) fn note_migration(&self, vmim: &Vmim) -> Concerned {
        let (namespace, name) = place(vmim.meta());
        // Named in the log by its own reconciler.
        let Ok(migration) = vmim.unpack() else { return Concerned::default() };
        let row = Row::of(&migration);
        let vmi = row.vmi.clone();
        let instance = self.vmis.get(&ObjectRef::new(&vmi).within(namespace));
        let home = instance.and_then(|vmi| vmi.unpack().ok()?.status?.node_name);
        let ended = self.migrations.saw(namespace, name, row, home.as_deref());
        Concerned { vmi: Some(vmi), waiting: if ended { self.next_migrations() } else { vec![] } }
    }

    /// Notes that a migration is gone.
    pub(super) fn migration_gone(&self, namespace: &str, name: &str) -> Concerned {
        let vmi = self.migrations.gone(namespace, name);
        Concerned { vmi, waiting: self.next_migrations() }
    }

    fn next_migrations(&self) -> Vec<Key> {
        let limits = Limits::of(&self.migration_settings());
        self.migrations.next(&limits, |namespace, vmi, uid| self.has_pod(namespace, &target_name(vmi, uid)))
    }

    /// Whether the cache has a pod of that name.
    pub fn has_pod(&self, namespace: &str, name: &str) -> bool {
        self.pods.get(&ObjectRef::new(name).within(namespace)).is_some()
    }

    /// Whether nothing is to be done for a migration any more, so that it is not kept.
    pub(super) fn is_kept(vmim: &Vmim) -> bool {
        vmim.unpack().is_ok_and(|migration| !Row::of(&migration).done)
    }

    /// Notes where an instance is, for its migrations; their names, and whether it may have to leave its node.
    pub(super) fn note_home(&self, vmi: &Vmi) -> (Vec<Box<str>>, bool) {
        if !SERVED {
            return (vec![], false);
        }
        let (namespace, name) = place(vmi.meta());
        let Ok(vmi) = vmi.unpack() else { return (vec![], false) };
        let status = vmi.status.unwrap_or_default();
        let home = status.node_name.as_deref().unwrap_or_default();
        self.migrations.saw_instance(namespace, name, home);
        let migrations = self.migrations.of_instance(namespace, name).into_iter();
        let kept = migrations.filter(|(_, row)| !row.done).map(|(name, _)| name).collect();
        let leaves =
            status.evacuation_node_name.is_some() || self.node(home).is_some_and(|n| self.is_drained(&n));
        (kept, leaves)
    }

    /// Whether guests are to leave a node because of its taint.
    pub fn is_drained(&self, node: &Node) -> bool {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        if !SERVED || taints.is_empty() {
            return false;
        }
        let key = Limits::of(&self.migration_settings()).drain_taint;
        taints.iter().any(|taint| taint.key == key && taint.effect == "NoSchedule")
    }

    /// Notes a pod that a migration made, or that it is gone.
    pub(super) fn note_target(&self, pod: &Pod, there: bool) {
        let (namespace, name) = place(pod.meta());
        if let (Some(vmi), true) =
            (pod.annotations().get(DOMAIN_ANNOTATION), pod.labels().contains_key(MIGRATION_JOB_LABEL))
        {
            if there {
                self.migrations.saw_target(namespace, vmi, name);
            } else {
                self.migrations.target_gone(namespace, vmi, name);
            }
        }
    }
}
