//! Records changes of migrations, of their pods and of their instances, and the objects that each change concerns.

use super::fill::{Change, feed_some};
use super::place;
use crate::cluster::{Cluster, Vmi, Vmim};
use crate::expectations::Kind;
use crate::migrations::queue::Key;
use crate::migrations::row::Row;
use barevirt_api::migratable::SERVED;
use barevirt_api::names::{DOMAIN_ANNOTATION, MIGRATION_JOB_LABEL};
use barevirt_plan::migration::Limits;
use barevirt_plan::pod::target::target_name;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::{Resource, ResourceExt};
use std::cell::RefCell;
use std::collections::HashSet;

/// The objects that a change concerns.
#[derive(Debug, Default, PartialEq)]
struct Concerned {
    /// The instance.
    vmi: Option<Box<str>>,
    /// Waiting migrations, of any namespace.
    waiting: Vec<Key>,
}

/// A name, then its namespace.
type Queue<'a> = &'a dyn Fn(&str, &str);

/// The queues for changed objects.
pub(super) struct Queues<'a> {
    /// Reports what the watch shows of our own writes.
    pub(super) seen: &'a dyn Fn(Kind, &ObjectMeta, Change),
    /// Instances.
    pub(super) vmi: Queue<'a>,
    /// Migrations.
    pub(super) vmim: Queue<'a>,
    /// Instances that may have to leave their node.
    pub(super) evacuation: Queue<'a>,
}

impl Queues<'_> {
    fn tell(&self, namespace: &str, concerned: Concerned) {
        if let Some(vmi) = concerned.vmi {
            (self.vmi)(&vmi, namespace);
            (self.evacuation)(&vmi, namespace);
        }
        for (namespace, name) in concerned.waiting {
            (self.vmim)(&name, &namespace);
        }
    }
}

/// Watches migrations, where they are served.
pub(super) async fn follow(cluster: &Cluster, vmims: Writer<Vmim>, queues: &Queues<'_>) {
    if !SERVED {
        return std::future::pending().await;
    }
    let listed = RefCell::new(HashSet::new());
    feed_some(
        Api::<Vmim>::all(cluster.client.clone()),
        vmims,
        Cluster::is_kept,
        |vmim: Option<&Vmim>| match vmim {
            Some(vmim) => {
                drop(cluster.note_migration(vmim));
                let (namespace, name) = place(vmim.meta());
                listed.borrow_mut().insert((Box::from(namespace), Box::from(name)));
            }
            None => {
                for (namespace, name) in cluster.migrations.missing(&listed.take()) {
                    queues.tell(&namespace, cluster.migration_gone(&namespace, &name));
                }
            }
        },
        |vmim: &Vmim, change| {
            (queues.seen)(Kind::Vmim, vmim.meta(), change);
            let (namespace, name) = place(vmim.meta());
            (queues.vmim)(name, namespace);
            let concerned = match change {
                Change::Seen => cluster.note_migration(vmim),
                // It is no longer kept, or it is gone: the list has reported which.
                Change::Missed => Concerned::default(),
                Change::Gone => cluster.migration_gone(namespace, name),
            };
            queues.tell(namespace, concerned);
        },
    )
    .await;
}

impl Cluster {
    /// Records the state of a migration.
    fn note_migration(&self, vmim: &Vmim) -> Concerned {
        let (namespace, name) = place(vmim.meta());
        // Its own reconciler logs it.
        let Ok(migration) = vmim.unpack() else { return Concerned::default() };
        self.options.inventory.saw_migration(&migration);
        let row = Row::of(&migration);
        let vmi = row.vmi.clone();
        let instance = self.vmis.get(&ObjectRef::new(&vmi).within(namespace));
        let home = instance.and_then(|vmi| vmi.unpack().ok()?.status?.node_name);
        let ended = self.migrations.saw(namespace, name, row, home.as_deref());
        Concerned { vmi: Some(vmi), waiting: if ended { self.next_migrations() } else { vec![] } }
    }

    /// Records that a migration is gone.
    fn migration_gone(&self, namespace: &str, name: &str) -> Concerned {
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

    /// Whether the cache keeps a migration: only while it still needs work.
    fn is_kept(vmim: &Vmim) -> bool {
        vmim.unpack().is_ok_and(|migration| !Row::of(&migration).done)
    }

    /// Records the node of an instance for its migrations; returns their names, and whether the instance may have to leave
    /// its node.
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

    /// Records whether a pod that a migration made exists.
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
