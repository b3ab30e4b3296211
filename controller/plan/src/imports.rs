//! What is done for a DataVolume where there is no CDI: its claim, the pod that fills it, and the status of both. Pure.
//!
//! ```text
//!   no claim --make--> claim --bound--> no pod --make--> pod --succeeds--> claim is marked --> Succeeded
//!                        |                               |
//!                        |                               +-- stops: the kubelet starts it again, with pauses that grow
//!                        |                               \-- says that no retry can help, or was retried often --> Failed
//!                        \-- its class waits for a pod: WaitForFirstConsumer, until another pod has bound it
//! ```
//!
//! Phases, conditions, events and annotations are those of CDI, so that clients find what they expect. A CDI that is
//! installed later finds filled claims marked as such, and does not fill them again.
//!
//! An upload's pod is planned from the claim itself ([`uploads`]); the status of the DataVolume repeats the claim's
//! annotations. What is not filled when CDI is installed is handed over ([`hand_over`]).
//!
//! `Succeeded` and `Failed` are final. A claim and a pod belong to a DataVolume by the UID in their owner references: other
//! objects with their names are left alone.

mod claim;
mod condition;
mod config;
pub mod cron;
pub mod data_source;
mod facts;
pub mod hand_over;
mod importer;
mod job;
mod kept;
mod keys;
mod only_cdi;
mod origin;
mod overhead;
mod passed;
mod placement;
pub mod populator;
mod profile;
mod resources;
mod sender;
mod stage;
mod status;
mod upload_events;
pub mod uploads;
mod usage;

use self::stage::{Stage, is_of, stage};
use crate::data_volumes::status::{FAILED, SUCCEEDED};
use barevirt_api::cdi::DataVolumeStatus;
use kube::ResourceExt;
use std::time::Duration;

pub use claim::is_filled;
pub use config::{ConfigStep, config_step, configured};
pub use facts::{Copied, Event, Installation, LABEL, Observed, Sender, SourceClaim, Step};
pub use importer::{Running, address, name as pod_name};
pub use kept::{is_looked_for as is_kept_looked_for, of as kept_volume};
pub use only_cdi::unserved;
pub use origin::{Named, followed, inferred, is_waiting, may_copy, named, permitted};
pub use overhead::Overhead;
pub use profile::{Profile, ProfileStep, profile_steps};
pub use sender::{RECEIVER_ANNOTATION, SELECTOR, asked_by, name as sender_name};
pub use status::refused;
pub use usage::{User, user, uses};

/// How often the progress of a running import is looked at.
const PROGRESS: Duration = Duration::from_secs(2);

/// How often a source that is not ready is looked at: no watch reports it.
const SOURCE: Duration = Duration::from_secs(5);

/// How often the volumes of a class without a provisioner are looked at: no watch reports them.
const VOLUMES: Duration = Duration::from_secs(30);

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The first step.
    pub step: Option<Step>,
    /// The status, where it changes.
    pub status: Option<DataVolumeStatus>,
    /// A step after the status is written.
    pub after: Option<Step>,
    /// The last step.
    pub last: Option<Step>,
    /// Events to emit once the status is written.
    pub events: Vec<Event>,
    /// When to look again, where no watch reports a change.
    pub again: Option<Duration>,
}

impl Plan {
    /// Whether the plan writes anything, rather than only looking again later.
    pub fn changes(&self) -> bool {
        self.step.is_some() || self.status.is_some() || self.after.is_some() || self.last.is_some()
    }
}

/// Plans the next steps.
pub fn plan(observed: &Observed, installation: &Installation) -> Plan {
    let data_volume = &observed.data_volume;
    if data_volume.metadata.deletion_timestamp.is_some() {
        // Its dependents are deleted with it.
        return Plan::default();
    }
    let own_pod = observed.pod.as_ref().filter(|pod| is_of(pod.owner_references(), data_volume));
    let remove = own_pod
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .and_then(|pod| pod.metadata.uid.clone())
        .map(Step::RemovePod);
    let old = data_volume.status.clone().unwrap_or_default();
    let removed_if_done = || remove.clone().filter(|_| !claim::pod_stays(data_volume.annotations()));
    match old.phase.as_deref() {
        Some(SUCCEEDED) => return Plan { after: removed_if_done(), ..Plan::default() },
        Some(FAILED) => return Plan { after: remove, ..Plan::default() },
        _ => {}
    }
    let source = observed.copied.source();
    let copy = source.and_then(|source| source.claim.as_ref());
    let stage = stage(observed, own_pod, installation.image_volumes);
    let status = status::of(observed, &stage);
    let events = status::events(&old, &status, &stage, observed);
    let mut plan = Plan { events, status: (status != old).then_some(status), ..Plan::default() };
    match &stage {
        Stage::Unclaimed => match claim::of(data_volume, source, &observed.profile) {
            Ok(claim) => {
                let claim = kept::taken(claim, data_volume, observed.kept.as_ref());
                plan.step = Some(Step::MakeClaim(Box::new(claim)));
            }
            // `stage` has checked the same.
            Err(_) => return plan,
        },
        Stage::Adoptable => {
            let adopted = observed.claim.as_ref().map(|claim| claim::adoption(data_volume, claim));
            plan.step = adopted.map(Step::PatchClaim);
        }
        Stage::Ready => {
            let restarts = old.restart_count;
            let pod = observed.claim.as_ref().map(|claim| match source {
                Some(source) if source.sender.is_some() => {
                    sender::receiver(data_volume, (claim, source), installation, restarts)
                }
                _ => importer::of(data_volume, (claim, copy), installation, restarts),
            });
            plan.step = pod.map(|pod| Step::MakePod(Box::new(pod)));
        }
        Stage::Sender(next) => match (next, source) {
            (sender::Next::Make, Some(source)) => {
                plan.step = Some(Step::MakeSender(Box::new(sender::of(data_volume, source, installation))));
            }
            (sender::Next::Remove(step), _) => plan.last = Some(step.clone()),
            (sender::Next::Make | sender::Next::Wait(_), _) => {}
        },
        Stage::Filled => {
            let name = data_volume.name_any();
            let unmarked = observed.claim.as_ref().filter(|claim| !is_filled(claim, &name));
            let preallocated = installation.preallocates(&data_volume.spec);
            plan.step = unmarked.map(|claim| Step::PatchClaim(claim::mark(data_volume, claim, preallocated)));
            plan.after = removed_if_done();
            plan.last = sender::removal(data_volume, source);
        }
        Stage::Hopeless(_) => {
            plan.after = remove;
            plan.last = sender::removal(data_volume, source);
        }
        Stage::Ended(_) => plan.after = remove,
        Stage::Torn(_) => {
            plan.after = remove;
            plan.last = sender::removal(data_volume, source);
            plan.again = Some(SOURCE);
        }
        // The client that sends the image reports progress itself.
        Stage::Filling(_) if job::is_upload(&data_volume.spec) => {}
        Stage::Filling(running) => {
            plan.step = sender::introduction(own_pod, source);
            plan.again = running.runs.then_some(PROGRESS);
        }
        Stage::SourceWaits(_) if observed.claim.is_none() && kept::is_looked_for(data_volume) => {
            plan.again = Some(kept::pause(data_volume, SOURCE, &observed.now));
        }
        Stage::SourceWaits(_) => plan.again = Some(SOURCE),
        Stage::Unclaimable(_) => plan.again = Some(VOLUMES),
        Stage::Restored
        | Stage::Foreign
        | Stage::Unbound
        | Stage::Lost
        | Stage::Waiting
        | Stage::Occupied => {}
    }
    plan
}

#[cfg(test)]
mod tests;
