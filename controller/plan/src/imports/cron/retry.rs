//! When an import that failed is tried again: at the first poll after a pause. Pure.
//!
//! ```text
//!   failures of one digest   1   2        3         4         ...
//!   pause                    0   5 min    10 min    20 min    ... 6 hours
//! ```
//!
//! An image that is bad for good would otherwise be transferred at every poll, which may be each minute. An annotation on the
//! DataImportCron counts the failures, since each try is a DataVolume of its own.

use crate::data_volumes::status::FAILED;
use barevirt_api::cdi::{DataImportCron, DataVolume};
use k8s_openapi::jiff::{SignedDuration, Timestamp, Unit};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Annotation on a DataImportCron: a digest, and how many DataVolumes that failed with it were deleted.
const FAILED_IMPORTS: &str = "import.barevirt.dev/failedImports";
/// Seconds of the second pause; the first one is none.
const SHORTEST: i64 = 300;
/// Seconds of the longest pause.
const LONGEST: i64 = 6 * 3600;
/// Doublings after which the pause is the longest one.
const DOUBLINGS: u32 = 10;

/// An import that has failed.
pub(super) struct Failure<'a> {
    digest: &'a str,
    why: Option<&'a str>,
    /// How many DataVolumes of the digest failed before this one.
    earlier: u32,
    due: Timestamp,
}

impl<'a> Failure<'a> {
    /// The failure of the current import, which has this digest.
    pub(super) fn of(import: &'a DataVolume, digest: &'a str, cron: &DataImportCron) -> Option<Self> {
        let status = import.status.as_ref().filter(|status| status.phase.as_deref() == Some(FAILED))?;
        let told = status.conditions.iter().filter_map(|told| Some(told.last_heartbeat_time.as_ref()?.0));
        let ended = told.max()?;
        let running = status.conditions.iter().find(|told| told.type_ == "Running");
        let why = running.and_then(|told| told.message.as_deref()).filter(|why| !why.is_empty());
        let earlier = count(cron, digest);
        let due = ended.checked_add(pause(earlier)).unwrap_or(Timestamp::MAX);
        Some(Failure { digest, why, earlier, due })
    }

    /// Whether it is tried again, as the source was polled at that time.
    pub(super) fn is_due(&self, polled: Option<Timestamp>) -> bool {
        polled.is_some_and(|polled| self.due < polled)
    }

    /// The patch of the DataImportCron that counts it.
    pub(super) fn counted(&self) -> Value {
        let count = format!("{} {}", self.digest, self.earlier.saturating_add(1));
        json!({ "metadata": { "annotations": { (FAILED_IMPORTS): count } } })
    }

    /// Message about it.
    pub(super) fn message(&self) -> String {
        let why = self.why.map(|why| format!(" ({why})")).unwrap_or_default();
        let due = self.due.round(Unit::Second).unwrap_or(self.due);
        format!(
            "Import has failed{why}: it is tried again once the source has been polled after {due}, or its DataVolume is deleted"
        )
    }
}

/// The patch that ends the count, where there is one.
pub(super) fn forget(cron: &DataImportCron) -> Option<Value> {
    let counts = cron.annotations().contains_key(FAILED_IMPORTS);
    // Null removes an annotation.
    counts.then(|| json!({ "metadata": { "annotations": { (FAILED_IMPORTS): null } } }))
}

fn count(cron: &DataImportCron, digest: &str) -> u32 {
    let counted = cron.annotations().get(FAILED_IMPORTS).and_then(|text| text.split_once(' '));
    let own = counted.filter(|(of, _)| *of == digest);
    own.and_then(|(_, count)| count.parse().ok()).unwrap_or_default()
}

fn pause(earlier: u32) -> SignedDuration {
    let Some(doublings) = earlier.checked_sub(1) else { return SignedDuration::ZERO };
    SignedDuration::from_secs((SHORTEST << doublings.min(DOUBLINGS)).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let minutes = |earlier| pause(earlier).as_secs() / 60;
        assert_eq!(
            [0, 1, 2, 3, 7, 8, 9, 100, u32::MAX].map(minutes),
            [0, 5, 10, 20, 320, 360, 360, 360, 360]
        );
    }

    #[test]
    fn failures_are_counted_for_one_digest_alone() {
        let cron = |said: &str| -> DataImportCron {
            let mut cron = DataImportCron::new("fedora", Default::default());
            cron.annotations_mut().insert(FAILED_IMPORTS.to_owned(), said.to_owned());
            cron
        };
        for (said, expected) in [("sha256:a 3", 3), ("sha256:b 3", 0), ("sha256:a", 0), ("sha256:a many", 0)]
        {
            assert_eq!(count(&cron(said), "sha256:a"), expected, "{said}");
        }
        assert!(forget(&cron("sha256:a 1")).is_some());
        assert_eq!(forget(&DataImportCron::new("fedora", Default::default())), None);
    }
}
