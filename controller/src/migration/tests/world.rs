//! A model of the API server, kubelets, both nodes' handlers and launchers, users and nodes. It executes plans for an
//! instance and for its migrations that were made from old observations, as the real shells do: names are unique, patches
//! apply only to one version, and a process sees its own writes before it observes again.
//!
//! The model knows where the guest runs. Handlers and launchers follow the protocol: the source begins once the target has
//! an address, stops once everything is sent, and resumes only when it reads that the migration failed; the target runs the
//! guest when it has arrived, and reports that in one patch; while it only waits, it accepts a cancellation.

use super::*;
use crate::migration::{begin, course, observe, plan as decide};
use crate::migrations::Migrations;
use crate::migrations::row::{Phase, Row};
use crate::vmi::others::is_over;
use crate::vmi::tests::{Look, Step, steps};
use barevirt_plan::migration::Limits;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

const NODES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Event {
    /// The instance's reconciler runs, with caches that lag by this many events.
    Vmi(usize),
    /// A migration's reconciler runs.
    Migration(usize, usize),
    /// The watch of migrations delivers.
    Watch(usize),
    /// A user creates a migration; even a second one, as when admission saw an old list.
    Ask(bool),
    Cancel(usize),
    DeleteVmi,
    DeletePod(usize),
    ForcePod(usize),
    ControllerDies,
    PodStarts,
    PodsSay,
    PodRemoved,
    ContainerDies(usize),
    TargetPrepares,
    SourceBegins,
    SourceStarts,
    SourceSends,
    SourceGivesUp,
    TargetRefuses,
    TargetArrives,
    TargetReports,
    TargetFails,
    SourceReads,
    NodeLost(usize),
    NodeBack(usize),
    NodeGone(usize),
    Wait,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        24 => (0..3usize).prop_map(Event::Vmi),
        40 => (0..3usize, 0..3usize).prop_map(|(which, lag)| Event::Migration(which, lag)),
        16 => (0..3usize).prop_map(Event::Watch),
        8 => Just(Event::Ask(false)),
        1 => Just(Event::Ask(true)),
        2 => (0..3usize).prop_map(Event::Cancel),
        1 => Just(Event::DeleteVmi),
        1 => (0..3usize).prop_map(Event::DeletePod),
        2 => (0..3usize).prop_map(Event::ForcePod),
        3 => Just(Event::ControllerDies),
        16 => Just(Event::PodStarts),
        16 => Just(Event::PodsSay),
        6 => Just(Event::PodRemoved),
        3 => (0..3usize).prop_map(Event::ContainerDies),
        12 => Just(Event::TargetPrepares),
        12 => Just(Event::SourceBegins),
        10 => Just(Event::SourceStarts),
        10 => Just(Event::SourceSends),
        2 => Just(Event::SourceGivesUp),
        3 => Just(Event::TargetRefuses),
        10 => Just(Event::TargetArrives),
        10 => Just(Event::TargetReports),
        4 => Just(Event::TargetFails),
        6 => Just(Event::SourceReads),
        2 => (0..3usize).prop_map(Event::NodeLost),
        2 => (0..3usize).prop_map(Event::NodeBack),
        1 => (0..3usize).prop_map(Event::NodeGone),
        6 => Just(Event::Wait),
    ];
    proptest::collection::vec(event, 1..200)
}

/// The guest during its transfer.
#[derive(Clone, Debug)]
struct Flight {
    migration: String,
    from: String,
    to: String,
    sent: bool,
    arrived: bool,
}

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
    flight: Option<Flight>,
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
            flight: None,
            base: Instant::now(),
            now: NOW,
            version: 100,
            made: 0,
            asked: 0,
        }
    }

    fn bump(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_secs(u64::try_from(self.now - NOW).unwrap())
    }

    fn remember(&mut self) {
        self.vmi_history.push(self.vmi.clone());
        self.pod_history.push(self.pods.clone());
    }

    /// The state of that many events ago, but not older than this process's own writes.
    fn seen<T: Clone>(history: &[T], barrier: usize, lag: usize, now: &T) -> T {
        let index = history.len().saturating_sub(lag).max(barrier);
        history.get(index).cloned().unwrap_or_else(|| now.clone())
    }

    fn vmi_seen(&self, lag: usize) -> Option<VirtualMachineInstance> {
        Self::seen(&self.vmi_history, self.vmi_barrier, lag, &self.vmi)
    }

    fn pods_seen(&self, lag: usize) -> BTreeMap<String, Pod> {
        Self::seen(&self.pod_history, self.pod_barrier, lag, &self.pods)
    }

    fn node(&self, name: &str) -> NodeState {
        self.nodes.get(name).copied().unwrap_or(NodeState::Gone)
    }

    fn node_of(&self, pod: &Pod) -> NodeState {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        name.map_or(NodeState::Ready, |name| self.node(name))
    }

    fn is_ready(&self, uid: &str) -> bool {
        self.places.get(uid).is_some_and(|node| self.node(node) == NodeState::Ready)
    }

    /// Applies a patch as the API server does; returns whether it was accepted.
    fn patch_vmi(&mut self, body: &Value) -> bool {
        let Some(vmi) = &self.vmi else { return false };
        if body["metadata"]["resourceVersion"] != json!(vmi.metadata.resource_version) {
            return false;
        }
        let value = with(serde_json::to_value(vmi).unwrap(), body.clone());
        let mut vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
        vmi.metadata.resource_version = Some(self.bump());
        let gone = vmi.metadata.deletion_timestamp.is_some() && vmi.finalizers().is_empty();
        self.vmi = (!gone).then_some(vmi);
        true
    }

    fn remove_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.missing.insert(pod.uid().unwrap(), self.now);
        }
    }

    fn delete_pod(&mut self, uid: &str, grace: u32) {
        let now = Time(at(self.now));
        let found = self.pods.values_mut().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let Some(pod) = found else { return };
        if grace > 0 {
            pod.metadata.deletion_timestamp.get_or_insert(now);
            pod.metadata.deletion_grace_period_seconds = Some(grace.into());
        } else {
            let name = pod.name_any();
            self.remove_pod(&name);
        }
    }

    fn dies(&mut self, uid: &str) {
        self.alive.remove(uid);
        self.running.remove(uid);
    }

    fn reconcile_vmi(&mut self, lag: usize) {
        let Some(vmi) = self.vmi_seen(lag) else { return };
        let seen = self.pods_seen(lag);
        let name = launcher_name(&vmi);
        let launcher = seen.get(&name).or_else(|| self.pods.get(&name)).cloned();
        let mut others: BTreeMap<String, Pod> = seen;
        others.remove(&name);
        // From the API server, where a pod may have had the guest.
        let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
        for pod in state.into_iter().flat_map(|state| [&state.source_pod, &state.target_pod]).flatten() {
            if let (true, Some(found)) = (*pod != name, self.pods.get(pod)) {
                others.entry(pod.clone()).or_insert_with(|| found.clone());
            }
        }
        let target_node = state.and_then(|state| state.target_node.as_deref()).unwrap_or_default();
        let look = Look {
            launcher_node: launcher.as_ref().map(|pod| self.node_of(pod)),
            launcher,
            others: others.into_values().map(|pod| (self.node_of(&pod), pod)).collect(),
            target_node: self.node(target_node),
            migrations: &self.migrations,
            instant: self.instant(),
            now: at(self.now),
            vmi,
        };
        for step in steps(look) {
            match step {
                Step::Patch(body) => {
                    if !self.patch_vmi(&body) {
                        return;
                    }
                    self.vmi_barrier = self.vmi_history.len();
                }
                Step::Delete { uid, grace } => {
                    self.delete_pod(&uid, grace);
                    self.pod_barrier = self.pod_history.len();
                }
                Step::Create => panic!("an instance that runs gets no first pod again"),
            }
        }
    }

    fn watch(&mut self, name: &str) {
        self.unseen.remove(name);
        match self.vmims.get(name) {
            Some(migration) => {
                let vmi = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref()?.node_name.clone());
                self.migrations.saw("ns", name, Row::of(migration), vmi.as_deref());
            }
            None => drop(self.migrations.gone("ns", name)),
        }
    }

    fn look(&mut self, name: &str, lag: usize) -> Option<Observed> {
        if self.unseen.contains(name) {
            self.watch(name);
        }
        let migration = self.vmims.get(name)?.clone();
        let uid = migration.uid().unwrap();
        let reached = Phase::of(&migration).unwrap();
        let mut vmi = self.vmi_seen(lag);
        let apart =
            vmi.as_ref().is_none_or(|vmi| decide::standing(vmi, &migration) == decide::Standing::Apart);
        if vmi.is_none() || (apart && reached >= Phase::PreparingTarget) {
            vmi = self.vmi.clone();
        }
        let pods = self.pods_seen(lag);
        let name_of_target = target_name("web", &uid);
        let mut target = pods.get(&name_of_target).cloned();
        if target.is_none() && reached >= Phase::Scheduling {
            target = self.pods.get(&name_of_target).cloned();
        }
        let mut observed = super::observed(migration, vmi.clone(), target.clone());
        observed.is_created_here =
            target.as_ref().is_some_and(|pod| self.created_pods.contains(&pod.uid().unwrap()));
        observed.target_node = target.as_ref().map(|pod| self.node_of(pod));
        observed.now = at(self.now);
        let Some(vmi) = vmi else { return Some(observed) };
        let known = self.migrations.of_instance("ns", "web");
        let own = known.iter().find(|(known, _)| **known == *name).map(|(_, row)| row.clone());
        observed.has_rival = own.is_some_and(|own| observe::is_behind(name, &own, &known));
        observed.phase_due = self.migrations.noticed(
            &uid,
            crate::migrations::Matter::Phase(course::reported_phase(&vmi)),
            self.instant(),
        );
        if !reached.is_final() && begin::asks(&observed, &vmi, reached) {
            let limits = Limits { per_cluster: 2, outbound_per_node: 2, drain_taint: String::new() };
            let has_pod = |_: &str, _: &str, uid: &str| pods.contains_key(&target_name("web", uid));
            let instant = self.instant();
            if self.migrations.take_turn("ns", name, &limits, has_pod, instant) {
                let mut pod = super::target(json!({"phase": "Pending"}));
                pod.metadata.name = Some(name_of_target);
                pod.labels_mut().insert(MIGRATION_JOB_LABEL.to_owned(), uid);
                let home = vmi.status.as_ref().and_then(|status| status.node_name.clone()).unwrap();
                let index = NODES.iter().position(|node| *node == home).unwrap();
                let next = (1..NODES.len()).map(|step| NODES[(index + step) % NODES.len()]);
                let ready = next.into_iter().find(|node| self.node(node) == NodeState::Ready);
                pod.spec.as_mut().unwrap().node_name = ready.map(str::to_owned);
                observed.turn = Turn::Now(Again::Pod(Box::new(pod)));
            }
        }
        Some(observed)
    }

    fn reconcile_migration(&mut self, name: &str, lag: usize) {
        let Some(observed) = self.look(name, lag) else { return };
        for action in plan(&observed).actions {
            if !self.act(&observed, name, action) {
                return;
            }
        }
    }

    /// Whether the next action follows.
    fn act(&mut self, observed: &Observed, name: &str, action: Action) -> bool {
        match action {
            Action::Create(mut pod) => {
                let version = |vmi: &Option<VirtualMachineInstance>| {
                    vmi.as_ref().and_then(|vmi| vmi.metadata.resource_version.clone())
                };
                if version(&self.vmi) != version(&observed.vmi) || self.pods.contains_key(&pod.name_any()) {
                    return false;
                }
                self.made += 1;
                let uid = format!("t{}", self.made);
                pod.metadata.uid = Some(uid.clone());
                pod.metadata.creation_timestamp = Some(Time(at(self.now)));
                self.created_pods.insert(uid.clone());
                if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                    self.places.insert(uid, node);
                }
                self.pods.insert(pod.name_any(), *pod);
                self.pod_barrier = self.pod_history.len();
            }
            Action::Delete { uid, grace, .. } => {
                assert!(!self.running.contains(&uid), "a migration deletes a pod that runs the guest");
                self.delete_pod(&uid, grace);
                self.pod_barrier = self.pod_history.len();
            }
            Action::Vmi(body) => {
                if !self.patch_vmi(&body) {
                    return false;
                }
                self.vmi_barrier = self.vmi_history.len();
            }
            Action::Meta(body) | Action::Status(body) => {
                let version = self.bump();
                let Some(migration) = self.vmims.get(name) else { return false };
                if body["metadata"]["resourceVersion"] != json!(migration.metadata.resource_version) {
                    return false;
                }
                let value = with(serde_json::to_value(migration).unwrap(), body);
                let mut migration: VirtualMachineInstanceMigration = serde_json::from_value(value).unwrap();
                migration.metadata.resource_version = Some(version);
                if migration.metadata.deletion_timestamp.is_some() && migration.finalizers().is_empty() {
                    self.vmims.remove(name);
                } else {
                    self.vmims.insert(name.to_owned(), migration);
                }
                self.unseen.insert(name.to_owned());
            }
            Action::Attach { .. } => panic!("no volume came while it ran"),
            Action::Collect { .. } => panic!("there are not that many"),
        }
        true
    }

    /// A handler's write, based on the present instance.
    fn handler(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(vmi) = &self.vmi else { return };
        let mut value = serde_json::to_value(vmi).unwrap();
        change(&mut value);
        let mut vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
        vmi.metadata.resource_version = Some(self.bump());
        self.vmi = Some(vmi);
    }

    fn record(&self) -> Option<barevirt_api::v1::VirtualMachineInstanceMigrationState> {
        self.vmi.as_ref()?.status.as_ref()?.migration_state.clone()
    }

    /// The record of an unfinished migration, and the UID of its target.
    fn open(&self) -> Option<(barevirt_api::v1::VirtualMachineInstanceMigrationState, Option<String>)> {
        let state = self.record().filter(|state| !is_over(state))?;
        let pod = self.pods.get(state.target_pod.as_deref()?);
        let active = self.vmi.as_ref()?.status.as_ref()?.active_pods.clone();
        let uid = pod.and_then(Pod::uid).filter(|uid| active.contains_key(uid));
        Some((state, uid))
    }

    fn writes_failure(&mut self) {
        let now = text(self.now);
        self.handler(|vmi| {
            let state = &mut vmi["status"]["migrationState"];
            (state["failed"], state["completed"], state["endTimestamp"]) =
                (json!(true), json!(true), json!(now));
        });
    }

    fn handlers(&mut self, event: &Event) {
        let open = self.open();
        match event {
            Event::TargetPrepares => {
                let Some((state, Some(uid))) = open else { return };
                if state.target_node_address.is_none() && self.alive.contains(&uid) && self.is_ready(&uid) {
                    self.handler(|vmi| {
                        vmi["status"]["migrationState"]["targetNodeAddress"] = json!("10.0.0.9");
                    });
                }
            }
            Event::SourceBegins => {
                let Some((state, Some(to))) = open else { return };
                let source = self.pods.get(state.source_pod.as_deref().unwrap_or_default());
                let Some(from) = source.and_then(Pod::uid).filter(|uid| self.running.contains(uid)) else {
                    return;
                };
                if state.target_node_address.is_some()
                    && state.abort_requested != Some(true)
                    && self.flight.is_none()
                    && self.is_ready(&from)
                {
                    let migration = state.migration_uid.unwrap();
                    self.flight = Some(Flight { migration, from, to, sent: false, arrived: false });
                }
            }
            Event::SourceStarts => {
                let (Some((state, _)), Some(flight)) = (open, &self.flight) else { return };
                if state.migration_uid.as_ref() == Some(&flight.migration) && state.start_timestamp.is_none()
                {
                    let now = text(self.now);
                    self.handler(|vmi| vmi["status"]["migrationState"]["startTimestamp"] = json!(now));
                }
            }
            Event::SourceSends => {
                let Some(mut flight) = self.flight.clone().filter(|flight| !flight.sent) else { return };
                // A source reads that its record has ended before everything is sent.
                let ours =
                    open.is_some_and(|(state, _)| state.migration_uid.as_ref() == Some(&flight.migration));
                if ours
                    && self.running.contains(&flight.from)
                    && self.alive.contains(&flight.to)
                    && self.is_ready(&flight.to)
                {
                    self.running.remove(&flight.from);
                    flight.sent = true;
                    self.flight = Some(flight);
                }
            }
            Event::SourceGivesUp => {
                let Some(flight) = self.flight.clone().filter(|flight| !flight.sent) else { return };
                let ours =
                    open.is_some_and(|(state, _)| state.migration_uid.as_ref() == Some(&flight.migration));
                if self.alive.contains(&flight.from) && ours {
                    self.writes_failure();
                }
                self.flight = None;
            }
            // The guest has not arrived, and the target accepts it no more.
            Event::TargetRefuses => {
                let Some((state, Some(uid))) = open else { return };
                if self.flight.is_none()
                    && state.abort_requested == Some(true)
                    && self.alive.contains(&uid)
                    && self.is_ready(&uid)
                {
                    self.writes_failure();
                }
            }
            Event::TargetArrives => {
                let Some(flight) = &mut self.flight else { return };
                if flight.sent && !flight.arrived && self.alive.contains(&flight.to) {
                    flight.arrived = true;
                    let to = flight.to.clone();
                    self.running.insert(to);
                }
            }
            Event::TargetReports => {
                let (Some((state, _)), Some(flight)) = (open, self.flight.clone()) else { return };
                let named = self.vmi.as_ref().is_some_and(|vmi| {
                    vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(&flight.to))
                });
                if state.migration_uid.as_ref() == Some(&flight.migration)
                    && self.running.contains(&flight.to)
                    && self.is_ready(&flight.to)
                    && named
                {
                    let now = text(self.now);
                    let node = self.places[&flight.to].clone();
                    self.handler(|vmi| {
                        vmi["status"]["nodeName"] = json!(node);
                        let state = &mut vmi["status"]["migrationState"];
                        (state["completed"], state["endTimestamp"]) = (json!(true), json!(now));
                    });
                    self.flight = None;
                }
            }
            Event::TargetFails => {
                let Some((_, Some(uid))) = open else { return };
                if self.started.contains(&uid) && !self.alive.contains(&uid) && self.is_ready(&uid) {
                    self.writes_failure();
                }
            }
            Event::SourceReads => {
                let Some(flight) = self.flight.clone().filter(|flight| flight.sent) else { return };
                let state = self.record();
                let failed = state.is_some_and(|state| {
                    state.migration_uid.as_ref() == Some(&flight.migration) && state.failed == Some(true)
                });
                if failed && self.alive.contains(&flight.from) {
                    self.running.insert(flight.from);
                    self.flight = None;
                }
            }
            _ => {}
        }
    }

    fn name(&self, which: usize) -> Option<String> {
        self.vmims.keys().nth(which).cloned()
    }

    fn pod(&self, which: usize) -> Option<(String, String)> {
        self.pods.values().nth(which).map(|pod| (pod.name_any(), pod.uid().unwrap()))
    }

    fn ask(&mut self, anyway: bool) {
        let busy = self.vmims.values().any(|one| !Phase::of(one).unwrap().is_final());
        if self.asked >= 4 || (busy && !anyway) || self.vmi.is_none() {
            return;
        }
        self.asked += 1;
        let name = format!("m{}", self.asked);
        let mut one = migration(json!({"metadata": {"name": name, "uid": format!("uid-{name}"),
            "resourceVersion": self.bump(), "creationTimestamp": text(self.now)}}));
        if self.asked == 3 {
            one.metadata.finalizers = None;
        }
        self.vmims.insert(name, one);
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
            Event::NodeLost(which) => {
                let node = NODES[*which];
                if !spared(node, self) && self.node(node) == NodeState::Ready {
                    self.nodes.insert(node, NodeState::Lost);
                }
            }
            Event::NodeBack(which) => {
                if self.node(NODES[*which]) == NodeState::Lost {
                    self.nodes.insert(NODES[*which], NodeState::Ready);
                }
            }
            Event::NodeGone(which) => {
                let node = NODES[*which];
                if !spared(node, self) {
                    self.nodes.insert(node, NodeState::Gone);
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

    /// Nodes of sources, which are never lost in this model: other tests cover that their loss ends an instance.
    fn sources(&self) -> BTreeSet<String> {
        let flight = self.flight.iter().map(|flight| &flight.from);
        let running =
            self.running.iter().filter(|uid| self.flight.as_ref().is_none_or(|flight| flight.to != **uid));
        flight.chain(running).filter_map(|uid| self.places.get(uid).cloned()).collect()
    }

    /// Places unscheduled pods on a node without another pod of the instance.
    fn schedule(&mut self) {
        let taken: BTreeSet<String> =
            self.pods.values().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
        let free =
            NODES.into_iter().find(|node| self.node(node) == NodeState::Ready && !taken.contains(*node));
        let waits = self.pods.values_mut().find(|pod| pod.spec.as_ref().unwrap().node_name.is_none());
        let Some(pod) = waits else { return };
        let Some(node) = free else {
            pod.status = target(json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}))
            .status;
            return;
        };
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        self.places.insert(pod.uid().unwrap(), node.to_owned());
    }

    fn pods_say(&mut self) {
        let uids: Vec<(String, String)> =
            self.pods.values().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect();
        for (name, uid) in uids {
            if !self.is_ready(&uid) || !self.started.contains(&uid) {
                continue;
            }
            let status = if self.alive.contains(&uid) {
                runs().status
            } else {
                target(json!({"phase": "Failed"})).status
            };
            self.pods.get_mut(&name).unwrap().status = status;
        }
    }

    fn check(&self) {
        assert!(self.running.len() <= 1, "two guests: {:?}", self.running);
        if let Some(vmi) = &self.vmi {
            let status = vmi.status.as_ref().unwrap();
            let phase = status.phase.as_deref().unwrap();
            let ended = ["Failed", "Succeeded"].contains(&phase);
            // A forced deletion of a guest's pod ends the instance at once, as without migrations.
            let mut runs = self.running.iter().filter(|uid| !self.missing.contains_key(*uid));
            let why = &status.reason;
            assert!(!ended || runs.next().is_none(), "{phase} {why:?}, and {:?} runs", self.running);
            for uid in &self.running {
                assert!(
                    ended || status.active_pods.contains_key(uid),
                    "{uid} not in {:?}",
                    status.active_pods
                );
            }
            // Everything is sent: the target may run the guest at any moment.
            if let Some(flight) =
                self.flight.as_ref().filter(|flight| flight.sent && self.alive.contains(&flight.to))
            {
                assert!(status.active_pods.contains_key(&flight.to) || ended, "{flight:?} {status:?}");
            }
        }
        let living = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none() && crate::vmi::InstanceEnd::of(pod).is_none()
        };
        let count = self.pods.values().filter(living).count();
        assert!(count <= 2, "{count} pods");
    }

    /// All components act correctly until nothing changes.
    fn settle(&mut self) {
        for node in NODES {
            if self.node(node) == NodeState::Lost {
                self.nodes.insert(node, NodeState::Ready);
            }
        }
        for _ in 0..70 {
            if self.unrest().is_none() {
                return;
            }
            for event in [
                Event::PodStarts,
                Event::PodsSay,
                Event::TargetPrepares,
                Event::SourceBegins,
                Event::SourceStarts,
                Event::SourceSends,
                Event::TargetArrives,
                Event::TargetReports,
                Event::TargetFails,
                Event::SourceReads,
                Event::TargetRefuses,
            ] {
                self.step(&event);
                self.check();
            }
            // A launcher whose guest's transfer breaks off ends.
            if let Some((_, Some(uid))) = self.open() {
                let broken = self.flight.as_ref().is_some_and(|flight| {
                    flight.to == uid && !flight.sent && !self.alive.contains(&flight.from)
                });
                if broken {
                    self.dies(&uid);
                }
            }
            // A source whose target is gone or whose migration is over aborts an incomplete transfer.
            let hopeless = self.flight.as_ref().is_some_and(|flight| {
                let over = self
                    .open()
                    .is_none_or(|(state, _)| state.migration_uid.as_ref() != Some(&flight.migration));
                !self.alive.contains(&flight.to) || !self.alive.contains(&flight.from) || over
            });
            if hopeless {
                self.step(&Event::SourceGivesUp);
            }
            for event in [Event::PodsSay, Event::PodRemoved, Event::Wait] {
                self.step(&event);
                self.check();
            }
            let mut all: Vec<String> = self.vmims.keys().cloned().collect();
            all.iter().for_each(|name| self.watch(name));
            self.reconcile_vmi(0);
            self.check();
            self.remember();
            for name in all.drain(..) {
                self.reconcile_migration(&name, 0);
                self.check();
                self.remember();
            }
        }
        panic!("{}", self.unrest().unwrap());
    }

    /// Anything that is wrong at the end.
    fn unrest(&self) -> Option<String> {
        for (name, one) in &self.vmims {
            let phase = Phase::of(one).unwrap();
            if !phase.is_final() || !one.finalizers().is_empty() {
                let state = self.record().map(|state| serde_json::to_value(state).unwrap());
                return Some(format!("{name} {phase:?}: {state:?}, {:?}", self.flight));
            }
        }
        let Some(vmi) = &self.vmi else {
            let left: Vec<&String> = self.pods.keys().collect();
            return (!left.is_empty() || !self.running.is_empty()).then(|| format!("left: {left:?}"));
        };
        let status = vmi.status.as_ref().unwrap();
        if self.running.is_empty() {
            return (status.phase.as_deref() == Some("Running")).then(|| format!("no guest: {status:?}"));
        }
        let Some(launcher) = self.pods.get(&launcher_name(vmi)).and_then(Pod::uid) else {
            return Some("no launcher".to_owned());
        };
        let active: Vec<&String> = status.active_pods.keys().collect();
        let fine = self.running == BTreeSet::from([launcher.clone()])
            && (active, self.pods.len()) == (vec![&launcher], 1)
            && status.node_name.as_ref() == self.places.get(&launcher)
            && !vmi.labels().contains_key("kubevirt.io/migrationTargetNodeName");
        (!fine).then(|| format!("{:?} runs, {status:?}", self.running))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn one_guest_that_is_known_and_peace_at_the_end(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            world.check();
        }
        world.settle();
    }
}

/// Everything is sent and has not arrived yet.
fn on_its_way() -> World {
    let mut world = World::new();
    world.ask(false);
    let first = [Event::Watch(0), Event::Migration(0, 0), Event::PodStarts, Event::PodsSay];
    let then = [Event::Migration(0, 0), Event::TargetPrepares, Event::SourceBegins, Event::SourceStarts];
    for event in first.iter().chain(&then).chain([&Event::SourceSends]) {
        world.step(event);
        world.check();
    }
    assert!(world.running.is_empty() && world.flight.as_ref().is_some_and(|flight| flight.sent));
    world
}

/// The target's pod is force-deleted while its container still runs.
fn force_target(world: &mut World) {
    let to = world.flight.as_ref().unwrap().to.clone();
    let found = world.pods.values().find(|pod| pod.uid().as_ref() == Some(&to));
    let name = found.map(ResourceExt::name_any).unwrap();
    world.remove_pod(&name);
    world.remember();
}

#[test]
fn a_target_taken_away_by_force_may_run_the_guest_for_a_while() {
    let mut world = on_its_way();
    force_target(&mut world);
    for event in [Event::Vmi(0), Event::Wait, Event::Vmi(0), Event::SourceReads, Event::TargetArrives] {
        world.step(&event);
        world.check();
    }
    assert_eq!(world.running.len(), 1, "the target has it");
    // Alternatively the transfer failed, and the source continues.
    let mut world = on_its_way();
    force_target(&mut world);
    for event in
        [Event::Vmi(0), Event::Wait, Event::Wait, Event::Wait, Event::Wait, Event::Wait, Event::Vmi(0)]
    {
        world.step(&event);
        world.check();
    }
    world.step(&Event::SourceReads);
    assert_eq!(world.running, BTreeSet::from(["s1".to_owned()]));
    world.settle();
}

#[test]
fn a_node_that_does_not_answer_may_run_the_guest_for_ever() {
    let mut world = on_its_way();
    force_target(&mut world);
    world.nodes.insert("b", NodeState::Lost);
    for _ in 0..20 {
        for event in [Event::Wait, Event::Vmi(0), Event::Migration(0, 0), Event::SourceReads] {
            world.step(&event);
            world.check();
        }
    }
    assert!(world.running.is_empty(), "nobody has decided");
    world.step(&Event::TargetArrives);
    world.check();
    // An administrator declares the node to be off.
    world.step(&Event::NodeGone(1));
    world.settle();
    assert_eq!(world.running, BTreeSet::from(["s1".to_owned()]));
}

#[test]
fn a_world_without_trouble_moves_its_guest_there_and_back() {
    let mut world = World::new();
    for round in 1..=3 {
        world.ask(false);
        world.settle();
        let one = world.vmims.get(&format!("m{round}")).unwrap();
        assert_eq!(Phase::of(one), Some(Phase::Succeeded), "{one:?}");
        let home = world.vmi.as_ref().unwrap().status.as_ref().unwrap().node_name.clone().unwrap();
        assert_eq!(home, NODES[round % 3]);
    }
}
