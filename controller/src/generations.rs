//! The generation of each object up to which some work is known to be done.

use kube::{Resource, ResourceExt};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Keyed by UID. Empty when this process starts.
#[derive(Default)]
pub struct Generations(Mutex<HashMap<String, i64>>);

impl Generations {
    /// Whether the work is done for the object's present generation.
    pub fn is_done(&self, object: &impl Resource) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = known.get(&object.uid().unwrap_or_default()).copied();
        done.is_some() && done == object.meta().generation
    }

    /// Records that the work is done.
    pub fn done(&self, object: &impl Resource) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(object.uid().unwrap_or_default(), object.meta().generation.unwrap_or_default());
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::VirtualMachine;

    #[test]
    fn finished_work_is_remembered_until_the_object_changes() {
        let of = |generation: i64| {
            let mut vm = VirtualMachine::new("web", Default::default());
            vm.metadata.uid = Some("m1".to_owned());
            vm.metadata.generation = Some(generation);
            vm
        };
        let done = Generations::default();
        assert!(!done.is_done(&of(2)));
        done.done(&of(2));
        assert!(done.is_done(&of(2)));
        assert!(!done.is_done(&of(3)));
        done.forget("m1");
        assert!(!done.is_done(&of(2)));
    }
}
