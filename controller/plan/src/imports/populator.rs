//! What is done for a claim that names one of CDI's populators in `dataSourceRef`, where there is no CDI. Pure.
//!
//! ```text
//!   claim --its source is there, its node is chosen--> DataVolume populator-UID, with a claim of its own
//!                                                           |
//!    Failed: reported; another one is made once it is deleted --+-- Succeeded: noted on the claim
//!                                                           |
//!                  the volume's claimRef: from the DataVolume's claim to the claim
//!                                                           |
//!                  the claim is bound --> the DataVolume is deleted, and with it its claim, which has lost its volume
//! ```
//!
//! Each step follows from what is there, so that a crash between any two is continued. The volume belongs to exactly one of
//! the two claims at any moment, so it is never released: whatever is deleted, its reclaim policy takes effect only when its
//! owner is deleted. Which volume it is stands on the claim, too, so that it is not filled again if somebody deletes the
//! DataVolume before the claim is bound. That annotation proves nothing by itself: a volume is taken only from a claim that
//! the DataVolume owns.

mod facts;
mod prime;

use self::facts::{VOLUME_ANNOTATION, phase};
use self::prime::NODE_ANNOTATION;
use super::claim::{self, annotated, changed};
use super::facts::Event;
use super::stage::is_of;
use crate::data_volumes::status::{FAILED, SUCCEEDED};
use barevirt_api::cdi::{DataVolume, DataVolumeStatus, PopulatorKind as Kind, annotation, populator};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;

pub use self::facts::{Class, Observed, Plan, Source, Step, volume_name};
pub use self::prime::LABEL;

/// How often a claim is looked at whose cause is not watched.
const AGAIN: Duration = Duration::from_secs(30);
/// How often a claim is looked at that is about to be bound; an event reports it, too.
const SOON: Duration = Duration::from_secs(5);

/// Plans the next step.
pub fn plan(observed: &Observed) -> Plan {
    let claim = &observed.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        // The DataVolume is deleted with it.
        return Plan::default();
    }
    let Some((kind, name)) = populator(claim) else { return Plan::default() };
    let own = observed.prime.as_ref().filter(|prime| is_of(prime.owner_references(), claim));
    match claim::phase(claim) {
        Some("Bound") => return bound(claim, own, kind, name),
        Some("Lost") => return Plan::default(),
        _ => {}
    }
    if observed.volume.as_ref().is_some_and(|volume| belongs_to(volume, claim)) {
        // Kubernetes binds it.
        return Plan { again: Some(SOON), ..Plan::default() };
    }
    match (own, &observed.prime) {
        (Some(prime), _) if prime.metadata.deletion_timestamp.is_some() => Plan::default(),
        (Some(prime), _) if phase(prime) == SUCCEEDED => filled(observed, prime, kind, name),
        (Some(prime), _) => fills(claim, prime, kind),
        (None, Some(prime)) => {
            let message = format!("DataVolume {} is not of this claim: delete it", prime.name_any());
            trouble(claim, "ErrDataVolumeNotOwned", message, Some(AGAIN))
        }
        (None, None) => begin(observed, kind, name),
    }
}

/// Whether a claim has a volume that was filled for it.
pub fn is_filled(claim: &PersistentVolumeClaim) -> bool {
    let is = |annotation: &str| annotated(claim, annotation) == Some(SUCCEEDED);
    // A claim that CDI filled has only the one or the other.
    claim::phase(claim) == Some("Bound") && (is(annotation::PHASE) || is(annotation::CLONE_PHASE))
}

/// The claim has a volume.
fn bound(claim: &PersistentVolumeClaim, own: Option<&DataVolume>, kind: Kind, name: &str) -> Plan {
    let remove = own.filter(|own| own.metadata.deletion_timestamp.is_none()).and_then(ResourceExt::uid);
    match remove {
        Some(uid) => Plan { step: Some(Step::RemovePrime(uid)), again: Some(SOON), ..Plan::default() },
        None if is_filled(claim) => Plan::default(),
        None => {
            let message = format!(
                "it was bound to a volume without being filled from {} {name}: the provisioner of its storage class takes no \
                 notice of dataSourceRef",
                kind.name()
            );
            trouble(claim, "NotPopulated", message, None)
        }
    }
}

/// Nothing fills the claim yet.
fn begin(observed: &Observed, kind: Kind, name: &str) -> Plan {
    let claim = &observed.claim;
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.data_source_ref.and_then(|reference| reference.namespace).is_some_and(|other| !other.is_empty()) {
        let message = "spec.dataSourceRef.namespace: only sources of the claim's own namespace are served";
        return trouble(claim, "NotServed", message.to_owned(), None);
    }
    if spec.storage_class_name.as_deref() == Some("") {
        let message = "spec.storageClassName is empty: no volume is made for the claim";
        return trouble(claim, "NoStorageClass", message.to_owned(), None);
    }
    let Some(source) = &observed.source else {
        return trouble(claim, "SourceNotFound", format!("there is no {} {name}", kind.name()), None);
    };
    if let Source::Import(source) = source
        && let Some(target) = source.spec.target_claim.as_deref().filter(|target| !target.is_empty())
        && target != claim.name_any()
    {
        let message = format!("{} {name} is for claim {target} alone", kind.name());
        return trouble(claim, "SourceOfOtherClaim", message, None);
    }
    let node = annotated(claim, NODE_ANNOTATION).filter(|node| !node.is_empty());
    match observed.class {
        // An event reports the class.
        Class::NotNamed => Plan::default(),
        // An event reports the node. What was reported before no longer holds.
        Class::Waits if node.is_none() && annotated(claim, annotation::BIND).is_none() => {
            let step = changed(claim, &[(annotation::REASON, ""), (annotation::MESSAGE, "")]).map(Step::Note);
            Plan { step, ..Plan::default() }
        }
        Class::Missing => Plan { again: Some(AGAIN), ..Plan::default() },
        Class::Immediate | Class::Waits => match prime::of(claim, source, node) {
            Ok(prime) => {
                let message = format!("DataVolume {} fills it from {} {name}", prime.name_any(), kind.name());
                Plan {
                    step: Some(Step::MakePrime(Box::new(prime))),
                    event: Some(Event { warning: false, reason: "CreatedPVCPrimeSuccessfully", message }),
                    again: Some(AGAIN),
                }
            }
            Err(message) => trouble(claim, "NotServed", message, None),
        },
    }
}

/// The DataVolume is at work, or has failed.
fn fills(claim: &PersistentVolumeClaim, prime: &DataVolume, kind: Kind) -> Plan {
    let again = Some(AGAIN);
    let Some(status) = &prime.status else { return Plan { again, ..Plan::default() } };
    let now = match status.phase.as_deref().unwrap_or_default() {
        FAILED => FAILED,
        "ImportInProgress" | "CloneInProgress" | "UploadReady" => "Running",
        _ => "Pending",
    };
    let (running, reason, message) = running(status);
    let restarts = status.restart_count.unwrap_or_default().to_string();
    let mut wanted = vec![
        (annotation::PHASE, now),
        (annotation::RESTARTS, restarts.as_str()),
        (annotation::RUNNING, running),
        (annotation::REASON, reason),
        (annotation::MESSAGE, message),
    ];
    if kind == Kind::Upload {
        wanted.push((annotation::READY, if now == "Running" { "true" } else { "false" }));
    }
    let progress = status.progress.as_deref().unwrap_or_default();
    let told = annotated(claim, annotation::PROGRESS);
    // The DataVolume tells it more exactly: each write of the claim goes to everybody who watches claims.
    if told.is_none() || tenth(progress) != tenth(told.unwrap_or_default()) {
        wanted.push((annotation::PROGRESS, progress));
    }
    let step = changed(claim, &wanted).map(Step::Note);
    let fails = now == FAILED && annotated(claim, annotation::PHASE) != Some(FAILED);
    let event = fails.then(|| {
        let name = prime.name_any();
        let message = format!("DataVolume {name} has failed: {message}. Delete it to try again");
        Event { warning: true, reason: reasons(kind).1, message }
    });
    Plan { event: event.filter(|_| step.is_some()), step, again }
}

/// The DataVolume is done: its volume becomes the claim's.
fn filled(observed: &Observed, prime: &DataVolume, kind: Kind, name: &str) -> Plan {
    let claim = &observed.claim;
    let own = observed.prime_claim.as_ref().filter(|own| is_of(own.owner_references(), prime));
    let there = observed.volume.as_ref().filter(|volume| volume.metadata.deletion_timestamp.is_none());
    let volume = own.zip(there).filter(|(own, volume)| {
        own.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == Some(&volume.name_any())
    });
    let Some((own, volume)) = volume else {
        // What it filled is gone.
        let uid = prime.uid().map(Step::RemovePrime);
        let message = format!("the volume of DataVolume {} is gone: it is filled again", prime.name_any());
        let event = Some(Event { warning: true, reason: "VolumeLost", message });
        return Plan { step: uid, event, again: Some(SOON) };
    };
    if !belongs_to(volume, own) {
        let message = format!("volume {} belongs to another claim", volume.name_any());
        return trouble(claim, "ErrVolumeNotOwned", message, Some(AGAIN));
    }
    let place = volume.name_any();
    // The settings decide where the DataVolume does not.
    let preallocated =
        prime.spec.preallocation == Some(true) || annotated(own, annotation::PREALLOCATED) == Some("true");
    let wanted = [
        (annotation::PREALLOCATED, if preallocated { "true" } else { "" }),
        (annotation::PHASE, SUCCEEDED),
        (annotation::READY, "false"),
        (annotation::RUNNING, "false"),
        (annotation::REASON, "Completed"),
        (annotation::MESSAGE, ""),
        (annotation::PROGRESS, "100.0%"),
        (VOLUME_ANNOTATION, &place),
    ];
    if let Some(note) = changed(claim, &wanted) {
        let message = format!("filled from {} {name}", kind.name());
        let event = Some(Event { warning: false, reason: reasons(kind).0, message });
        return Plan { step: Some(Step::Note(note)), event, again: Some(SOON) };
    }
    Plan { step: Some(Step::Rebind(place, rebound(volume, claim))), event: None, again: Some(SOON) }
}

/// The patch that gives a volume to a claim. It is refused if the volume has changed.
fn rebound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Value {
    let PersistentVolume { metadata, .. } = volume;
    json!({
        "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
            "name": claim.metadata.name, "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        } },
    })
}

/// Whether a volume is bound to that very claim.
fn belongs_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    uid.is_some_and(|uid| !uid.is_empty() && claim.metadata.uid.as_deref() == Some(uid))
}

/// Tells once why the claim is not filled.
fn trouble(
    claim: &PersistentVolumeClaim,
    reason: &'static str,
    message: String,
    again: Option<Duration>,
) -> Plan {
    let wanted =
        [(annotation::RUNNING, "false"), (annotation::REASON, reason), (annotation::MESSAGE, &message)];
    let step = changed(claim, &wanted).map(Step::Note);
    let event = step.is_some().then_some(Event { warning: true, reason, message });
    Plan { step, event, again }
}

/// The condition `Running` of a DataVolume, as annotations of claims have it.
fn running(status: &DataVolumeStatus) -> (&'static str, &str, &str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == "Running");
    let runs = found.is_some_and(|running| running.status == "True");
    (
        if runs { "true" } else { "false" },
        found.and_then(|running| running.reason.as_deref()).unwrap_or_default(),
        found.and_then(|running| running.message.as_deref()).unwrap_or_default(),
    )
}

/// Reasons of the events about success and failure.
fn reasons(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Import => ("ImportSucceeded", "ImportFailed"),
        Kind::Clone => ("CloneSucceeded", "CloneFailed"),
        Kind::Upload => ("UploadSucceeded", "UploadFailed"),
    }
}

/// The tens of a percentage; `None` if it is none.
fn tenth(progress: &str) -> Option<u8> {
    let whole = progress.strip_suffix('%')?.split('.').next()?;
    Some(whole.parse::<u8>().ok()? / 10)
}

#[cfg(test)]
mod tests;
