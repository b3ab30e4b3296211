//! Conditions, which have the same form in all our kinds, and how a computed set replaces a stored one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One observed aspect of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is observed, for example `Ready`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason as one word, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason as a sentence, for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was last observed; KubeVirt writes it as null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

impl Condition {
    /// A condition without a transition time: [`merge_condition`] fills it in.
    pub fn new(type_: &str, status: bool, reason: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Condition {
            type_: type_.to_owned(),
            status: if status { "True" } else { "False" }.to_owned(),
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
            message: (!message.is_empty()).then_some(message),
            last_probe_time: None,
            last_transition_time: None,
        }
    }

    /// Whether the status is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// The condition of this type, if there is one.
    pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
        conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether there is a condition of this type with status `True`.
    pub fn is_set(conditions: &[Condition], type_: &str) -> bool {
        Self::find(conditions, type_).is_some_and(Condition::is_true)
    }

    /// Removes the condition of this type; the others keep their order.
    pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
        conditions.retain(|condition| condition.type_ != type_);
    }
}

/// Sets `wanted` in `conditions`: it replaces the condition of its type, or is added at the end. The
/// transition time is kept while the status stays the same and becomes `now` otherwise, so an unchanged
/// observation changes nothing.
pub fn merge_condition(conditions: &mut Vec<Condition>, wanted: Condition, now: &Time) {
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.type_) {
        Some(stored) => {
            let since =
                if stored.status == wanted.status { stored.last_transition_time.clone() } else { None };
            let probed = wanted.last_probe_time.clone().or_else(|| stored.last_probe_time.clone());
            *stored = Condition {
                last_transition_time: since.or_else(|| Some(now.clone())),
                last_probe_time: probed,
                ..wanted
            };
        }
        None => conditions.push(Condition { last_transition_time: Some(now.clone()), ..wanted }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn same_status_keeps_the_transition_time_and_the_place() {
        let mut conditions = vec![];
        merge_condition(&mut conditions, Condition::new("Ready", false, "A", ""), &at(1));
        merge_condition(&mut conditions, Condition::new("Synchronized", true, "", ""), &at(2));
        merge_condition(&mut conditions, Condition::new("Ready", false, "B", "text"), &at(3));
        assert_eq!(conditions[0].type_, "Ready");
        assert_eq!(conditions[0].reason.as_deref(), Some("B"));
        assert_eq!(conditions[0].last_transition_time, Some(at(1)));
        merge_condition(&mut conditions, Condition::new("Ready", true, "", ""), &at(4));
        assert_eq!(conditions[0].last_transition_time, Some(at(4)));
        assert_eq!(conditions[0].reason, None);
        assert_eq!(conditions.len(), 2);
    }

    #[test]
    fn the_same_observation_changes_nothing() {
        let mut conditions = vec![];
        merge_condition(&mut conditions, Condition::new("Ready", true, "", ""), &at(1));
        let before = conditions.clone();
        merge_condition(&mut conditions, Condition::new("Ready", true, "", ""), &at(9));
        assert_eq!(conditions, before);
    }

    #[test]
    fn removes_and_finds() {
        let mut conditions = vec![Condition::new("A", true, "", ""), Condition::new("B", false, "", "")];
        assert!(Condition::is_set(&conditions, "A"));
        assert!(!Condition::is_set(&conditions, "B"));
        Condition::remove(&mut conditions, "A");
        assert!(Condition::find(&conditions, "A").is_none());
        assert_eq!(conditions.len(), 1);
    }
}
