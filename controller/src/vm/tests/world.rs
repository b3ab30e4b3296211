//! Machines under random commands, guest ends and deletions. The API server's part: one object for each name, finalizers.

use super::*;
use barevirt_api::names::MIGRATION_TARGET_ANNOTATION;
use kube::ResourceExt;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Reconcile,
    /// The user changes the strategy.
    Strategy(&'static str),
    /// The user gives a command, written as virt-api does it.
    Start,
    Stop,
    /// The instance enters its next phase.
    Progress,
    Fails,
    Succeeds,
    /// Its pods and its finalizer are gone.
    Removed,
    UserDeletesVmi,
    Wait(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let strategy = prop_oneof![
        Just("Always"),
        Just("Halted"),
        Just("Manual"),
        Just("RerunOnFailure"),
        Just("Once"),
        Just("WaitAsReceiver"),
    ];
    let event = prop_oneof![
        6 => Just(Event::Reconcile),
        1 => strategy.prop_map(Event::Strategy),
        1 => Just(Event::Start),
        1 => Just(Event::Stop),
        3 => Just(Event::Progress),
        1 => Just(Event::Fails),
        1 => Just(Event::Succeeds),
        2 => Just(Event::Removed),
        1 => Just(Event::UserDeletesVmi),
        1 => (1..200i64).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 1..60)
}

struct World {
    vm: VirtualMachine,
    vmi: Option<VirtualMachineInstance>,
    made: u32,
    now: i64,
}

impl World {
    fn new() -> Self {
        World { vm: vm("Always", json!({})), vmi: None, made: 0, now: NOW }
    }

    /// As the revisions show it: here only strategies change, never the template.
    fn drift(&self) -> Drift {
        let of = self.vmi.as_ref().and_then(super::super::revision::generation);
        let alive = self.vmi.as_ref().is_some_and(|vmi| {
            vmi.metadata.deletion_timestamp.is_none()
                && !barevirt_api::names::is_final_phase(crate::vmi::phase(vmi))
        });
        if alive && of != self.vm.metadata.generation { Drift::Generation } else { Drift::None }
    }

    /// A write of the machine's specification.
    fn specify(&mut self, strategy: &str) {
        self.vm.spec.run_strategy = Some(strategy.to_owned());
        *self.vm.metadata.generation.get_or_insert_default() += 1;
    }

    fn observed(&self) -> Observed {
        Observed {
            vm: self.vm.clone(),
            vmi: self.vmi.clone(),
            drift: self.drift(),
            live: crate::vm::Live::Done,
            volumes: crate::vm::Move::Nothing,
            data_volumes: DataVolumes::default(),
            references: ReferencePolicy::default(),
            moving_for: Duration::ZERO,
            now: at(self.now),
        }
    }

    /// Acts as the real shell does; returns whether anything was written.
    fn reconcile(&mut self) -> bool {
        let observed = self.observed();
        let mut wrote = false;
        match plan(&observed) {
            Step::Start(instance) => {
                assert!(self.vmi.is_none(), "starts while the former instance exists");
                self.made += 1;
                let mut instance = *instance;
                instance.metadata.uid = Some(format!("i{}", self.made));
                instance.status = serde_json::from_value(json!({"phase": "Pending"})).unwrap();
                self.vmi = Some(instance);
                wrote = true;
            }
            Step::Stop(uid) => {
                let vmi = self.vmi.as_mut().expect("stops what is there");
                assert_eq!(vmi.metadata.uid.as_ref(), Some(&uid));
                assert!(vmi.metadata.deletion_timestamp.is_none(), "stops twice");
                vmi.metadata.deletion_timestamp = Some(Time(at(self.now)));
                wrote = true;
            }
            Step::SwitchOn => {
                assert_eq!(self.vm.spec.run_strategy.as_deref(), Some("Halted"));
                self.specify("Always");
                return true;
            }
            Step::Note(generation) => {
                let vmi = self.vmi.as_mut().expect("notes it on what is there");
                vmi.metadata
                    .annotations
                    .get_or_insert_default()
                    .insert("kubevirt.io/vm-generation".to_owned(), generation.to_string());
                return true;
            }
            Step::Cards(..) => panic!("it has no cards"),
            Step::Rest | Step::Report | Step::Wait(_) | Step::Blocked(_) => {}
            other => panic!("{other:?}"),
        }
        let status = compute(&observed, self.vmi.as_ref(), &Outcome::Quiet);
        if self.vm.status.as_ref() != Some(&status) {
            self.vm.status = Some(status);
            wrote = true;
        }
        wrote
    }

    fn phase(&mut self, phase: &str) {
        let Some(status) = self.vmi.as_mut().and_then(|vmi| vmi.status.as_mut()) else { return };
        if !barevirt_api::names::is_final_phase(status.phase.as_deref().unwrap_or_default()) {
            status.phase = Some(phase.to_owned());
            barevirt_api::v1::record_phase_transition(
                &mut status.phase_transition_timestamps,
                phase,
                &Time(at(self.now)),
            );
        }
    }

    fn request(&mut self, request: Value) {
        let requests = &mut self.vm.status.get_or_insert_default().state_change_requests;
        if requests.is_empty() {
            requests.push(serde_json::from_value(request).unwrap());
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Reconcile => {
                self.reconcile();
            }
            Event::Strategy(strategy) => self.specify(strategy),
            Event::Start => self.request(json!({"action": "Start"})),
            Event::Stop => {
                if let Some(uid) = self.vmi.as_ref().and_then(|vmi| vmi.metadata.uid.clone()) {
                    self.request(json!({"action": "Stop", "uid": uid}));
                }
            }
            Event::Progress => {
                let Some(vmi) = &self.vmi else { return };
                let next = match crate::vmi::phase(vmi) {
                    "Pending" if vmi.annotations().contains_key(MIGRATION_TARGET_ANNOTATION) => {
                        "WaitingForSync"
                    }
                    "Pending" => "Scheduled",
                    "WaitingForSync" => return,
                    _ => "Running",
                };
                self.phase(next);
            }
            Event::Fails => self.phase("Failed"),
            Event::Succeeds => self.phase("Succeeded"),
            Event::Removed => {
                if self.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some()) {
                    self.vmi = None;
                }
            }
            Event::UserDeletesVmi => {
                if let Some(vmi) = &mut self.vmi {
                    vmi.metadata.deletion_timestamp = Some(Time(at(self.now)));
                }
            }
            Event::Wait(seconds) => self.now += seconds,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_machine_reaches_the_state_of_its_run_strategy(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        // No further change from outside, and time passes.
        let mut rounds = 0;
        loop {
            let waits = matches!(plan(&world.observed()), Step::Wait(_));
            let wrote = world.reconcile();
            let progress = world.vmi.as_ref().map(|vmi| vmi.status.clone());
            world.step(&Event::Progress);
            let gone = world.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some());
            world.step(&Event::Removed);
            world.now += 400;
            rounds += 1;
            prop_assert!(rounds < 20, "does not settle: {:?}", world.observed());
            let progressed = progress != world.vmi.as_ref().map(|vmi| vmi.status.clone());
            if !waits && !wrote && !gone && !progressed {
                break;
            }
        }
        let phase = world.vmi.as_ref().map(crate::vmi::phase);
        match world.vm.spec.run_strategy.as_deref().unwrap() {
            "Always" => prop_assert_eq!(phase, Some("Running")),
            "Halted" => prop_assert_eq!(phase, None),
            "Once" => prop_assert!(phase.is_some()),
            // An instance that ran here before is for the user to stop.
            "WaitAsReceiver" => prop_assert!(matches!(phase, Some("WaitingForSync" | "Running"))),
            _ => prop_assert!(phase != Some("WaitingForSync")),
        }
        // In a settled world nothing more is planned or written.
        let step = plan(&world.observed());
        let blocked = world.vm.spec.run_strategy.as_deref() == Some("WaitAsReceiver") && phase == Some("Running");
        prop_assert_eq!(matches!(step, Step::Blocked(_)), blocked, "{:?}", step);
        prop_assert!(blocked || step == Step::Rest, "{:?}", step);
        let status = compute(&world.observed(), world.vmi.as_ref(), &Outcome::Quiet);
        prop_assert_eq!(Some(&status), world.vm.status.as_ref());
        prop_assert_eq!(status.created.unwrap_or(false), world.vmi.is_some());
        // An instance that blocks its machine has the generation that it was made from.
        if phase == Some("Running") && !blocked {
            prop_assert_eq!(status.observed_generation, world.vm.metadata.generation);
        }
    }
}
