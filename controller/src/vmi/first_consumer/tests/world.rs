//! A model of the API server, the scheduler, kubelets, users and the importer, which fills claims in both ways.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Reconcile,
    /// The scheduler places a pod; storage that waited is bound.
    Places,
    /// The kubelet runs a placed pod to its end.
    Runs,
    /// The kubelet refuses the pod.
    Fails,
    UserForcesPod,
    UserDeletesVmi,
    /// The importer makes a step with the claim.
    Fills {
        claim: usize,
    },
    /// Filling starts again, with another claim.
    Anew {
        claim: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => Just(Event::Reconcile),
        6 => Just(Event::Places),
        5 => Just(Event::Runs),
        3 => Just(Event::Fails),
        2 => Just(Event::UserForcesPod),
        1 => Just(Event::UserDeletesVmi),
        12 => (0..2usize).prop_map(|claim| Event::Fills { claim }),
        1 => (0..2usize).prop_map(|claim| Event::Anew { claim }),
    ];
    proptest::collection::vec(event, 1..60)
}

/// A claim and the state of its filling.
#[derive(Clone, Debug, PartialEq)]
struct Filled {
    /// It is bound only when it is filled.
    late: bool,
    placed: bool,
    phase: &'static str,
}

impl Filled {
    fn new(late: bool) -> Self {
        Filled { late, placed: false, phase: "" }
    }

    fn is_bound(&self) -> bool {
        if self.late { self.phase == "Succeeded" } else { self.placed }
    }

    fn go_on(&mut self) {
        self.phase = match (self.phase, self.placed, self.late) {
            ("Succeeded", ..) | ("ImportInProgress", ..) => "Succeeded",
            (_, true, _) => "ImportInProgress",
            (_, false, true) => "PendingPopulation",
            (_, false, false) => "WaitForFirstConsumer",
        };
    }
}

struct World {
    vmi: Option<VirtualMachineInstance>,
    launcher: Option<Pod>,
    consumer: Option<Pod>,
    claims: [Filled; 2],
    version: u64,
    pods_made: usize,
}

impl World {
    fn new(late: [bool; 2]) -> Self {
        World {
            vmi: Some(vmi()),
            launcher: None,
            consumer: None,
            claims: late.map(Filled::new),
            version: 100,
            pods_made: 0,
        }
    }

    fn observe(&self) -> Option<Observed> {
        let mut observed = observed(self.vmi.clone()?, self.launcher.clone());
        if self.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some()) {
            observed.strays.extend(self.consumer.clone().map(other));
            return Some(observed);
        }
        let phase = |claim: &Filled| if claim.is_bound() { "Bound" } else { "Pending" };
        observed.claims = claims(&self.claims.each_ref().map(|claim| (claim.phase, phase(claim))));
        // A DataVolume without a phase counts, too.
        let silent = self.claims.iter().any(|claim| claim.phase.is_empty());
        if silent {
            let filling = Found { claim: None, filling: Some(Filling::default()) };
            observed.claims = Claims::of([("c0".to_owned(), filling)]);
        }
        observed.consumer.pod.clone_from(&self.consumer);
        Some(observed)
    }

    fn made(&mut self, mut pod: Pod) -> Option<Pod> {
        self.pods_made += 1;
        pod.metadata.uid = Some(format!("p{}", self.pods_made));
        Some(pod)
    }

    fn apply(&mut self, plan: Plan) {
        for action in plan.actions {
            match action {
                Action::Patch(body) => {
                    let Some(vmi) = &self.vmi else { return };
                    let vmi = patched(vmi, &body);
                    let gone = vmi.metadata.deletion_timestamp.is_some()
                        && vmi.metadata.finalizers.iter().flatten().next().is_none();
                    self.vmi = (!gone).then_some(vmi);
                    self.version += 1;
                    if let Some(vmi) = &mut self.vmi {
                        vmi.metadata.resource_version = Some(self.version.to_string());
                    }
                }
                Action::CreatePod(pod) => {
                    assert_eq!(self.consumer, None, "both would have the claims");
                    let filled = |claim: &Filled| {
                        claim.phase == "Succeeded" || (claim.late && claim.phase == "PendingPopulation")
                    };
                    assert!(self.claims.iter().all(filled), "{:?}", self.claims);
                    self.launcher = self.made(*pod);
                }
                Action::Provision { pod, volume: None } => {
                    assert!(self.consumer.is_none() && self.launcher.is_none());
                    assert!(self.claims.iter().any(|claim| claim.phase == "WaitForFirstConsumer"));
                    self.consumer = self.made(*pod);
                }
                Action::Release { uid, .. } => {
                    self.consumer.take_if(|pod| pod.metadata.uid == Some(uid));
                }
                Action::DeletePod { uid, .. } => {
                    self.launcher.take_if(|pod| pod.metadata.uid == Some(uid));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Reconcile => {
                if let Some(plan) = self.observe().map(|observed| whole_plan(&observed)) {
                    self.apply(plan);
                }
            }
            Event::Places => {
                if self.consumer.as_ref().or(self.launcher.as_ref()).is_some() {
                    self.claims.iter_mut().for_each(|claim| claim.placed = true);
                }
            }
            Event::Runs => {
                let bound = self.claims.iter().all(Filled::is_bound);
                if let Some(pod) = self.consumer.as_mut().filter(|_| bound) {
                    pod.status = consumer("Succeeded").pod.unwrap().status;
                }
            }
            Event::Fails => {
                if let Some(pod) = &mut self.consumer {
                    pod.status = consumer("Failed").pod.unwrap().status;
                }
            }
            Event::UserForcesPod => self.consumer = None,
            Event::UserDeletesVmi => self.vmi = self.vmi.take().map(deleting),
            Event::Fills { claim } => self.claims[*claim].go_on(),
            // The contents of a launcher's claim are never removed.
            Event::Anew { claim } if self.launcher.is_none() => {
                self.claims[*claim] = Filled::new(self.claims[*claim].late);
            }
            Event::Anew { .. } => {}
        }
    }

    /// All components act until nothing changes.
    fn settle(&mut self) {
        for _ in 0..40 {
            let before =
                (self.vmi.clone(), self.consumer.clone(), self.launcher.clone(), self.claims.clone());
            for claim in 0..2 {
                self.step(&Event::Fills { claim });
            }
            self.step(&Event::Reconcile);
            self.step(&Event::Places);
            self.step(&Event::Runs);
            let after = (self.vmi.clone(), self.consumer.clone(), self.launcher.clone(), self.claims.clone());
            if before == after {
                return;
            }
        }
        panic!("does not settle: {:?} {:?}", self.claims, self.vmi);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn claims_are_filled_and_then_the_launcher_is_created(late in any::<[bool; 2]>(), events in events()) {
        let mut world = World::new(late);
        for event in &events {
            world.step(event);
        }
        let deleted = world.vmi.as_ref().is_none_or(|vmi| vmi.metadata.deletion_timestamp.is_some());
        world.settle();
        prop_assert_eq!(&world.consumer, &None);
        prop_assert_eq!(world.vmi.is_none(), deleted);
        prop_assert_eq!(world.launcher.is_none(), deleted);
        if !deleted {
            prop_assert!(world.claims.iter().all(|claim| claim.phase == "Succeeded" && claim.is_bound()));
        }
    }
}
