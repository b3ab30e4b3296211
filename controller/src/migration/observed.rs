//! The observation of a migration: everything that its plan depends on.

use crate::node::NodeState;
use crate::vmi::{TargetDisks, TargetPod};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_plan::migration::Effective;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Whether a migration may make its pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Turn {
    /// An obstacle comes first; it has not asked.
    NotAsked,
    /// Other migrations come first.
    Waits,
    /// It may make this pod, with these settings. Or no pod can be made, whether or not it is next.
    Now(TargetPod, Box<Effective>),
}

impl Turn {
    /// Whether no pod can be made now. It has no turn then, and others do not wait for it.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Turn::Now(TargetPod::Waits(_) | TargetPod::Fills(_), _))
    }
}

/// Everything that a plan depends on.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The migration.
    pub(super) migration: VirtualMachineInstanceMigration,
    /// Its instance; `None` where the API server has none.
    pub(super) vmi: Option<VirtualMachineInstance>,
    /// The pod with the target's name.
    pub(super) target: Option<Pod>,
    /// Whether our own request created that pod.
    pub(super) is_created_here: bool,
    /// The state of its node.
    pub(super) target_node: Option<NodeState>,
    /// Whether another migration of the instance comes before it.
    pub(super) has_rival: bool,
    /// How long its instance rests after failures.
    pub(super) back_off: Duration,
    /// Its turn.
    pub(super) turn: Turn,
    /// Labels of the source's processor that the target's node must have, where no node has them.
    pub(super) unfit: Option<BTreeMap<String, String>>,
    /// Its settings, once its target pod runs.
    pub(super) effective: Option<Effective>,
    /// The state of hot-plugged disks on the target pod's node.
    pub(super) target_disks: TargetDisks,
    /// For how long its next phase has been due.
    pub(super) phase_due: Duration,
    /// Surplus former migrations of the instance, names and UIDs.
    pub(super) surplus: Vec<(String, String)>,
    /// The present time, for time stamps and ages in seconds.
    pub(super) now: Timestamp,
}
