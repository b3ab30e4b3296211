//! Failed starts: counted, and retried after 10 n^2 seconds plus up to half of that, at most 300.

use barevirt_api::names::{
    PHASE_RUNNING, RUN_STRATEGY_ALWAYS, RUN_STRATEGY_ONCE, RUN_STRATEGY_RERUN_ON_FAILURE, is_final_phase,
};
use barevirt_api::v1::{StartFailure, VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use sha1::{Digest, Sha1};
use std::time::Duration;

const FIRST: u64 = 10;
const LONGEST: u64 = 300;

/// Whether a strategy starts failed instances again.
pub(super) fn restarts(strategy: &str) -> bool {
    [RUN_STRATEGY_ALWAYS, RUN_STRATEGY_RERUN_ON_FAILURE, RUN_STRATEGY_ONCE].contains(&strategy)
}

/// The record of failures, updated from the instance.
///
/// An instance that ran clears it; one that ended before running is counted once.
pub(super) fn record(
    stored: Option<&StartFailure>,
    strategy: &str,
    vmi: Option<&VirtualMachineInstance>,
    now: Timestamp,
) -> Option<StartFailure> {
    if !restarts(strategy) || vmi.is_some_and(ran) {
        return None;
    }
    let Some(vmi) = vmi.filter(|vmi| is_final_phase(crate::vmi::phase(vmi))) else {
        return stored.cloned();
    };
    let uid = vmi.metadata.uid.clone();
    if stored.is_some_and(|stored| stored.last_failed_vmi_uid == uid) {
        return stored.cloned();
    }
    let before = stored.and_then(|stored| stored.consecutive_fail_count).unwrap_or(0).max(0);
    let count = before.saturating_add(1);
    let pause = pause(count.unsigned_abs(), uid.as_deref().unwrap_or_default());
    let retry = now.checked_add(pause).unwrap_or(Timestamp::MAX);
    // Stored times have whole seconds; the value must not change when it is read back.
    let retry = Timestamp::from_second(retry.as_second()).unwrap_or(retry);
    Some(StartFailure {
        consecutive_fail_count: Some(count),
        last_failed_vmi_uid: uid,
        retry_after_timestamp: Some(Time(retry)),
    })
}

/// The pause after this many failures. Its variable part is derived from the failed instance's UID: machines that failed
/// together do not start together, and the same observation gives the same result.
fn pause(count: u32, uid: &str) -> Duration {
    let base = FIRST.saturating_mul(u64::from(count).saturating_pow(2));
    let spread = Sha1::digest(uid.as_bytes()).first().map_or(0, |byte| u64::from(*byte));
    Duration::from_secs(base.saturating_add(base.min(LONGEST) / 2 * spread / 255).min(LONGEST))
}

/// Time until the next start.
pub(super) fn left(failure: Option<&StartFailure>, now: Timestamp) -> Option<Duration> {
    let retry = failure?.retry_after_timestamp.as_ref()?.0;
    Duration::try_from(retry.duration_since(now)).ok().filter(|left| !left.is_zero())
}

/// Whether the guest ever ran.
fn ran(vmi: &VirtualMachineInstance) -> bool {
    crate::vmi::phase(vmi) == PHASE_RUNNING
        || vmi.status.as_ref().is_some_and(|status| {
            status
                .phase_transition_timestamps
                .iter()
                .any(|stamp| stamp.phase.as_deref() == Some(PHASE_RUNNING))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(uid: &str, phases: &[&str]) -> VirtualMachineInstance {
        let stamps: Vec<_> = phases.iter().map(|phase| json!({"phase": phase})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": uid}, "spec": {"domain": {"devices": {}}},
            "status": {"phase": phases.last(), "phaseTransitionTimestamps": stamps},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pauses_grow_and_are_capped() {
        for uid in ["a", "b", "c"] {
            for (count, least, most) in
                [(1, 10, 15), (2, 40, 60), (3, 90, 135), (6, 300, 300), (u32::MAX, 300, 300)]
            {
                let pause = pause(count, uid).as_secs();
                assert!((least..=most).contains(&pause), "{count}: {pause}");
            }
        }
    }

    #[test]
    fn each_failure_counts_once() {
        let first = record(None, "Always", Some(&vmi("a", &["Pending", "Failed"])), at(100)).unwrap();
        assert_eq!(first.consecutive_fail_count, Some(1));
        let again = record(Some(&first), "Always", Some(&vmi("a", &["Pending", "Failed"])), at(105));
        assert_eq!(again.as_ref(), Some(&first));
        let second =
            record(Some(&first), "Always", Some(&vmi("b", &["Pending", "Failed"])), at(200)).unwrap();
        assert_eq!(second.consecutive_fail_count, Some(2));
        assert!(left(Some(&second), at(200)).unwrap() >= Duration::from_secs(40));
        assert_eq!(left(Some(&second), at(300)), None);
    }

    #[test]
    fn an_instance_that_ran_clears_the_record() {
        let failure = record(None, "Always", Some(&vmi("a", &["Failed"])), at(100));
        let ended = vmi("b", &["Pending", "Running", "Failed"]);
        assert_eq!(record(failure.as_ref(), "Always", Some(&ended), at(200)), None);
        assert_eq!(record(failure.as_ref(), "Manual", None, at(200)), None);
        assert_eq!(record(failure.as_ref(), "Always", None, at(200)), failure);
    }
}
