//! A pool that keeps the state of its machines, under random scaling, deletions by others and changes of the strategy.

use super::action::Action;
use super::generation::Older;
use super::observed::{BURST, Machine, Observed};
use super::plan::plan;
use barevirt_api::names::POOL_FINALIZER;
use barevirt_api::pool::VirtualMachinePool;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NOW: i64 = 1_800_000_000;
const STRATEGIES: [&str; 3] = ["Proactive", "Opportunistic", "Disabled"];

#[derive(Clone, Debug)]
enum Event {
    Look,
    /// Only this many actions of the plan are done before the process ends.
    Stumble(usize),
    Scale(i32),
    Deletes(usize),
    Orphans(usize),
    Strategy(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => Just(Event::Look),
        2 => (0..3usize).prop_map(Event::Stumble),
        3 => (0..5i32).prop_map(Event::Scale),
        2 => (0..5usize).prop_map(Event::Deletes),
        1 => (0..5usize).prop_map(Event::Orphans),
        1 => (0..STRATEGIES.len()).prop_map(Event::Strategy),
    ];
    proptest::collection::vec(event, 1..60)
}

/// A model of the cluster: garbage collector and finalizers work as in Kubernetes.
struct World {
    pool: Option<VirtualMachinePool>,
    machines: Vec<Machine>,
    /// UIDs of the owners of claims by the names of machines: each machine makes its own claim, or takes over an existing
    /// one.
    claims: BTreeMap<String, Option<String>>,
    /// Claims that were deleted with their machines.
    lost: Vec<String>,
    made: u32,
}

fn strategy(index: usize) -> Value {
    match STRATEGIES[index] {
        "Proactive" => json!({"proactive": {"statePreservation": "Offline",
            "selectionPolicy": {"sortPolicy": "AscendingOrder"}}}),
        "Opportunistic" => json!({"opportunistic": {"statePreservation": "Offline"}}),
        _ => json!({"proactive": {"statePreservation": "Disabled"}}),
    }
}

fn time() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(NOW).unwrap()))
}

impl World {
    fn new(chosen: usize) -> Self {
        let pool = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "p1", "generation": 1},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "scaleInStrategy": strategy(chosen),
                "virtualMachineTemplate": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}}}},
        }));
        World { pool: Some(pool.unwrap()), machines: vec![], claims: BTreeMap::new(), lost: vec![], made: 0 }
    }

    fn is_ours(machine: &Machine) -> bool {
        machine.vm.metadata.owner_references.is_some()
    }

    fn observed(&self) -> Option<Observed> {
        let pool = self.pool.clone()?;
        let (machines, others): (Vec<Machine>, Vec<Machine>) =
            self.machines.iter().cloned().partition(World::is_ours);
        let strays = others.into_iter().map(|one| one.vm).filter(super::is_held).collect();
        let taken = |index: &u32| {
            !self.machines.iter().any(|one| one.vm.metadata.name == Some(format!("web-{index}")))
        };
        let free = (0..).filter(taken).take(BURST).collect();
        let now = Timestamp::from_second(NOW).unwrap();
        Some(Observed { pool, machines, strays, free, older: Older::new(), pruned: true, now })
    }

    /// Carries out at most `most` actions of a plan; returns whether there were any.
    fn look(&mut self, most: usize) -> bool {
        let Some(observed) = self.observed() else { return false };
        let plan = plan(&observed);
        for action in plan.actions.iter().take(most) {
            self.act(action.clone());
        }
        self.collect();
        !plan.actions.is_empty()
    }

    fn find(&mut self, uid: Option<&String>) -> &mut Machine {
        self.machines.iter_mut().find(|one| one.vm.metadata.uid.as_ref() == uid).unwrap()
    }

    fn act(&mut self, action: Action) {
        let held = |on: bool| on.then(|| vec![POOL_FINALIZER.to_owned()]);
        match action {
            Action::Create(vm) => {
                let mut vm = *vm;
                self.made += 1;
                vm.metadata.uid = Some(format!("m{}", self.made));
                let owner = self.claims.entry(vm.metadata.name.clone().unwrap()).or_default();
                assert_eq!(*owner, None, "a claim of another");
                *owner = vm.metadata.uid.clone();
                self.machines.push(Machine { vm, instance: None });
            }
            Action::Delete(vm) => {
                self.find(vm.metadata.uid.as_ref()).vm.metadata.deletion_timestamp = time();
            }
            Action::Guard => self.pool.as_mut().unwrap().metadata.finalizers = held(true),
            Action::Unguard => {
                let any = self.machines.iter().any(|one| super::is_held(&one.vm));
                assert!(!any, "the pool is let go of before its machines");
                self.pool.as_mut().unwrap().metadata.finalizers = None;
            }
            Action::Hold(vm) => {
                assert!(super::is_held(self.pool.as_ref().unwrap()), "a machine is held before its pool");
                self.find(vm.metadata.uid.as_ref()).vm.metadata.finalizers = held(true);
            }
            Action::Unhold(vm) => {
                let vm = &mut self.find(vm.metadata.uid.as_ref()).vm;
                assert!(vm.metadata.deletion_timestamp.is_none(), "what is to be kept is let go");
                vm.metadata.finalizers = None;
            }
            Action::Keep(vm) => {
                self.claims.insert(vm.metadata.name.clone().unwrap(), None);
                self.find(vm.metadata.uid.as_ref()).vm.metadata.finalizers = None;
            }
            other => panic!("{other:?}"),
        }
    }

    /// Removes deleted objects that are not held, and then objects that only they owned.
    fn collect(&mut self) {
        let leaves = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            metadata.deletion_timestamp.is_some() && metadata.finalizers.iter().flatten().next().is_none()
        };
        if self.pool.as_ref().is_some_and(|pool| leaves(&pool.metadata)) {
            self.pool = None;
        }
        for machine in &mut self.machines {
            if self.pool.is_none() && World::is_ours(machine) {
                machine.vm.metadata.deletion_timestamp = time();
            }
        }
        let (gone, left): (Vec<Machine>, Vec<Machine>) =
            std::mem::take(&mut self.machines).into_iter().partition(|one| leaves(&one.vm.metadata));
        self.machines = left;
        for machine in gone {
            let name = machine.vm.metadata.name.unwrap();
            if self.claims.get(&name).is_some_and(|owner| *owner == machine.vm.metadata.uid) {
                self.claims.remove(&name);
                self.lost.push(name);
            }
        }
    }

    fn step(&mut self, event: &Event, may_change: bool) {
        match event {
            Event::Look => drop(self.look(usize::MAX)),
            Event::Stumble(most) => drop(self.look(*most)),
            Event::Scale(replicas) => self.pool.as_mut().unwrap().spec.replicas = Some(*replicas),
            Event::Deletes(index) => {
                if let Some(machine) = self.machines.get_mut(*index) {
                    machine.vm.metadata.deletion_timestamp = time();
                }
            }
            Event::Orphans(index) => {
                if may_change && let Some(machine) = self.machines.get_mut(*index) {
                    machine.vm.metadata.owner_references = None;
                }
            }
            Event::Strategy(chosen) if may_change => {
                let strategy = serde_json::from_value(strategy(*chosen)).unwrap();
                self.pool.as_mut().unwrap().spec.scale_in_strategy = strategy;
            }
            Event::Strategy(_) => {}
        }
        self.collect();
    }

    fn settle(&mut self) -> usize {
        (1..50).find(|_| !self.look(usize::MAX)).unwrap_or(50)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn claims_of_deleted_machines_are_kept_for_any_deleter(events in events()) {
        let mut world = World::new(1);
        for event in &events {
            world.step(event, false);
        }
        prop_assert!(world.settle() < 50, "{:?}", world.observed().map(|seen| plan(&seen)));
        prop_assert_eq!(&world.lost, &Vec::<String>::new());
    }

    #[test]
    fn machines_deleted_by_the_pool_leave_their_claims(events in events()) {
        let mut world = World::new(0);
        // No other client deletes any.
        for event in events.iter().filter(|event| !matches!(event, Event::Deletes(_))) {
            world.step(event, false);
        }
        prop_assert!(world.settle() < 50);
        prop_assert_eq!(&world.lost, &Vec::<String>::new());
        let wanted = world.pool.as_ref().unwrap().spec.replicas;
        prop_assert_eq!(i32::try_from(world.machines.len()).ok(), wanted);
        prop_assert!(!world.machines.iter().any(|one| super::is_held(&one.vm)));
    }

    #[test]
    fn nothing_hangs_once_the_pool_is_deleted(first in 0..STRATEGIES.len(), events in events()) {
        let mut world = World::new(first);
        for event in &events {
            world.step(event, true);
        }
        world.pool.as_mut().unwrap().metadata.deletion_timestamp = time();
        world.collect();
        prop_assert!(world.settle() < 50);
        prop_assert!(world.pool.is_none());
        prop_assert!(!world.machines.iter().any(|one| super::is_held(&one.vm)));
        prop_assert!(!world.machines.iter().any(World::is_ours));
    }
}
