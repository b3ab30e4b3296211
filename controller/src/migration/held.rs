//! A migration whose target pod cannot be made now. It says why, and has no place in the queue, so that others do not wait for
//! it. Pure.
//!
//! ```text
//!              something is missing, or a claim is being filled
//!   its turn ──────────────────────────────────────────────────> held ── a pod can be made ──> waits for its turn
//!                                                                  └── something was missing for too long ──> Failed
//! ```
//!
//! The condition is the only record of that: another process goes on with it.

use super::action::Plan;
use super::deadlines::{age, pending};
use super::observed::Observed;
use super::status::{condition, fail, write};
use crate::migrations::row::HELD;
use barevirt_api::names::{REASON_DATA_VOLUME_NOT_READY, REASON_FAILED_CREATE};
use barevirt_api::v1::{Condition, VirtualMachineInstanceMigrationStatus};
use barevirt_component::notes::Note;
use std::time::Duration;

/// How soon to look again at first.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The same once it has waited for long. Each look costs some requests, and a node may be full of such instances.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Something is missing, or cannot be used: that is told once, and does not last for ever.
pub(super) fn lacks(
    observed: &Observed,
    status: VirtualMachineInstanceMigrationStatus,
    message: &str,
) -> Plan {
    let known = told(observed, REASON_FAILED_CREATE);
    let limit = pending(observed);
    if since(known, observed) >= limit {
        let seconds = limit.as_secs();
        let why =
            format!("Migration failed because no target pod could be made within {seconds} s: {message}");
        return fail(observed, Plan::default(), why);
    }
    let plan = hold(observed, status, REASON_FAILED_CREATE, message);
    if known.is_some_and(|known| known.message.as_deref() == Some(message)) {
        return plan;
    }
    plan.tell_vmi(Note::warning(REASON_FAILED_CREATE, message))
}

/// A claim is being filled. What fills it ends or fails by itself.
pub(super) fn fills(
    observed: &Observed,
    status: VirtualMachineInstanceMigrationStatus,
    message: &str,
) -> Plan {
    hold(observed, status, REASON_DATA_VOLUME_NOT_READY, message)
}

fn hold(
    observed: &Observed,
    mut status: VirtualMachineInstanceMigrationStatus,
    reason: &str,
    message: &str,
) -> Plan {
    let known = told(observed, reason);
    if known.is_none() {
        // It waited for something else: its time begins now.
        Condition::remove(&mut status.conditions, HELD);
    }
    condition(&mut status, HELD, reason, message, observed.now);
    let pause = (since(known, observed) / 10).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    Plan::default().act_if(write(observed, &status)).again_in(pause)
}

/// The condition, if it has that reason.
fn told<'a>(observed: &'a Observed, reason: &str) -> Option<&'a Condition> {
    let conditions = &observed.migration.status.as_ref()?.conditions;
    Condition::find(conditions, HELD).filter(|told| told.reason.as_deref() == Some(reason))
}

fn since(told: Option<&Condition>, observed: &Observed) -> Duration {
    age(told.and_then(|told| told.last_transition_time.as_ref()), observed)
}
