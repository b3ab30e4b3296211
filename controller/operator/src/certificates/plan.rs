//! What is to be made, given what there is. Pure.

use super::issue::{Leaf, Seen};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a new authority waits in the bundle before it signs: the kubelet brings a config map to its pods within
/// about a minute and a half.
const SETTLE: Duration = Duration::from_secs(300);

/// The stored certificates.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The authority, if its secret holds a usable one.
    pub(super) authority: Option<Seen>,
    /// Authorities in the bundle.
    pub(super) bundle: Vec<Seen>,
    /// Leaves, those that could be read.
    pub(super) leaves: BTreeMap<Leaf, Seen>,
}

/// What is to be made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// A new authority first; then plan again.
    pub(super) new_authority: bool,
    /// The bundle's new contents, if they change: PEM texts, the signing authority last.
    pub(super) bundle: Option<Vec<String>>,
    /// Leaves to issue, after the bundle is written.
    pub(super) issue: Vec<Leaf>,
}

/// Decides; `now` is in seconds since 1970.
pub(super) fn plan(observed: &Observed, namespace: &str, now: i64) -> Plan {
    let Some(authority) =
        observed.authority.as_ref().filter(|authority| authority.is_valid(now) && !authority.is_ageing(now))
    else {
        return Plan { new_authority: true, ..Plan::default() };
    };

    let kept = observed
        .bundle
        .iter()
        .filter(|old| old.is_valid(now) && old.key_id != authority.key_id)
        .map(|old| old.pem.clone());
    let wanted: Vec<String> = kept.chain([authority.pem.clone()]).collect();
    let stored: Vec<&String> = observed.bundle.iter().map(|seen| &seen.pem).collect();
    let bundle = (stored != wanted.iter().collect::<Vec<_>>()).then_some(wanted);

    let settled_after = i64::try_from(SETTLE.as_secs()).unwrap_or(i64::MAX);
    let settled = now.saturating_sub(authority.not_before) >= 2 * settled_after
        || observed.bundle.iter().all(|old| old.key_id == authority.key_id);
    let issue = Leaf::ALL
        .into_iter()
        .filter(|leaf| {
            let Some(seen) = observed.leaves.get(leaf) else { return true };
            let mut names = leaf.dns_names(namespace);
            names.sort();
            let trusted = observed
                .bundle
                .iter()
                .any(|trusted| trusted.is_valid(now) && trusted.key_id == seen.issuer_key_id);
            if !seen.is_valid(now) || !trusted || seen.dns_names != names {
                return true;
            }
            let issuer_ends = observed
                .bundle
                .iter()
                .any(|trusted| trusted.key_id == seen.issuer_key_id && trusted.not_after < seen.not_after);
            (seen.is_ageing(now) || issuer_ends) && settled
        })
        .collect();
    Plan { new_authority: false, bundle, issue }
}

#[cfg(test)]
mod tests {
    use super::super::issue::Authority;
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    const START: i64 = 1_800_000_000;
    const HOUR: i64 = 3600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The cluster as a value: applies a plan like the publisher does.
    struct World {
        authority: Option<Authority>,
        observed: Observed,
    }

    impl World {
        fn new() -> Self {
            World { authority: None, observed: Observed::default() }
        }

        /// Plans and applies until nothing is left to do; all plans.
        fn settle(&mut self, now: i64) -> Vec<Plan> {
            let mut plans = vec![];
            for _ in 0..4 {
                let plan = plan(&self.observed, "kubevirt", now);
                if plan == Plan::default() {
                    return plans;
                }
                if plan.new_authority {
                    let authority = Authority::generate(at(now)).unwrap();
                    self.observed.authority = Some(authority.seen.clone());
                    self.authority = Some(authority);
                }
                if let Some(bundle) = &plan.bundle {
                    self.observed.bundle = Seen::all(bundle.concat().as_bytes());
                }
                for leaf in &plan.issue {
                    let issued = self.authority.as_ref().unwrap().issue(*leaf, "kubevirt", at(now)).unwrap();
                    self.observed.leaves.insert(*leaf, Seen::first(issued.certificate.as_bytes()).unwrap());
                }
                plans.push(plan);
            }
            panic!("does not settle: {plans:?}");
        }
    }

    #[test]
    fn from_nothing_to_everything_and_then_quiet() {
        let mut world = World::new();
        let plans = world.settle(START);
        assert!(plans[0].new_authority);
        assert_eq!(plans[1].bundle.as_ref().map(Vec::len), Some(1));
        assert_eq!(world.observed.leaves.len(), 3);
        assert!(world.settle(START + 1).is_empty());
    }

    #[test]
    fn leaves_are_renewed_in_their_last_fifth() {
        let mut world = World::new();
        world.settle(START);
        assert!(world.settle(START + 19 * HOUR).is_empty());
        let plans = world.settle(START + 20 * HOUR);
        assert_eq!(plans[0].issue, Leaf::ALL);
        assert_eq!(plans.len(), 1);
    }

    #[test]
    fn at_every_minute_of_two_weeks_peers_agree() {
        let mut world = World::new();
        let mut rotations = 0;
        // What readers have: the bundle of two minutes ago.
        let mut readers: Vec<Vec<Seen>> = vec![];
        for minute in 0..14 * 24 * 60 {
            let now = START + minute * 60;
            rotations += world.settle(now).iter().filter(|plan| plan.new_authority).count();
            readers.push(world.observed.bundle.clone());
            let known = &readers[readers.len().saturating_sub(3)];
            for (leaf, seen) in &world.observed.leaves {
                assert!(seen.is_valid(now), "{leaf:?} at minute {minute}");
                assert!(
                    known.iter().any(|ca| ca.key_id == seen.issuer_key_id && ca.is_valid(now)),
                    "{leaf:?} is not trusted at minute {minute}"
                );
            }
            assert!(world.observed.bundle.len() <= 2);
        }
        assert!(rotations >= 3, "{rotations}");
    }

    #[test]
    fn a_lost_bundle_or_secret_comes_back() {
        let mut world = World::new();
        world.settle(START);
        world.observed.bundle.clear();
        let plans = world.settle(START + 10);
        assert_eq!(plans[0].bundle.as_ref().map(Vec::len), Some(1));
        world.observed.leaves.remove(&Leaf::Api);
        assert_eq!(world.settle(START + 20)[0].issue, [Leaf::Api]);
        world.observed.authority = None;
        let plans = world.settle(START + 30);
        assert!(plans[0].new_authority);
        // Leaves by the former authority stay trusted: it is in the bundle.
        assert_eq!(plans[1].issue, []);
    }
}
