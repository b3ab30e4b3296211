//! Parts of a migration's plan.

use crate::vmi::kept::Moved;
use barevirt_component::notes::Note;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::Value;
use std::time::Duration;

/// A step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Create the claim for the state of the instance at the target.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Make that claim the instance's only one: the state has moved there.
    SettleState(Moved),
    /// Delete that claim, if it got no state.
    DiscardState,
    /// Create the target pod.
    Create(Box<Pod>),
    /// Create the pod that offers a volume's disk on the target pod's node.
    Attach {
        /// The pod.
        pod: Box<Pod>,
        /// The volume.
        volume: String,
    },
    /// Delete the target pod.
    Delete {
        /// Its name.
        name: String,
        /// Its UID: no other pod is meant.
        uid: String,
        /// Seconds from SIGTERM to SIGKILL; 0 removes the object at once.
        grace: u32,
    },
    /// Merge this into the instance.
    Vmi(Value),
    /// Merge this into the migration, all but its status.
    Meta(Value),
    /// Merge this into its status.
    Status(Value),
    /// Delete a migration that ended long ago.
    Collect {
        /// Its name.
        name: String,
        /// Its UID: no other migration is meant.
        uid: String,
    },
}

/// The object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The migration.
    Migration,
    /// Its instance.
    Vmi,
}

/// Actions, then events, then when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Carried out in this order, up to the first failure.
    pub(super) actions: Vec<Action>,
    /// Emitted once all actions are done.
    pub(super) notes: Vec<(About, Note)>,
    /// When to look again without an event.
    pub(super) again: Option<Duration>,
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

    /// Adds an event of the migration.
    pub(super) fn tell(mut self, note: Note) -> Self {
        self.notes.push((About::Migration, note));
        self
    }

    /// Adds an event of its instance.
    pub(super) fn tell_vmi(mut self, note: Note) -> Self {
        self.notes.push((About::Vmi, note));
        self
    }

    /// When to look again, at the latest.
    pub(super) fn again_in(mut self, pause: Duration) -> Self {
        self.again = Some(self.again.map_or(pause, |again| again.min(pause)));
        self
    }
}
