//! What follows for a DataVolume where there is no CDI: its claim, the pod that fills it, and what is said of both. Pure.
//!
//! ```text
//!   no claim --make--> claim --bound--> no pod --make--> pod --succeeds--> claim is marked --> Succeeded
//!                        |                               |
//!                        |                               +-- stops: the kubelet starts it again, with pauses that grow
//!                        |                               \-- says that no try can help, or has been tried often --> Failed
//!                        \-- its class waits for a pod: WaitForFirstConsumer, until somebody's pod has bound it
//! ```
//!
//! Phases, conditions, events and annotations are those of CDI, so that whoever reads them finds what is expected, and a CDI
//! that is installed later finds claims that are filled marked as such: it fills none again.
//!
//! `Succeeded` and `Failed` are final. A claim belongs to a DataVolume by the UID in its owner reference, and so does the pod:
//! whatever else has their names is left alone.

mod claim;
mod importer;
mod job;
mod status;

use crate::data_volumes::status::{FAILED, SUCCEEDED};
use barevirt_api::cdi::{DataVolume, DataVolumeStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

pub use claim::is_filled;
pub use importer::{Running, address, name as pod_name};
pub use job::source_problem;
pub use status::refused;

/// Label, by which claims and pods of DataVolumes are watched: CDI's.
pub const LABEL: (&str, &str) = ("app", "containerized-data-importer");
/// Annotation on a DataVolume: its claim need not wait for a consumer.
const IMMEDIATE_ANNOTATION: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// Annotation on a DataVolume: a claim of its name that is there is taken over with what it holds.
const ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";
/// Restarts after which an import is given up: more than half an hour, with the kubelet's pauses.
const MOST_RESTARTS: i32 = 10;
/// How often the progress of one that runs is looked at.
const PROGRESS: Duration = Duration::from_secs(2);

/// Phases that are no other module's.
mod phase {
    pub(super) const PENDING: &str = "Pending";
    pub(super) const SCHEDULED: &str = "ImportScheduled";
    pub(super) const IN_PROGRESS: &str = "ImportInProgress";
}

/// What an import is made with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Image of the importer.
    pub image: String,
    /// Pull policy for it.
    pub pull_policy: Option<String>,
    /// Secrets with which it is pulled, looked for in the DataVolume's namespace.
    pub pull_secrets: Vec<String>,
    /// Registries that are spoken to without TLS, `host` or `host:port`.
    pub insecure_registries: BTreeSet<String>,
}

/// The cluster, as far as a DataVolume is concerned.
#[derive(Clone, Debug)]
pub struct Observed {
    /// It.
    pub data_volume: DataVolume,
    /// The claim of its name.
    pub claim: Option<PersistentVolumeClaim>,
    /// The pod of its importer's name.
    pub pod: Option<Pod>,
    /// Whether the claim's class binds once a pod is placed.
    pub waits: bool,
    /// How far the importer says it is, in per cent.
    pub progress: Option<f64>,
    /// The time.
    pub now: Time,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make the claim.
    MakeClaim(Box<PersistentVolumeClaim>),
    /// Merge this into the claim.
    PatchClaim(Value),
    /// Make the pod.
    MakePod(Box<Pod>),
    /// Delete the pod with that UID.
    RemovePod(String),
}

/// Something to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it needs somebody's look.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be done first.
    pub step: Option<Step>,
    /// The status, where it is another one.
    pub status: Option<DataVolumeStatus>,
    /// To be done once the status is written.
    pub after: Option<Step>,
    /// To be told once the status is written.
    pub events: Vec<Event>,
    /// When to look again, where no watch tells.
    pub again: Option<Duration>,
}

/// Where an import stands.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// There is no claim.
    Unclaimed,
    /// Somebody else's claim has the name.
    Foreign,
    /// The claim is nobody's, and may be taken with what it holds.
    Adoptable,
    /// The claim is not bound.
    Unbound,
    /// The claim's volume is gone.
    Lost,
    /// The claim waits for a pod.
    Waiting,
    /// The claim can be filled, and nothing fills it.
    Ready,
    /// Somebody else's pod has the name.
    Occupied,
    /// A pod is there that fills it.
    Filling(Running),
    /// The pod ended in another way than by its own will: another one is made.
    Ended(String),
    /// It is filled.
    Filled,
    /// It cannot be filled.
    Hopeless(String),
}

/// What follows.
pub fn plan(observed: &Observed, installation: &Installation) -> Plan {
    let data_volume = &observed.data_volume;
    if data_volume.metadata.deletion_timestamp.is_some() {
        // What belongs to it goes with it.
        return Plan::default();
    }
    let own_pod = observed.pod.as_ref().filter(|pod| is_of(pod.owner_references(), data_volume));
    let remove = own_pod
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .and_then(|pod| pod.metadata.uid.clone())
        .map(Step::RemovePod);
    let old = data_volume.status.clone().unwrap_or_default();
    if matches!(old.phase.as_deref(), Some(SUCCEEDED | FAILED)) {
        return Plan { after: remove, ..Plan::default() };
    }
    let stage = stage(observed, own_pod);
    let status = status::of(observed, &stage);
    let events = status::events(&old, &status, &stage, data_volume);
    let mut plan = Plan { events, status: (status != old).then_some(status), ..Plan::default() };
    match &stage {
        Stage::Unclaimed => match claim::of(data_volume) {
            Ok(claim) => plan.step = Some(Step::MakeClaim(Box::new(claim))),
            // `stage` has asked the same.
            Err(_) => return plan,
        },
        Stage::Adoptable => plan.step = Some(Step::PatchClaim(claim::adoption(data_volume))),
        Stage::Ready => {
            let claim = observed.claim.as_ref();
            plan.step = claim.map(|claim| {
                Step::MakePod(Box::new(importer::of(data_volume, claim, installation, old.restart_count)))
            });
        }
        Stage::Filled => {
            let marked =
                observed.claim.as_ref().is_some_and(|claim| is_filled(claim, &data_volume.name_any()));
            plan.step = (!marked).then(|| Step::PatchClaim(claim::mark(data_volume)));
            plan.after = remove;
        }
        Stage::Hopeless(_) | Stage::Ended(_) => plan.after = remove,
        Stage::Filling(running) => plan.again = running.runs.then_some(PROGRESS),
        Stage::Foreign | Stage::Unbound | Stage::Lost | Stage::Waiting | Stage::Occupied => {}
    }
    plan
}

fn stage(observed: &Observed, own_pod: Option<&Pod>) -> Stage {
    let data_volume = &observed.data_volume;
    if let Some(problem) = source_problem(&data_volume.spec) {
        return Stage::Hopeless(problem);
    }
    let Some(claim) = &observed.claim else {
        return match claim::of(data_volume) {
            Ok(_) => Stage::Unclaimed,
            Err(why) => Stage::Hopeless(why),
        };
    };
    if !is_of(claim.owner_references(), data_volume) {
        let annotation = data_volume.annotations().get(ADOPTION_ANNOTATION);
        let may =
            annotation.is_some_and(|value| value == "true") || is_filled(claim, &data_volume.name_any());
        let free = claim.owner_references().iter().all(|owner| owner.controller != Some(true));
        let stays = claim.metadata.deletion_timestamp.is_none();
        return if may && free && stays { Stage::Adoptable } else { Stage::Foreign };
    }
    if is_filled(claim, &data_volume.name_any()) {
        return Stage::Filled;
    }
    let bound = match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Bound") => true,
        Some("Lost") => return Stage::Lost,
        _ => false,
    };
    match (&observed.pod, own_pod) {
        (_, Some(pod)) if pod.metadata.deletion_timestamp.is_some() => {
            // Another one can be made when it is gone.
            Stage::Filling(Running { runs: false, ..importer::running(pod) })
        }
        (_, Some(pod)) => match importer::ended(pod) {
            Some(importer::End::Filled) => Stage::Filled,
            Some(importer::End::Hopeless(why)) => Stage::Hopeless(why),
            Some(importer::End::Lost(why)) => match importer::running(pod) {
                running if running.restarts + 1 >= MOST_RESTARTS => given_up(running.restarts, &why),
                _ => Stage::Ended(why),
            },
            None => match importer::running(pod) {
                running if running.restarts >= MOST_RESTARTS => {
                    given_up(running.restarts, running.stopped.as_deref().unwrap_or("it is not known why"))
                }
                running => Stage::Filling(running),
            },
        },
        (Some(_), None) => Stage::Occupied,
        (None, None) if bound => Stage::Ready,
        (None, None) if data_volume.annotations().contains_key(IMMEDIATE_ANNOTATION) => Stage::Ready,
        (None, None) if observed.waits => Stage::Waiting,
        (None, None) => Stage::Unbound,
    }
}

fn given_up(restarts: i32, why: &str) -> Stage {
    Stage::Hopeless(format!("given up after {restarts} restarts: {why}"))
}

/// Whether the DataVolume is the one that controls an object with these owners.
fn is_of(owners: &[OwnerReference], data_volume: &DataVolume) -> bool {
    let uid = data_volume.meta().uid.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == uid && !uid.is_empty())
}

/// A merge patch of metadata with annotations.
fn annotated(annotations: &Value) -> Value {
    json!({ "metadata": { "annotations": annotations } })
}

#[cfg(test)]
mod tests;
