//! Our writes that the watch has not shown yet.
//!
//! Observations come from caches that lag behind the API server. For some milliseconds after a write, the cache still shows
//! the former state; a reconciler that acts on it writes twice. So each write records the resource version that it produced,
//! each watch event settles the writes that it covers, and a reconciliation waits while an event is still owed.
//!
//! This saves writes; correctness does not depend on it. Names derived from UIDs, and preconditions, prevent a second pod,
//! also across processes. An expectation therefore expires after [`TIMEOUT`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an event may be overdue before the cache is trusted again.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Kind of an expected object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A virtual machine.
    Vm,
    /// An instance.
    Vmi,
    /// A launcher pod.
    Pod,
    /// A replica set.
    Set,
    /// A pool.
    Pool,
    /// A migration.
    Vmim,
}

/// An expected object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    kind: Kind,
    namespace: String,
    name: String,
}

impl Key {
    /// Kind, namespace and name.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Key { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[derive(Default)]
struct Owed {
    /// The newest version that we wrote; 0 before the first answer.
    version: u64,
    /// The newest version that the watch reported since the first write began.
    seen: u64,
    /// Writes without an answer yet.
    in_flight: u32,
    since: Option<Instant>,
}

impl Owed {
    fn is_settled(&self) -> bool {
        self.in_flight == 0 && self.seen >= self.version
    }
}

/// All expectations of this process.
#[derive(Default)]
pub struct Expectations {
    owed: Mutex<HashMap<Key, Owed>>,
}

/// A write in progress. It begins before the request, since the event may come before the answer.
pub struct Write<'a> {
    all: &'a Expectations,
    key: Key,
}

impl Write<'_> {
    /// The write produced this resource version.
    pub fn done(self, version: Option<&str>) {
        // Resource versions are formally opaque but numeric in practice; a version that is not a number is not waited for.
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(0);
        if let Some(owed) = self.all.lock().get_mut(&self.key) {
            owed.version = owed.version.max(version);
        }
        // Dropping it settles the rest.
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(owed) = all.get_mut(&self.key) {
            owed.in_flight = owed.in_flight.saturating_sub(1);
            if owed.is_settled() {
                all.remove(&self.key);
            }
        }
    }
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Owed>> {
        // Nothing panics while the lock is held; even then the map would be intact.
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a write. If it is dropped without [`Write::done`], no event is expected.
    pub fn begin(&self, key: Key, now: Instant) -> Write<'_> {
        let mut all = self.lock();
        let owed = all.entry(key.clone()).or_default();
        owed.in_flight += 1;
        owed.since = Some(now);
        drop(all);
        Write { all: self, key }
    }

    /// Records that the watch reported the object at this resource version, also when it was deleted.
    pub fn saw(&self, key: &Key, version: Option<&str>) {
        if let Some(version) = version.and_then(|version| version.parse().ok()) {
            self.settle(key, version);
        }
    }

    /// Records that the object is gone, at an unknown version.
    pub fn missed(&self, key: &Key) {
        self.settle(key, u64::MAX);
    }

    fn settle(&self, key: &Key, version: u64) {
        let mut all = self.lock();
        if let Some(owed) = all.get_mut(key) {
            owed.seen = owed.seen.max(version);
            if owed.is_settled() {
                all.remove(key);
            }
        }
    }

    /// Whether an event about the object is still owed.
    pub fn owes(&self, key: &Key, now: Instant) -> bool {
        let mut all = self.lock();
        let Some(owed) = all.get(key) else { return false };
        if owed.since.is_some_and(|since| now.duration_since(since) < TIMEOUT) {
            return true;
        }
        all.remove(key);
        false
    }

    /// Whether an event is still owed about any object of that kind whose name has that prefix.
    pub fn owes_any(&self, kind: Kind, namespace: &str, beginning: &str, now: Instant) -> bool {
        let keys: Vec<Key> = self
            .lock()
            .keys()
            .filter(|key| key.kind == kind && key.namespace == namespace && key.name.starts_with(beginning))
            .cloned()
            .collect();
        keys.iter().any(|key| self.owes(key, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(Kind::Pod, "a", "b")
    }

    #[test]
    fn a_write_is_owed_until_its_event_comes() {
        let (all, now) = (Expectations::default(), Instant::now());
        assert!(!all.owes(&key(), now));
        all.begin(key(), now).done(Some("10"));
        all.saw(&key(), Some("9"));
        assert!(all.owes(&key(), now));
        all.begin(key(), now).done(Some("8"));
        all.saw(&key(), Some("10"));
        assert!(!all.owes(&key(), now));
    }

    #[test]
    fn an_event_may_come_before_the_answer() {
        let (all, now) = (Expectations::default(), Instant::now());
        let write = all.begin(key(), now);
        all.saw(&key(), Some("10"));
        assert!(all.owes(&key(), now));
        write.done(Some("10"));
        assert!(!all.owes(&key(), now));
    }

    #[test]
    fn a_failed_write_leaves_the_earlier_one_owed() {
        let (all, now) = (Expectations::default(), Instant::now());
        drop(all.begin(key(), now));
        assert!(!all.owes(&key(), now));
        all.begin(key(), now).done(Some("10"));
        drop(all.begin(key(), now));
        assert!(all.owes(&key(), now));
        all.missed(&key());
        assert!(!all.owes(&key(), now));
    }

    #[test]
    fn names_are_asked_about_by_their_beginning() {
        let (all, now) = (Expectations::default(), Instant::now());
        all.begin(Key::new(Kind::Vmi, "a", "web-x"), now).done(Some("10"));
        assert!(all.owes_any(Kind::Vmi, "a", "web-", now));
        assert!(!all.owes_any(Kind::Vmi, "a", "db-", now));
        assert!(!all.owes_any(Kind::Vm, "a", "web-", now));
        assert!(!all.owes_any(Kind::Vmi, "b", "web-", now));
        assert!(!all.owes_any(Kind::Vmi, "a", "web-", now + TIMEOUT));
    }

    #[test]
    fn an_expectation_expires() {
        let (all, now) = (Expectations::default(), Instant::now());
        all.begin(key(), now).done(Some("10"));
        assert!(all.owes(&key(), now + TIMEOUT - Duration::from_millis(1)));
        assert!(!all.owes(&key(), now + TIMEOUT));
        all.begin(key(), now).done(Some("not a number"));
        assert!(!all.owes(&key(), now));
    }
}
