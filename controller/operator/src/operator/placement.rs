//! Where pods of the components may run: the `KubeVirt` object's placement is added to their own requirements.

use barevirt_api::v1::NodePlacement;
use serde_json::{Value, json};

/// Adds a placement to a pod's spec. If the component itself selects by a node label, its own value stays.
pub fn place(pod: &mut Value, placement: &NodePlacement) {
    for (label, value) in &placement.node_selector {
        if pod["nodeSelector"].get(label).is_none() {
            pod["nodeSelector"][label] = json!(value);
        }
    }
    if let Some(affinity) = &placement.affinity {
        add(&mut pod["affinity"], json!(affinity));
    }
    if !placement.tolerations.is_empty() {
        add(&mut pod["tolerations"], json!(placement.tolerations));
    }
}

/// Members are copied, lists are joined.
fn add(into: &mut Value, value: Value) {
    match (into, value) {
        (Value::Object(into), Value::Object(members)) => {
            for (name, member) in members {
                add(into.entry(name).or_insert(Value::Null), member);
            }
        }
        (Value::Array(into), Value::Array(items)) => {
            for item in items {
                if !into.contains(&item) {
                    into.push(item);
                }
            }
        }
        (into, value) => *into = value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_joined_and_the_components_own_selector_wins() {
        let placement: NodePlacement = serde_json::from_value(json!({
            "nodeSelector": {"kubernetes.io/os": "windows", "disk": "ssd"},
            "tolerations": [{"key": "x", "operator": "Exists"}, {"key": "own", "operator": "Exists"}],
            "affinity": {
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}},
                ]},
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                ]}},
            },
        }))
        .unwrap();
        let mut pod = json!({
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "own", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100}]}},
        });
        place(&mut pod, &placement);
        assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "disk": "ssd"}));
        assert_eq!(pod["tolerations"].as_array().unwrap().len(), 2);
        let anti = &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(anti.as_array().unwrap().len(), 2);
        let node = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(node["nodeSelectorTerms"][0]["matchExpressions"][0]["key"], "a");
    }

    #[test]
    fn a_pod_without_affinity_gets_one() {
        let placement: NodePlacement =
            serde_json::from_value(json!({"affinity": {"nodeAffinity": {}}})).unwrap();
        let mut pod = json!({});
        place(&mut pod, &placement);
        assert_eq!(pod, json!({"affinity": {"nodeAffinity": {}}}));
    }
}
