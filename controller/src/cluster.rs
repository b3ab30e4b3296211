//! The cluster as this process sees it: caches, what is owed to them, and who is to be reconciled when something changes.
//!
//! One watch for each kind. What a change concerns is found by name, in constant time: an instance has its machine's name,
//! a pod names its instance in an annotation, and whose child an object is is noted ([`Kin`]). Of machines, instances and pods
//! there may be very many: they are kept packed.

mod feeds;

use crate::backlog::Backlogs;
use crate::births::Births;
use crate::config::Config;
use crate::expectations::Expectations;
use crate::generations::Generations;
use crate::inventory::Inventory;
use crate::kin::Kin;
use crate::node::Nodes;
use crate::packed::Packed;
use crate::pauses::Pauses;
use crate::vsock::ContextIds;
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::settings;
use barevirt_api::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use barevirt_component::installation::Installation;
use barevirt_component::notes::Notes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::reflector::{ObjectRef, store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    /// Launcher pods that were made and that no status names yet.
    pub births: Births,
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
            births: Births::default(),
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
