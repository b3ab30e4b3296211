//! Launcher pods that this process made and that no status names yet: their UIDs, as the API server returned them.
//!
//! A pod's name is predictable and other clients can write its labels, but no other pod can have the UID that the API server
//! returned to our own request. So a pod counts as the launcher when its UID is here or in `status.activePods`. If this
//! process dies in between, the entry is lost: the next process finds a pod with an unknown UID, and replaces it. No guest
//! ran in that pod, since no handler knew of it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// UIDs of pods that our own requests created.
#[derive(Default)]
pub struct CreatedPods(Mutex<HashSet<String>>);

impl CreatedPods {
    /// Our request created this pod.
    pub(crate) fn note(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
    }

    /// Whether our own request created the pod.
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
        let created_pods = CreatedPods::default();
        created_pods.note("p1");
        assert!(created_pods.knows("p1") && !created_pods.knows("p2") && !created_pods.knows(""));
        created_pods.forget("p1");
        assert!(!created_pods.knows("p1"));
    }
}
