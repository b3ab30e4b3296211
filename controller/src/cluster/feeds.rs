//! Fills the caches of a [`Cluster`] from watches, and queues the objects that each change concerns.

mod fill;
mod migrations;

use self::fill::{Change, feed};
use super::{Cluster, Feeds, Launcher, Pool, Set, Vm, Vmi};
use crate::expectations::{Key, Kind};
use crate::ownership::{Ownership, Parent};
use crate::pool::is_held;
use crate::vmi;
use barevirt_api::names::{APP_FIRST_CONSUMER, APP_HOTPLUG_DISK, APP_LABEL, APP_LAUNCHER, DOMAIN_ANNOTATION};
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use barevirt_api::validate::kinds::selector;
use barevirt_component::error::chain;
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;

impl Cluster {
    /// Records the owner of a machine; returns its former pool, where that has changed.
    fn note_machine(&self, vm: &Vm) -> Option<Parent> {
        let (namespace, name) = place(vm.meta());
        let ownership = match vm.unpack() {
            Ok(vm) => {
                self.options.inventory.saw_machine(&vm);
                match Ownership::of(vm.meta(), &VirtualMachinePool::kind(&())) {
                    // A pool adopts no machines. A machine that it still holds is recorded, so that the pool can release it.
                    Ownership::Unowned if !is_held(&vm) => Ownership::Other,
                    ownership => ownership,
                }
            }
            // Its own reconciler logs it.
            Err(_) => Ownership::Other,
        };
        self.machines.saw(namespace, name, &ownership)
    }

    /// Records the owner of an instance; returns its former set, where that has changed, and the sets that may adopt it.
    fn note_instance(&self, vmi: &Vmi) -> (Option<Parent>, Vec<String>) {
        let (namespace, name) = place(vmi.meta());
        let Ok(vmi) = vmi.unpack() else {
            return (self.instances.saw(namespace, name, &Ownership::Other), vec![]);
        };
        self.options.inventory.saw_instance(&vmi);
        let id = vmi.status.as_ref().and_then(|status| status.vsockcid);
        if let (Some(uid), Some(Ok(id))) = (&vmi.metadata.uid, id.map(u32::try_from)) {
            self.context_ids.saw(uid, id);
        }
        self.macs.saw(&vmi);
        let ownership = Ownership::of(vmi.meta(), &VirtualMachineInstanceReplicaSet::kind(&()));
        let former = self.instances.saw(namespace, name, &ownership);
        let sets = if ownership == Ownership::Unowned { self.sets.state() } else { vec![] };
        let selects = |set: &&Arc<Set>| {
            place(set.meta()).0 == namespace
                && set.unpack().is_ok_and(|set| {
                    selector::matches(&set.spec.selector, vmi.meta().labels.as_ref()) == Ok(true)
                })
        };
        (former, sets.iter().filter(selects).map(|set| set.name_any()).collect())
    }
}

impl Feeds {
    /// The queue of instances, for changes that no watch here shows.
    pub fn instances(&self) -> UnboundedSender<ObjectRef<Vmi>> {
        self.vmi_queue.clone()
    }

    /// Watches until the future is dropped.
    pub async fn run(self, cluster: Arc<Cluster>) {
        let Feeds { vms, vmis, pods, nodes, kubevirts, sets, pools, vmims, .. } = self;
        let Feeds { vm_queue, vmi_queue, set_queue, pool_queue, vmim_queue, evacuation_queue, .. } = self;
        let client = &cluster.client;
        // A send fails only when the receivers are gone; then the process ends.
        let queue_vm = |name: &str, namespace: &str| {
            let _ = vm_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_vmi = |name: &str, namespace: &str| {
            let _ = vmi_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_set = |name: &str, namespace: &str| {
            let _ = set_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_pool = |name: &str, namespace: &str| {
            let _ = pool_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_vmim = |name: &str, namespace: &str| {
            let _ = vmim_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_evacuation = |name: &str, namespace: &str| {
            let _ = evacuation_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let saw = |kind, meta: &ObjectMeta, change| {
            let (namespace, name) = place(meta);
            let key = Key::new(kind, namespace, name);
            match change {
                Change::Seen | Change::Gone => {
                    cluster.expectations.saw(&key, meta.resource_version.as_deref());
                }
                Change::Missed => cluster.expectations.missed(&key),
            }
        };

        let ours = format!("{APP_LABEL} in ({APP_LAUNCHER},{APP_HOTPLUG_DISK},{APP_FIRST_CONSUMER})");
        let launchers = watcher::Config::default().labels(&ours);
        let any = watcher::Config::default;
        let told = migrations::Queues {
            seen: &saw,
            vmi: &queue_vmi,
            vmim: &queue_vmim,
            evacuation: &queue_evacuation,
        };
        tokio::join!(
            feed(
                Api::<Vm>::all(client.clone()),
                any(),
                vms,
                |vm: &Vm| drop(cluster.note_machine(vm)),
                |vm: &Vm, change| {
                    saw(Kind::Vm, vm.meta(), change);
                    let (namespace, name) = place(vm.meta());
                    queue_vm(name, namespace);
                    let former = match change {
                        Change::Seen => cluster.note_machine(vm),
                        Change::Gone | Change::Missed => {
                            cluster.options.inventory.machine_gone(namespace, name);
                            cluster.filled.forget(vm.meta().uid.as_deref().unwrap_or_default());
                            cluster.machines.gone(namespace, name)
                        }
                    };
                    for pool in former.into_iter().chain(cluster.machines.parent(namespace, name)) {
                        queue_pool(&pool.name, namespace);
                    }
                }
            ),
            feed(
                Api::<Vmi>::all(client.clone()),
                any(),
                vmis,
                |vmi: &Vmi| drop(cluster.note_instance(vmi)),
                |vmi: &Vmi, change| {
                    saw(Kind::Vmi, vmi.meta(), change);
                    let (namespace, name) = place(vmi.meta());
                    queue_vmi(name, namespace);
                    queue_vm(name, namespace);
                    let (migrations, leaves) = cluster.note_home(vmi);
                    for migration in migrations {
                        queue_vmim(&migration, namespace);
                    }
                    if leaves {
                        queue_evacuation(name, namespace);
                    }
                    if let Some(pool) = cluster.machines.parent(namespace, name) {
                        queue_pool(&pool.name, namespace);
                    }
                    let (former, may_adopt) = match change {
                        Change::Seen => cluster.note_instance(vmi),
                        Change::Gone | Change::Missed => {
                            cluster.options.inventory.instance_gone(namespace, name);
                            cluster.context_ids.gone(vmi.meta().uid.as_deref().unwrap_or_default());
                            cluster.macs.gone(namespace, name);
                            (cluster.instances.gone(namespace, name), vec![])
                        }
                    };
                    for set in former.into_iter().chain(cluster.instances.parent(namespace, name)) {
                        queue_set(&set.name, namespace);
                    }
                    for set in may_adopt {
                        queue_set(&set, namespace);
                    }
                }
            ),
            feed(
                Api::<Set>::all(client.clone()),
                any(),
                sets,
                |_: &Set| {},
                |set: &Set, change| {
                    saw(Kind::Set, set.meta(), change);
                    let (namespace, name) = place(set.meta());
                    queue_set(name, namespace);
                }
            ),
            feed(
                Api::<Pool>::all(client.clone()),
                any(),
                pools,
                |_: &Pool| {},
                |pool: &Pool, change| {
                    saw(Kind::Pool, pool.meta(), change);
                    let (namespace, name) = place(pool.meta());
                    queue_pool(name, namespace);
                    if change != Change::Seen {
                        cluster.pruned.forget(pool.meta().uid.as_deref().unwrap_or_default());
                    }
                }
            ),
            feed(
                Api::<Launcher>::all(client.clone()),
                launchers,
                pods,
                |pod: &Launcher| {
                    if let Ok(pod) = pod.unpack() {
                        cluster.note_target(&pod, true);
                    }
                },
                |pod: &Launcher, change| {
                    saw(Kind::Pod, pod.meta(), change);
                    if change != Change::Seen {
                        cluster.created_pods.forget(pod.meta().uid.as_deref().unwrap_or_default());
                    }
                    let (namespace, name) = place(pod.meta());
                    let pod = match pod.unpack() {
                        Ok(pod) => pod,
                        Err(error) => {
                            return warn!(namespace, name, error = %chain(&error), "a pod that cannot be read");
                        }
                    };
                    cluster.note_target(&pod, change == Change::Seen);
                    let owner = || pod.owner_references().first().map(|owner| &owner.name);
                    if let Some(name) = pod.annotations().get(DOMAIN_ANNOTATION).or_else(owner) {
                        queue_vmi(name, namespace);
                        if vmi::is_attachment(&pod) || vmi::is_first_consumer(&pod) {
                            return;
                        }
                        for (migration, row) in cluster.migrations.of_instance(namespace, name) {
                            if !row.done {
                                queue_vmim(&migration, namespace);
                            }
                        }
                        // A machine may be waiting for the end of this pod.
                        queue_vm(name, namespace);
                        // A replica set replaces an instance whose pod is being deleted.
                        if let Some(set) = cluster.instances.parent(namespace, name) {
                            queue_set(&set.name, namespace);
                        }
                    }
                }
            ),
            feed(
                Api::<Node>::all(client.clone()),
                any(),
                nodes,
                |_: &Node| {},
                |node: &Node, change| {
                    let matters = match change {
                        Change::Gone | Change::Missed => {
                            cluster.nodes.gone(&node.name_any(), Instant::now());
                            true
                        }
                        Change::Seen => cluster.nodes.saw(node, Instant::now()),
                    };
                    let drained = change == Change::Seen && cluster.is_drained(node);
                    if matters || drained {
                        let name = node.name_any();
                        for vmi in cluster.vmis.state() {
                            if vmi.unpack().is_ok_and(|vmi| on_node(&vmi, &name)) {
                                let (namespace, name) = place(vmi.meta());
                                queue_vmi(name, namespace);
                                if drained {
                                    queue_evacuation(name, namespace);
                                }
                            }
                        }
                    }
                }
            ),
            feed(Api::<DeserializeGuard<KubeVirt>>::all(client.clone()), any(), kubevirts, |_| {}, |_, _| {}),
            migrations::follow(&cluster, vmims, &told,),
        );
    }
}

fn on_node(vmi: &VirtualMachineInstance, node: &str) -> bool {
    vmi.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(node)
}

fn place(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}
