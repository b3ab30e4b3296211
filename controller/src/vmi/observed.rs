//! What was found of an instance: all that its plan depends on.

use super::claims::Claims;
use super::consumer::Consumer;
use super::hotplug::attachments::Attachments;
use super::networks::Definitions;
use super::others::{Other, Target};
use super::state::State;
use crate::config::Config;
use crate::node::NodeState;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::reach::Reach;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

/// All that a plan depends on.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The instance.
    pub vmi: VirtualMachineInstance,
    /// The pod that has the name of its launcher.
    pub pod: Option<Pod>,
    /// That pod is what our own request was answered with; its status may say so, too ([`super::proof`]).
    pub is_born_here: bool,
    /// Other pods that were created for it, attachment pods among them; looked for when it is being deleted.
    pub strays: Vec<Other>,
    /// Its other launcher pods: what a migration moves it to, or moved it from.
    pub others: Vec<Other>,
    /// How the pod is that a migration is moving it to.
    pub target: Target,
    /// That migration is still there.
    pub is_asked_to_move: bool,
    /// The node of the pod.
    pub node: Option<NodeState>,
    /// The claim with what it keeps, where it needs one and does not run yet.
    pub state: Option<State>,
    /// Claims that its disks are on, while it does not run yet.
    pub claims: Claims,
    /// The pod that goes before its own where claims wait for one, while it does not run yet and once it has ended.
    pub consumer: Consumer,
    /// Where volumes can be reached, where its pod is to be made and not all can be reached from everywhere.
    pub reaches: Vec<Reach>,
    /// What is there for volumes that come and go, while it runs and once it has ended.
    pub attachments: Attachments,
    /// Definitions of networks that it names, where they were looked for: as long as it does not run.
    pub definitions: Definitions,
    /// Cards of others that have the hardware address of one of its cards on the same network, for people.
    pub same_addresses: Vec<String>,
    /// Its address on vsock, where it wants one and does not run yet.
    pub context_id: Option<u32>,
    /// Settings.
    pub config: Config,
    /// Wall clock, for time stamps and ages in seconds.
    pub now: Timestamp,
}
