//! Launcher pods that this process made and no status names yet: their UIDs, as the API server answered.
//!
//! A pod's name can be foretold and its labels can be written by others; the UID that our own request was answered with
//! cannot be had by any other pod. So a pod is taken for the launcher when its UID is here or in `status.activePods`. Both the
//! note here and the pod are lost to a process that dies in between: the next one finds a pod that nobody vouches for, and makes
//! another in its place. No guest ran in it, since nobody told a handler of it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// UIDs of pods that our own requests were answered with.
#[derive(Default)]
pub struct Births(Mutex<HashSet<String>>);

impl Births {
    /// A request was answered with that pod.
    pub(crate) fn note(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
    }

    /// Whether a request of ours was answered with that pod.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// The pod is gone, or a status names it.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_noted_is_known() {
        let births = Births::default();
        births.note("p1");
        assert!(births.knows("p1") && !births.knows("p2") && !births.knows(""));
        births.forget("p1");
        assert!(!births.knows("p1"));
    }
}
