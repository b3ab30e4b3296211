//! Replica sets: a number of instances of one template, replaced when they end.
//!
//! ```text
//!   fewer than wanted ---> create        ended, or its pod is deleted ---> delete: the next look finds fewer
//!   more than wanted ----> delete: those that are not ready first, then the youngest
//!   no controller, selected --> adopt    ours, not selected any more ---> release
//! ```
//!
//! Names of instances are derived from the set's UID and a number, so that an old observation never creates an instance
//! twice; a reconciliation waits until the caches show our latest writes. Kubernetes deletes the instances: the set is their
//! owner.

mod apply;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

pub use plan::{Action, Member, Observed, Plan, plan};
pub use status::compute as compute_status;

use crate::cluster::Cluster;
use barevirt_api::v1::VirtualMachineInstanceReplicaSet;
use barevirt_component::request::Error;
use kube::ResourceExt;
use std::time::Duration;

/// When to look again while the caches lag behind our own writes.
const OWED: Duration = Duration::from_millis(500);

/// One reconciliation; returns when the next one is due without an event.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    match observe::observe(cluster, namespace, name) {
        observe::Observation::Nothing => Ok(None),
        observe::Observation::Owed => Ok(Some(OWED)),
        observe::Observation::Whole(observed) => {
            let plan = plan(&observed);
            apply::apply(cluster, &observed, plan).await
        }
    }
}

/// Namespace and name, for messages.
fn subject(set: &VirtualMachineInstanceReplicaSet) -> String {
    format!("replica set {}/{}", set.namespace().unwrap_or_default(), set.name_any())
}
