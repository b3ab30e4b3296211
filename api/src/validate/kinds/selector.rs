//! Label selectors.

use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// Whether the labels are selected.
///
/// # Errors
/// What is wrong with the selector.
pub fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> Result<bool, String> {
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

/// The selector as one string, as Kubernetes writes it: rules in the order of their keys.
pub fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let mut rules: Vec<(&str, String)> =
        labels.map(|(key, value)| (key.as_str(), format!("{key}={value}"))).collect();
    for rule in selector.match_expressions.iter().flatten() {
        let key = rule.key.as_str();
        let mut values: Vec<&str> = rule.values.iter().flatten().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match rule.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            // `Exists`; admission allows no other operator here.
            _ => key.to_owned(),
        };
        rules.push((key, text));
    }
    rules.sort_by_key(|(key, _)| *key);
    rules.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// Whether a node selector fulfils all requirements.
///
/// # Errors
/// What is wrong with a requirement.
pub fn node_selector_matches(
    requirements: &[NodeSelectorRequirement],
    node_selector: Option<&BTreeMap<String, String>>,
) -> Result<bool, String> {
    let mut all = true;
    for requirement in requirements {
        let key = &requirement.key;
        let values = requirement.values.as_deref().unwrap_or_default();
        let value = node_selector.and_then(|labels| labels.get(key));
        let listed = value.is_some_and(|value| values.contains(value));
        let number = |text: &String| text.parse::<i64>().ok();
        all &= match (requirement.operator.as_str(), values) {
            ("In", [_, ..]) => listed,
            ("NotIn", [_, ..]) => !listed,
            ("Exists", []) => value.is_some(),
            ("DoesNotExist", []) => value.is_none(),
            (operator @ ("Gt" | "Lt"), [bound]) => {
                let bound = number(bound).ok_or_else(|| format!("{key}: {bound:?} is not a whole number"))?;
                let value = value.and_then(number);
                value.is_some_and(|value| if operator == "Gt" { value > bound } else { value < bound })
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt", _) => {
                return Err(format!("{key}: wrong number of values for {}", requirement.operator));
            }
            (other, _) => return Err(format!("{other:?} is not a valid label selector operator")),
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn text_is_in_the_order_of_keys() {
        let selector = |value: Value| serde_json::from_value::<LabelSelector>(value).unwrap();
        assert_eq!(text(&selector(json!({}))), "");
        assert_eq!(
            text(&selector(json!({
                "matchLabels": {"tier": "front", "app": "web"},
                "matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["b", "a"]}, {"key": "old", "operator": "DoesNotExist"},
                    {"key": "new", "operator": "Exists"}, {"key": "env", "operator": "NotIn", "values": ["test"]},
                ],
            }))),
            "app=web,env notin (test),new,!old,tier=front,zone in (a,b)"
        );
    }

    #[test]
    fn node_selectors_are_asked() {
        let labels: BTreeMap<String, String> =
            serde_json::from_value(json!({"zone": "a", "size": "7"})).unwrap();
        let ask = |rule: Value| {
            let rule: NodeSelectorRequirement = serde_json::from_value(rule).unwrap();
            node_selector_matches(&[rule], Some(&labels))
        };
        for (rule, wanted) in [
            (json!({"key": "zone", "operator": "In", "values": ["a", "b"]}), Ok(true)),
            (json!({"key": "zone", "operator": "NotIn", "values": ["a"]}), Ok(false)),
            (json!({"key": "zone", "operator": "Exists"}), Ok(true)),
            (json!({"key": "disk", "operator": "DoesNotExist"}), Ok(true)),
            (json!({"key": "size", "operator": "Gt", "values": ["6"]}), Ok(true)),
            (json!({"key": "size", "operator": "Lt", "values": ["7"]}), Ok(false)),
            (json!({"key": "zone", "operator": "Gt", "values": ["1"]}), Ok(false)),
            (
                json!({"key": "size", "operator": "Gt", "values": ["x"]}),
                Err("size: \"x\" is not a whole number".to_owned()),
            ),
            (json!({"key": "size", "operator": "In"}), Err("size: wrong number of values for In".to_owned())),
            (
                json!({"key": "size", "operator": "Near"}),
                Err("\"Near\" is not a valid label selector operator".to_owned()),
            ),
        ] {
            assert_eq!(ask(rule.clone()), wanted, "{rule}");
        }
        assert_eq!(node_selector_matches(&[], None), Ok(true));
    }
}
