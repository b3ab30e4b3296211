//! A pool under random scaling, changes of the template, guests that end, and deletions.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Event {
    Look,
    Scale(i32),
    Template(u32),
    Deletes(usize),
    Gone(usize),
    Starts(usize),
    Fails(usize),
    Relabel(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => Just(Event::Look),
        2 => (0..6i32).prop_map(Event::Scale),
        2 => (1..4u32).prop_map(Event::Template),
        1 => (0..6usize).prop_map(Event::Deletes),
        3 => (0..6usize).prop_map(Event::Gone),
        4 => (0..6usize).prop_map(Event::Starts),
        1 => (0..6usize).prop_map(Event::Fails),
        1 => (0..6usize).prop_map(Event::Relabel),
    ];
    proptest::collection::vec(event, 1..80)
}

struct World {
    pool: VirtualMachinePool,
    /// All machines of the namespace, including released ones.
    machines: Vec<Machine>,
    revisions: BTreeMap<String, barevirt_api::pool::VirtualMachinePoolSpec>,
    made: u32,
}

impl World {
    fn revision(&self) -> String {
        format!("web-{}", self.pool.metadata.generation.unwrap())
    }

    fn observed(&self) -> Observed {
        let owned = |machine: &&Machine| machine.vm.metadata.owner_references.is_some();
        let mut observed = observed(self.pool.clone(), self.machines.clone());
        observed.machines = self.machines.iter().filter(owned).cloned().collect();
        let names = super::super::revision::referenced(&observed);
        observed.older =
            names.into_iter().map(|name| (name.clone(), self.revisions.get(&name).cloned())).collect();
        observed
    }

    fn find(&mut self, name: &str) -> &mut Machine {
        self.machines.iter_mut().find(|one| one.vm.metadata.name.as_deref() == Some(name)).unwrap()
    }

    fn look(&mut self) -> bool {
        let plan = plan(&self.observed());
        let max = 2;
        let renewed = plan.actions.iter().filter(|action| matches!(action, Action::Renew(_))).count();
        let down = self.observed().machines.iter().filter(|machine| machine.instance.is_none()).count();
        assert!(renewed == 0 || renewed + down <= max.max(renewed), "too many at once");
        for action in &plan.actions {
            if matches!(action, Action::Create(_) | Action::Update(..)) {
                self.revisions.insert(self.revision(), self.pool.spec.clone());
            }
            match action.clone() {
                Action::Create(vm) => {
                    assert!(self.machines.iter().all(|other| other.vm.metadata.name != vm.metadata.name));
                    self.made += 1;
                    let mut vm = *vm;
                    vm.metadata.uid = Some(format!("u{}", self.made));
                    self.machines.push(Machine { vm, instance: None });
                }
                Action::Delete(vm) => {
                    let now = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
                    self.find(vm.metadata.name.as_deref().unwrap()).vm.metadata.deletion_timestamp =
                        Some(now);
                }
                Action::Release(vm) => {
                    self.find(vm.metadata.name.as_deref().unwrap()).vm.metadata.owner_references = None;
                }
                Action::Update(name, body) => {
                    let machine = self.find(&name);
                    let mut object = serde_json::to_value(&machine.vm).unwrap();
                    json_merge(&mut object, &body);
                    machine.vm = serde_json::from_value(object).unwrap();
                }
                Action::Renew(vmi) => self.find(vmi.metadata.name.as_deref().unwrap()).instance = None,
                Action::Relabel(vmi, revision) => {
                    let machine = self.find(vmi.metadata.name.as_deref().unwrap());
                    let labels = machine.instance.as_mut().unwrap().metadata.labels.as_mut().unwrap();
                    labels.insert(POOL_REVISION_LABEL.to_owned(), revision);
                }
                Action::Restart(..) | Action::Replace(_) | Action::Prune => panic!("{action:?}"),
                Action::Guard | Action::Unguard | Action::Hold(_) | Action::Unhold(_) | Action::Keep(_) => {
                    panic!("nothing is kept: {action:?}")
                }
            }
        }
        !plan.actions.is_empty()
    }

    /// Starts the machine as its controller does.
    fn start(&mut self, index: usize) {
        let Some(machine) = self.machines.get_mut(index) else { return };
        if machine.instance.is_some() || machine.vm.metadata.deletion_timestamp.is_some() {
            return;
        }
        let mut instance = crate::vm::instance(&machine.vm);
        instance.metadata.uid = Some("i".to_owned());
        instance.status = serde_json::from_value(json!({"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}]}))
        .unwrap();
        machine.instance = Some(instance);
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Look => drop(self.look()),
            Event::Scale(replicas) => {
                self.pool.spec.replicas = Some(*replicas);
                *self.pool.metadata.generation.as_mut().unwrap() += 1;
            }
            Event::Template(cores) => {
                let template = serde_json::from_value(template(*cores)).unwrap();
                self.pool.spec.virtual_machine_template = template;
                *self.pool.metadata.generation.as_mut().unwrap() += 1;
            }
            Event::Deletes(index) => {
                if let Some(machine) = self.machines.get_mut(*index) {
                    *machine = deleting(machine.clone());
                }
            }
            Event::Gone(index) => {
                if self.machines.get(*index).is_some_and(|one| one.vm.metadata.deletion_timestamp.is_some()) {
                    self.machines.remove(*index);
                }
            }
            Event::Starts(index) => self.start(*index),
            Event::Fails(index) => {
                if let Some(machine) = self.machines.get_mut(*index) {
                    machine.instance = None;
                }
            }
            Event::Relabel(index) => {
                if let Some(labels) =
                    self.machines.get_mut(*index).and_then(|one| one.vm.metadata.labels.as_mut())
                {
                    labels.insert("app".to_owned(), "mine".to_owned());
                }
            }
        }
    }
}

fn json_merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            json_merge(&mut target[name], value);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_reaches_the_wanted_number_and_template(events in events()) {
        let pool = pool(1, json!({"replicas": 2, "maxUnavailable": 2}));
        let mut world = World { pool, machines: vec![], revisions: BTreeMap::new(), made: 0 };
        for event in &events {
            world.step(event);
        }
        let mut rounds = 0;
        loop {
            let gone = world.machines.iter().any(|machine| machine.vm.metadata.deletion_timestamp.is_some());
            let acted = world.look();
            world.machines.retain(|machine| machine.vm.metadata.deletion_timestamp.is_none());
            let down = world.machines.iter().filter(|machine| machine.instance.is_none()).count();
            (0..world.machines.len()).for_each(|index| world.start(index));
            rounds += 1;
            prop_assert!(rounds < 40, "does not settle: {:?}", plan(&world.observed()));
            if !acted && !gone && down == 0 {
                break;
            }
        }
        let there = i32::try_from(world.observed().machines.len()).unwrap();
        prop_assert_eq!(Some(there), world.pool.spec.replicas);
        let cores = world.pool.spec.virtual_machine_template.spec.as_ref().unwrap().template.spec.domain.cpu.clone();
        for machine in &world.observed().machines {
            prop_assert_eq!(&machine.vm.spec.template.spec.domain.cpu, &cores);
            prop_assert_eq!(&machine.instance.as_ref().unwrap().spec.domain.cpu, &cores);
        }
    }
}
