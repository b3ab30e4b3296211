//! Instances: one launcher pod each, phases up to `Scheduled`, and the end of an instance where no handler can report it.
//!
//! ```text
//!            pod created              pod runs                (handler)
//!   Pending ------------> Pending/ -----------> Scheduled ---------------> Running
//!      ^                 Scheduling                 |                         |
//!      |  pod refused        |                      |  pod terminal or gone,  |
//!      +---------------------+----------------------+---- node lost ----------+--> Succeeded / Failed
//! ```
//!
//! `Scheduling` is written only where a pod takes longer than three seconds or has trouble: a normal start costs two writes
//! here, the pod and the patch to `Scheduled`. Statuses are merge patches with the resource version that they were computed
//! from, since the handler writes to the same object.
//!
//! A pod counts as the launcher because of its UID, never because of its name and labels ([`proof`]).
//!
//! An instance has at most one launcher pod at a time: the pod's name is derived from the instance's UID
//! ([`crate::pod::name`]), and a pod is created only after the instance was read from the API server. It gets another pod
//! only where nothing of the former ones ran ([`refusal`]); after the hand-over, the end of the pod is the end of the
//! instance.

mod action;
mod apply;
mod beside;
mod claim_lock;
mod claims;
mod consumer;
mod eviction;
mod filesystems;
mod first_consumer;
mod grown;
mod hotplug;
mod instance_end;
pub(crate) mod kept;
mod left_pod;
pub(crate) mod moving;
mod networks;
mod observe;
mod observed;
pub(crate) mod others;
pub(crate) mod overhead;
mod places;
mod plan;
mod progress;
mod proof;
mod reach;
mod refusal;
mod removal;
mod resize;
mod running;
mod state;
mod status;
mod subject;
mod target_disks;
mod target_pod;
#[cfg(test)]
pub(crate) mod tests;
mod volume_turn;

pub(crate) use apply::attach;
pub(crate) use apply::requests::{is_current, make_pod};
pub(crate) use barevirt_plan::phase;
pub(crate) use claims::{info as claim_info, look_for_claim};
pub(crate) use consumer::is_first_consumer;
pub(crate) use grown::queue as queue_grown;
pub(crate) use hotplug::attachments::is_attachment;
pub(crate) use hotplug::target::{TargetDisks, is_settled};
pub use instance_end::InstanceEnd;
pub(crate) use progress::{runs, unschedulable};
pub use status::NOT_RUNNING_MESSAGE;
pub(crate) use target_disks::target_disks;
pub(crate) use target_pod::{TargetPod, build_target_pod};

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use kube::runtime::reflector::ObjectRef;
use std::time::{Duration, Instant};
use tracing::warn;

/// One reconciliation; returns when the next one is due without an event.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let key = Key::new(Kind::Vmi, namespace, name);
    if cluster.expectations.owes(&key, Instant::now()) {
        return Ok(Some(Duration::from_secs(1)));
    }
    // Read only now, without an await in between, so that it is not older than the check above.
    let Some(vmi) = cluster.vmis.get(&ObjectRef::new(name).within(namespace)) else { return Ok(None) };
    let vmi = match vmi.unpack() {
        Ok(vmi) => vmi,
        Err(error) => {
            // It is logged and left alone; the others go on.
            warn!(namespace, name, error = %chain(&error), "an instance that cannot be read");
            return Ok(None);
        }
    };
    let Some(observed) = observe::observe(cluster, vmi).await? else {
        return Ok(Some(Duration::from_secs(1)));
    };
    let plan = plan::plan(&observed);
    apply::apply(cluster, &observed.vmi, plan).await
}
