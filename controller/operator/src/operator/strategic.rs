//! Strategic merge, Kubernetes' own patch format, for the kinds of the components.
//!
//! Lists of named items are merged by name, all others are replaced. The directive `$patch` (`replace`, `delete`, `merge`)
//! is supported; others are refused by name.

use serde_json::{Map, Value};

/// Lists that are merged, and the key of their items. A list of that name has the same key wherever it occurs in the kinds
/// that can be patched.
const KEYED: [(&str, &str); 13] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("env", "name"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
    ("webhooks", "name"),
    ("matchConditions", "name"),
    ("ownerReferences", "uid"),
];

/// The key of a list that is merged. The key of ports differs between pods and services.
fn key(list: &str, items: &[Value]) -> Option<&'static str> {
    if list == "ports" {
        let in_pod = items.iter().any(|item| item.get("containerPort").is_some());
        return Some(if in_pod { "containerPort" } else { "port" });
    }
    KEYED.iter().find(|(name, _)| *name == list).map(|(_, key)| *key)
}

/// Applies a patch; returns the unsupported part as an error.
pub fn merge(object: &mut Value, patch: &Value) -> Result<(), String> {
    member(object, "", patch)
}

fn member(into: &mut Value, name: &str, patch: &Value) -> Result<(), String> {
    match patch {
        Value::Object(patch) => members(into, patch),
        Value::Array(items) => list(into, name, items),
        other => {
            *into = other.clone();
            Ok(())
        }
    }
}

fn members(into: &mut Value, patch: &Map<String, Value>) -> Result<(), String> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => *into = Value::Object(Map::new()),
        Some("delete") => {
            *into = Value::Null;
            return Ok(());
        }
        Some(other) => return Err(format!("the directive $patch: {other} is not known")),
    }
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(into) = into.as_object_mut() else { return Ok(()) };
    for (name, value) in patch {
        if name == "$patch" {
            continue;
        }
        if name.starts_with('$') {
            return Err(format!("the directive {name} is not known"));
        }
        if value.is_null() {
            into.remove(name);
            continue;
        }
        member(into.entry(name.clone()).or_insert(Value::Null), name, value)?;
        if into.get(name).is_some_and(Value::is_null) {
            into.remove(name);
        }
    }
    Ok(())
}

fn list(into: &mut Value, name: &str, items: &[Value]) -> Result<(), String> {
    let replaces =
        items.iter().any(|item| item.get("$patch").is_some_and(|directive| directive == "replace"));
    let key = key(name, items).filter(|_| !replaces);
    if !into.is_array() || key.is_none() {
        *into = Value::Array(vec![]);
    }
    let Some(into) = into.as_array_mut() else { return Ok(()) };
    for item in items {
        if replaces && item.get("$patch").is_some() {
            continue;
        }
        let place = match key {
            None => None,
            Some(key) => {
                let Some(value) = item.get(key) else {
                    return Err(format!("an item of {name} has no {key}"));
                };
                into.iter().position(|known| known.get(key) == Some(value))
            }
        };
        match place {
            Some(place) if item.get("$patch").is_some_and(|directive| directive == "delete") => {
                into.remove(place);
            }
            Some(place) => {
                if let Some(known) = into.get_mut(place) {
                    member(known, "", item)?;
                }
            }
            None if item.get("$patch").is_some_and(|directive| directive == "delete") => {}
            None => {
                let mut added = Value::Null;
                member(&mut added, "", item)?;
                into.push(added);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut object: Value, patch: Value) -> Value {
        merge(&mut object, &patch).unwrap();
        object
    }

    #[test]
    fn named_items_are_merged_and_other_lists_replaced() {
        let pod = json!({"spec": {
            "containers": [
                {"name": "a", "args": ["--x"], "env": [{"name": "E", "value": "1"}]},
                {"name": "b"},
            ],
            "tolerations": [{"key": "k"}],
        }});
        let patch = json!({"spec": {
            "containers": [{"name": "a", "args": ["--y"], "env": [{"name": "F", "value": "2"}]}],
            "tolerations": [],
            "hostPID": null,
        }});
        let expected = json!({"spec": {
            "containers": [
                {"name": "a", "args": ["--y"], "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}]},
                {"name": "b"},
            ],
            "tolerations": [],
        }});
        assert_eq!(merged(pod, patch), expected);
    }

    #[test]
    fn items_and_members_can_be_deleted_and_replaced() {
        let object = json!({"volumes": [{"name": "a"}, {"name": "b"}], "labels": {"x": "1"}, "n": 1});
        let patch = json!({
            "volumes": [{"name": "a", "$patch": "delete"}],
            "labels": {"$patch": "replace", "y": "2"},
            "n": null,
        });
        assert_eq!(merged(object, patch), json!({"volumes": [{"name": "b"}], "labels": {"y": "2"}}));
        let replaced =
            merged(json!({"env": [{"name": "a"}]}), json!({"env": [{"$patch": "replace"}, {"name": "b"}]}));
        assert_eq!(replaced, json!({"env": [{"name": "b"}]}));
        assert_eq!(merged(json!({"labels": {"x": "1"}}), json!({"labels": {"$patch": "delete"}})), json!({}));
    }

    #[test]
    fn ports_of_services_and_containers_have_different_merge_keys() {
        let service = json!({"ports": [{"port": 443, "targetPort": 8443}]});
        let patch = json!({"ports": [{"port": 443, "name": "https"}, {"port": 80}]});
        let expected = json!({"ports": [{"port": 443, "targetPort": 8443, "name": "https"}, {"port": 80}]});
        assert_eq!(merged(service, patch), expected);
        let container = json!({"ports": [{"containerPort": 1}]});
        let patch = json!({"ports": [{"containerPort": 1, "name": "x"}]});
        assert_eq!(merged(container, patch), json!({"ports": [{"containerPort": 1, "name": "x"}]}));
    }

    #[test]
    fn unknown_patch_directives_are_refused_by_name() {
        for (patch, word) in [
            (json!({"$retainKeys": ["a"]}), "$retainKeys"),
            (json!({"a": {"$patch": "other"}}), "other"),
            (json!({"containers": [{"image": "x"}]}), "name"),
        ] {
            let error = merge(&mut json!({"containers": []}), &patch).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
