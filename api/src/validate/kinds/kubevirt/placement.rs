//! Where pods of the components may run.

use crate::syntax::quoted;
use crate::v1::NodePlacement;
use crate::validate::{Cause, Path};

const OPERATORS: [&str; 2] = ["Exists", "Equal"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Words that the API server would refuse in pods of the components, so that these could not be installed.
pub(super) fn validate(path: &Path, placement: &NodePlacement, causes: &mut Vec<Cause>) {
    let path = path.child("tolerations");
    for toleration in &placement.tolerations {
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

    #[test]
    fn operators_and_effects_of_tolerations_are_kubernetes() {
        let messages = |toleration: serde_json::Value| -> Vec<String> {
            let placement = serde_json::from_value(json!({"tolerations": [toleration]})).unwrap();
            let mut causes = vec![];
            validate(&Path::new("spec.infra.nodePlacement"), &placement, &mut causes);
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
