//! Where pods of the components may run.

use crate::syntax::{is_label_key, is_label_value, quoted};
use crate::v1::NodePlacement;
use crate::validate::{Cause, Path, placement};

const OPERATORS: [&str; 2] = ["Exists", "Equal"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// What the API server would refuse in pods of the components, so that these could not be installed.
pub(super) fn validate(path: &Path, given: &NodePlacement, causes: &mut Vec<Cause>) {
    if let Some(affinity) = &given.affinity {
        placement::affinity(&path.child("affinity"), affinity, causes);
    }
    let field = path.child("nodeSelector");
    for (key, value) in &given.node_selector {
        if !is_label_key(key) || !is_label_value(value) {
            let message = format!("{field}: {}={} is not a label", quoted(key), quoted(value));
            causes.push(Cause::invalid(&field, message));
        }
    }
    let path = path.child("tolerations");
    for toleration in &given.tolerations {
        for (field, value, known) in
            [("operator", &toleration.operator, &OPERATORS[..]), ("effect", &toleration.effect, &EFFECTS[..])]
        {
            let value = value.as_deref().filter(|value| !value.is_empty() && !known.contains(value));
            if let Some(value) = value {
                let (field, known) = (path.child(field), known.join(" "));
                let message = format!("{field} in body should be one of [{known}], and is {}", quoted(value));
                causes.push(Cause::invalid(&field, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn causes_of(placement: serde_json::Value) -> Vec<Cause> {
        let placement = serde_json::from_value(placement).unwrap();
        let mut causes = vec![];
        validate(&Path::new("spec.infra.nodePlacement"), &placement, &mut causes);
        causes
    }

    #[test]
    fn affinities_and_node_selectors_are_those_of_pods() {
        let required = |terms: serde_json::Value| {
            let nodes =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            json!({"affinity": {"nodeAffinity": nodes}, "nodeSelector": {"kubernetes.io/os": "linux"}})
        };
        let zone = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        assert_eq!(causes_of(required(json!([zone]))), []);
        let field = "spec.infra.nodePlacement.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let causes = causes_of(required(json!([])));
        assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), [field]);
        let causes = causes_of(json!({"nodeSelector": {"zone": "a b"}}));
        let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        assert_eq!(messages, ["spec.infra.nodePlacement.nodeSelector: zone=a b is not a label"]);
    }

    #[test]
    fn operators_and_effects_of_tolerations_are_kubernetes() {
        let messages = |toleration: serde_json::Value| -> Vec<String> {
            let causes = causes_of(json!({"tolerations": [toleration]}));
            causes.into_iter().map(|cause| cause.message).collect()
        };
        assert!(messages(json!({"key": "a", "operator": "Exists", "effect": "NoExecute"})).is_empty());
        assert!(messages(json!({"key": "a", "value": "b"})).is_empty());
        let refused = messages(json!({"key": "a", "operator": "foo", "effect": "bar"}));
        assert_eq!(refused.len(), 2);
        let operator =
            "spec.infra.nodePlacement.tolerations.operator in body should be one of [Exists Equal]";
        assert!(refused[0].starts_with(operator), "{refused:?}");
    }
}
