//! Pools: a number of machines of one template, `<pool>-0`, `<pool>-1` and so on.
//!
//! ```text
//!   fewer than wanted --> create, from the lowest free number     more than wanted --> delete, by the selection policy
//!   fails to start ---> delete: its number is made again          not selected any more --> release
//!   deleted, and held -> keep its dependents, release it
//!
//!   template changed:  machines --patch--> new revision           (update strategy: opportunistic and proactive)
//!                      instances --restart--> new revision        (proactive, within maxUnavailable)
//! ```
//!
//! Each generation of a pool that machines were made from is kept as a ControllerRevision; a label on machines and instances
//! names it. Machines are counted until they are gone, as in KubeVirt, so that no number exists twice. Kubernetes deletes
//! the machines: the pool is their owner.

mod action;
mod apply;
mod generation;
mod heal;
mod keep;
mod machine;
mod observe;
mod observed;
mod plan;
mod revision;
mod selection;
mod state;
#[cfg(test)]
mod state_world;
mod status;
mod subject;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use observed::{Machine, Observed};
pub use plan::{Plan, plan};
pub use state::is_held;
pub use status::compute as compute_status;

use crate::cluster::Cluster;
use barevirt_component::request::Error;
use std::time::Duration;

/// When to look again while the caches lag behind our own writes.
const OWED: Duration = Duration::from_millis(500);

/// One reconciliation; returns when the next one is due without an event.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    match observe::observe(cluster, namespace, name).await? {
        observe::Observation::Nothing => Ok(None),
        observe::Observation::Owed => Ok(Some(OWED)),
        observe::Observation::Whole(observed) => {
            let plan = plan(&observed);
            apply::apply(cluster, &observed, plan).await
        }
    }
}
