//! Random worlds: a claim with a populator, while components are killed and users delete objects.

use super::*;
use proptest::prelude::*;

/// Merges annotations into a claim.
pub(super) fn merge(claim: &mut PersistentVolumeClaim, note: &Value) {
    let annotations = claim.metadata.annotations.get_or_insert_default();
    for (name, value) in note["metadata"]["annotations"].as_object().unwrap() {
        annotations.insert(name.clone(), value.as_str().unwrap().to_owned());
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The controller looks.
    Look,
    /// It does what it planned at the last look, perhaps long after it.
    Act,
    /// It is killed between the two.
    Killed,
    /// A pod that uses the claim gets a node.
    Placed,
    /// The source is made.
    SourceMade,
    /// The DataVolume goes on: its claim is made and bound, and filled.
    FillsMore,
    /// The DataVolume fails.
    Fails,
    /// A user deletes the DataVolume.
    PrimeDeleted,
    /// A user deletes the claim of the DataVolume, or what is left of it.
    PrimeClaimDeleted,
    /// Kubernetes binds the claim to a volume that is its own.
    Binds,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => Just(Event::Look),
        6 => Just(Event::Act),
        1 => Just(Event::Killed),
        1 => Just(Event::Placed),
        1 => Just(Event::SourceMade),
        4 => Just(Event::FillsMore),
        1 => Just(Event::Fails),
        1 => Just(Event::PrimeDeleted),
        1 => Just(Event::PrimeClaimDeleted),
        2 => Just(Event::Binds),
    ];
    proptest::collection::vec(event, 1..80)
}

/// A volume of the cluster.
#[derive(Clone, Debug, PartialEq)]
struct Volume {
    name: String,
    /// UID of the claim that it belongs to.
    of: String,
    filled: bool,
    version: u32,
}

/// The world.
struct World {
    claim: PersistentVolumeClaim,
    version: u32,
    source: bool,
    prime: Option<DataVolume>,
    prime_claim: Option<PersistentVolumeClaim>,
    volumes: Vec<Volume>,
    planned: Option<(Step, u32)>,
    /// DataVolumes that were made.
    made: u32,
    /// Those that were deleted, or lost their claim, before their volume was the claim's.
    lost: u32,
    made_names: u32,
}

impl World {
    fn new() -> Self {
        World {
            claim: claim(|_| {}),
            version: 1,
            source: false,
            prime: None,
            prime_claim: None,
            volumes: vec![],
            planned: None,
            made: 0,
            lost: 0,
            made_names: 0,
        }
    }

    fn is_bound(&self) -> bool {
        self.claim.status.as_ref().unwrap().phase.as_deref() == Some("Bound")
    }

    /// Whether a volume already is the claim's.
    fn has_volume(&self) -> bool {
        self.volumes.iter().any(|volume| volume.of == "c1")
    }

    fn look(&self) -> Observed {
        let name = volume_name(&self.claim, self.prime.as_ref(), self.prime_claim.as_ref());
        let volume = name.and_then(|name| self.volumes.iter().find(|volume| volume.name == name));
        let volume = volume.map(|volume| {
            let value = json!({
                "metadata": { "name": volume.name, "uid": volume.name, "resourceVersion": volume.version.to_string() },
                "spec": { "claimRef": { "uid": volume.of } },
            });
            serde_json::from_value(value).unwrap()
        });
        Observed {
            claim: self.claim.clone(),
            source: self.source.then(|| image(|_| {})),
            class: Class::Waits,
            prime: self.prime.clone(),
            prime_claim: self.prime_claim.clone(),
            volume,
        }
    }

    /// Does what was planned, as the API server would: against what is there now.
    fn act(&mut self) {
        let Some((step, version)) = self.planned.take() else { return };
        match step {
            Step::Note(note) if version == self.version => {
                merge(&mut self.claim, &note);
                self.version += 1;
            }
            Step::Note(_) => {}
            Step::MakePrime(prime) => {
                if self.prime.is_none() {
                    self.made += 1;
                    let mut prime = *prime;
                    prime.metadata.uid = Some(format!("d{}", self.made));
                    self.prime = Some(prime);
                    // A plan from before the claim was filled.
                    self.lost += u32::from(self.has_volume());
                }
            }
            Step::Rebind(name, patch) => {
                let version = patch["metadata"]["resourceVersion"].as_str().unwrap();
                let volume = self.volumes.iter_mut().find(|volume| volume.name == name);
                if let Some(volume) = volume.filter(|volume| volume.version.to_string() == version) {
                    assert!(volume.filled, "an empty volume became the claim's");
                    volume.of = patch["spec"]["claimRef"]["uid"].as_str().unwrap().to_owned();
                    volume.version += 1;
                }
            }
            Step::RemovePrime(uid) => {
                if self.prime.as_ref().and_then(ResourceExt::uid) == Some(uid) {
                    self.remove_prime();
                }
            }
        }
    }

    fn remove_prime(&mut self) {
        if self.prime.take().is_some() {
            self.lost += u32::from(!self.has_volume());
            self.remove_prime_claim();
        }
    }

    /// The claim goes, and with it every volume that belongs to a claim which does not exist.
    fn remove_prime_claim(&mut self) {
        self.prime_claim = None;
        self.volumes.retain(|volume| volume.of == "c1");
    }

    fn fill(&mut self) {
        let Some(prime) = &mut self.prime else { return };
        if matches!(phase(prime), SUCCEEDED | FAILED) {
            return;
        }
        let uid = prime.uid().unwrap();
        let phase = match &self.prime_claim {
            None => {
                self.made_names += 1;
                let own = format!("p{}", self.made_names);
                let name = format!("pv{}", self.made_names);
                let value = json!({
                    "metadata": { "name": prime.name_any(), "uid": own, "ownerReferences": [
                        { "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "x", "uid": uid, "controller": true },
                    ] },
                    "spec": { "volumeName": name },
                });
                self.prime_claim = Some(serde_json::from_value(value).unwrap());
                self.volumes.push(Volume { name, of: own, filled: false, version: 1 });
                "ImportInProgress"
            }
            Some(own) => {
                let of = own.uid().unwrap();
                self.volumes
                    .iter_mut()
                    .filter(|volume| volume.of == of)
                    .for_each(|volume| volume.filled = true);
                SUCCEEDED
            }
        };
        prime.status = serde_json::from_value(json!({ "phase": phase })).unwrap();
    }

    fn bind(&mut self) {
        if let Some(volume) = self.volumes.iter().find(|volume| volume.of == "c1") {
            self.claim.status.as_mut().unwrap().phase = Some("Bound".to_owned());
            self.claim.spec.as_mut().unwrap().volume_name = Some(volume.name.clone());
            self.version += 1;
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Look => self.planned = plan(&self.look()).step.map(|step| (step, self.version)),
            Event::Act => self.act(),
            Event::Killed => self.planned = None,
            Event::Placed => {
                merge(
                    &mut self.claim,
                    &json!({ "metadata": { "annotations": { NODE_ANNOTATION: "node01" } } }),
                );
                self.version += 1;
            }
            Event::SourceMade => self.source = true,
            Event::FillsMore => self.fill(),
            Event::Fails => {
                if let Some(prime) = self.prime.as_mut().filter(|prime| phase(prime) != SUCCEEDED) {
                    prime.status = serde_json::from_value(json!({ "phase": FAILED })).unwrap();
                }
            }
            Event::PrimeDeleted => self.remove_prime(),
            Event::PrimeClaimDeleted => {
                if self.prime_claim.is_some() {
                    self.remove_prime_claim();
                }
            }
            Event::Binds => self.bind(),
        }
    }

    fn holds(&self) {
        let own: Vec<&Volume> = self.volumes.iter().filter(|volume| volume.of == "c1").collect();
        assert!(own.len() <= 1, "two volumes are the claim's: {own:?}");
        assert!(own.iter().all(|volume| volume.filled), "{own:?}");
        if self.is_bound() {
            let bound = self.claim.spec.as_ref().unwrap().volume_name.as_deref().unwrap();
            assert!(own.iter().any(|volume| volume.name == bound), "the claim has lost {bound}");
        }
        assert!(
            self.made <= self.lost + 1,
            "it was filled again without need: {} of {}",
            self.made,
            self.lost
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_claim_is_filled_once_and_never_loses_its_volume(events in events()) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            world.holds();
        }
        // Once nobody interferes any more, it is filled, and nothing else is left.
        world.happen(Event::SourceMade);
        world.happen(Event::Placed);
        for _ in 0..30 {
            // A user deletes what has failed.
            if world.prime.as_ref().is_some_and(|prime| phase(prime) == FAILED) {
                world.happen(Event::PrimeDeleted);
            }
            for event in [Event::Look, Event::Act, Event::FillsMore, Event::Binds] {
                world.happen(event);
                world.holds();
            }
        }
        prop_assert!(world.is_bound() && world.prime.is_none() && world.prime_claim.is_none());
        prop_assert_eq!(world.volumes.len(), 1);
        prop_assert_eq!(plan(&world.look()), Plan::default());
    }
}
