//! Conditions of CDI's objects, and how a changed one is merged into those that an object has.

use barevirt_api::cdi::DataVolumeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::borrow::Cow;

/// A condition's fields.
pub(super) struct ConditionFields {
    type_: &'static str,
    status: &'static str,
    reason: Cow<'static, str>,
    message: String,
}

pub(super) fn condition(
    type_: &'static str,
    status: &'static str,
    reason: impl Into<Cow<'static, str>>,
    message: impl Into<String>,
) -> ConditionFields {
    ConditionFields { type_, status, reason: reason.into(), message: message.into() }
}

/// The conditions with one of them changed: at its place, with the time of its last transition.
pub(super) fn merged(
    mut all: Vec<DataVolumeCondition>,
    condition: ConditionFields,
    now: &Time,
) -> Vec<DataVolumeCondition> {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let mut new = DataVolumeCondition {
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
        message: text(&condition.message),
        reason: text(&condition.reason),
        status: condition.status.to_owned(),
        type_: condition.type_.to_owned(),
    };
    match all.iter_mut().find(|old| old.type_ == new.type_) {
        None => all.push(new),
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
                if (&old.message, &old.reason) == (&new.message, &new.reason) {
                    new.last_heartbeat_time = old.last_heartbeat_time.clone();
                }
            }
            *old = new;
        }
    }
    all
}
