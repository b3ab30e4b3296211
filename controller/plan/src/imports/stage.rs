//! The stage of an import, derived from the observation.

use super::claim::{self, is_filled};
use super::facts::{ADOPTION_ANNOTATION, Copied, MOST_RESTARTS, Observed, SourceClaim};
use super::importer::{self, Running};
use super::job::{is_upload, pulled_by_node, source_problem};
use super::kept;
use super::sender;
use super::uploads::{self, UploadState};
use barevirt_api::cdi::annotation;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// The stage of an import.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// There is no claim.
    Unclaimed,
    /// There is no claim, and none can be made yet.
    Unclaimable(String),
    /// There is no claim yet; a backup brings it back.
    Restored,
    /// Another owner's claim has the name.
    Foreign,
    /// The claim has no owner, and may be taken over with its contents.
    Adoptable,
    /// The claim is not bound.
    Unbound,
    /// The claim's volume is gone.
    Lost,
    /// The claim waits for a pod.
    Waiting,
    /// The source does not exist, or is not ready.
    SourceWaits(String),
    /// The claim can be filled, and no pod fills it yet.
    Ready,
    /// The source has to be sent, and the sender is not ready.
    Sender(sender::Next),
    /// Another owner's pod has the name.
    Occupied,
    /// A pod fills it.
    Filling(Running),
    /// The pod was ended from outside: another one is made.
    Ended(String),
    /// The source was written while it was copied: the copy is discarded, and another one made once the source is free.
    Torn(String),
    /// It is filled.
    Filled,
    /// It cannot be filled.
    Hopeless(String),
}

/// Derives the stage. `own_pod` is the pod with the importer's name, where the DataVolume owns it.
pub(super) fn stage(observed: &Observed, own_pod: Option<&Pod>, image_volumes: bool) -> Stage {
    let data_volume = &observed.data_volume;
    if let Some(problem) = source_problem(data_volume) {
        return Stage::Hopeless(problem);
    }
    if let Copied::Refused(why) = &observed.copied {
        return Stage::Hopeless(why.clone());
    }
    let copy = observed.copied.source();
    let Some(claim) = &observed.claim else {
        if data_volume.annotations().contains_key(annotation::RESTORED) {
            return Stage::Restored;
        }
        if let Some(why) = claim::lacking(data_volume, &observed.profile) {
            return Stage::Unclaimable(why);
        }
        let made = claim::of(data_volume, copy, &observed.profile);
        return match (source_missing(&observed.copied), made) {
            // What a volume has already is not copied.
            (Some(_), Ok(claim)) if observed.kept.as_ref().is_some_and(|kept| kept::fits(kept, &claim)) => {
                Stage::Unclaimed
            }
            (Some(why), _) => Stage::SourceWaits(why),
            (None, Ok(_)) => Stage::Unclaimed,
            (None, Err(why)) => Stage::Hopeless(why),
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
        // A volume that was kept is bound in a moment; the last status says that it is.
        let binds = kept::asks(data_volume) && claim::phase(claim) != Some("Bound");
        return if binds { Stage::Unbound } else { Stage::Filled };
    }
    let bound = match claim::phase(claim) {
        Some("Bound") => true,
        Some("Lost") => return Stage::Lost,
        _ => false,
    };
    if is_upload(&data_volume.spec) {
        return match uploads::upload_state(claim) {
            UploadState::Filled => Stage::Filled,
            UploadState::Failed(why) => Stage::Hopeless(why),
            UploadState::Nothing if !bound && observed.waits => Stage::Waiting,
            UploadState::Nothing if !bound => Stage::Unbound,
            UploadState::Nothing => Stage::Filling(Running::default()),
            UploadState::Opened(running) => Stage::Filling(running),
        };
    }
    let source_waits = source_waits(observed, image_volumes);
    if let Some(why) = own_pod.and_then(|pod| torn(observed, pod)) {
        return Stage::Torn(why);
    }
    match (&observed.pod, own_pod) {
        (_, Some(pod)) if pod.metadata.deletion_timestamp.is_some() => {
            // Another pod can be made once this one is gone.
            Stage::Filling(Running { runs: false, ..importer::running(pod) })
        }
        (_, Some(pod)) if sender::is_lost(pod, observed.copied.source()) => {
            let restarts = importer::running(pod).restarts;
            let why = "the pod that sends the claim has ended";
            if restarts + 1 >= MOST_RESTARTS {
                Stage::Hopeless(given_up(restarts, why))
            } else {
                Stage::Ended(why.to_owned())
            }
        }
        (_, Some(pod)) => match importer::ended(pod) {
            Some(importer::End::Filled) => Stage::Filled,
            Some(importer::End::Hopeless(why)) => Stage::Hopeless(why),
            Some(importer::End::Lost(why)) => match importer::running(pod) {
                running if running.restarts + 1 >= MOST_RESTARTS => {
                    Stage::Hopeless(given_up(running.restarts, &why))
                }
                _ => Stage::Ended(why),
            },
            None => match importer::running(pod) {
                running if running.restarts >= MOST_RESTARTS => {
                    let why = running.stopped.as_deref().unwrap_or("it is not known why");
                    Stage::Hopeless(given_up(running.restarts, why))
                }
                running => Stage::Filling(running),
            },
        },
        (Some(_), None) => Stage::Occupied,
        (None, None) if source_waits.is_some() => Stage::SourceWaits(source_waits.unwrap_or_default()),
        (None, None) if bound || data_volume.annotations().contains_key(annotation::BIND) => {
            match copy.and_then(|copy| sender::next(data_volume, copy)) {
                Some(next) => Stage::Sender(next),
                None => Stage::Ready,
            }
        }
        // A copy within a namespace runs where the source claim is: its pod is the consumer. A copy that is sent can run
        // anywhere.
        (None, None) if observed.waits && copy.is_some_and(|copy| copy.sender.is_none()) => Stage::Ready,
        (None, None) if observed.waits => Stage::Waiting,
        (None, None) => Stage::Unbound,
    }
}

/// Why a source cannot be read yet.
fn source_waits(observed: &Observed, image_volumes: bool) -> Option<String> {
    if pulled_by_node(&observed.data_volume.spec).is_some() && !image_volumes {
        return Some(
            "pullMethod node needs images as volumes of pods, which this cluster does not support".to_owned(),
        );
    }
    if let Some(why) = source_missing(&observed.copied) {
        return Some(why);
    }
    let SourceClaim { claim, used_by, .. } = observed.copied.source()?;
    let claim = claim.as_ref()?;
    let name = claim.name_any();
    if claim::phase(claim) != Some("Bound") {
        return Some(format!("claim {name} is not bound"));
    }
    let volume = claim
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == "DataVolume");
    if volume.is_some_and(|volume| !is_filled(claim, &volume.name)) {
        return Some(format!("claim {name} is not filled yet"));
    }
    if uploads::is_target(claim.annotations()) && !matches!(uploads::upload_state(claim), UploadState::Filled)
    {
        return Some(format!("claim {name} waits for an upload"));
    }
    used_by.as_ref().map(|user| format!("claim {name} is used by pod {}", user.pod))
}

/// Why the copy of this pod may have parts of two states.
fn torn(observed: &Observed, pod: &Pod) -> Option<String> {
    let SourceClaim { place, used_by, .. } = observed.copied.source()?;
    let user = used_by.as_ref()?;
    let since = user.writes_since.as_ref()?;
    let is_torn = match importer::ended(pod) {
        None => true,
        // Where it is not known when the copy ended, it may have been later.
        Some(importer::End::Filled) => importer::finished(pod).is_none_or(|finished| *since <= finished),
        Some(importer::End::Hopeless(_) | importer::End::Lost(_)) => false,
    };
    let why = || format!("pod {} uses claim {place}: its copy begins anew once it is free", user.pod);
    is_torn.then(why)
}

/// Why there is nothing to copy yet.
fn source_missing(copied: &Copied) -> Option<String> {
    match copied {
        Copied::Unknown(why) => Some(why.clone()),
        Copied::Claim(source) if source.claim.is_none() => {
            Some("the claim that is to be copied does not exist".to_owned())
        }
        Copied::Nothing | Copied::Refused(_) | Copied::Claim(_) => None,
    }
}

/// Message of an import or upload that is not tried again.
pub(super) fn given_up(restarts: i32, why: &str) -> String {
    format!("given up after {restarts} restarts: {why}")
}

/// Whether `controller` is the controller among these owners.
pub(super) fn is_of(owners: &[OwnerReference], controller: &impl Resource) -> bool {
    let uid = controller.meta().uid.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == uid && !uid.is_empty())
}
