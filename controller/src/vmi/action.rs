//! Parts of an instance's plan.

use super::kept::Moved;
use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements};
use serde_json::Value;
use std::time::Duration;

/// A step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Create the claim for persistent state (UEFI variables, TPM).
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Delete a claim that is not needed any more.
    DeleteClaim {
        /// Its name.
        name: String,
        /// Its UID: no other claim is meant.
        uid: String,
    },
    /// Make the claim to which the state has moved the only one.
    SettleState(Moved),
    /// Create the launcher pod.
    CreatePod(Box<Pod>),
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Seconds from SIGTERM to SIGKILL; 0 removes the object at once.
        grace: u32,
    },
    /// Make the kubelet end what runs in a pod, which stays.
    EndPod {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
    },
    /// Create a pod that claims wait for before they are filled.
    Provision {
        /// The pod.
        pod: Box<Pod>,
        /// Name of the volume, if it is hot-plugged.
        volume: Option<String>,
    },
    /// Delete such a pod.
    Release {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Seconds from SIGTERM to SIGKILL; 0 removes the object at once.
        grace: u32,
    },
    /// Create the attachment pod of a volume.
    Attach {
        /// The pod.
        pod: Box<Pod>,
        /// Name of the volume.
        volume: String,
    },
    /// Delete an attachment pod.
    Detach {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Whether another one replaces it.
        wanted: bool,
    },
    /// Change the resources of the launcher's container while it runs.
    ResizePod {
        /// Name of the pod.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// All of its resources.
        resources: Box<ResourceRequirements>,
    },
    /// Set or remove an annotation of the launcher's pod.
    AnnotatePod {
        /// Name of the pod.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Name of the annotation.
        annotation: &'static str,
        /// Its value; `None` removes it.
        value: Option<String>,
    },
    /// Merge this into the instance.
    Patch(Value),
}

/// Actions, then events, then when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Carried out in this order, up to the first failure.
    pub actions: Vec<Action>,
    /// Emitted once all actions are done.
    pub notes: Vec<Note>,
    /// When to look again without an event.
    pub again: Option<Duration>,
}

impl Plan {
    /// Adds an action.
    pub(super) fn act(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// Adds an action, if there is one.
    pub(super) fn act_if(mut self, action: Option<Action>) -> Self {
        self.actions.extend(action);
        self
    }

    /// Adds an event.
    pub(super) fn tell(mut self, note: Note) -> Self {
        self.notes.push(note);
        self
    }

    /// Appends another plan.
    pub(super) fn and(mut self, other: Plan) -> Self {
        self.actions.extend(other.actions);
        self.notes.extend(other.notes);
        self.again = [self.again, other.again].into_iter().flatten().min();
        self
    }

    /// Sets when to look again, replacing an earlier time.
    pub(super) fn again_in(mut self, pause: Duration) -> Self {
        self.again = Some(pause);
        self
    }
}
