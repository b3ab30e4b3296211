//! Plans a migration. Pure: the same observation gives the same plan.

use super::action::{Action, Plan};
use super::begin;
use super::course;
use super::observed::Observed;
use super::status::{SUCCESSFUL_MIGRATION, copy, enter, fail, metadata, of, write};
use crate::migrations::row::Phase;
use crate::vmi::kept;
use crate::vmi::others::{is_over, state};
use barevirt_api::firmware;
use barevirt_api::names::{
    MIGRATION_FINALIZER as FINALIZER, MIGRATION_SELECTOR_LABEL, is_final_phase, vmi_id,
};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::notes::Note;
use barevirt_plan::phase;
use kube::ResourceExt;
use serde_json::{Value, json};

/// The relation of the instance to a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It was not handed over to the migration.
    NotHandedOver,
    /// It was handed over, and the handlers act.
    HandedOver,
    /// It has moved.
    Moved,
    /// It has not moved and stays where it was.
    Stayed,
}

/// Read from the instance's record.
pub(super) fn relation(
    vmi: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
) -> Relation {
    match state(vmi).filter(|state| state.migration_uid == migration.metadata.uid) {
        None => Relation::NotHandedOver,
        Some(state) if !is_over(state) => Relation::HandedOver,
        Some(state) if state.failed == Some(true) => Relation::Stayed,
        Some(_) => Relation::Moved,
    }
}

/// Plans the next steps.
pub(super) fn plan(observed: &Observed) -> Plan {
    let migration = &observed.migration;
    // A migration that is not served was refused by admission; nothing is done for one that exists anyway.
    let Some(reached) = Phase::of(migration) else { return Plan::default() };
    if reached.is_final() {
        return finish(observed);
    }
    if let Some(marks) = missing_marks(migration) {
        return Plan::default().act(metadata(observed, marks));
    }
    let Some(vmi) = &observed.vmi else {
        let plan = begin::without_target(observed);
        return fail(observed, plan, "Migration failed because vmi does not exist.");
    };
    match relation(vmi, migration) {
        Relation::Moved => {
            let mut status = of(observed);
            enter(&mut status, Phase::Succeeded, observed.now);
            copy(observed, &mut status);
            let note = Note::normal(SUCCESSFUL_MIGRATION, "Source node reported migration succeeded");
            let settle = kept::moved(vmi).map(Action::SettleState);
            Plan::default().act_if(settle).act_if(write(observed, &status)).tell(note)
        }
        Relation::Stayed => fail(observed, Plan::default(), "source node reported migration failed"),
        // Both pods end with the instance, whose end decides.
        Relation::HandedOver if is_final_phase(phase(vmi)) => {
            fail(observed, Plan::default(), "Migration failed vmi shutdown during migration.")
        }
        Relation::HandedOver => course::plan(observed, vmi, reached),
        Relation::NotHandedOver if reached >= Phase::PreparingTarget => {
            let message = match state(vmi) {
                None => "VMI's migration state was cleared during the active migration.",
                Some(_) => {
                    "VMI's migration state was taken over by another migration job during active migration."
                }
            };
            fail(observed, begin::without_target(observed), message)
        }
        Relation::NotHandedOver => begin::plan(observed, vmi, reached),
    }
}

/// Marks that admission adds, where they are missing: without the finalizer, the pod could outlive the migration.
fn missing_marks(migration: &VirtualMachineInstanceMigration) -> Option<Value> {
    if migration.metadata.deletion_timestamp.is_some() {
        // No finalizer can be added any more.
        return None;
    }
    let has_finalizer = migration.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let instance = migration.spec.vmi_name.as_deref().unwrap_or_default();
    let has_label = migration.labels().contains_key(MIGRATION_SELECTOR_LABEL);
    if has_finalizer && has_label {
        return None;
    }
    let mut marks = json!({});
    if !has_finalizer {
        let mut finalizers = migration.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        marks["finalizers"] = json!(finalizers);
    }
    if !has_label {
        marks["labels"] = json!({MIGRATION_SELECTOR_LABEL: vmi_id(instance)});
    }
    Some(marks)
}

/// The migration has ended: its finalizer is removed, and surplus former migrations are deleted. The claim that a failed one
/// made is deleted first.
fn finish(observed: &Observed) -> Plan {
    let finalizers = observed.migration.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        return Plan::default();
    }
    let left: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let surplus = observed.surplus.iter().cloned();
    let plan = surplus.fold(Plan::default(), |plan, (name, uid)| plan.act(Action::Collect { name, uid }));
    let failed = Phase::of(&observed.migration) == Some(Phase::Failed);
    let keeps = observed.vmi.as_ref().is_none_or(|vmi| firmware::needs_state(&vmi.spec));
    let plan = plan.act_if((failed && keeps).then_some(Action::DiscardState));
    plan.act(metadata(observed, json!({ "finalizers": left })))
}
