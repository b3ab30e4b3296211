//! A model of the API server, kubelets, both nodes' handlers and launchers, users and nodes. It executes plans for an
//! instance and for its migrations that were made from old observations, as the real shells do: names are unique, patches
//! apply only to one version, and a process sees its own writes before it observes again.
//!
//! The model knows where the guest runs. Handlers and launchers follow the protocol: the source begins once the target has
//! an address, and stops once everything is sent. If it then reads that the migration failed, it goes on only where the target
//! has reported that the guest never ran there (`domainDetected`), otherwise it ends. The target runs the guest when it has
//! arrived, and reports that in one patch; while it only waits, it accepts a cancellation.
//!
//! What happens in any order: crashes of the controller, of handlers, launchers and nodes of both sides, lost reports, slow
//! nodes, old caches, policies that change, and what users and administrators do. [`end`] has what must hold.

mod api_server;
mod controller;
mod end;
mod events;
mod handlers;
mod nodes;
mod runs;
mod scripts;

use self::events::Event;
use self::handlers::Flight;
use super::*;
use crate::migration::{begin, course, observe, plan as decide, settings::recorded};
use crate::migrations::Migrations;
use crate::migrations::row::{Phase, Row, is_held};
use crate::vmi::InstanceEnd;
use crate::vmi::others::is_over;
use crate::vmi::tests::{Look, Step, steps};
use barevirt_plan::migration::Limits;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

const NODES: [&str; 3] = ["a", "b", "c"];
/// Annotation of a target pod: whether the policy allowed post-copy when it was made.
const POST_COPY: &str = "post-copy";

struct World {
    vmi: Option<VirtualMachineInstance>,
    vmi_history: Vec<Option<VirtualMachineInstance>>,
    /// Nothing older is observed: this process wrote it.
    vmi_barrier: usize,
    pods: BTreeMap<String, Pod>,
    pod_history: Vec<BTreeMap<String, Pod>>,
    pod_barrier: usize,
    vmims: BTreeMap<String, VirtualMachineInstanceMigration>,
    /// Written by this process and not observed yet.
    unseen: BTreeSet<String>,
    migrations: Migrations,
    created_pods: BTreeSet<String>,
    nodes: BTreeMap<&'static str, NodeState>,
    /// Containers that have started, and those that have not ended.
    started: BTreeSet<String>,
    alive: BTreeSet<String>,
    places: BTreeMap<String, String>,
    missing: BTreeMap<String, i64>,
    /// Pods whose guest runs.
    running: BTreeSet<String>,
    /// Pods whose guest has run at some time.
    ran: BTreeSet<String>,
    /// Launchers whose last report, that they have ended, is known to their handler.
    reported: BTreeSet<String>,
    /// Whether the guest may be gone: what ran it has ended, or the source has ended because nobody knows whether the target
    /// ran it.
    lost: bool,
    /// Whether it was the latter.
    given_up: bool,
    flight: Option<Flight>,
    /// Whether the policy allows post-copy.
    post_copy: bool,
    /// Whether something is missing that each target pod needs.
    lacks: bool,
    base: Instant,
    now: i64,
    version: u64,
    made: usize,
    asked: usize,
}

impl World {
    fn new() -> Self {
        let vmi = vmi(json!({"metadata": {"finalizers": [barevirt_api::names::VMI_FINALIZER]},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}}}));
        let mut pod = runs();
        pod.metadata.name = Some(launcher_name(&vmi));
        pod.metadata.uid = Some("s1".to_owned());
        pod.labels_mut().remove(MIGRATION_JOB_LABEL);
        pod.spec.as_mut().unwrap().node_name = Some("a".to_owned());
        let only = || BTreeSet::from(["s1".to_owned()]);
        World {
            vmi: Some(vmi),
            vmi_history: vec![],
            vmi_barrier: 0,
            pods: [(pod.name_any(), pod)].into(),
            pod_history: vec![],
            pod_barrier: 0,
            vmims: BTreeMap::new(),
            unseen: BTreeSet::new(),
            migrations: Migrations::default(),
            created_pods: BTreeSet::new(),
            nodes: NODES.map(|node| (node, NodeState::Ready)).into(),
            started: only(),
            alive: only(),
            places: [("s1".to_owned(), "a".to_owned())].into(),
            missing: BTreeMap::new(),
            running: only(),
            ran: only(),
            reported: BTreeSet::new(),
            lost: false,
            given_up: false,
            flight: None,
            post_copy: false,
            lacks: false,
            base: Instant::now(),
            now: NOW,
            version: 100,
            made: 0,
            asked: 0,
        }
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_secs(u64::try_from(self.now - NOW).unwrap())
    }

    fn name(&self, which: usize) -> Option<String> {
        self.vmims.keys().nth(which).cloned()
    }

    fn pod(&self, which: usize) -> Option<(String, String)> {
        self.pods.values().nth(which).map(|pod| (pod.name_any(), pod.uid().unwrap()))
    }

    fn step(&mut self, event: &Event) {
        let current = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref()?.node_name.clone());
        let spared =
            |node: &str, world: &World| current.as_deref() == Some(node) || world.sources().contains(node);
        match event {
            Event::Vmi(lag) => self.reconcile_vmi(*lag),
            Event::Migration(which, lag) => {
                if let Some(name) = self.name(*which) {
                    self.reconcile_migration(&name, *lag);
                }
            }
            Event::Watch(which) => {
                if let Some(name) = self.name(*which) {
                    self.watch(&name);
                }
            }
            Event::Ask(anyway) => self.ask(*anyway),
            Event::Lacks(lacks) => self.lacks = *lacks,
            Event::PolicyChanges => self.post_copy = !self.post_copy,
            Event::Cancel(which) => {
                let version = self.bump();
                if let Some(name) = self.name(*which) {
                    let now = Time(at(self.now));
                    let one = self.vmims.get_mut(&name).unwrap();
                    one.metadata.deletion_timestamp.get_or_insert(now);
                    one.metadata.resource_version = Some(version);
                    if one.finalizers().is_empty() {
                        self.vmims.remove(&name);
                        self.migrations.gone("ns", &name);
                    }
                }
            }
            Event::DeleteVmi => {
                let now = text(self.now);
                self.handler(|vmi| vmi["metadata"]["deletionTimestamp"] = json!(now));
            }
            Event::DeletePod(which) => {
                if let Some((_, uid)) = self.pod(*which) {
                    self.delete_pod(&uid, 40);
                }
            }
            Event::ForcePod(which) => {
                // Never the known launcher's pod: its forced deletion ends the instance at once, as without migrations.
                let launcher = self.vmi.as_ref().map(launcher_name).unwrap_or_default();
                if let Some((name, _)) = self.pod(*which).filter(|(name, _)| *name != launcher) {
                    self.remove_pod(&name);
                }
            }
            Event::ControllerDies => {
                self.created_pods.clear();
                self.unseen.clear();
                self.migrations = Migrations::default();
                for name in self.vmims.keys().cloned().collect::<Vec<_>>() {
                    self.watch(&name);
                }
                (self.vmi_barrier, self.pod_barrier) = (self.vmi_history.len(), self.pod_history.len());
            }
            Event::PodStarts => {
                self.schedule();
                let fresh: Vec<String> = self.pods.values().filter_map(Pod::uid).collect();
                for uid in fresh {
                    if !self.started.contains(&uid) && self.is_ready(&uid) {
                        self.started.insert(uid.clone());
                        self.alive.insert(uid);
                    }
                }
            }
            Event::PodsSay => self.pods_say(),
            Event::PodRemoved => {
                let going = self.pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_some());
                let going: Vec<(String, String)> =
                    going.map(|pod| (pod.name_any(), pod.uid().unwrap())).collect();
                for (name, uid) in going {
                    if self.is_ready(&uid) || !self.places.contains_key(&uid) {
                        self.dies(&uid);
                        self.pods.remove(&name);
                    }
                }
            }
            Event::ContainerDies(which) => {
                if let Some(uid) = self.alive.iter().nth(*which).cloned() {
                    self.dies(&uid);
                }
            }
            Event::LauncherEnds(which) => {
                if let Some(uid) = self.alive.iter().nth(*which).cloned() {
                    self.ends(&uid);
                }
            }
            // The next one does not know the last reports of launchers that have ended.
            Event::HandlersDie => self.reported.clear(),
            Event::NodeSlow(which) => {
                let node = NODES[*which];
                if self.node(node) == NodeState::Ready {
                    self.nodes.insert(node, NodeState::NotReady { left: Duration::from_secs(30) });
                }
            }
            Event::NodeLost(which) => {
                let node = NODES[*which];
                if !spared(node, self) && !self.node(node).is_lost() {
                    self.nodes.insert(node, NodeState::Lost);
                }
            }
            Event::NodeBack(which) => {
                if !self.node(NODES[*which]).is_known_dead() {
                    self.nodes.insert(NODES[*which], NodeState::Ready);
                }
            }
            Event::NodeGone(which, state) => {
                let node = NODES[*which];
                if !spared(node, self) {
                    self.nodes.insert(node, *state);
                    let there: Vec<String> = self
                        .alive
                        .iter()
                        .filter(|uid| self.places.get(*uid).is_some_and(|at| at == node))
                        .cloned()
                        .collect();
                    there.iter().for_each(|uid| self.dies(uid));
                }
            }
            Event::Wait => {
                self.now += 7;
                let missing = self.missing.clone();
                for (uid, since) in missing {
                    // A kubelet that answers has ended by now what should not run.
                    if self.now - since >= 21 && self.is_ready(&uid) {
                        self.dies(&uid);
                    }
                }
            }
            other => self.handlers(other),
        }
        self.remember();
    }
}
