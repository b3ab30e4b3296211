//! Events of a DataVolume that a client is to send an image for.

use super::facts::{Event, phase};
use super::stage::Stage;
use crate::data_volumes::status::{FAILED, SUCCEEDED, WAIT_FOR_FIRST_CONSUMER};
use barevirt_api::cdi::DataVolumeStatus;

/// The events of a DataVolume's change.
pub(super) fn of(old: &DataVolumeStatus, new: &DataVolumeStatus, stage: &Stage, name: &str) -> Vec<Event> {
    let is_bound = |status: &DataVolumeStatus| {
        status.conditions.iter().any(|condition| condition.type_ == "Bound" && condition.status == "True")
    };
    let event = |reason, message| Event { warning: false, reason, message };
    let mut events = vec![];
    if is_bound(new) && !is_bound(old) {
        events.push(event("Bound", format!("PVC {name} Bound")));
    }
    if old.phase == new.phase {
        return events;
    }
    events.extend(match (new.phase.as_deref(), stage) {
        (Some(FAILED), Stage::Hopeless(why)) => Some(Event {
            warning: true,
            reason: "UploadFailed",
            message: format!("Upload into {name} failed: {why}"),
        }),
        (Some(FAILED), _) => {
            Some(Event { warning: true, reason: "UploadFailed", message: format!("PVC {name} lost") })
        }
        (Some(SUCCEEDED), _) => Some(event("UploadSucceeded", format!("Successfully uploaded into {name}"))),
        (Some(phase::UPLOAD_SCHEDULED), _) => {
            Some(event("UploadScheduled", format!("Upload into {name} scheduled")))
        }
        (Some(phase::UPLOAD_READY), _) => Some(event("UploadReady", format!("Upload into {name} ready"))),
        (Some(phase::PENDING), Stage::Foreign) => Some(Event {
            warning: true,
            reason: "ErrClaimNotOwned",
            message: format!("claim {name} exists and is not of this DataVolume"),
        }),
        (Some(phase::PENDING), _) => Some(event("Pending", format!("PVC {name} Pending"))),
        (Some(WAIT_FOR_FIRST_CONSUMER), _) => Some(event(
            WAIT_FOR_FIRST_CONSUMER,
            format!("PVC {name} Pending: its class binds it once a pod that uses it has a node"),
        )),
        _ => None,
    });
    events
}
