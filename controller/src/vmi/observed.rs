//! The observation of an instance: everything that its plan depends on.

use super::claims::Claims;
use super::consumer::Consumer;
use super::hotplug::attachments::Attachments;
use super::networks::definitions::Definitions;
use super::others::{Other, Target};
use super::state::State;
use crate::config::Config;
use crate::node::NodeState;
use barevirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance};
use barevirt_plan::pod::reach::Reach;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

/// Everything that a plan depends on.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The instance.
    pub vmi: VirtualMachineInstance,
    /// The pod with its launcher's name.
    pub pod: Option<Pod>,
    /// Whether our own request created that pod; the status may name it, too ([`super::proof`]).
    pub is_created_here: bool,
    /// Other pods that were created for it, including attachment pods; looked for when it is being deleted.
    pub strays: Vec<Other>,
    /// Its other launcher pods: the one that a migration moves it to, or moved it from.
    pub others: Vec<Other>,
    /// The state of the pod that a migration is moving it to.
    pub target: Target,
    /// Whether that migration still exists.
    pub is_asked_to_move: bool,
    /// The state of the pod's node.
    pub node: Option<NodeState>,
    /// The claim with its persistent state, where it needs one and does not run yet.
    pub state: Option<State>,
    /// Claims of its disks, while it does not run yet.
    pub claims: Claims,
    /// The pod that goes before its launcher where claims wait for one, while it does not run yet and once it has ended.
    pub consumer: Consumer,
    /// The nodes that reach its volumes, where its pod is to be made and some volume is not reachable from everywhere.
    pub reaches: Vec<Reach>,
    /// Claims that are larger than the status says, by the names of their volumes, while it runs.
    pub grown: Vec<(String, PersistentVolumeClaimInfo)>,
    /// Claims and pods of hotpluggable volumes, while it runs and once it has ended.
    pub attachments: Attachments,
    /// Message about another instance to which it leaves a claim that its volumes are to move to, while it runs.
    pub goes_first: Option<String>,
    /// Definitions of its networks, where they were looked up: while it does not run, and where it needs another pod for them.
    pub definitions: Definitions,
    /// Messages about cards of other instances with the same MAC address on the same network.
    pub same_addresses: Vec<String>,
    /// Its vsock address, where it wants one and does not run yet.
    pub context_id: Option<u32>,
    /// Settings.
    pub config: Config,
    /// The present time, for time stamps and ages in seconds.
    pub now: Timestamp,
}
