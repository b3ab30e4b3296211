//! What plans for instances are made of.

use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements};
use serde_json::Value;
use std::time::Duration;

/// One step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Create the claim for what it keeps.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Delete a claim that is not needed any more.
    DeleteClaim {
        /// Its name.
        name: String,
        /// Its UID: no other claim is meant.
        uid: String,
    },
    /// Create the launcher pod.
    CreatePod(Box<Pod>),
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Seconds from SIGTERM to SIGKILL; 0 takes the object away at once.
        grace: u32,
    },
    /// Create a pod that claims wait for before somebody fills them.
    Provision {
        /// The pod.
        pod: Box<Pod>,
        /// Name of the volume, where it is one that is plugged in.
        volume: Option<String>,
    },
    /// Delete such a pod.
    Release {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Seconds from SIGTERM to SIGKILL; 0 takes the object away at once.
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
        /// Another one takes its place.
        wanted: bool,
    },
    /// Change what the launcher's container asks for while it runs.
    ResizePod {
        /// Name of the pod.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// All of what it is to ask for.
        resources: Box<ResourceRequirements>,
    },
    /// Set an annotation of the launcher's pod, or take it away.
    AnnotatePod {
        /// Name of the pod.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Name of the annotation.
        annotation: &'static str,
        /// What it is to say; nothing takes it away.
        value: Option<String>,
    },
    /// Merge this into the instance.
    Patch(Value),
}

/// Steps, then what is told of them, then when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// In this order; the first failure ends it.
    pub actions: Vec<Action>,
    /// Told once all actions are done.
    pub notes: Vec<Note>,
    /// When to look again without an event.
    pub again: Option<Duration>,
}

impl Plan {
    /// One more step.
    pub(super) fn act(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// One more, where there is one.
    pub(super) fn act_if(mut self, action: Option<Action>) -> Self {
        self.actions.extend(action);
        self
    }

    /// One more thing to tell.
    pub(super) fn tell(mut self, note: Note) -> Self {
        self.notes.push(note);
        self
    }

    /// Another plan after this one.
    pub(super) fn and(mut self, other: Plan) -> Self {
        self.actions.extend(other.actions);
        self.notes.extend(other.notes);
        self.again = [self.again, other.again].into_iter().flatten().min();
        self
    }

    /// When to look again, whatever was said before.
    pub(super) fn again_in(mut self, pause: Duration) -> Self {
        self.again = Some(pause);
        self
    }
}
