//! The cluster as this process sees it: caches, writes that they do not show yet, and the objects to reconcile after a
//! change.
//!
//! There is one watch for each kind. The objects that a change concerns are found by name, in constant time: an instance has
//! its machine's name, a pod names its instance in an annotation, and [`Owners`] records owners. There may be very many
//! machines, instances and pods: they are kept packed.

mod feeds;

use crate::backlog::Backlogs;
use crate::config::Config;
use crate::created_pods::CreatedPods;
use crate::expectations::Expectations;
use crate::generations::Generations;
use crate::inventory::Inventory;
use crate::macs::Macs;
use crate::migrations::Migrations;
use crate::node::Nodes;
use crate::ownership::Owners;
use crate::packed::Packed;
use crate::pauses::Pauses;
use crate::senders::Senders;
use crate::vsock::ContextIds;
use barevirt_api::migratable::SERVED;
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::settings;
use barevirt_api::v1::{
    KubeVirt, MigrationConfiguration, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet,
};
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

/// A machine, which may be undecodable.
pub type Vm = Packed<VirtualMachine>;
/// An instance, which may be undecodable.
pub type Vmi = Packed<VirtualMachineInstance>;
/// A launcher pod, or an attachment pod.
pub type Launcher = Packed<Pod>;
/// A replica set, which may be undecodable.
pub type Set = Packed<VirtualMachineInstanceReplicaSet>;
/// A pool, which may be undecodable.
pub type Pool = Packed<VirtualMachinePool>;
/// A migration, which may be undecodable.
pub type Vmim = Packed<VirtualMachineInstanceMigration>;

/// Options of this process, from its flags.
#[derive(Clone, Debug)]
pub struct Options {
    /// Image of the launcher.
    pub launcher_image: String,
    /// Image of the importer; without it DataVolumes are left to CDI.
    pub importer_image: Option<String>,
    /// Image of passt; without it no guest is joined to the pod network by passt.
    pub passt_image: Option<String>,
    /// Pull policy for these images.
    pub image_pull_policy: Option<String>,
    /// How long a node may be silent before it counts as lost.
    pub node_grace: Duration,
    /// Settings in force; another task watches them.
    pub installation: Installation,
    /// Metrics of machines and instances.
    pub inventory: Inventory,
    /// Metrics of the queues.
    pub backlogs: Backlogs,
    /// Namespace of the installation.
    pub namespace: String,
}

/// The cluster as this process sees it.
pub struct Cluster {
    /// Makes requests.
    pub client: Client,
    /// Emits events.
    pub notes: Notes,
    /// Our writes that the caches do not show yet.
    pub expectations: Expectations,
    /// The states of nodes.
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
    /// Migrations that still need work.
    pub vmims: Store<Vmim>,
    /// The state of all migrations.
    pub migrations: Migrations,
    /// Instances of replica sets, and instances without a controller.
    pub instances: Owners,
    /// Machines of pools, and machines without a controller that a pool still holds.
    pub machines: Owners,
    /// Pools that keep nothing of former generations.
    pub pruned: Generations,
    /// Machines whose DataVolumes are all filled.
    pub filled: Generations,
    /// Addresses of guests on vsock.
    pub context_ids: ContextIds,
    /// MAC addresses of guests on shared networks.
    pub macs: Macs,
    /// Attachment pods that were made a moment ago.
    pub pauses: Pauses,
    /// Launcher pods that were made and that no status names yet.
    pub created_pods: CreatedPods,
    /// Pods that send claims to other namespaces.
    pub senders: Senders,
    kubevirts: Store<DeserializeGuard<KubeVirt>>,
    known_nodes: Store<Node>,
    image_volumes: AtomicBool,
    options: Options,
}

/// The watches that fill a [`Cluster`]; consumed by [`Feeds::run`].
pub struct Feeds {
    vms: Writer<Vm>,
    vmis: Writer<Vmi>,
    pods: Writer<Launcher>,
    nodes: Writer<Node>,
    kubevirts: Writer<DeserializeGuard<KubeVirt>>,
    sets: Writer<Set>,
    pools: Writer<Pool>,
    vmims: Writer<Vmim>,
    vm_queue: UnboundedSender<ObjectRef<Vm>>,
    vmi_queue: UnboundedSender<ObjectRef<Vmi>>,
    set_queue: UnboundedSender<ObjectRef<Set>>,
    pool_queue: UnboundedSender<ObjectRef<Pool>>,
    vmim_queue: UnboundedSender<ObjectRef<Vmim>>,
    evacuation_queue: UnboundedSender<ObjectRef<Vmi>>,
}

/// Objects to reconcile.
pub struct Queues {
    /// Machines.
    pub vms: UnboundedReceiver<ObjectRef<Vm>>,
    /// Instances.
    pub vmis: UnboundedReceiver<ObjectRef<Vmi>>,
    /// Replica sets.
    pub sets: UnboundedReceiver<ObjectRef<Set>>,
    /// Pools.
    pub pools: UnboundedReceiver<ObjectRef<Pool>>,
    /// Migrations.
    pub vmims: UnboundedReceiver<ObjectRef<Vmim>>,
    /// Instances that may have to leave their node.
    pub evacuations: UnboundedReceiver<ObjectRef<Vmi>>,
}

impl Cluster {
    /// An empty cluster, the feeds that fill it, and the queues that they fill.
    pub fn new(client: Client, notes: Notes, options: Options) -> (Arc<Self>, Feeds, Queues) {
        let (vms, vm_writer) = store();
        let (vmis, vmi_writer) = store();
        let (pods, pod_writer) = store();
        let (known_nodes, node_writer) = store();
        let (kubevirts, kubevirt_writer) = store();
        let (sets, set_writer) = store();
        let (pools, pool_writer) = store();
        let (vmims, vmim_writer) = store();
        let (vm_queue, vm_refs) = unbounded();
        let (vmi_queue, vmi_refs) = unbounded();
        let (set_queue, set_refs) = unbounded();
        let (pool_queue, pool_refs) = unbounded();
        let (vmim_queue, vmim_refs) = unbounded();
        let (evacuation_queue, evacuation_refs) = unbounded();
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
            vmims,
            migrations: options.inventory.migrations().clone(),
            instances: Owners::default(),
            machines: Owners::default(),
            pruned: Generations::default(),
            filled: Generations::default(),
            context_ids: ContextIds::default(),
            macs: Macs::default(),
            pauses: Pauses::default(),
            created_pods: CreatedPods::default(),
            senders: Senders::default(),
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
            vmims: vmim_writer,
            vm_queue,
            vmi_queue,
            set_queue,
            pool_queue,
            vmim_queue,
            evacuation_queue,
        };
        let queues = Queues {
            vms: vm_refs,
            vmis: vmi_refs,
            sets: set_refs,
            pools: pool_refs,
            vmims: vmim_refs,
            evacuations: evacuation_refs,
        };
        (Arc::new(cluster), feeds, queues)
    }

    /// The present settings.
    pub fn config(&self) -> Config {
        let mut settings = self.options.installation.settings();
        settings.pods.image_volumes =
            settings.gates.is_on("ImageVolume") && self.image_volumes.load(Ordering::Relaxed);
        settings.pods.passt_image.clone_from(&self.options.passt_image);
        Config {
            launcher_image: self.options.launcher_image.clone(),
            image_pull_policy: self.options.image_pull_policy.clone(),
            settings,
        }
    }

    /// The settings in force, and their changes.
    pub fn installation(&self) -> &Installation {
        &self.options.installation
    }

    /// The size of a new disk on a claim; `None` if it is not known.
    pub fn claim_bytes(&self, namespace: &str, claim: &str) -> Option<u64> {
        self.options.inventory.claim_bytes(namespace, claim)
    }

    /// Image of the importer.
    pub fn importer_image(&self) -> Option<&str> {
        self.options.importer_image.as_deref()
    }

    /// Records whether images can be volumes of pods; returns the former value.
    pub fn set_image_volumes(&self, taken: bool) -> bool {
        self.image_volumes.swap(taken, Ordering::Relaxed)
    }

    /// Namespace of the installation.
    pub fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// The `KubeVirt` object in force.
    pub fn kubevirt(&self) -> Option<KubeVirt> {
        let objects = self.kubevirts.state();
        settings::deciding(objects.iter().filter_map(|object| object.0.as_ref().ok())).cloned()
    }

    /// The installation's settings for migrations.
    pub fn migration_settings(&self) -> MigrationConfiguration {
        let configuration = self.kubevirt().and_then(|object| object.spec.configuration);
        configuration.and_then(|configuration| configuration.migrations).unwrap_or_default()
    }

    /// A node from the cache.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.known_nodes.get(&ObjectRef::new(name))
    }

    /// All nodes of the cache.
    pub fn nodes_known(&self) -> Vec<Arc<Node>> {
        self.known_nodes.state()
    }

    /// Waits until every cache is filled. False if the feeds ended before.
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
        // Migrations are not watched where they are not served.
        let migrations = !SERVED || self.vmims.wait_until_ready().await.is_ok();
        self.options.installation.ready().await;
        let mine = vms.is_ok() && vmis.is_ok() && sets.is_ok() && pools.is_ok();
        mine && migrations && pods.is_ok() && nodes.is_ok() && kubevirts.is_ok()
    }
}
