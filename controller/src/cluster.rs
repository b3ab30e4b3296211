//! The cluster as this process sees it: caches, what is owed to them, and who is to be reconciled when something changes.
//!
//! One watch for each kind. What a change concerns is found by name, in constant time: an instance has its machine's name,
//! a launcher pod names its instance in an annotation.

use crate::config::Config;
use crate::expectations::{Expectations, Key, Kind};
use crate::node::Nodes;
use crate::notes::Notes;
use barevirt_api::names::{APP_LABEL, APP_LAUNCHER, DOMAIN_ANNOTATION};
use barevirt_api::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance};
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
use std::time::{Duration, Instant};
use tracing::warn;

/// A machine that may not be decodable.
pub type Vm = DeserializeGuard<VirtualMachine>;
/// An instance that may not be decodable.
pub type Vmi = DeserializeGuard<VirtualMachineInstance>;

/// What this process is told by flags.
#[derive(Clone, Debug)]
pub struct Options {
    /// Image of the launcher.
    pub launcher_image: String,
    /// Pull policy for it.
    pub image_pull_policy: Option<String>,
    /// After how long a silent node is lost.
    pub node_grace: Duration,
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
    /// Launcher pods.
    pub pods: Store<Pod>,
    kubevirts: Store<DeserializeGuard<KubeVirt>>,
    known_nodes: Store<Node>,
    options: Options,
}

/// What fills a [`Cluster`]; consumed by [`Feeds::run`].
pub struct Feeds {
    vms: Writer<Vm>,
    vmis: Writer<Vmi>,
    pods: Writer<Pod>,
    nodes: Writer<Node>,
    kubevirts: Writer<DeserializeGuard<KubeVirt>>,
    vm_queue: UnboundedSender<ObjectRef<Vm>>,
    vmi_queue: UnboundedSender<ObjectRef<Vmi>>,
}

/// What is to be reconciled.
pub struct Queues {
    /// Machines.
    pub vms: UnboundedReceiver<ObjectRef<Vm>>,
    /// Instances.
    pub vmis: UnboundedReceiver<ObjectRef<Vmi>>,
}

impl Cluster {
    /// An empty view, what fills it, and what comes out of that.
    pub fn new(client: Client, notes: Notes, options: Options) -> (Arc<Self>, Feeds, Queues) {
        let (vms, vm_writer) = store();
        let (vmis, vmi_writer) = store();
        let (pods, pod_writer) = store();
        let (known_nodes, node_writer) = store();
        let (kubevirts, kubevirt_writer) = store();
        let (vm_queue, vm_refs) = unbounded();
        let (vmi_queue, vmi_refs) = unbounded();
        let cluster = Cluster {
            client,
            notes,
            expectations: Expectations::default(),
            nodes: Nodes::new(options.node_grace),
            vms,
            vmis,
            pods,
            kubevirts,
            known_nodes,
            options,
        };
        let feeds = Feeds {
            vms: vm_writer,
            vmis: vmi_writer,
            pods: pod_writer,
            nodes: node_writer,
            kubevirts: kubevirt_writer,
            vm_queue,
            vmi_queue,
        };
        (Arc::new(cluster), feeds, Queues { vms: vm_refs, vmis: vmi_refs })
    }

    /// Settings as they are now.
    pub fn config(&self) -> Config {
        let objects = self.kubevirts.state();
        Config::current(
            &self.options.launcher_image,
            self.options.image_pull_policy.as_deref(),
            objects.iter().filter_map(|object| object.0.as_ref().ok()),
        )
    }

    /// Comes back once every cache was filled. False when the feeds ended before.
    pub async fn ready(&self) -> bool {
        let (vms, vmis, pods, nodes, kubevirts) = tokio::join!(
            self.vms.wait_until_ready(),
            self.vmis.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.known_nodes.wait_until_ready(),
            self.kubevirts.wait_until_ready(),
        );
        vms.is_ok() && vmis.is_ok() && pods.is_ok() && nodes.is_ok() && kubevirts.is_ok()
    }
}

impl Feeds {
    /// Watches until the process ends.
    pub async fn run(self, cluster: Arc<Cluster>) {
        let Feeds { vms, vmis, pods, nodes, kubevirts, vm_queue, vmi_queue } = self;
        let client = &cluster.client;
        // A send fails only when the receivers are gone, and then the process ends.
        let queue_vm = |name: &str, namespace: &str| {
            let _ = vm_queue.unbounded_send(ObjectRef::new(name).within(namespace));
        };
        let queue_vmi = |name: &str, namespace: &str| {
            let _ = vmi_queue.unbounded_send(ObjectRef::new(name).within(namespace));
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

        let launchers = watcher::Config::default().labels(&format!("{APP_LABEL}={APP_LAUNCHER}"));
        let any = watcher::Config::default;
        tokio::join!(
            feed(Api::<Vm>::all(client.clone()), any(), vms, |vm: &Vm, change| {
                saw(Kind::Vm, vm.meta(), change);
                let (namespace, name) = place(vm.meta());
                queue_vm(name, namespace);
            }),
            feed(Api::<Vmi>::all(client.clone()), any(), vmis, |vmi: &Vmi, change| {
                saw(Kind::Vmi, vmi.meta(), change);
                let (namespace, name) = place(vmi.meta());
                queue_vmi(name, namespace);
                queue_vm(name, namespace);
            }),
            feed(Api::<Pod>::all(client.clone()), launchers, pods, |pod: &Pod, change| {
                saw(Kind::Pod, pod.meta(), change);
                let (namespace, _) = place(pod.meta());
                let owner = || pod.owner_references().first().map(|owner| &owner.name);
                if let Some(name) = pod.annotations().get(DOMAIN_ANNOTATION).or_else(owner) {
                    queue_vmi(name, namespace);
                    // A machine may be waiting for this pod to be gone.
                    queue_vm(name, namespace);
                }
            }),
            feed(Api::<Node>::all(client.clone()), any(), nodes, |node: &Node, change| {
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
                        if vmi.0.as_ref().is_ok_and(|vmi| on_node(vmi, &name)) {
                            let (namespace, name) = place(vmi.meta());
                            queue_vmi(name, namespace);
                        }
                    }
                }
            }),
            feed(Api::<DeserializeGuard<KubeVirt>>::all(client.clone()), any(), kubevirts, |_, _| {}),
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

/// Keeps a cache filled and tells each change, also those that happened while the watch was away.
async fn feed<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
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
                warn!(kind, error = %crate::error::chain(&error), "the watch is interrupted");
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
            Event::Init | Event::InitApply(_) => {}
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
