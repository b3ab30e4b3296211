//! Status of a DataImportCron, in CDI's words.

use crate::data_volumes::status::FAILED;
use crate::imports::condition::{condition, merged};
use crate::imports::facts::phase::{IN_PROGRESS, SCHEDULED};
use barevirt_api::cdi::{DataImportCronStatus, DataVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
    /// Message about the failure of the current import, where it is known when it failed.
    pub(super) failed: Option<String>,
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
        (true, false, _) if known.phase.as_deref() == Some(FAILED) => {
            let unknown = || "Import has failed: it is tried again once its DataVolume is deleted".to_owned();
            let message = known.failed.clone().unwrap_or_else(unknown);
            condition(UP_TO_DATE, "False", "ImportFailed", message)
        }
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
