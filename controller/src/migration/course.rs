//! A migration that the handlers carry out: their reports become its phase, and a user may cancel it. Pure.

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::{
    ABORT_REQUESTED, REJECTED_BY_QUOTA, SUCCESSFUL_ABORT, condition, copy, copy_conditions, enter, of, write,
};
use crate::migrations::row::{Phase, entered};
use crate::vmi::moving::{abort, failed, overdue};
use crate::vmi::others::state;
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use barevirt_component::notes::Note;
use std::time::Duration;

/// How long the target's handler may take to prepare.
const PREPARES: Duration = Duration::from_secs(300);
/// How long the source's handler may then take to begin: as long.
const BEGINS: Duration = PREPARES;
/// How long a phase before the transfer lasts until it is written: most guests are being transferred by then.
pub(super) const WORTH_A_WRITE: Duration = Duration::from_secs(1);

/// The phase according to the instance's record.
pub(super) fn reported_phase(vmi: &VirtualMachineInstance) -> Phase {
    match state(vmi) {
        Some(state) if state.start_timestamp.is_some() => Phase::Running,
        Some(state) if state.is_prepared() => Phase::TargetReady,
        _ => Phase::PreparingTarget,
    }
}

/// Plans a migration that was handed over.
pub(super) fn plan(observed: &Observed, vmi: &VirtualMachineInstance, reached: Phase) -> Plan {
    let Some(state) = state(vmi) else { return Plan::default() };
    let mut status = of(observed);
    let mut plan = Plan::default();
    let is_cancelled = observed.migration.metadata.deletion_timestamp.is_some();
    if is_cancelled {
        condition(&mut status, ABORT_REQUESTED, "", "", observed.now);
        if state.abort_requested != Some(true) {
            let note = Note::normal(SUCCESSFUL_ABORT, "Migration is ready to be canceled by virt-handler.");
            plan = plan.act_if(abort(vmi, observed.now).map(Action::Vmi)).tell(note);
        }
    }
    let phase = reported_phase(vmi);
    if phase == Phase::PreparingTarget {
        let left = left(observed, phase, PREPARES);
        if left.is_zero() {
            let reason = format!("the target node did not prepare within {} s", PREPARES.as_secs());
            return Plan::default().act_if(failed(vmi, &reason, observed.now).map(Action::Vmi));
        }
        plan = plan.again_in(left);
    }
    if phase == Phase::TargetReady && !is_cancelled && state.abort_requested != Some(true) {
        let left = left(observed, phase, BEGINS);
        if left.is_zero() {
            let reason = format!("the source node did not begin within {} s", BEGINS.as_secs());
            return Plan::default().act_if(overdue(vmi, &reason).map(Action::Vmi));
        }
        plan = plan.again_in(left);
    }
    let passes = phase < Phase::Running && observed.phase_due < WORTH_A_WRITE;
    if phase > reached && passes {
        plan = plan.again_in(WORTH_A_WRITE.saturating_sub(observed.phase_due));
    } else if phase > reached {
        enter(&mut status, phase, observed.now);
        copy(observed, &mut status);
        Condition::remove(&mut status.conditions, REJECTED_BY_QUOTA);
    } else if phase == Phase::Running {
        copy_conditions(vmi, &mut status);
    }
    plan.act_if(write(observed, &status))
}

/// What is left of the time that a phase may take. It counts from when the phase was written.
fn left(observed: &Observed, phase: Phase, limit: Duration) -> Duration {
    let since = entered(&observed.migration, phase).unwrap_or(observed.now);
    let age = Duration::try_from(observed.now.duration_since(since)).unwrap_or(Duration::ZERO);
    limit.saturating_sub(age)
}
