//! Label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// Whether the labels are selected.
///
/// # Errors
/// What is wrong with the selector.
pub(super) fn matches(
    selector: &LabelSelector,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<bool, String> {
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let mut all = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, wanted)| get(key).is_some_and(|value| value == wanted));
    for rule in selector.match_expressions.iter().flatten() {
        let value = get(&rule.key);
        let values = rule.values.as_deref().unwrap_or_default();
        let listed = value.is_some_and(|value| values.contains(value));
        all &= match (rule.operator.as_str(), values.is_empty()) {
            ("In", false) => listed,
            ("NotIn", false) => !listed,
            ("In" | "NotIn", true) => {
                return Err(format!("{}: for 'in', 'notin' operators, values set can't be empty", rule.key));
            }
            ("Exists", true) => value.is_some(),
            ("DoesNotExist", true) => value.is_none(),
            ("Exists" | "DoesNotExist", false) => {
                return Err(format!("{}: values set must be empty for exists and does not exist", rule.key));
            }
            (other, _) => return Err(format!("{other:?} is not a valid label selector operator")),
        };
    }
    Ok(all)
}
