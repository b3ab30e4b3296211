//! Descriptors from the handler: kept under their names until QEMU or a server takes them; the names stay
//! known afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use barevirt_protocol::names::{HotDisk, KVM, NetworkDescriptor, VHOST_VSOCK};

/// Most names that are kept: no guest has as many interfaces and queues.
const MOST: usize = 2048;

/// Descriptors by name.
#[derive(Debug, Default)]
pub struct DescriptorStore {
    slots: BTreeMap<String, Slot>,
}

#[derive(Debug)]
struct Slot {
    /// `None` after it was taken.
    descriptor: Option<OwnedFd>,
    /// The revision for which it was given.
    revision: i64,
}

impl DescriptorStore {
    /// Stores a descriptor under a name, for a revision of the instance. A later one replaces it, unless it
    /// is in use.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn give(&mut self, revision: i64, name: &str, mut descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let known = [KVM, VHOST_VSOCK].contains(&name)
            || NetworkDescriptor::parse(name).is_some()
            || HotDisk::parse(name).is_some();
        if !known {
            return Err(format!("{name} is not a descriptor that this launcher knows"));
        }
        if self.slots.get(name).is_some_and(|slot| slot.descriptor.is_none()) {
            return Err(format!("{name} is in use"));
        }
        if self.slots.len() >= MOST && !self.slots.contains_key(name) {
            return Err(format!("more than {MOST} descriptors"));
        }
        match (descriptors.pop(), descriptors.len()) {
            (Some(descriptor), 0) => {
                let slot = Slot { descriptor: Some(descriptor), revision };
                self.slots.insert(name.to_owned(), slot);
                Ok(())
            }
            (_, more) => Err(format!("{name} is one descriptor, not {}", more + 1)),
        }
    }

    /// Takes a descriptor; its name stays known.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.slots.get_mut(name)?.descriptor.take()
    }

    /// Forgets a name: its object is gone, and the name may be used again.
    pub fn forget(&mut self, name: &str) {
        self.slots.remove(name);
    }

    /// A duplicate of a descriptor, which itself stays.
    #[must_use]
    pub fn copy(&self, name: &str) -> Option<OwnedFd> {
        self.slots.get(name)?.descriptor.as_ref()?.try_clone().ok()
    }

    /// Names given for this revision or an earlier one.
    #[must_use]
    pub fn given_by(&self, revision: i64) -> BTreeSet<String> {
        let given = self.slots.iter().filter(|(_, slot)| slot.revision <= revision);
        given.map(|(name, _)| name.clone()).collect()
    }

    /// Every known name, in use or not.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.slots.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        OwnedFd::from(tempfile::tempfile().unwrap())
    }

    #[test]
    fn replaced_until_in_use() {
        let mut store = DescriptorStore::default();
        let tap = "net/default/tap";
        store.give(1, tap, vec![descriptor()]).unwrap();
        store.give(1, tap, vec![descriptor()]).unwrap();
        assert!(store.take(tap).is_some());
        assert!(store.take(tap).is_none());
        assert_eq!(store.give(1, tap, vec![descriptor()]).unwrap_err(), "net/default/tap is in use");
        assert_eq!(Vec::from_iter(store.names()), [tap]);
        store.forget(tap);
        store.give(1, tap, vec![descriptor()]).unwrap();
    }

    #[test]
    fn unknown_names_and_wrong_numbers_are_refused() {
        let mut store = DescriptorStore::default();
        assert!(store.give(1, "disk/a", vec![descriptor()]).is_err());
        assert!(store.give(1, "kvm", vec![descriptor(), descriptor()]).is_err());
        assert!(store.give(1, "kvm", vec![]).is_err());
        assert!(store.names().is_empty());
    }
}
