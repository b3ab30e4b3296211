//! Machines of a pool that fail to start.

use super::observed::{Machine, Observed};
use barevirt_api::names::{
    CONDITION_READY, STATUS_CRASH_LOOP_BACK_OFF, STATUS_ERR_IMAGE_PULL, STATUS_IMAGE_PULL_BACK_OFF,
    STATUS_UNSCHEDULABLE,
};
use barevirt_api::pool::VirtualMachinePoolAutohealingStrategy;
use barevirt_api::v1::Condition;
use barevirt_api::validate::kinds::duration;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Default number of consecutive failed starts after which a machine is replaced.
const THRESHOLD: i64 = 3;
/// Default time that a machine may fail before it is replaced.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// Printable statuses of failing machines.
const FAILING: [&str; 6] = [
    STATUS_CRASH_LOOP_BACK_OFF,
    STATUS_UNSCHEDULABLE,
    STATUS_ERR_IMAGE_PULL,
    STATUS_IMAGE_PULL_BACK_OFF,
    "DataVolumeError",
    "ErrorPvcNotFound",
];

/// The health of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It does not fail, or the pool does not heal.
    Well,
    /// It fails, and is replaced after this time.
    Failing(Duration),
    /// It is replaced.
    Hopeless,
}

pub(super) fn of(observed: &Observed, machine: &Machine) -> Health {
    let Some(healing) = &observed.pool.spec.autohealing else { return Health::Well };
    let Some(status) = &machine.vm.status else { return Health::Well };
    let failed = status.start_failure.as_ref().and_then(|failure| failure.consecutive_fail_count);
    if failed.is_some_and(|count| i64::from(count) >= healing.start_up_failure_threshold.unwrap_or(THRESHOLD))
    {
        return Health::Hopeless;
    }
    if !status.printable_status.as_deref().is_some_and(|word| FAILING.contains(&word)) {
        return Health::Well;
    }
    let ready = Condition::find(&status.conditions, CONDITION_READY).filter(|ready| ready.status == "False");
    let Some(since) = ready.and_then(|ready| ready.last_transition_time.as_ref()) else {
        return Health::Well;
    };
    match timeout(healing).checked_sub(age(since.0, observed.now)).filter(|left| !left.is_zero()) {
        Some(left) => Health::Failing(left),
        None => Health::Hopeless,
    }
}

fn timeout(healing: &VirtualMachinePoolAutohealingStrategy) -> Duration {
    healing.min_failing_to_start_duration.as_deref().and_then(duration::parse).unwrap_or(DEFAULT_TIMEOUT)
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}
