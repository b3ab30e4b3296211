//! A migration that the handlers carry out: their reports become its phase, and a user may cancel it. Pure.

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::{
    ABORT_REQUESTED, REJECTED_BY_QUOTA, SUCCESSFUL_ABORT, condition, copy, enter, of, write,
};
use crate::migrations::row::{Phase, entered};
use crate::vmi::moving::{abort, failed};
use crate::vmi::others::state;
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use barevirt_component::notes::Note;
use std::time::Duration;

/// How long the target's handler may take to prepare.
const PREPARES: Duration = Duration::from_secs(300);
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
    if observed.migration.metadata.deletion_timestamp.is_some() {
        condition(&mut status, ABORT_REQUESTED, "", "", observed.now);
        if state.abort_requested != Some(true) {
            let note = Note::normal(SUCCESSFUL_ABORT, "Migration is ready to be canceled by virt-handler.");
            plan = plan.act_if(abort(vmi, observed.now).map(Action::Vmi)).tell(note);
        }
    }
    let phase = reported_phase(vmi);
    if phase == Phase::PreparingTarget {
        let since = entered(&observed.migration, Phase::PreparingTarget).unwrap_or(observed.now);
        let age = Duration::try_from(observed.now.duration_since(since)).unwrap_or(Duration::ZERO);
        if age >= PREPARES {
            let reason = format!("the target node did not prepare within {} s", PREPARES.as_secs());
            return Plan::default().act_if(failed(vmi, &reason, observed.now).map(Action::Vmi));
        }
        plan = plan.again_in(PREPARES.saturating_sub(age));
    }
    let passes = phase < Phase::Running && observed.phase_due < WORTH_A_WRITE;
    if phase > reached && passes {
        plan = plan.again_in(WORTH_A_WRITE.saturating_sub(observed.phase_due));
    } else if phase > reached {
        enter(&mut status, phase, observed.now);
        copy(observed, &mut status);
        Condition::remove(&mut status.conditions, REJECTED_BY_QUOTA);
    }
    plan.act_if(write(observed, &status))
}
