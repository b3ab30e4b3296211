use super::super::issue::Authority;
use super::*;
use barevirt_api::rotation::{LEAST_OVERLAP, LEAST_RENEWAL, LEAST_USE};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

const START: i64 = 1_800_000_000;
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn minutes(duration: u64, renew_before: u64) -> Lifetime {
    let of = |minutes| Duration::from_secs(60 * minutes);
    Lifetime { duration: of(duration), renew_before: of(renew_before) }
}

/// A model of the cluster: applies a plan as the publisher does.
struct World {
    rotation: Rotation,
    authority: Option<Authority>,
    next: Option<Authority>,
    observed: Observed,
}

impl World {
    fn new(rotation: Rotation) -> Self {
        World { rotation, authority: None, next: None, observed: Observed::default() }
    }

    fn plan(&self, now: i64) -> Plan {
        plan(&self.observed, &self.rotation, "kubevirt", now)
    }

    /// Plans and applies until nothing is left to do; returns all plans with changes.
    fn settle(&mut self, now: i64) -> Vec<Plan> {
        let mut plans = vec![];
        for _ in 0..5 {
            let plan = self.plan(now);
            if plan.is_quiet() {
                assert!(plan.due.is_none_or(|due| due > now));
                return plans;
            }
            match plan.change {
                Change::None => {}
                Change::New => {
                    self.authority = Some(self.generate(now));
                    self.next = None;
                    self.observed.since = None;
                }
                Change::Next => self.next = Some(self.generate(now)),
                Change::Promote => {
                    self.authority = self.next.take();
                    self.observed.since = Some(now);
                }
            }
            self.observed.authority = self.authority.as_ref().map(|authority| authority.seen.clone());
            self.observed.next = self.next.as_ref().map(|authority| authority.seen.clone());
            if let Some(bundle) = &plan.bundle {
                self.observed.bundle = ParsedCertificate::all(bundle.concat().as_bytes());
            }
            for leaf in &plan.issue {
                let profile = leaf.profile("kubevirt");
                let life = self.rotation.leaf.duration;
                let issued = self.authority.as_ref().unwrap().issue(&profile, at(now), life).unwrap();
                self.observed
                    .leaves
                    .insert(*leaf, ParsedCertificate::first(issued.certificate.as_bytes()).unwrap());
            }
            // The webhooks are written after the round.
            self.tell();
            plans.push(plan);
        }
        panic!("does not settle: {plans:?}");
    }

    fn generate(&self, now: i64) -> Authority {
        Authority::generate(at(now), self.rotation.authority.duration).unwrap()
    }

    fn tell(&mut self) {
        self.observed.published = self.observed.bundle.iter().map(|known| known.key_id.clone()).collect();
    }
}

fn changes(plans: &[Plan]) -> Vec<Change> {
    plans.iter().map(|plan| plan.change).collect()
}

/// The certificates that pods have: the kubelet updates them after a while. The API server has them at once.
#[derive(Clone)]
struct Pods {
    bundle: Vec<ParsedCertificate>,
    leaves: BTreeMap<Leaf, ParsedCertificate>,
}

/// Follows a world minute by minute, with pods that lag by up to `behind` minutes, each by its own number.
struct Followed {
    world: World,
    history: VecDeque<Pods>,
    behind: usize,
    promoted: usize,
}

impl Followed {
    fn new(rotation: Rotation, behind: usize) -> Self {
        Followed { world: World::new(rotation), history: VecDeque::new(), behind, promoted: 0 }
    }

    fn minute(&mut self, now: i64) {
        let plans = self.world.settle(now);
        self.promoted += plans.iter().filter(|plan| plan.change == Change::Promote).count();
        let Observed { bundle, leaves, .. } = &self.world.observed;
        self.history.push_front(Pods { bundle: bundle.clone(), leaves: leaves.clone() });
        self.history.truncate(self.behind + 1);
        // Any pod may have any of these states: the certificates of each are trusted by all pods and by the API server.
        for shown in &self.history {
            for (leaf, seen) in &shown.leaves {
                assert!(seen.is_valid(now), "{leaf:?} has expired at {}", now - START);
                for believer in self.history.iter().map(|pods| &pods.bundle).chain([bundle]) {
                    assert!(
                        believer.iter().any(|ca| ca.key_id == seen.issuer_key_id && ca.is_valid(now)),
                        "{leaf:?} is not believed at minute {} of {:?}",
                        (now - START) / MINUTE,
                        self.world.rotation
                    );
                }
            }
        }
        assert!(bundle.len() <= 4, "{}", bundle.len());
    }
}

#[test]
fn from_nothing_to_everything_and_then_quiet() {
    let mut world = World::new(Rotation::default());
    let plans = world.settle(START);
    assert_eq!(changes(&plans), [Change::New, Change::None, Change::None][..plans.len()]);
    assert_eq!(world.observed.bundle.len(), 1);
    assert_eq!(world.observed.leaves.len(), Leaf::ALL.len());
    let quiet = world.plan(START + 1);
    assert!(quiet.is_quiet());
    // Settled by then; then the leaves.
    assert_eq!(quiet.due, Some(START + 5 * MINUTE));
    assert_eq!(world.plan(START + 5 * MINUTE).due, Some(START + 24 * HOUR - 24 * HOUR / 5));
}

#[test]
fn leaves_are_renewed_in_their_last_fifth() {
    let mut world = World::new(Rotation::default());
    world.settle(START);
    assert!(world.settle(START + 19 * HOUR).is_empty());
    let plans = world.settle(START + 20 * HOUR);
    assert_eq!((plans[0].issue.as_slice(), plans.len()), (Leaf::ALL.as_slice(), 1));
}

#[test]
fn a_successor_is_known_before_it_signs() {
    let mut world = World::new(Rotation::default());
    world.settle(START);
    let due = START + 7 * 24 * HOUR * 4 / 5;
    for hour in 0..(due - START) / HOUR {
        assert!(world.settle(START + hour * HOUR).iter().all(|plan| plan.change == Change::None));
    }
    let plans = world.settle(due);
    assert_eq!(changes(&plans)[0], Change::Next);
    let first = world.authority.as_ref().unwrap().seen.clone();
    assert_eq!(world.observed.bundle.len(), 2);
    assert_eq!(world.observed.bundle.last(), Some(&first), "the signing one is the last");
    assert!(world.observed.leaves.values().all(|leaf| leaf.issuer_key_id == first.key_id));
    assert!(world.settle(due + 5 * MINUTE - 1).is_empty());

    // It does not sign until the API server has it, however long that takes.
    let published = std::mem::take(&mut world.observed.published);
    assert_eq!(world.plan(due + 10 * HOUR).change, Change::None);
    world.observed.published = published;
    let plans = world.settle(due + 5 * MINUTE);
    assert_eq!(changes(&plans)[0], Change::Promote);
    let second = world.authority.as_ref().unwrap().seen.clone();
    assert_ne!(first.key_id, second.key_id);
    assert_eq!(world.observed.bundle.last(), Some(&second));
    assert!(world.observed.leaves.values().all(|leaf| leaf.issuer_key_id == second.key_id));
    // The former one stays until its end.
    assert_eq!(world.observed.bundle.len(), 2);
    world.settle(first.not_after);
    assert_eq!(world.observed.bundle, [second]);
}

#[test]
fn at_every_minute_of_two_weeks_peers_agree() {
    let mut followed = Followed::new(Rotation::default(), 2);
    for minute in 0..14 * 24 * 60 {
        followed.minute(START + minute * MINUTE);
    }
    assert!(followed.promoted >= 2, "{}", followed.promoted);
}

#[test]
fn shorter_lives_are_in_force_at_once() {
    let mut followed = Followed::new(Rotation::default(), 2);
    followed.minute(START);
    let now = START + HOUR;
    followed.minute(now);
    let before = followed.world.observed.clone();
    followed.world.rotation = Rotation { authority: minutes(20, 12), leaf: minutes(14, 10) };
    followed.minute(now);
    // Leaves first, by the authority that is known; all readers know the next one before it signs.
    for (leaf, seen) in &followed.world.observed.leaves {
        assert_eq!(seen.not_after, now + 14 * MINUTE, "{leaf:?}");
        assert_eq!(seen.issuer_key_id, before.authority.as_ref().unwrap().key_id);
    }
    assert!(followed.world.next.is_some());
    for minute in 1..=40 {
        followed.minute(now + minute * MINUTE);
    }
    assert!(followed.promoted >= 3, "{}", followed.promoted);
    // The authority for a week is not trusted for a week.
    let week = before.authority.unwrap().key_id;
    assert!(followed.world.observed.bundle.iter().all(|known| known.key_id != week));
    // And back.
    followed.world.rotation = Rotation::default();
    for minute in 41..=80 {
        followed.minute(now + minute * MINUTE);
    }
    let authority = followed.world.observed.authority.clone().unwrap();
    assert_eq!(authority.not_after - made(&authority), 7 * 24 * HOUR);
    assert!(followed.world.plan(now + 80 * MINUTE).is_quiet());
}

#[test]
fn a_lost_bundle_or_secret_comes_back() {
    let mut world = World::new(Rotation::default());
    world.settle(START);
    world.observed.bundle.clear();
    let plans = world.settle(START + 10);
    assert_eq!(plans[0].bundle.as_ref().map(Vec::len), Some(1));
    world.observed.leaves.remove(&Leaf::Api);
    assert_eq!(world.settle(START + 20)[0].issue, [Leaf::Api]);
    // Leaves of the former authority stay trusted: it is in the bundle. They are renewed when the new one is known.
    world.observed.authority = None;
    world.authority = None;
    let plans = world.settle(START + 30);
    assert_eq!(changes(&plans)[0], Change::New);
    assert!(plans.iter().all(|plan| plan.issue.is_empty()));
    assert_eq!(world.observed.bundle.len(), 2);
    let plans = world.settle(START + 30 + 5 * MINUTE);
    assert_eq!(plans[0].issue, Leaf::ALL);
    // A successor that was lost is made again.
    let due = START + 30 + 7 * 24 * HOUR * 4 / 5;
    world.settle(due);
    world.observed.next = None;
    world.next = None;
    assert_eq!(changes(&world.settle(due + 60))[0], Change::Next);
}

#[test]
fn a_wrong_certificate_is_replaced() {
    let mut world = World::new(Rotation::default());
    world.settle(START);
    let server = world.observed.leaves[&Leaf::Api].clone();
    // Another certificate in its place.
    world.observed.leaves.insert(Leaf::HandlerClient, server.clone());
    assert_eq!(world.settle(START + 10)[0].issue, [Leaf::HandlerClient]);
    let both = ParsedCertificate { for_clients: true, ..server };
    world.observed.leaves.insert(Leaf::Api, both);
    assert_eq!(world.settle(START + 20)[0].issue, [Leaf::Api]);
}

#[test]
fn an_expired_authority_gives_way_at_once() {
    let mut world = World::new(Rotation::default());
    world.settle(START);
    world.settle(START + 6 * 24 * HOUR);
    world.observed.published.clear();
    let plans = world.settle(START + 8 * 24 * HOUR);
    assert_eq!(changes(&plans)[0], Change::Promote);
    let plans = world.settle(START + 80 * 24 * HOUR);
    assert_eq!(changes(&plans)[0], Change::New);
}

prop_compose! {
    /// Lifetimes that validation accepts.
    fn rotations()(
        (renewal, overlap) in (0..20_u64, 0..40_u64),
        (used, longer) in (0..40_u64, 0..60_u64),
    ) -> Rotation {
        let least = |time: Duration| time.as_secs() / 60;
        let renew = least(LEAST_RENEWAL) + renewal;
        let duration = renew + least(LEAST_USE) + used;
        let overlap = least(LEAST_OVERLAP) + overlap;
        let life = duration.max(overlap + least(LEAST_USE)) + longer;
        Rotation { authority: minutes(life, overlap), leaf: minutes(duration, renew) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn at_every_minute_peers_agree_whatever_the_lives(first in rotations(), second in rotations(), change in 1..300_i64) {
        let mut followed = Followed::new(first, 2);
        for minute in 0..400 {
            if minute == change {
                followed.world.rotation = second;
            }
            followed.minute(START + minute * MINUTE);
        }
    }

    #[test]
    fn nothing_is_done_before_it_is_due(rotation in rotations()) {
        let mut world = World::new(rotation);
        let mut now = START;
        for _ in 0..60 {
            world.settle(now);
            let due = world.plan(now).due.unwrap();
            prop_assert!(world.plan(due - 1).is_quiet());
            now = due;
        }
        prop_assert!(now > START + 60 * MINUTE);
    }
}
