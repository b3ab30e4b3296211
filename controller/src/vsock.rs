//! Context ids: the addresses of guests on vsock, each unique in the cluster for as long as its instance is there.
//!
//! The leader alone gives them. What was given before it led is in the status of the instances, which it has seen before it
//! acts; what it has given itself it remembers until the instance is gone, also while its caches are behind.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller ones are the hypervisor's, the machine's own and the host's.
const FIRST: u32 = 3;
/// The largest number means "any".
const END: u32 = u32::MAX;

/// Ids that are taken.
#[derive(Debug, Default)]
pub struct ContextIds(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    of: BTreeMap<String, u32>,
    ids: BTreeSet<u32>,
}

impl ContextIds {
    /// Notes the id that an instance has.
    pub fn saw(&self, uid: &str, id: u32) {
        self.lock().note(uid, id);
    }

    /// Frees the id of an instance.
    pub fn gone(&self, uid: &str) {
        let mut taken = self.lock();
        if let Some(id) = taken.of.remove(uid) {
            taken.ids.remove(&id);
        }
    }

    /// The id of an instance, its own from now on; none where all are taken.
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
        // Nothing panics while it is held.
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

    /// The first free one from a place on that follows from the UID: ids of former guests do not come again at once.
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
    fn an_id_is_kept_and_nobody_elses() {
        let ids = ContextIds::default();
        let first = ids.of("a").unwrap();
        assert!((FIRST..END).contains(&first));
        assert_eq!(ids.of("a"), Some(first));
        // Another leader has given the id that this one would take.
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
