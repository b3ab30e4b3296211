//! Descriptors that the handler gave: kept under their names until QEMU or a server takes them, and known for good.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use barevirt_protocol::names::{HotDisk, KVM, NetworkDescriptor, VHOST_VSOCK};

/// Most names that are kept: no guest has as many interfaces and queues of them.
const MOST: usize = 2048;

/// Descriptors by name.
#[derive(Debug, Default)]
pub struct Holdings {
    slots: BTreeMap<String, Option<OwnedFd>>,
}

impl Holdings {
    /// Takes over what was given under a name. Given again before it is in use, the later one counts.
    ///
    /// # Errors
    /// Says why it is not wanted.
    pub fn give(&mut self, name: &str, mut descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let known = [KVM, VHOST_VSOCK].contains(&name)
            || NetworkDescriptor::parse(name).is_some()
            || HotDisk::parse(name).is_some();
        if !known {
            return Err(format!("{name} is no descriptor that this launcher knows"));
        }
        if matches!(self.slots.get(name), Some(None)) {
            return Err(format!("{name} is in use"));
        }
        if self.slots.len() >= MOST && !self.slots.contains_key(name) {
            return Err(format!("more than {MOST} descriptors"));
        }
        match (descriptors.pop(), descriptors.len()) {
            (Some(descriptor), 0) => {
                self.slots.insert(name.to_owned(), Some(descriptor));
                Ok(())
            }
            (_, more) => Err(format!("{name} is one descriptor, not {}", more + 1)),
        }
    }

    /// Takes a descriptor for good; its name stays held.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        self.slots.get_mut(name)?.take()
    }

    /// Forgets a name: what it stood for is gone, and may be given again.
    pub fn forget(&mut self, name: &str) {
        self.slots.remove(name);
    }

    /// Another descriptor of the same thing, which stays to be taken.
    #[must_use]
    pub fn copy(&self, name: &str) -> Option<OwnedFd> {
        self.slots.get(name)?.as_ref()?.try_clone().ok()
    }

    /// Every name that is held, in use or not.
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
        let mut holdings = Holdings::default();
        let tap = "net/default/tap";
        holdings.give(tap, vec![descriptor()]).unwrap();
        holdings.give(tap, vec![descriptor()]).unwrap();
        assert!(holdings.take(tap).is_some());
        assert!(holdings.take(tap).is_none());
        assert_eq!(holdings.give(tap, vec![descriptor()]).unwrap_err(), "net/default/tap is in use");
        assert_eq!(Vec::from_iter(holdings.names()), [tap]);
        holdings.forget(tap);
        holdings.give(tap, vec![descriptor()]).unwrap();
    }

    #[test]
    fn unknown_names_and_wrong_numbers_are_refused() {
        let mut holdings = Holdings::default();
        assert!(holdings.give("disk/a", vec![descriptor()]).is_err());
        assert!(holdings.give("kvm", vec![descriptor(), descriptor()]).is_err());
        assert!(holdings.give("kvm", vec![]).is_err());
        assert!(holdings.names().is_empty());
    }
}
