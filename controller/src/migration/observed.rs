//! What was found of a migration: all that its plan depends on.

use crate::node::NodeState;
use crate::vmi::{Again, Brought};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_plan::migration::Effective;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Whether it may make its pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Turn {
    /// Something else comes first; nobody asked.
    NotAsked,
    /// Others come first.
    Waits,
    /// It may; this pod.
    Now(Again),
}

/// All that a plan depends on.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The migration.
    pub(super) migration: VirtualMachineInstanceMigration,
    /// Its instance; none where the API server says that there is none.
    pub(super) vmi: Option<VirtualMachineInstance>,
    /// The pod that has the target's name.
    pub(super) target: Option<Pod>,
    /// That pod is what our own request was answered with.
    pub(super) is_born_here: bool,
    /// How its node is.
    pub(super) target_node: Option<NodeState>,
    /// Another migration of the instance comes before it.
    pub(super) has_rival: bool,
    /// How long its instance is left alone after failures.
    pub(super) back_off: Duration,
    /// Whose turn it is.
    pub(super) turn: Turn,
    /// What the target's node has to have of the source's processor, where no node has it.
    pub(super) unfit: Option<BTreeMap<String, String>>,
    /// The settings in force, once its target pod runs.
    pub(super) effective: Option<Effective>,
    /// How far the disks are, where the target pod is, that the guest got while it ran.
    pub(super) brought: Brought,
    /// How long the phase is due that it would enter next.
    pub(super) phase_due: Duration,
    /// Former migrations of the instance that are too many, names and UIDs.
    pub(super) surplus: Vec<(String, String)>,
    /// Wall clock, for time stamps and ages in seconds.
    pub(super) now: Timestamp,
}
