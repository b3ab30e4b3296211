//! A pool's status, computed whole from the observation and the result of the actions.

use super::observed::Observed;
use barevirt_api::names::{CONDITION_REPLICA_FAILURE, CONDITION_REPLICA_PAUSED, REASON_SUCCESSFUL_PAUSED};
use barevirt_api::pool::VirtualMachinePoolStatus;
use barevirt_api::v1::{Condition, merge_condition};
use barevirt_api::validate::kinds::selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A failure: reason and message of the condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Its reason, one word.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

/// Computes the status.
pub fn compute(observed: &Observed, failure: Option<&Failure>) -> VirtualMachinePoolStatus {
    let pool = &observed.pool;
    let mut status = pool.status.clone().unwrap_or_default();
    let count = |number: usize| Some(i32::try_from(number).unwrap_or(i32::MAX));
    status.replicas = count(observed.machines.len());
    status.ready_replicas = count(observed.machines.iter().filter(|machine| machine.is_ready()).count());
    status.label_selector = Some(selector::text(&pool.spec.selector)).filter(|text| !text.is_empty());
    let now = Time(observed.now);
    if pool.spec.paused == Some(true) {
        let condition = Condition::new(
            CONDITION_REPLICA_PAUSED,
            true,
            REASON_SUCCESSFUL_PAUSED,
            "Pool controller is paused",
        );
        merge_condition(&mut status.conditions, condition, &now);
    } else {
        Condition::remove(&mut status.conditions, CONDITION_REPLICA_PAUSED);
    }
    match failure {
        Some(Failure { reason, message }) => {
            let condition = Condition::new(CONDITION_REPLICA_FAILURE, true, reason, message);
            merge_condition(&mut status.conditions, condition, &now);
        }
        None => Condition::remove(&mut status.conditions, CONDITION_REPLICA_FAILURE),
    }
    status
}
