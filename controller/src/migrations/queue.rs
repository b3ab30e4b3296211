//! Selects the next migrations. Pure.
//!
//! ```text
//!   waiting, by priority and age ──> the first whose node is below its limit, while the cluster is below its limit
//! ```
//!
//! A migration that waits for its node does not delay others.

use super::row::Priority;
use barevirt_plan::migration::Limits;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Namespace and name.
pub type Key = (Box<str>, Box<str>);

/// A migration that waits for its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The migration.
    pub key: Key,
    /// The instance.
    pub vmi: Key,
    /// The node that the instance is on.
    pub node: Box<str>,
    /// Its priority.
    pub priority: Priority,
    /// When it was created, in seconds since 1970.
    pub created: i64,
}

/// An unfinished migration that has had its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The instance.
    pub vmi: Key,
    /// The node that the instance is leaving.
    pub node: Box<str>,
}

/// The migrations whose turn it is, in order. An instance has one migration at a time.
#[must_use]
pub fn turns(mut waiting: Vec<Waiting>, taken: &[Taken], limits: &Limits) -> Vec<Key> {
    let mut free = limits.per_cluster.saturating_sub(taken.len());
    let mut leaving: HashMap<&str, usize> = HashMap::new();
    let mut moving: HashSet<&Key> = HashSet::new();
    for one in taken {
        *leaving.entry(&one.node).or_default() += 1;
        moving.insert(&one.vmi);
    }
    waiting.sort_by(|a, b| {
        let place = |one: &Waiting| (Reverse(one.priority), one.created);
        place(a).cmp(&place(b)).then_with(|| a.key.cmp(&b.key))
    });
    let mut turns = vec![];
    for one in &waiting {
        if free == 0 {
            break;
        }
        let left = leaving.entry(&one.node).or_default();
        if *left >= limits.outbound_per_node || !moving.insert(&one.vmi) {
            continue;
        }
        *left += 1;
        free -= 1;
        turns.push(one.key.clone());
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    fn waiting(name: &str, node: &str, priority: Priority, created: i64) -> Waiting {
        Waiting { key: key(name), vmi: key(&format!("vmi-{name}")), node: node.into(), priority, created }
    }

    fn limits(per_cluster: usize, outbound_per_node: usize) -> Limits {
        Limits { per_cluster, outbound_per_node, drain_taint: String::new() }
    }

    fn names(turns: &[Key]) -> Vec<&str> {
        turns.iter().map(|(_, name)| &**name).collect()
    }

    #[test]
    fn priority_comes_before_age_and_age_before_names() {
        use Priority::{Critical, Maintenance, User};
        let all = vec![
            waiting("e", "n", Maintenance, 1),
            waiting("d", "n", User, 4),
            waiting("c", "n", User, 3),
            waiting("b", "n", User, 3),
            waiting("a", "n", Critical, 9),
        ];
        assert_eq!(names(&turns(all.clone(), &[], &limits(9, 9))), ["a", "b", "c", "d", "e"]);
        assert_eq!(names(&turns(all, &[], &limits(2, 9))), ["a", "b"]);
    }

    #[test]
    fn a_full_node_does_not_delay_migrations_from_other_nodes() {
        let all = vec![
            waiting("a", "n", Priority::Critical, 1),
            waiting("b", "n", Priority::Critical, 2),
            waiting("c", "m", Priority::User, 3),
        ];
        let taken = [Taken { vmi: key("other"), node: "n".into() }];
        assert_eq!(names(&turns(all, &taken, &limits(5, 2))), ["a", "c"]);
    }

    #[test]
    fn an_instance_moves_once_at_a_time() {
        let mut all = vec![waiting("a", "n", Priority::User, 1), waiting("b", "n", Priority::User, 2)];
        all[1].vmi = all[0].vmi.clone();
        assert_eq!(names(&turns(all.clone(), &[], &limits(5, 5))), ["a"]);
        let taken = [Taken { vmi: all[0].vmi.clone(), node: "n".into() }];
        assert!(turns(all, &taken, &limits(5, 5)).is_empty());
    }

    proptest! {
        #[test]
        fn queue_limits_hold_and_no_migration_waits_needlessly(
            all in proptest::collection::vec((0..4u8, 0..3u8, 0..9i64), 0..30),
            taken in proptest::collection::vec(0..4u8, 0..6),
            cluster in 0..8usize, node in 0..4usize,
        ) {
            let priorities = [Priority::Maintenance, Priority::User, Priority::Critical];
            let all: Vec<Waiting> = all
                .into_iter()
                .enumerate()
                .map(|(index, (node, priority, created))| {
                    waiting(&index.to_string(), &node.to_string(), priorities[usize::from(priority)], created)
                })
                .collect();
            let taken: Vec<Taken> = taken
                .into_iter()
                .enumerate()
                .map(|(index, node)| Taken { vmi: key(&format!("taken-{index}")), node: node.to_string().into() })
                .collect();
            let turns = turns(all.clone(), &taken, &limits(cluster, node));
            prop_assert!(turns.is_empty() || turns.len() + taken.len() <= cluster);
            let leaving = |which: &str| {
                let granted = all.iter().filter(|one| turns.contains(&one.key) && &*one.node == which).count();
                (granted, granted + taken.iter().filter(|one| &*one.node == which).count())
            };
            for which in ["0", "1", "2", "3"] {
                let (granted, all) = leaving(which);
                prop_assert!(granted == 0 || all <= node);
            }
            for one in all.iter().filter(|one| !turns.contains(&one.key)) {
                prop_assert!(turns.len() + taken.len() >= cluster || leaving(&one.node).1 >= node);
            }
        }
    }
}
