//! A model of the API server, kubelet, handler and users. It executes plans that were made from old observations, as the
//! real shell does: names are unique, writes carry the version that they were computed from.

use super::super::attachments::is_asked_for;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const VOLUMES: [&str; 2] = ["data", "logs"];
const CLAIMS: [&str; 2] = ["c", "d"];

#[derive(Clone, Debug)]
enum Event {
    /// Reconcile with pods and instance as they were this many events ago.
    Reconcile {
        pod_lag: usize,
        vmi_lag: usize,
    },
    UserAdds {
        volume: usize,
        claim: usize,
    },
    UserRemoves {
        volume: usize,
    },
    ClaimComes {
        claim: usize,
    },
    /// The claim is filled once a pod was placed.
    ClaimWaits {
        claim: usize,
    },
    PodServes {
        pod: usize,
    },
    PodStops {
        pod: usize,
    },
    PodFails {
        pod: usize,
    },
    PodForced {
        pod: usize,
    },
    /// The handler takes an offered disk, and does not report it yet.
    HandlerTakes {
        volume: usize,
    },
    HandlerTells,
    HandlerLetsGo {
        volume: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => (0..3usize, 0..3usize).prop_map(|(pod_lag, vmi_lag)| Event::Reconcile { pod_lag, vmi_lag }),
        6 => (0..2usize, 0..2usize).prop_map(|(volume, claim)| Event::UserAdds { volume, claim }),
        4 => (0..2usize).prop_map(|volume| Event::UserRemoves { volume }),
        3 => (0..2usize).prop_map(|claim| Event::ClaimComes { claim }),
        4 => (0..2usize).prop_map(|claim| Event::ClaimWaits { claim }),
        10 => (0..4usize).prop_map(|pod| Event::PodServes { pod }),
        2 => (0..4usize).prop_map(|pod| Event::PodStops { pod }),
        2 => (0..4usize).prop_map(|pod| Event::PodFails { pod }),
        2 => (0..4usize).prop_map(|pod| Event::PodForced { pod }),
        8 => (0..2usize).prop_map(|volume| Event::HandlerTakes { volume }),
        6 => Just(Event::HandlerTells),
        6 => (0..2usize).prop_map(|volume| Event::HandlerLetsGo { volume }),
    ];
    proptest::collection::vec(event, 1..80)
}

type Pods = BTreeMap<String, Pod>;

struct World {
    vmi: VirtualMachineInstance,
    pods: Pods,
    history: Vec<(VirtualMachineInstance, Pods)>,
    bound: BTreeSet<&'static str>,
    waiting: BTreeSet<&'static str>,
    /// Volumes and claims whose disks the launcher has.
    taken: BTreeSet<(String, String)>,
    version: u64,
    pods_made: usize,
}

impl World {
    fn new() -> Self {
        World {
            vmi: vmi(&[], json!([])),
            pods: Pods::new(),
            history: vec![],
            bound: BTreeSet::new(),
            waiting: BTreeSet::new(),
            taken: BTreeSet::new(),
            version: 100,
            pods_made: 0,
        }
    }

    fn bump(&mut self) {
        self.version += 1;
        self.vmi.metadata.resource_version = Some(self.version.to_string());
    }

    fn entries_mut(&mut self) -> &mut Vec<VolumeStatus> {
        &mut self.vmi.status.as_mut().unwrap().volume_status
    }

    /// Volumes and claims of the specification.
    fn wanted_disks(&self) -> Vec<(String, String)> {
        let disks = wanted(&self.vmi).into_iter();
        disks.map(|wanted| (wanted.name.to_owned(), wanted.claim.name.to_owned())).collect()
    }

    fn set_volumes(&mut self, change: impl FnOnce(&mut Vec<(String, String)>)) {
        let mut volumes = self.wanted_disks();
        change(&mut volumes);
        let list: Vec<(&str, &str)> =
            volumes.iter().map(|(name, claim)| (name.as_str(), claim.as_str())).collect();
        self.vmi.spec = vmi(&list, json!([])).spec;
        self.bump();
    }

    fn observe(&self, pod_lag: usize, vmi_lag: usize) -> Observed {
        let before = |lag: usize| self.history.len().checked_sub(lag).and_then(|at| self.history.get(at));
        let vmi = before(vmi_lag).filter(|_| vmi_lag > 0).map_or(&self.vmi, |(vmi, _)| vmi).clone();
        let mut pods = before(pod_lag).filter(|_| pod_lag > 0).map_or(&self.pods, |(_, pods)| pods).clone();
        // As in `observe`: before an entry is removed, the API server is asked.
        let names: Vec<String> = wanted(&vmi).into_iter().map(|wanted| wanted.pod).collect();
        for (name, pod) in &self.pods {
            if !names.contains(name) && !pods.contains_key(name) {
                pods.insert(name.clone(), pod.clone());
            }
        }
        let claims = wanted(&vmi)
            .iter()
            .filter(|wanted| {
                is_asked_for(
                    &vmi,
                    wanted,
                    &launcher(),
                    &Attachments { pods: pods.clone(), ..Attachments::default() },
                )
            })
            .map(|wanted| {
                let name = wanted.claim.name;
                let found = match (self.bound.contains(name), self.waiting.contains(name)) {
                    (true, false) => claim(name, "Bound"),
                    (true, true) => waiting(name, "Bound", "Succeeded"),
                    (false, true) => waiting(name, "Pending", "WaitForFirstConsumer"),
                    (false, false) => Found::default(),
                };
                (wanted.name.to_owned(), found)
            })
            .collect();
        let mut observed = observed(vmi, vec![], vec![]);
        observed.attachments = Attachments { claims, pods, ..Attachments::default() };
        observed
    }

    fn apply(&mut self, observed: &Observed, plan: Plan) {
        let seen = observed.vmi.metadata.resource_version.clone();
        for action in plan.actions {
            // Before each action the instance is read again, and a patch has a precondition.
            if self.vmi.metadata.resource_version != seen {
                return;
            }
            match action {
                Action::Patch(body) => {
                    assert_eq!(body["metadata"]["resourceVersion"], json!(seen));
                    let mut value = serde_json::to_value(&self.vmi).unwrap();
                    crate::merge::apply(&mut value, &body);
                    self.vmi = serde_json::from_value(value).unwrap();
                    self.bump();
                }
                Action::Attach { mut pod, .. } => {
                    let name = pod.name_any();
                    // A pod is made only if the status names it.
                    assert!(
                        entries(&self.vmi).any(|(_, noted)| noted.attach_pod_name.as_ref() == Some(&name))
                    );
                    // Otherwise both pods would have the claim.
                    assert!(!self.pods.contains_key(&consumer::name_beside(&name)));
                    self.make(&mut pod);
                }
                Action::Provision { mut pod, .. } => {
                    let name = pod.name_any();
                    let is_named = |noted: &barevirt_api::v1::HotplugVolumeStatus| {
                        noted.attach_pod_name.as_deref().map(consumer::name_beside) == Some(name.clone())
                    };
                    assert!(entries(&self.vmi).any(|(_, noted)| is_named(noted)));
                    self.make(&mut pod);
                }
                Action::Release { name, uid, .. } => {
                    if self.pods.get(&name).is_some_and(|pod| pod.metadata.uid == Some(uid)) {
                        self.pods.remove(&name);
                    }
                }
                Action::Detach { name, uid, .. } => {
                    let Some(pod) = self.pods.get(&name).filter(|pod| pod.metadata.uid == Some(uid)) else {
                        continue;
                    };
                    let over =
                        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed");
                    let disk = |name: &str| pod.annotations().get(name).cloned().unwrap();
                    let disk = (
                        disk(barevirt_api::names::VOLUME_ANNOTATION),
                        disk(barevirt_api::names::CLAIM_ANNOTATION),
                    );
                    // No running pod is deleted while the launcher has its disk.
                    assert!(over || !self.taken.contains(&disk), "{disk:?} is in use");
                    self.pods.remove(&name);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn make(&mut self, pod: &mut Pod) {
        let name = pod.name_any();
        if !self.pods.contains_key(&name) {
            self.pods_made += 1;
            pod.metadata.uid = Some(format!("a{}", self.pods_made));
            self.pods.insert(name, pod.clone());
        }
    }

    /// A claim that waits for it is bound, and the pod ends.
    fn place(&mut self, index: usize) {
        let placed = self.pods.values_mut().nth(index).filter(|pod| is_first_consumer(pod));
        if let Some(pod) = placed {
            pod.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
            let on = pod.annotations().get(barevirt_api::names::CLAIM_ANNOTATION).cloned();
            self.bound.extend(CLAIMS.into_iter().find(|claim| on.as_deref() == Some(*claim)));
        }
    }

    fn with_pod(&mut self, index: usize, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.values_mut().nth(index) {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if !matches!(phase, Some("Failed" | "Succeeded")) {
                change(pod);
            }
        }
    }

    /// The handler opens a disk only of exactly the pod that the status names, and hands it to the launcher: in any phase
    /// except after its release.
    fn take(&mut self, volume: &str) {
        let Some(wanted) = wanted(&self.vmi).into_iter().find(|wanted| wanted.name == volume) else {
            return;
        };
        let disk = (volume.to_owned(), wanted.claim.name.to_owned());
        let offered = entries(&self.vmi).any(|(entry, noted)| {
            entry.name == volume
                && !matches!(Stage::of(entry), Stage::Waiting | Stage::Left)
                && noted.attach_pod_name.as_ref() == Some(&wanted.pod)
                && self.pods.get(&wanted.pod).is_some_and(|pod| pod.metadata.uid == noted.attach_pod_uid)
        });
        if offered {
            self.taken.insert(disk);
        }
    }

    /// The handler reports the disks that the launcher has, and those that it no longer has.
    fn tell(&mut self) {
        let taken = self.taken.clone();
        let wanted = self.wanted_disks();
        let mut told = false;
        // As the real handler: it reports nothing about an entry that names no pod.
        let named = |entry: &&mut VolumeStatus| {
            entry.hotplug_volume.as_ref().is_some_and(|noted| noted.attach_pod_uid.is_some())
        };
        for entry in self.entries_mut().iter_mut().filter(named) {
            let claim = entry.persistent_volume_claim_info.as_ref().and_then(|info| info.claim_name.clone());
            let disk = (entry.name.clone(), claim.unwrap_or_default());
            let (has, wanted) = (taken.contains(&disk), wanted.contains(&disk));
            let phase = match Stage::of(entry) {
                Stage::Offered if has && wanted => "Ready",
                Stage::Leaving if !has && !wanted => "UnMountedFromPod",
                _ => continue,
            };
            entry.phase = Some(phase.to_owned());
            told = true;
        }
        if told {
            self.bump();
        }
    }

    /// The guest releases a disk that is not wanted any more.
    fn let_go(&mut self, volume: &str) {
        let wanted = self.wanted_disks();
        self.taken.retain(|disk| disk.0 != volume || wanted.contains(disk));
    }

    fn step(&mut self, event: &Event) {
        match *event {
            Event::Reconcile { pod_lag, vmi_lag } => {
                let observed = self.observe(pod_lag, vmi_lag);
                let plan = plan(&observed, &launcher());
                self.apply(&observed, plan);
            }
            Event::UserAdds { volume, claim } => self.set_volumes(|volumes| {
                volumes.retain(|(name, _)| name != VOLUMES[volume]);
                volumes.push((VOLUMES[volume].to_owned(), CLAIMS[claim].to_owned()));
            }),
            Event::UserRemoves { volume } => {
                self.set_volumes(|volumes| volumes.retain(|(name, _)| name != VOLUMES[volume]));
            }
            Event::ClaimComes { claim } => drop(self.bound.insert(CLAIMS[claim])),
            Event::ClaimWaits { claim } => {
                if !self.bound.contains(CLAIMS[claim]) {
                    self.waiting.insert(CLAIMS[claim]);
                }
            }
            Event::PodServes { pod } => {
                self.place(pod);
                self.with_pod(pod, |pod| pod.status = serde_json::from_value(serves()).unwrap());
            }
            Event::PodStops { pod } => self.with_pod(pod, |pod| pod.status = None),
            Event::PodFails { pod } => self.with_pod(pod, |pod| {
                pod.status = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
            }),
            Event::PodForced { pod } => {
                let name = self.pods.keys().nth(pod).cloned();
                name.and_then(|name| self.pods.remove(&name));
            }
            Event::HandlerTakes { volume } => self.take(VOLUMES[volume]),
            Event::HandlerTells => self.tell(),
            Event::HandlerLetsGo { volume } => self.let_go(VOLUMES[volume]),
        }
        self.history.push((self.vmi.clone(), self.pods.clone()));
    }

    /// All components act until nothing changes.
    fn settle(&mut self) {
        for _ in 0..40 {
            let before = (self.vmi.clone(), self.pods.clone(), self.taken.clone());
            for volume in VOLUMES {
                self.take(volume);
                self.let_go(volume);
            }
            self.tell();
            for pod in 0..self.pods.len() {
                self.step(&Event::PodServes { pod });
            }
            self.step(&Event::Reconcile { pod_lag: 0, vmi_lag: 0 });
            if before == (self.vmi.clone(), self.pods.clone(), self.taken.clone()) {
                return;
            }
        }
        panic!("does not settle: {:?}", self.vmi.status);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn pods_are_there_for_what_is_wanted_and_for_nothing_else(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        world.settle();
        let there: Vec<String> = wanted(&world.vmi)
            .into_iter()
            .filter(|wanted| world.bound.contains(wanted.claim.name))
            .map(|wanted| wanted.pod)
            .collect();
        prop_assert_eq!(
            world.pods.keys().cloned().collect::<BTreeSet<_>>(),
            there.iter().cloned().collect::<BTreeSet<_>>()
        );
        // Each wanted volume has an entry, which the guest uses where its claim exists; no other volume has one.
        let mut told: Vec<(String, bool)> = entries(&world.vmi)
            .map(|(entry, _)| (entry.name.clone(), entry.phase.as_deref() == Some("Ready")))
            .collect();
        told.sort();
        let mut expected: Vec<(String, bool)> = wanted(&world.vmi)
            .iter()
            .map(|wanted| (wanted.name.to_owned(), there.contains(&wanted.pod)))
            .collect();
        expected.sort();
        prop_assert_eq!(told, expected);
        prop_assert_eq!(world.taken.len(), there.len());
    }
}
