//! Migrations: a second launcher pod for a running instance, the hand-over to the handlers of both nodes, and the result.
//!
//! ```text
//!             its turn, pod made    pod runs            (target's handler)      (source's handler)
//!   Pending ───────────────> Scheduling ───> PreparingTarget ────────> TargetReady ────────> Running
//!      │                         │     Scheduled  │                        │                   │
//!      └── cancelled, no pod ────┴────────────────┴── a handler, or the instance's reconciler, ┘──> Succeeded / Failed
//!                                                       reports the end
//! ```
//!
//! Everything goes through `status.migrationState` of the instance: this program hands over in one patch, handlers report
//! the rest, and a migration has ended when that record says so. Before the hand-over the guest is not affected, and the
//! migration fails by itself; afterwards the instance's own reconciler ([`crate::vmi::moving`]) ensures that the end is
//! reported.
//!
//! Phases that pass within a second are not written on their own: their time stamps are written with the next phase.
//!
//! A migration's settings are chosen with the latest policies when its turn comes, and recorded in its status before its pod
//! is made. Later changes of policies and of the installation do not concern it.
//!
//! If no target pod can be made, because something that it needs is missing, the migration says so, leaves the queue to others,
//! and fails after a while (`held.rs`).
//!
//! An instance never has two target pods: a pod's name is derived from its migration's UID, an instance has one turn at a
//! time ([`crate::migrations`]), and it gets a turn only while its status names no pod except its launcher.

mod action;
mod apply;
mod begin;
mod course;
mod deadlines;
mod hand_over;
mod held;
mod observe;
mod observed;
mod plan;
mod settings;
mod status;
mod subject;
mod target;
#[cfg(test)]
mod tests;

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use kube::runtime::reflector::ObjectRef;
use std::time::{Duration, Instant};
use tracing::warn;

/// When to look again while the caches lag behind our own writes.
const OWED: Duration = Duration::from_millis(500);

/// One reconciliation; returns when the next one is due without an event.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    if cluster.expectations.owes(&Key::new(Kind::Vmim, namespace, name), Instant::now()) {
        return Ok(Some(OWED));
    }
    let Some(migration) = cluster.vmims.get(&ObjectRef::new(name).within(namespace)) else { return Ok(None) };
    let migration = match migration.unpack() {
        Ok(migration) => migration,
        Err(error) => {
            // It is logged and left alone; the others go on.
            warn!(namespace, name, error = %chain(&error), "a migration that cannot be read");
            return Ok(None);
        }
    };
    match observe::observe(cluster, migration).await? {
        None => Ok(Some(OWED)),
        Some(observed) => {
            let plan = plan::plan(&observed);
            apply::apply(cluster, &observed, plan).await
        }
    }
}
