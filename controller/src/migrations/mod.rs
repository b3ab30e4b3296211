//! Shared state of all migrations: the instance of each, whose turn is next, and how former ones ended.
//!
//! The watch reports each change. Of ended migrations only a row is kept; there may be five for each instance.
//!
//! ```text
//!   unfinished ──> rows, and whole in the cache     ended ──> rows     a granted turn ──> kept until a row shows it
//! ```
//!
//! A migration whose target pod cannot be made says so in its status, and has no place in the queue until it takes that back.

pub mod queue;
pub mod row;

use self::queue::{Key, Taken, Waiting, turns};
use self::row::{Phase, Row};
use barevirt_plan::migration::Limits;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a granted turn is kept without a sign that the migration uses it.
const KEPT: Duration = Duration::from_secs(60);
/// Pause before an instance whose automatic migration failed is migrated again; doubled after each consecutive failure.
const FIRST_PAUSE: i64 = 20;
/// Most doublings: the longest pause is a bit less than six hours.
const MOST_DOUBLINGS: u32 = 10;

/// A state of a migration that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Matter {
    /// A target pod is missing, or has ended.
    TargetLost,
    /// A phase that will most likely pass soon.
    Phase(Phase),
    /// The guest is being transferred.
    OnItsWay,
}

#[derive(Debug)]
struct Turn {
    vmi: Key,
    node: Box<str>,
    since: Instant,
}

#[derive(Debug, Default)]
struct Known {
    rows: HashMap<Key, Row>,
    /// Names of migrations by instance.
    of_instance: HashMap<Key, BTreeSet<Box<str>>>,
    /// Nodes of instances that have unfinished migrations.
    homes: HashMap<Key, Box<str>>,
    /// Turns granted to migrations whose rows still show them as pending.
    turns: HashMap<Key, Turn>,
    /// Since when a matter has been noticed, by the UID of the migration.
    noticed: HashMap<(Box<str>, Matter), Instant>,
    /// Names of target pods by instance.
    targets: HashMap<Key, BTreeSet<Box<str>>>,
    /// Since when a migration of an instance has been requested that the watch has not shown.
    asked: HashMap<Key, Instant>,
}

/// All migrations.
#[derive(Clone, Debug, Default)]
pub struct Migrations(Arc<Mutex<Known>>);

fn key(namespace: &str, name: &str) -> Key {
    (namespace.into(), name.into())
}

impl Migrations {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while the lock is held; even then the maps would be intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the state of a migration and the node of its instance. Returns whether it has just ended.
    pub fn saw(&self, namespace: &str, name: &str, row: Row, home: Option<&str>) -> bool {
        let mut known = self.lock();
        let vmi = key(namespace, &row.vmi);
        known.asked.remove(&vmi);
        known.of_instance.entry(vmi.clone()).or_default().insert(name.into());
        if let Some(home) = home {
            known.homes.insert(vmi.clone(), home.into());
        }
        let (phase, uid) = (row.phase, row.uid.clone());
        if phase != Phase::Unset && phase != Phase::Pending {
            known.turns.remove(&key(namespace, name));
        }
        if row.done {
            known.noticed.retain(|(of, _), _| *of != uid);
        }
        let former = known.rows.insert(key(namespace, name), row);
        known.settle_home(&vmi);
        phase.is_final() && former.is_some_and(|former| !former.phase.is_final())
    }

    /// Records that a migration is gone; returns the instance that it moved.
    pub fn gone(&self, namespace: &str, name: &str) -> Option<Box<str>> {
        let mut known = self.lock();
        let row = known.rows.remove(&key(namespace, name))?;
        known.turns.remove(&key(namespace, name));
        known.noticed.retain(|(of, _), _| *of != row.uid);
        let vmi = key(namespace, &row.vmi);
        remove(&mut known.of_instance, &vmi, name);
        known.settle_home(&vmi);
        Some(row.vmi)
    }

    /// Known migrations that a complete list does not contain.
    pub fn missing(&self, listed: &HashSet<Key>) -> Vec<Key> {
        self.lock().rows.keys().filter(|key| !listed.contains(*key)).cloned().collect()
    }

    /// Records the node of an instance.
    pub fn saw_instance(&self, namespace: &str, name: &str, node: &str) {
        let mut known = self.lock();
        let vmi = key(namespace, name);
        if known.unfinished(&vmi).next().is_some() {
            known.homes.insert(vmi, node.into());
        }
    }

    /// Records a target pod.
    pub fn saw_target(&self, namespace: &str, vmi: &str, pod: &str) {
        self.lock().targets.entry(key(namespace, vmi)).or_default().insert(pod.into());
    }

    /// Records that a target pod is gone.
    pub fn target_gone(&self, namespace: &str, vmi: &str, pod: &str) {
        remove(&mut self.lock().targets, &key(namespace, vmi), pod);
    }

    /// Names of an instance's target pods, including former ones.
    pub fn targets(&self, namespace: &str, vmi: &str) -> Vec<Box<str>> {
        self.lock().targets.get(&key(namespace, vmi)).into_iter().flatten().cloned().collect()
    }

    /// An instance's migrations, by name.
    pub fn of_instance(&self, namespace: &str, vmi: &str) -> Vec<(Box<str>, Row)> {
        let known = self.lock();
        let names = known.of_instance.get(&key(namespace, vmi)).into_iter().flatten();
        names
            .filter_map(|name| Some((name.clone(), known.rows.get(&key(namespace, name))?.clone())))
            .collect()
    }

    /// Whether an instance has an unfinished migration, or one was requested a moment ago.
    pub fn is_wanted(&self, namespace: &str, vmi: &str, now: Instant) -> bool {
        let mut known = self.lock();
        known.asked.retain(|_, since| now.duration_since(*since) < KEPT);
        known.asked.contains_key(&key(namespace, vmi))
            || known.unfinished(&key(namespace, vmi)).next().is_some()
    }

    /// Records that a migration of an instance is being requested.
    pub fn asked(&self, namespace: &str, vmi: &str, now: Instant) {
        self.lock().asked.insert(key(namespace, vmi), now);
    }

    /// Records that the request was refused.
    pub fn not_asked(&self, namespace: &str, vmi: &str) {
        self.lock().asked.remove(&key(namespace, vmi));
    }

    /// UIDs of an instance's migrations that have not ended.
    pub fn unfinished(&self, namespace: &str, vmi: &str) -> Vec<Box<str>> {
        let known = self.lock();
        known.unfinished(&key(namespace, vmi)).map(|(_, row)| row.uid.clone()).collect()
    }

    /// Number of unfinished migrations that have had their turn.
    pub fn under_way(&self) -> usize {
        let known = self.lock();
        known.rows.values().filter(|row| row.phase.is_under_way()).count() + known.turns.len()
    }

    /// How long a matter has been noticed; starts counting at the first call.
    pub fn noticed(&self, uid: &str, matter: Matter, now: Instant) -> Duration {
        let mut known = self.lock();
        let since = known.noticed.entry((uid.into(), matter)).or_insert(now);
        now.duration_since(*since)
    }

    /// Records that a matter has passed.
    pub fn passed(&self, uid: &str, matter: Matter) {
        self.lock().noticed.remove(&(uid.into(), matter));
    }

    /// Gives a migration its turn, if it is next. `has_target` tells whether a pending migration's target pod exists: then
    /// it had its turn in another process.
    pub fn take_turn(
        &self,
        namespace: &str,
        name: &str,
        limits: &Limits,
        has_target: impl Fn(&str, &str, &str) -> bool,
        now: Instant,
    ) -> bool {
        let mut known = self.lock();
        known.turns.retain(|_, turn| now.duration_since(turn.since) < KEPT);
        let own = key(namespace, name);
        if known.turns.contains_key(&own) {
            return true;
        }
        if !known.turns_now(limits, has_target).contains(&own) {
            return false;
        }
        let Some(row) = known.rows.get(&own) else { return false };
        let vmi = key(namespace, &row.vmi);
        let node = known.homes.get(&vmi).cloned().unwrap_or_default();
        known.turns.insert(own, Turn { vmi, node, since: now });
        true
    }

    /// Records that a migration could not use its turn.
    pub fn give_back(&self, namespace: &str, name: &str) {
        self.lock().turns.remove(&key(namespace, name));
    }

    /// Migrations whose turn it is and that have not taken it.
    pub fn next(&self, limits: &Limits, has_target: impl Fn(&str, &str, &str) -> bool) -> Vec<Key> {
        self.lock().turns_now(limits, has_target)
    }

    /// How long an instance rests after failed automatic migrations, before the migration of that name. Counted from the
    /// last failure, as in KubeVirt.
    pub fn back_off(&self, namespace: &str, name: &str, now: i64) -> Duration {
        let known = self.lock();
        let Some(own) = known.rows.get(&key(namespace, name)).filter(|row| row.backs_off) else {
            return Duration::ZERO;
        };
        let mut others: Vec<&Row> = known
            .all(&key(namespace, &own.vmi))
            .filter(|(of, row)| ***of != *name && row.backs_off && row.created <= own.created)
            .map(|(_, row)| row)
            .collect();
        others.sort_by_key(|row| std::cmp::Reverse((row.created, row.failed_at)));
        let failures = others
            .iter()
            .take_while(|row| row.phase != Phase::Succeeded)
            .filter(|row| row.phase == Phase::Failed && !row.going)
            .count();
        let last = others.iter().filter_map(|row| row.failed_at).max();
        let (Some(last), Ok(doublings)) = (last, u32::try_from(failures.saturating_sub(1))) else {
            return Duration::ZERO;
        };
        if failures == 0 {
            return Duration::ZERO;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings.min(MOST_DOUBLINGS));
        let left = last.saturating_add(pause).saturating_sub(now);
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }

    /// The phase in which a migration was last seen.
    pub fn phase(&self, namespace: &str, name: &str) -> Option<Phase> {
        self.lock().rows.get(&key(namespace, name)).map(|row| row.phase)
    }

    /// Numbers of migrations that were not looked at yet, that wait, whose target pod does not run yet, and whose target
    /// pod runs. The phases are grouped as KubeVirt groups them.
    pub fn counts(&self) -> [usize; 4] {
        let known = self.lock();
        let count = |range: std::ops::RangeInclusive<Phase>| {
            known.rows.values().filter(|row| range.contains(&row.phase)).count()
        };
        [
            count(Phase::Unset..=Phase::Unset),
            count(Phase::Pending..=Phase::Pending),
            count(Phase::Scheduling..=Phase::Scheduling),
            count(Phase::Scheduled..=Phase::Running),
        ]
    }

    /// Ended migrations: namespace, name, instance, and whether the guest moved.
    pub fn ended(&self) -> Vec<(Key, Box<str>, bool)> {
        let known = self.lock();
        let ended = known.rows.iter().filter(|(_, row)| row.phase.is_final());
        ended.map(|(key, row)| (key.clone(), row.vmi.clone(), row.phase == Phase::Succeeded)).collect()
    }
}

impl Known {
    fn all(&self, vmi: &Key) -> impl Iterator<Item = (&Box<str>, &Row)> {
        let names = self.of_instance.get(vmi).into_iter().flatten();
        let namespace = vmi.0.clone();
        names.filter_map(move |name| Some((name, self.rows.get(&(namespace.clone(), name.clone()))?)))
    }

    fn unfinished(&self, vmi: &Key) -> impl Iterator<Item = (&Box<str>, &Row)> {
        self.all(vmi).filter(|(_, row)| !row.phase.is_final())
    }

    /// Keeps the node only of instances with unfinished migrations.
    fn settle_home(&mut self, vmi: &Key) {
        if self.unfinished(vmi).next().is_none() {
            self.homes.remove(vmi);
        }
    }

    fn turns_now(&self, limits: &Limits, has_target: impl Fn(&str, &str, &str) -> bool) -> Vec<Key> {
        let given = self.turns.values().map(|turn| Taken { vmi: turn.vmi.clone(), node: turn.node.clone() });
        let mut taken: Vec<Taken> = given.collect();
        let mut waiting = vec![];
        for (key, row) in &self.rows {
            if row.phase.is_final() || self.turns.contains_key(key) {
                continue;
            }
            let vmi = (key.0.clone(), row.vmi.clone());
            let node = self.homes.get(&vmi).cloned().unwrap_or_default();
            if row.phase.is_under_way() || has_target(&key.0, &row.vmi, &row.uid) {
                taken.push(Taken { vmi, node });
            } else if !row.going && !row.held {
                let (priority, created) = (row.priority, row.created);
                waiting.push(Waiting { key: key.clone(), vmi, node, priority, created });
            }
        }
        turns(waiting, &taken, limits)
    }
}

fn remove(sets: &mut HashMap<Key, BTreeSet<Box<str>>>, key: &Key, name: &str) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
