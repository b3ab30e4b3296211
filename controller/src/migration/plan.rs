//! What to do about a migration. Pure: the same observation gives the same plan.

use super::action::{Action, Plan};
use super::begin;
use super::course;
use super::observed::Observed;
use super::status::{SUCCESSFUL_MIGRATION, copy, enter, fail, metadata, of, write};
use crate::migrations::row::Phase;
use crate::vmi::others::{is_over, state};
use barevirt_api::names::{
    MIGRATION_FINALIZER as FINALIZER, MIGRATION_SELECTOR_LABEL, is_final_phase, vmi_id,
};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::notes::Note;
use barevirt_plan::phase;
use kube::ResourceExt;
use serde_json::{Value, json};

/// How the instance stands to a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was not handed over to it.
    Apart,
    /// Handlers have it in hand.
    Handed,
    /// It moved.
    Moved,
    /// It did not, and stays where it was.
    Stayed,
}

/// By the instance's own record.
pub(super) fn standing(
    vmi: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
) -> Standing {
    match state(vmi).filter(|state| state.migration_uid == migration.metadata.uid) {
        None => Standing::Apart,
        Some(state) if !is_over(state) => Standing::Handed,
        Some(state) if state.failed == Some(true) => Standing::Stayed,
        Some(_) => Standing::Moved,
    }
}

/// Decides.
pub(super) fn plan(observed: &Observed) -> Plan {
    let migration = &observed.migration;
    // What is not served was refused; should there be one all the same, nothing happens.
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
    match standing(vmi, migration) {
        Standing::Moved => {
            let mut status = of(observed);
            enter(&mut status, Phase::Succeeded, observed.now);
            copy(observed, &mut status);
            let note = Note::normal(SUCCESSFUL_MIGRATION, "Source node reported migration succeeded");
            Plan::default().act_if(write(observed, &status)).tell(note)
        }
        Standing::Stayed => fail(observed, Plan::default(), "source node reported migration failed"),
        // Both pods go with the instance, and it has the last word.
        Standing::Handed if is_final_phase(phase(vmi)) => {
            fail(observed, Plan::default(), "Migration failed vmi shutdown during migration.")
        }
        Standing::Handed => course::plan(observed, vmi, reached),
        Standing::Apart if reached >= Phase::PreparingTarget => {
            let message = match state(vmi) {
                None => "VMI's migration state was cleared during the active migration.",
                Some(_) => {
                    "VMI's migration state was taken over by another migration job during active migration."
                }
            };
            fail(observed, begin::without_target(observed), message)
        }
        Standing::Apart => begin::plan(observed, vmi, reached),
    }
}

/// What admission adds, where it has not: without the finalizer what it makes could outlive it.
fn missing_marks(migration: &VirtualMachineInstanceMigration) -> Option<Value> {
    if migration.metadata.deletion_timestamp.is_some() {
        // None can be added any more.
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

/// It has ended: it may go, and former ones that are too many go now.
fn finish(observed: &Observed) -> Plan {
    let finalizers = observed.migration.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        return Plan::default();
    }
    let left: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let surplus = observed.surplus.iter().cloned();
    let plan = surplus.fold(Plan::default(), |plan, (name, uid)| plan.act(Action::Collect { name, uid }));
    plan.act(metadata(observed, json!({ "finalizers": left })))
}
