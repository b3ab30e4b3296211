//! Context IDs: the vsock addresses of guests, each unique in the cluster while its instance exists.
//!
//! Only the leader assigns them. Former leaders' assignments are in the status of the instances, which the leader has seen
//! before it acts; its own assignments stay in memory until the instance is gone, even while its caches lag.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller ones belong to the hypervisor, the machine itself and the host.
const FIRST: u32 = 3;
/// The largest number means "any".
const END: u32 = u32::MAX;

/// All assigned IDs.
#[derive(Debug, Default)]
pub struct ContextIds(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    of: BTreeMap<String, u32>,
    ids: BTreeSet<u32>,
}

impl ContextIds {
    /// Records the ID of an instance.
    pub fn saw(&self, uid: &str, id: u32) {
        self.lock().note(uid, id);
    }

    /// Frees the ID of an instance.
    pub fn gone(&self, uid: &str) {
        let mut taken = self.lock();
        if let Some(id) = taken.of.remove(uid) {
            taken.ids.remove(&id);
        }
    }

    /// The ID of an instance, assigned now if it has none; `None` where all are taken.
    pub fn of(&self, uid: &str) -> Option<u32> {
        let mut taken = self.lock();
        if let Some(id) = taken.of.get(uid) {
            return Some(*id);
        }
        let id = taken.free(uid)?;
        taken.note(uid, id);
        Some(id)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn note(&mut self, uid: &str, id: u32) {
        if let Some(before) = self.of.insert(uid.to_owned(), id) {
            self.ids.remove(&before);
        }
        self.ids.insert(id);
    }

    /// The first free ID from a position derived from the UID, so that IDs of former guests are not reused at once.
    fn free(&self, uid: &str) -> Option<u32> {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let span = u64::from(END - FIRST);
        let start = FIRST + u32::try_from(hasher.finish() % span).unwrap_or(0);
        (start..END).chain(FIRST..start).find(|id| !self.ids.contains(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_keeps_its_own_context_id() {
        let ids = ContextIds::default();
        let first = ids.of("a").unwrap();
        assert!((FIRST..END).contains(&first));
        assert_eq!(ids.of("a"), Some(first));
        // Another leader has assigned the ID that this one would take.
        let other = ContextIds::default();
        other.saw("b", first);
        let second = other.of("a").unwrap();
        assert_ne!(second, first);
        other.gone("b");
        assert_eq!(other.of("a"), Some(second), "it does not move");
        other.gone("a");
        assert_eq!(other.of("a"), Some(first));
    }

    #[test]
    fn ids_are_unique() {
        let ids = ContextIds::default();
        let given: BTreeSet<u32> = (0..1000).filter_map(|number| ids.of(&number.to_string())).collect();
        assert_eq!(given.len(), 1000);
    }
}
