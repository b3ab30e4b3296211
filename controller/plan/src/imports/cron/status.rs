//! Status of a DataImportCron, in CDI's words.

use crate::data_volumes::status::FAILED;
use crate::imports::facts::phase::{IN_PROGRESS, SCHEDULED};
use crate::imports::status::{condition, merged};
use barevirt_api::cdi::{DataImportCronStatus, DataVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

const PROGRESSING: &str = "Progressing";
const UP_TO_DATE: &str = "UpToDate";
/// Reason: an import is in progress.
const PROGRESS: &str = "ImportProgressing";

/// Facts for the conditions.
pub(super) struct CronFacts<'a> {
    /// Why the last look at the source failed.
    pub(super) failure: Option<&'a str>,
    /// Phase of the current import.
    pub(super) phase: Option<String>,
    /// Whether the current import is the wanted one.
    pub(super) is_current: bool,
    /// Whether it is filled.
    pub(super) is_done: bool,
    /// Whether there is an import.
    pub(super) has_import: bool,
    /// The name of an import that another owner's DataVolume has.
    pub(super) taken: Option<&'a str>,
}

/// Whether an import has failed, or will not continue by itself.
pub(super) fn is_stuck(import: &DataVolume) -> bool {
    let Some(status) = &import.status else { return false };
    status.phase.as_deref() == Some(FAILED)
        || status.conditions.iter().any(|condition| {
            condition.type_ == "Running"
                && condition.status == "False"
                && matches!(condition.reason.as_deref(), Some("Error" | "ImagePullFailed"))
        })
}

/// Whether an import had failed before that time.
pub(super) fn has_failed_before(import: &DataVolume, time: Option<Timestamp>) -> bool {
    let failed = import.status.as_ref().filter(|status| status.phase.as_deref() == Some(FAILED));
    let conditions = failed.into_iter().flat_map(|status| &status.conditions);
    let ended = conditions.filter_map(|condition| Some(condition.last_heartbeat_time.as_ref()?.0)).max();
    ended.zip(time).is_some_and(|(ended, time)| ended < time)
}

/// The status with its conditions.
pub(super) fn with_conditions(
    mut status: DataImportCronStatus,
    known: &CronFacts<'_>,
    now: &Time,
) -> DataImportCronStatus {
    let progressing = match (known.taken, known.phase.as_deref()) {
        (Some(name), _) => {
            let why = format!("DataVolume {name} exists and is not of this DataImportCron: delete it");
            condition(PROGRESSING, "False", "ErrImportNotOwned", why)
        }
        (None, _) if known.is_done || !known.has_import => {
            condition(PROGRESSING, "False", "NoImport", "No current import")
        }
        (None, Some(SCHEDULED)) => condition(PROGRESSING, "False", SCHEDULED, "Import is scheduled"),
        (None, Some(IN_PROGRESS)) => condition(PROGRESSING, "True", PROGRESS, "Import is progressing"),
        (None, None | Some("")) => {
            condition(PROGRESSING, "False", "Pending", "Import DataVolume phase Pending")
        }
        (None, Some(other)) => {
            condition(PROGRESSING, "False", other.to_owned(), format!("Import DataVolume phase {other}"))
        }
    };
    let up_to_date = match (known.is_current, known.is_done, known.failure) {
        // The newest import may be outdated by now.
        (true, true, Some(why)) => {
            condition(UP_TO_DATE, "Unknown", "PollFailed", format!("the source cannot be looked at: {why}"))
        }
        (true, true, None) => condition(UP_TO_DATE, "True", UP_TO_DATE, "Latest import is up to date"),
        (true, false, _) if known.phase.as_deref() == Some(FAILED) => condition(
            UP_TO_DATE,
            "False",
            "ImportFailed",
            "Import has failed: it is tried again once the source has been polled, or its DataVolume is deleted",
        ),
        (true, false, _) => condition(UP_TO_DATE, "False", PROGRESS, "Import is progressing"),
        (false, _, Some(why)) if !known.has_import => {
            condition(UP_TO_DATE, "False", "NoDigest", format!("No source digest: {why}"))
        }
        (false, _, _) if known.has_import || known.taken.is_some() => {
            condition(UP_TO_DATE, "False", "Outdated", "Source digest updated since last import")
        }
        (false, _, _) => condition(UP_TO_DATE, "False", "NoDigest", "No source digest"),
    };
    for condition in [progressing, up_to_date] {
        status.conditions = merged(status.conditions, condition, now);
    }
    status
}

/// The status of a DataImportCron that cannot be served.
pub(super) fn refused(
    old: &DataImportCronStatus,
    reason: &'static str,
    message: &str,
    now: &Time,
) -> DataImportCronStatus {
    let mut status = old.clone();
    for type_ in [PROGRESSING, UP_TO_DATE] {
        status.conditions = merged(status.conditions, condition(type_, "False", reason, message), now);
    }
    status
}
