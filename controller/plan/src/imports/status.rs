//! Status of a DataVolume, in CDI's words.

use super::condition::{ConditionFields, condition, merged};
use super::facts::{ADOPTION_ANNOTATION, Event, Observed, phase};
use super::importer;
use super::job::is_upload;
use super::origin::copies;
use super::stage::Stage;
use super::upload_events;
use crate::data_volumes::status::{FAILED, SUCCEEDED, WAIT_FOR_FIRST_CONSUMER};
use barevirt_api::cdi::{DataVolumeStatus, annotation};
use kube::ResourceExt;

/// Reason of a condition and an event: no claim can be made. KubeVirt's virtctl looks for the event.
const NOT_VALID: &str = "ErrClaimNotValid";

/// The progress is not known.
const UNKNOWN: &str = "N/A";

/// The whole status.
pub(super) fn of(observed: &Observed, stage: &Stage) -> DataVolumeStatus {
    let old = observed.data_volume.status.clone().unwrap_or_default();
    let name = observed.data_volume.name_any();
    let spec = &observed.data_volume.spec;
    let upload = is_upload(spec);
    let (scheduled, in_progress) = if copies(spec) {
        (phase::CLONE_SCHEDULED, phase::CLONE_IN_PROGRESS)
    } else if upload {
        (phase::UPLOAD_SCHEDULED, phase::UPLOAD_READY)
    } else {
        (phase::SCHEDULED, phase::IN_PROGRESS)
    };
    let (phase, progress, restarts) = match stage {
        Stage::Unclaimed
        | Stage::Unclaimable(_)
        | Stage::Restored
        | Stage::Foreign
        | Stage::Unbound
        | Stage::Occupied => (phase::PENDING, None, None),
        Stage::Waiting => (WAIT_FOR_FIRST_CONSUMER, None, None),
        Stage::SourceWaits(_) if observed.claim.is_none() => (phase::PENDING, None, None),
        Stage::Ready | Stage::SourceWaits(_) | Stage::Sender(_) | Stage::Torn(_) => (scheduled, None, None),
        Stage::Filling(running) => {
            // Nothing can be sent to a pod that is not ready, however often it was restarted. An import whose first try has
            // failed goes on: the kubelet starts it again.
            let begun = running.runs || !upload && (running.restarts > 0 || running.stopped.is_some());
            let phase = if begun { in_progress } else { scheduled };
            (phase, observed.progress.filter(|_| running.runs), Some(running.restarts))
        }
        // Another pod is made, which counts as another try.
        Stage::Ended(_) => (scheduled, None, Some(old.restart_count.unwrap_or_default().saturating_add(1))),
        Stage::Adoptable | Stage::Filled => (SUCCEEDED, None, None),
        Stage::Lost | Stage::Hopeless(_) => (FAILED, None, None),
    };
    let progress = match (phase, progress) {
        (SUCCEEDED, _) => Some("100.0%".to_owned()),
        (_, Some(progress)) => Some(format!("{progress:.2}%")),
        // The last known progress stays while the import goes on.
        (phase::IN_PROGRESS | phase::CLONE_IN_PROGRESS, None) => {
            old.progress.clone().or_else(|| Some(UNKNOWN.to_owned()))
        }
        (_, None) => Some(UNKNOWN.to_owned()),
    };
    // A claim that is about to be taken over is bound as it is; the next status is about its new owner.
    let conditions = conditions(observed, stage, &name);
    let restart_count = match (restarts, old.restart_count) {
        (Some(now), before) => Some(now.max(before.unwrap_or_default())),
        (None, before) => before,
    };
    DataVolumeStatus {
        claim_name: observed.claim.as_ref().map(|_| name),
        phase: Some(phase.to_owned()),
        progress,
        restart_count: restart_count.filter(|count| *count > 0),
        conditions: conditions
            .into_iter()
            .fold(old.conditions, |all, condition| merged(all, condition, &observed.now)),
    }
}

/// The status, where it changes, after the API server refused to create the claim or the pod.
pub fn refused(
    observed: &Observed,
    claim: bool,
    reason: &'static str,
    message: &str,
) -> Option<DataVolumeStatus> {
    let old = observed.data_volume.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.phase.get_or_insert_with(|| phase::PENDING.to_owned());
    new.progress.get_or_insert_with(|| UNKNOWN.to_owned());
    let condition = condition(if claim { "Bound" } else { "Running" }, "False", reason, message);
    new.conditions = merged(new.conditions, condition, &observed.now);
    (new != old).then_some(new)
}

fn conditions(observed: &Observed, stage: &Stage, name: &str) -> [ConditionFields; 3] {
    let claim_phase = observed
        .claim
        .as_ref()
        .map(|claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending"));
    let bound = match (stage, claim_phase) {
        (Stage::Foreign, _) => condition("Bound", "False", "ErrClaimNotOwned", taken(name)),
        (Stage::Restored, _) => condition("Bound", "False", "NotFound", restored(name)),
        (Stage::Unclaimable(why), _) => condition("Bound", "False", NOT_VALID, why.clone()),
        (_, Some("Bound")) => condition("Bound", "True", "Bound", format!("PVC {name} Bound")),
        (_, Some("Lost")) => condition("Bound", "False", "ClaimLost", "Claim Lost"),
        (_, Some(_)) => condition("Bound", "False", "Pending", format!("PVC {name} Pending")),
        (_, None) => condition("Bound", "False", "NotFound", "No PVC found"),
    };
    let running = match stage {
        Stage::Filling(running) => {
            match (running.runs, &running.unschedulable, &running.no_image, &running.stopped) {
                (true, ..) => condition("Running", "True", "Pod is running", ""),
                (false, Some(why), ..) => condition("Running", "False", "Unschedulable", why.clone()),
                (false, _, Some(why), _) => condition("Running", "False", "ImagePullFailed", why.clone()),
                (false, _, _, Some(why)) => condition("Running", "False", "Error", why.clone()),
                (false, None, None, None) => condition("Running", "False", "ContainerCreating", ""),
            }
        }
        Stage::Ended(why) | Stage::Hopeless(why) => condition("Running", "False", "Error", why.clone()),
        Stage::Filled | Stage::Adoptable => {
            let spec = &observed.data_volume.spec;
            let what = if copies(spec) {
                "Clone Complete"
            } else if is_upload(spec) {
                "Upload Complete"
            } else {
                "Import Complete"
            };
            condition("Running", "False", "Completed", what)
        }
        Stage::Sender(next) => condition("Running", "False", "ContainerCreating", next.message()),
        Stage::SourceWaits(why) | Stage::Torn(why) => {
            condition("Running", "False", "SourceNotReady", why.clone())
        }
        Stage::Occupied => condition(
            "Running",
            "False",
            "ErrPodNotOwned",
            format!("pod {} is not of this DataVolume: delete it", importer::name(name)),
        ),
        Stage::Unclaimed
        | Stage::Unclaimable(_)
        | Stage::Restored
        | Stage::Foreign
        | Stage::Unbound
        | Stage::Lost
        | Stage::Waiting
        | Stage::Ready => condition("Running", "False", "", ""),
    };
    let ready = match stage {
        Stage::Filled | Stage::Adoptable => condition("Ready", "True", "", ""),
        Stage::Filling(running) if running.runs => condition("Ready", "False", "TransferRunning", ""),
        Stage::Hopeless(why) | Stage::Ended(why) => condition("Ready", "False", "Error", why.clone()),
        _ => condition("Ready", "False", "", ""),
    };
    [bound, ready, running]
}

fn restored(name: &str) -> String {
    format!(
        "claim {name} is waited for: the DataVolume has the annotation {}, so its contents come from a backup",
        annotation::RESTORED
    )
}

fn taken(name: &str) -> String {
    format!(
        "claim {name} exists and is not of this DataVolume: delete it, or annotate the DataVolume with {ADOPTION_ANNOTATION}=true"
    )
}

/// The events of a change.
pub(super) fn events(
    old: &DataVolumeStatus,
    new: &DataVolumeStatus,
    stage: &Stage,
    observed: &Observed,
) -> Vec<Event> {
    let data_volume = &observed.data_volume;
    let name = data_volume.name_any();
    if let Stage::Unclaimable(why) = stage {
        let event = Event { warning: true, reason: NOT_VALID, message: why.clone() };
        return if old.phase == new.phase { vec![] } else { vec![event] };
    }
    if copies(&data_volume.spec) {
        let namespace = data_volume.namespace().unwrap_or_default();
        let source = observed.copied.source();
        let from = source.map_or_else(|| "its source".to_owned(), |source| source.place.to_string());
        return copy_events(old, new, stage, &format!("{from} into {namespace}/{name}"));
    }
    if is_upload(&data_volume.spec) {
        return upload_events::of(old, new, stage, &name);
    }
    let mut events = vec![];
    let normal = |reason, message| Event { warning: false, reason, message };
    let warning = |reason, message| Event { warning: true, reason, message };
    let is_bound = |status: &DataVolumeStatus| {
        status.conditions.iter().any(|condition| condition.type_ == "Bound" && condition.status == "True")
    };
    if is_bound(new) && !is_bound(old) {
        events.push(normal("Bound", format!("PVC {name} Bound")));
    }
    if old.phase != new.phase {
        match new.phase.as_deref() {
            Some(phase::PENDING) if *stage == Stage::Foreign => {
                events.push(warning("ErrClaimNotOwned", taken(&name)));
            }
            Some(phase::PENDING) => events.push(normal("Pending", format!("PVC {name} Pending"))),
            Some(WAIT_FOR_FIRST_CONSUMER) => events.push(normal(
                WAIT_FOR_FIRST_CONSUMER,
                format!("PVC {name} Pending: its class binds it once a pod that uses it has a node"),
            )),
            Some(phase::SCHEDULED) => {
                events.push(normal("ImportScheduled", format!("Import into {name} scheduled")));
            }
            Some(phase::IN_PROGRESS) => {
                events.push(normal("ImportInProgress", format!("Import into {name} in progress")));
            }
            Some(SUCCEEDED) => {
                events.push(normal("ImportSucceeded", format!("Successfully imported into PVC {name}")));
            }
            Some(FAILED) => events.push(warning("ImportFailed", failed(&name, stage))),
            _ => {}
        }
    } else if let Stage::Filling(running) = stage
        && let Some(why) = &running.stopped
        && old.restart_count != new.restart_count
    {
        events.push(warning("Error", format!("Unable to process data: {why}")));
    }
    events
}

/// The events of a copy; `what` names source and target.
fn copy_events(old: &DataVolumeStatus, new: &DataVolumeStatus, stage: &Stage, what: &str) -> Vec<Event> {
    if let Stage::Torn(why) = stage {
        return vec![Event { warning: true, reason: "CloneSourceInUse", message: why.clone() }];
    }
    if old.phase == new.phase {
        return vec![];
    }
    let event = |reason, message| Event { warning: false, reason, message };
    match (new.phase.as_deref(), stage) {
        (Some(phase::CLONE_SCHEDULED), _) => {
            vec![event("CloneScheduled", format!("Cloning from {what} scheduled"))]
        }
        (Some(phase::CLONE_IN_PROGRESS), _) => {
            vec![event("CloneInProgress", format!("Cloning from {what} in progress"))]
        }
        (Some(SUCCEEDED), _) => vec![event("CloneSucceeded", format!("Successfully cloned from {what}"))],
        (Some(FAILED), Stage::Hopeless(why)) => {
            vec![Event {
                warning: true,
                reason: "CloneFailed",
                message: format!("Cloning from {what} failed: {why}"),
            }]
        }
        (Some(FAILED), _) => {
            vec![Event {
                warning: true,
                reason: "CloneFailed",
                message: format!("Cloning from {what} failed"),
            }]
        }
        _ => vec![],
    }
}

fn failed(name: &str, stage: &Stage) -> String {
    match stage {
        Stage::Lost => format!("PVC {name} lost"),
        Stage::Hopeless(why) => format!("Failed to import into PVC {name}: {why}"),
        _ => format!("Failed to import into PVC {name}"),
    }
}
