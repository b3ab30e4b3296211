//! The VMs of this node: watches VMIs and launcher pods, and keeps one task for each VMI.

mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use barevirt_api::names::{APP_LABEL, APP_LAUNCHER, MIGRATION_TARGET_NODE_LABEL, NODE_NAME_LABEL};
use barevirt_api::v1::VirtualMachineInstance;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client};
use tracing::{info, warn};

use crate::migration;
use crate::pods::LauncherPod;
use crate::registry::{Key, Launchers, Subject};
use crate::sync::plan::active_pod;
use crate::sync::{self, Context, Input, Vm};

/// The tasks and their inputs.
struct Supervisor {
    context: Context,
    launchers: Launchers,
    vms: BTreeMap<Key, Vm>,
    pods: BTreeMap<String, Arc<LauncherPod>>,
    /// The VMIs in each of the watches.
    seen: BTreeMap<Side, BTreeSet<Key>>,
    /// VMIs and pods that a restarted watch has not listed yet. Those that it does not list are gone.
    unseen_vms: BTreeMap<Side, BTreeSet<Key>>,
    unseen_pods: BTreeSet<String>,
}

/// Which VMIs a watch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// VMIs on this node.
    Here,
    /// VMIs that migrate to this node.
    Coming,
}

impl Side {
    const ALL: [Self; 2] = [Self::Here, Self::Coming];

    const fn label(self) -> &'static str {
        match self {
            Self::Here => NODE_NAME_LABEL,
            Self::Coming => MIGRATION_TARGET_NODE_LABEL,
        }
    }
}

enum Change {
    Vmi(Side, Box<Event<DeserializeGuard<VirtualMachineInstance>>>),
    Pod(Box<Event<Pod>>),
    Trouble(&'static str, watcher::Error),
}

/// Watches for as long as the process lives.
pub async fn run(context: Context, launchers: Launchers) {
    let mut changes = changes(&context.client, &context.node);
    let mut supervisor = Supervisor {
        context,
        launchers,
        vms: BTreeMap::new(),
        pods: BTreeMap::new(),
        seen: BTreeMap::new(),
        unseen_vms: BTreeMap::new(),
        unseen_pods: BTreeSet::new(),
    };
    while let Some(change) = changes.next().await {
        match change {
            Change::Vmi(side, event) => supervisor.vmi(side, *event),
            Change::Pod(event) => supervisor.pod(*event),
            Change::Trouble(kind, error) => warn!(kind, %error, "watch is restarted"),
        }
    }
}

fn changes(client: &Client, node: &str) -> BoxStream<'static, Change> {
    let vmis = Side::ALL.map(|side| {
        let vmis: Api<DeserializeGuard<VirtualMachineInstance>> = Api::all(client.clone());
        let config = Config::default().labels(&format!("{}={node}", side.label()));
        let changes = watcher(vmis, config).default_backoff().map(move |event| {
            event.map_or_else(
                |error| Change::Trouble("virtualmachineinstances", error),
                |event| Change::Vmi(side, Box::new(event)),
            )
        });
        changes.boxed()
    });
    let vmis = futures::stream::select_all(vmis);
    let pods: Api<Pod> = Api::all(client.clone());
    let config = Config::default()
        .labels(&format!("{APP_LABEL}={APP_LAUNCHER}"))
        .fields(&format!("spec.nodeName={node}"));
    let pods = watcher(pods, config).default_backoff().map(|event| {
        event.map_or_else(|error| Change::Trouble("pods", error), |event| Change::Pod(Box::new(event)))
    });
    futures::stream::select(vmis, pods).boxed()
}

impl Supervisor {
    fn vmi(&mut self, side: Side, event: Event<DeserializeGuard<VirtualMachineInstance>>) {
        use kube::Resource;
        match event {
            Event::Init => {
                let seen = self.seen.get(&side).cloned().unwrap_or_default();
                self.unseen_vms.insert(side, seen);
            }
            Event::Apply(object) | Event::InitApply(object) => {
                let Some(key) = key(object.meta()) else { return };
                if let Some(unseen) = self.unseen_vms.get_mut(&side) {
                    unseen.remove(&key);
                }
                self.seen.entry(side).or_default().insert(key);
                self.apply_vmi(object);
            }
            Event::InitDone => {
                for key in self.unseen_vms.remove(&side).unwrap_or_default() {
                    self.unsee(side, &key);
                }
            }
            Event::Delete(object) => {
                if let Some(key) = key(object.meta()) {
                    self.unsee(side, &key);
                }
            }
        }
    }

    /// Handles a VMI that has left a watch.
    fn unsee(&mut self, side: Side, key: &Key) {
        if let Some(seen) = self.seen.get_mut(&side) {
            seen.remove(key);
        }
        if !self.seen.values().any(|seen| seen.contains(key)) {
            self.forget(key);
        }
    }

    fn apply_vmi(&mut self, object: DeserializeGuard<VirtualMachineInstance>) {
        use kube::Resource;
        let Some(key) = key(object.meta()) else { return };
        let vmi = match object.0 {
            Ok(vmi) => Arc::new(vmi),
            Err(invalid) => {
                // An object that a newer API server accepted and that cannot be read must not stop the
                // others. Its guest keeps running unchanged.
                warn!(namespace = key.0, name = key.1, error = invalid.error, "instance cannot be read");
                return;
            }
        };
        let pod = active_pod(&vmi, &self.context.node).and_then(|uid| self.pods.get(uid)).cloned();
        let subject = Subject::of(&vmi);
        let input = Input { vmi, pod };
        // A task that has ended (it can only have panicked) is started again.
        let same = |vm: &&Vm| {
            vm.input.borrow().vmi.metadata.uid == input.vmi.metadata.uid && vm.input.receiver_count() > 0
        };
        match self.vms.get(&key).filter(same) {
            // One of the two watches may lag behind the other.
            Some(vm) if is_older(&input.vmi, &vm.input.borrow().vmi) => return,
            Some(vm) => {
                vm.input.send_replace(input.clone());
            }
            None => {
                let vm = sync::start(self.context.clone(), input.clone());
                info!(namespace = key.0, name = key.1, "instance is on this node, or comes here");
                self.vms.insert(key.clone(), vm);
            }
        }
        let is_coming = migration::plan::incoming(&input.vmi, &self.context.node).is_some();
        match self.vms.get(&key).filter(|_| !is_coming) {
            Some(vm) => {
                let reference = input.vmi.object_ref(&());
                self.launchers.insert(key.clone(), reference, vm.launcher.clone());
                self.launchers.describe(&key, subject);
            }
            // Requests for the guest have to go to its present node.
            None => self.launchers.remove(&key),
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(vm) = self.vms.remove(key) {
            self.launchers.remove(key);
            info!(namespace = key.0, name = key.1, "instance is gone from this node");
            tokio::spawn(release::release(self.context.clone(), vm));
        }
    }

    fn pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.unseen_pods = self.pods.keys().cloned().collect(),
            Event::Apply(pod) | Event::InitApply(pod) => {
                let Some(pod) = LauncherPod::read(&pod).map(Arc::new) else { return };
                self.unseen_pods.remove(&pod.uid);
                let uid = pod.uid.clone();
                if self.pods.insert(uid.clone(), Arc::clone(&pod)).as_deref() != Some(&*pod) {
                    self.update_pod(&uid, Some(&pod));
                }
            }
            Event::InitDone => {
                for uid in std::mem::take(&mut self.unseen_pods) {
                    self.forget_pod(&uid);
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    self.forget_pod(&uid);
                }
            }
        }
    }

    fn forget_pod(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.update_pod(uid, None);
        }
    }

    /// Passes the change of a pod to the VMs that run in it.
    fn update_pod(&self, uid: &str, pod: Option<&Arc<LauncherPod>>) {
        for vm in self.vms.values() {
            let of_it = active_pod(&vm.input.borrow().vmi, &self.context.node) == Some(uid);
            if of_it {
                vm.input.send_modify(|input| input.pod = pod.cloned());
            }
        }
    }
}

/// Whether `one` is an older version of the same VMI than `than`.
fn is_older(one: &VirtualMachineInstance, than: &VirtualMachineInstance) -> bool {
    let version = |vmi: &VirtualMachineInstance| vmi.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(one), version(than)), (Some(one), Some(than)) if one < than)
}

fn key(metadata: &kube::core::ObjectMeta) -> Option<Key> {
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

#[cfg(test)]
mod tests;
