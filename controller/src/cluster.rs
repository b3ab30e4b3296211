//! The cluster as this process sees it: caches, what is owed to them, and who is to be reconciled when something changes.
//!
//! One watch for each kind. What a change concerns is found by name, in constant time: an instance has its machine's name,
//! a pod names its instance in an annotation, and whose child an object is is noted ([`Kin`]). Of machines, instances and pods
//! there may be very many: they are kept packed.

use crate::backlog::Backlogs;
use crate::config::Config;
use crate::error::chain;
use crate::expectations::{Expectations, Key, Kind};
use crate::generations::Generations;
use crate::inventory::Inventory;
use crate::kin::{Kin, Parent, Whose};
use crate::node::Nodes;
use crate::notes::Notes;
use crate::packed::Packed;
use crate::vmi::{self, Pauses};
use crate::vsock::ContextIds;
use barevirt_api::names::{APP_FIRST_CONSUMER, APP_HOTPLUG_DISK, APP_LABEL, APP_LAUNCHER, DOMAIN_ANNOTATION};
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::settings;
use barevirt_api::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use barevirt_api::validate::kinds::selector;
use barevirt_component::installation::Installation;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::warn;

/// A machine that may not be decodable.
pub type Vm = Packed<VirtualMachine>;
/// An instance that may not be decodable.
pub type Vmi = Packed<VirtualMachineInstance>;
/// A launcher pod, or an attachment pod.
pub type Launcher = Packed<Pod>;
/// A replica set that may not be decodable.
pub type Set = Packed<VirtualMachineInstanceReplicaSet>;
/// A pool that may not be decodable.
pub type Pool = Packed<VirtualMachinePool>;

/// What this process is told by flags.
#[derive(Clone, Debug)]
pub struct Options {
    /// Image of the launcher.
    pub launcher_image: String,
    /// Pull policy for it.
    pub image_pull_policy: Option<String>,
    /// After how long a silent node is lost.
    pub node_grace: Duration,
    /// Settings in force; watched by somebody else.
    pub installation: Installation,
    /// What metrics tell of machines and instances.
    pub inventory: Inventory,
    /// What metrics tell of the queues.
    pub backlogs: Backlogs,
    /// Namespace of the installation.
    pub namespace: String,
}

/// The cluster as this process sees it.
pub struct Cluster {
    /// Makes requests.
    pub client: Client,
    /// Tells events.
    pub notes: Notes,
    /// Writes of ours that the caches have not shown yet.
    pub expectations: Expectations,
    /// What is known about nodes.
    pub nodes: Nodes,
    /// Machines.
    pub vms: Store<Vm>,
    /// Instances.
    pub vmis: Store<Vmi>,
    /// Launcher pods and attachment pods.
    pub pods: Store<Launcher>,
    /// Replica sets.
    pub sets: Store<Set>,
    /// Pools.
    pub pools: Store<Pool>,
    /// Instances of replica sets, and those of nobody.
    pub instances: Kin,
    /// Machines of pools, and those of nobody that a pool holds still.
    pub machines: Kin,
    /// Pools that keep nothing of former generations.
    pub pruned: Generations,
    /// Machines whose DataVolumes are all filled.
    pub filled: Generations,
    /// Addresses of guests on vsock.
    pub context_ids: ContextIds,
    /// Attachment pods that were made a moment ago.
    pub pauses: Pauses,
    kubevirts: Store<DeserializeGuard<KubeVirt>>,
    known_nodes: Store<Node>,
    image_volumes: AtomicBool,
    options: Options,
}

/// What fills a [`Cluster`]; consumed by [`Feeds::run`].
pub struct Feeds {
    vms: Writer<Vm>,
    vmis: Writer<Vmi>,
    pods: Writer<Launcher>,
    nodes: Writer<Node>,
    kubevirts: Writer<DeserializeGuard<KubeVirt>>,
    sets: Writer<Set>,
    pools: Writer<Pool>,
    vm_queue: UnboundedSender<ObjectRef<Vm>>,
    vmi_queue: UnboundedSender<ObjectRef<Vmi>>,
    set_queue: UnboundedSender<ObjectRef<Set>>,
    pool_queue: UnboundedSender<ObjectRef<Pool>>,
}

/// What is to be reconciled.
pub struct Queues {
    /// Machines.
    pub vms: UnboundedReceiver<ObjectRef<Vm>>,
    /// Instances.
    pub vmis: UnboundedReceiver<ObjectRef<Vmi>>,
    /// Replica sets.
    pub sets: UnboundedReceiver<ObjectRef<Set>>,
    /// Pools.
    pub pools: UnboundedReceiver<ObjectRef<Pool>>,
}

impl Cluster {
    /// An empty view, what fills it, and what comes out of that.
    pub fn new(client: Client, notes: Notes, options: Options) -> (Arc<Self>, Feeds, Queues) {
        let (vms, vm_writer) = store();
        let (vmis, vmi_writer) = store();
        let (pods, pod_writer) = store();
        let (known_nodes, node_writer) = store();
        let (kubevirts, kubevirt_writer) = store();
        let (sets, set_writer) = store();
        let (pools, pool_writer) = store();
        let (vm_queue, vm_refs) = unbounded();
        let (vmi_queue, vmi_refs) = unbounded();
        let (set_queue, set_refs) = unbounded();
        let (pool_queue, pool_refs) = unbounded();
        let cluster = Cluster {
            client,
            notes,
            expectations: Expectations::default(),
            nodes: Nodes::new(options.node_grace),
            vms,
            vmis,
            pods,
            sets,
            pools,
            instances: Kin::default(),
            machines: Kin::default(),
            pruned: Generations::default(),
            filled: Generations::default(),
            context_ids: ContextIds::default(),
            pauses: Pauses::default(),
            kubevirts,
            known_nodes,
            image_volumes: AtomicBool::new(false),
            options,
        };
        let feeds = Feeds {
            vms: vm_writer,
            vmis: vmi_writer,
            pods: pod_writer,
            nodes: node_writer,
            kubevirts: kubevirt_writer,
            sets: set_writer,
            pools: pool_writer,
            vm_queue,
            vmi_queue,
            set_queue,
            pool_queue,
        };
        let queues = Queues { vms: vm_refs, vmis: vmi_refs, sets: set_refs, pools: pool_refs };
        (Arc::new(cluster), feeds, queues)
    }

    /// Settings as they are now.
    pub fn config(&self) -> Config {
        let mut settings = self.options.installation.settings();
        settings.pods.image_volumes =
            settings.gates.is_on("ImageVolume") && self.image_volumes.load(Ordering::Relaxed);
        Config {
            launcher_image: self.options.launcher_image.clone(),
            image_pull_policy: self.options.image_pull_policy.clone(),
            settings,
        }
    }

    /// Notes whether images can be volumes of pods; what was known before.
    pub fn set_image_volumes(&self, taken: bool) -> bool {
        self.image_volumes.swap(taken, Ordering::Relaxed)
    }

    /// Namespace of the installation.
    pub fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// The `KubeVirt` object that decides.
    pub fn kubevirt(&self) -> Option<KubeVirt> {
        let objects = self.kubevirts.state();
        settings::deciding(objects.iter().filter_map(|object| object.0.as_ref().ok())).cloned()
    }

    /// Comes back once every cache was filled. False when the feeds ended before.
    pub async fn ready(&self) -> bool {
        let (vms, vmis, pods, nodes, kubevirts, sets, pools) = tokio::join!(
            self.vms.wait_until_ready(),
            self.vmis.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.known_nodes.wait_until_ready(),
            self.kubevirts.wait_until_ready(),
            self.sets.wait_until_ready(),
            self.pools.wait_until_ready(),
        );
        self.options.installation.ready().await;
        let mine = vms.is_ok() && vmis.is_ok() && sets.is_ok() && pools.is_ok();
        mine && pods.is_ok() && nodes.is_ok() && kubevirts.is_ok()
    }
}

impl Cluster {
    /// Notes whose a machine is; its former pool, where it has another one now.
    fn note_machine(&self, vm: &Vm) -> Option<Parent> {
        let (namespace, name) = place(vm.meta());
        let whose = match vm.unpack() {
            Ok(vm) => {
                self.options.inventory.saw_machine(&vm);
                match Whose::by(vm.meta(), &VirtualMachinePool::kind(&())) {
                    // A pool adopts no machines. One that it holds still is known, for the pool to let go of it.
                    Whose::Nobodys if !crate::pool::is_held(&vm) => Whose::Others,
                    whose => whose,
                }
            }
            // Named in the log by its own reconciler.
            Err(_) => Whose::Others,
        };
        self.machines.saw(namespace, name, &whose)
    }

    /// Notes whose an instance is; its former set, where it has another one now, and the sets that may adopt it.
    fn note_instance(&self, vmi: &Vmi) -> (Option<Parent>, Vec<String>) {
        let (namespace, name) = place(vmi.meta());
        let Ok(vmi) = vmi.unpack() else {
            return (self.instances.saw(namespace, name, &Whose::Others), vec![]);
        };
        self.options.inventory.saw_instance(&vmi);
        let id = vmi.status.as_ref().and_then(|status| status.vsockcid);
        if let (Some(uid), Some(Ok(id))) = (&vmi.metadata.uid, id.map(u32::try_from)) {
            self.context_ids.saw(uid, id);
        }
        let whose = Whose::by(vmi.meta(), &VirtualMachineInstanceReplicaSet::kind(&()));
        let former = self.instances.saw(namespace, name, &whose);
        let sets = if whose == Whose::Nobodys { self.sets.state() } else { vec![] };
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
    /// Watches until the process ends.
    pub async fn run(self, cluster: Arc<Cluster>) {
        let Feeds { vms, vmis, pods, nodes, kubevirts, sets, pools, .. } = self;
        let Feeds { vm_queue, vmi_queue, set_queue, pool_queue, .. } = self;
        let client = &cluster.client;
        // A send fails only when the receivers are gone, and then the process ends.
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
                    if let Some(pool) = cluster.machines.parent(namespace, name) {
                        queue_pool(&pool.name, namespace);
                    }
                    let (former, may_adopt) = match change {
                        Change::Seen => cluster.note_instance(vmi),
                        Change::Gone | Change::Missed => {
                            cluster.options.inventory.instance_gone(namespace, name);
                            cluster.context_ids.gone(vmi.meta().uid.as_deref().unwrap_or_default());
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
                |_: &Launcher| {},
                |pod: &Launcher, change| {
                    saw(Kind::Pod, pod.meta(), change);
                    let (namespace, name) = place(pod.meta());
                    let pod = match pod.unpack() {
                        Ok(pod) => pod,
                        Err(error) => {
                            return warn!(namespace, name, error = %chain(&error), "a pod that cannot be read");
                        }
                    };
                    let owner = || pod.owner_references().first().map(|owner| &owner.name);
                    if let Some(name) = pod.annotations().get(DOMAIN_ANNOTATION).or_else(owner) {
                        queue_vmi(name, namespace);
                        if vmi::is_attachment(&pod) || vmi::is_first_consumer(&pod) {
                            return;
                        }
                        // A machine may be waiting for this pod to be gone.
                        queue_vm(name, namespace);
                        // An instance whose pod leaves is replaced.
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
                    if matters {
                        let name = node.name_any();
                        for vmi in cluster.vmis.state() {
                            if vmi.unpack().is_ok_and(|vmi| on_node(&vmi, &name)) {
                                let (namespace, name) = place(vmi.meta());
                                queue_vmi(name, namespace);
                            }
                        }
                    }
                }
            ),
            feed(Api::<DeserializeGuard<KubeVirt>>::all(client.clone()), any(), kubevirts, |_| {}, |_, _| {}),
        );
    }
}

fn on_node(vmi: &VirtualMachineInstance, node: &str) -> bool {
    vmi.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(node)
}

fn place(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// What a watch says about an object.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// It is there.
    Seen,
    /// It was deleted; this was its last state.
    Gone,
    /// It is not there any more, and its end was not seen; this is an earlier state.
    Missed,
}

/// Keeps a cache filled and tells each change, also those that happened while the watch was away. What is in a list is told
/// by `listed` before the cache counts as filled.
async fn feed<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    mut listed: impl FnMut(&K),
    mut changed: impl FnMut(&K, Change),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let reader = writer.as_reader();
    let kind = K::kind(&()).into_owned();
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        let mut event = match event {
            Ok(event) => event,
            Err(error) => {
                warn!(kind, error = %chain(&error), "the watch is interrupted");
                continue;
            }
        };
        if let Event::Apply(object) | Event::InitApply(object) = &mut event {
            // By far the largest part of many objects, and nothing here reads it.
            object.meta_mut().managed_fields = None;
        }
        let before = if matches!(event, Event::InitDone) { reader.state() } else { vec![] };
        writer.apply_watcher_event(&event);
        match &event {
            Event::Apply(object) => changed(object, Change::Seen),
            Event::Delete(object) => changed(object, Change::Gone),
            Event::InitApply(object) => listed(object),
            Event::Init => {}
            Event::InitDone => {
                let now = reader.state();
                let there: HashSet<_> = now.iter().map(|object| object.meta().uid.clone()).collect();
                for object in before.iter().filter(|object| !there.contains(&object.meta().uid)) {
                    changed(object, Change::Missed);
                }
                for object in &now {
                    changed(object, Change::Seen);
                }
            }
        }
    }
}
