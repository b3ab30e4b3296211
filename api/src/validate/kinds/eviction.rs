//! Evictions of launcher pods: an evicted guest shuts down, or moves to another node while it runs.

use crate::names;
use crate::v1::{Condition, VirtualMachineInstance};

/// The answer to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod is evicted, which shuts its guest down.
    Pass,
    /// The pod stays, with this message.
    Deny(String),
    /// The pod stays, and its instance is to leave the node; the message says so. Deschedulers look for
    /// this message.
    Mark(String),
}

/// Decides about the eviction of an instance's launcher on `node`. `cluster` is the strategy of instances that name
/// none.
pub fn decide(instance: &VirtualMachineInstance, cluster: Option<&str>, node: Option<&str>) -> Decision {
    let status = instance.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let movable = Condition::is_set(conditions, names::CONDITION_LIVE_MIGRATABLE);
    let name = instance.metadata.name.as_deref().unwrap_or_default();
    let own = instance.spec.eviction_strategy.as_deref().filter(|strategy| !strategy.is_empty());
    match own.or(cluster) {
        Some("LiveMigrate") if !movable => {
            let message =
                format!("VMI {name} is configured with an eviction strategy but is not live-migratable");
            return Decision::Deny(message);
        }
        Some("LiveMigrateIfPossible") if !movable => return Decision::Pass,
        Some("LiveMigrate" | "LiveMigrateIfPossible" | "External") => {}
        // As in admission, the strategy `None` may be given by name.
        None | Some(_) => return Decision::Pass,
    }
    let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
    let words = format!("Eviction triggered evacuation of VMI \"{namespace}/{name}\"");
    if status
        .is_some_and(|status| status.evacuation_node_name.as_deref().is_some_and(|node| !node.is_empty()))
    {
        return Decision::Deny(format!("Evacuation in progress: {words}"));
    }
    if status.and_then(|status| status.node_name.as_deref()) != node {
        return Decision::Deny("Eviction request for target Pod".to_owned());
    }
    Decision::Mark(words)
}
