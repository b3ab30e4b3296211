//! The pod that goes before an instance's launcher where claims wait for one before they are filled. Pure.
//!
//! ```text
//!   claims wait ──> made ──> placed: the claims are bound ──> deleted ──> (claims are filled) ──> the launcher
//!                    │ has ended, and a claim still waits
//!                    └──────> deleted, and after a pause the next one
//! ```
//!
//! It is made when nothing else keeps the instance from its launcher, and is gone before the launcher is made: a claim may
//! be for a single pod (`ReadWriteOncePod`). Once the claims are bound it may end in any state.

use super::action::{Action, Plan};
use super::claims::{self, Claims};
use super::consumer::{Consumer, is_first_consumer, release};
use super::observed::Observed;
use super::progress::{is_over, unschedulable};
use super::status::{note_trouble, status_patch, taken};
use barevirt_api::names::{
    CONDITION_POD_SCHEDULED, CONDITION_PROVISIONING, CONDITION_SYNCHRONIZED, CREATED_BY_LABEL,
    REASON_SYNC_FAILED,
};
use barevirt_api::v1::{Condition, VirtualMachineInstance, merge_condition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step<'a> {
    /// The launcher does not wait for it.
    Nothing,
    /// It is to be made.
    Make,
    /// It is to be made after a pause: the former one ended in vain.
    Pause(Duration),
    /// It is still needed.
    Keep(&'a Pod),
    /// It is to be deleted.
    Remove(&'a Pod),
    /// It is being deleted: its end is an event.
    Leaving,
    /// Another object has its name.
    Foreign(&'a Pod),
}

impl<'a> Step<'a> {
    /// The pod that is still needed.
    fn kept(self) -> Option<&'a Pod> {
        if let Step::Keep(pod) = self { Some(pod) } else { None }
    }
}

/// Plans the next step.
pub(super) fn step<'a>(vmi: &VirtualMachineInstance, claims: &Claims, consumer: &'a Consumer) -> Step<'a> {
    let (waits, trouble) = (claims.wait_for_consumer(), claims.trouble(vmi).is_some());
    let Some(pod) = &consumer.pod else {
        return match (waits && !trouble, consumer.pause) {
            (false, _) => Step::Nothing,
            (true, Duration::ZERO) => Step::Make,
            (true, pause) => Step::Pause(pause),
        };
    };
    if pod.labels().get(CREATED_BY_LABEL) != vmi.metadata.uid.as_ref() || !is_first_consumer(pod) {
        return if waits { Step::Foreign(pod) } else { Step::Nothing };
    }
    // Other claims of the same pod may be bound only when they are filled: the pod stays until then.
    let is_waited_for = waits || (trouble && claims.are_being_bound());
    if pod.metadata.deletion_timestamp.is_some() {
        Step::Leaving
    } else if is_waited_for && !is_over(pod) {
        Step::Keep(pod)
    } else {
        Step::Remove(pod)
    }
}

/// The plan while claims keep an instance from its launcher, or while the pod before the launcher still exists. A claim that
/// only waits for that pod is no failure: the condition `Provisioning` reports it, until there is a launcher.
pub(super) fn plan(observed: &Observed, step: Step<'_>, consumer: Option<Pod>) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    let synchronized = match (observed.claims.trouble(vmi), step) {
        (Some((reason, message)), _) => Some((reason, message)),
        (None, Step::Foreign(pod)) => Some((REASON_SYNC_FAILED, taken(&pod.name_any()))),
        (None, _) => None,
    };
    if let Some((reason, message)) = synchronized {
        note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, &message, observed.now);
    } else if step.kept().is_some() {
        // The reason of a refusal stays until there is a pod.
        Condition::remove(&mut status.conditions, CONDITION_SYNCHRONIZED);
    }
    match step.kept().and_then(unschedulable).or_else(|| observed.claims.missing(vmi)) {
        Some((reason, message)) => {
            note_trouble(&mut status, &mut notes, CONDITION_POD_SCHEDULED, &reason, &message, observed.now);
        }
        None => Condition::remove(&mut status.conditions, CONDITION_POD_SCHEDULED),
    }
    if observed.claims.wait_for_consumer() {
        let condition = Condition::new(CONDITION_PROVISIONING, true, "", "");
        merge_condition(&mut status.conditions, condition, &Time(observed.now));
    }
    observed.claims.note_filling(&mut status.conditions, observed.now);
    let patch = status_patch(vmi, json!({}), &status);
    let mut again = claims::INTERVAL;
    let action = match step {
        // Once the status has it, which is an event.
        Step::Make if patch.is_some() => None,
        Step::Make => consumer.map(|pod| Action::Provision { pod: Box::new(pod), volume: None }),
        Step::Remove(pod) => release(pod),
        Step::Pause(pause) => {
            again = again.min(pause);
            None
        }
        Step::Nothing | Step::Keep(_) | Step::Leaving | Step::Foreign(_) => None,
    };
    Plan { actions: patch.into_iter().chain(action).collect(), notes, again: Some(again) }
}

#[cfg(test)]
mod tests;
