//! Additions of others to our objects. Server-side apply leaves fields alone that we never set, so an argument or a webhook
//! that another client added would stay; managed fields show who wrote which field, and fields of others are removed.
//!
//! Left alone: metadata, status, and what `kubectl rollout restart` writes.

use super::NAME;
use serde_json::{Map, Value, json};

/// Annotation of a pod template by which a user restarts its pods.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// A JSON patch that removes what others wrote into the object; `None` where there is nothing.
pub fn removal(object: &Value) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array()?;
    let whole = |entry: &&Value| entry["subresource"].as_str().unwrap_or_default().is_empty();
    let is_ours = |entry: &&Value| entry["manager"] == NAME && entry["operation"] == "Apply";
    let ours: Vec<&Value> =
        entries.iter().filter(whole).filter(is_ours).map(|entry| &entry["fieldsV1"]).collect();
    let mut paths = vec![];
    for entry in entries.iter().filter(whole).filter(|entry| !is_ours(entry)) {
        let Some(fields) = entry["fieldsV1"].as_object() else { continue };
        for (key, below) in fields {
            if key != "f:metadata" && key != "f:status" {
                collect(object, key, below, &ours, "", &mut paths);
            }
        }
    }
    paths.sort();
    paths.dedup();
    if paths.is_empty() {
        return None;
    }
    // Later items of a list first, so that the indexes of the others stay valid.
    paths.sort_by(|one, other| compare(other, one));
    let mut operations = vec![json!({
        "op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"],
    })];
    operations.extend(paths.iter().map(|path| json!({"op": "remove", "path": path})));
    Some(Value::Array(operations))
}

/// Compares part by part, numbers numerically.
fn compare(one: &str, other: &str) -> std::cmp::Ordering {
    let parts = |path: &str| -> Vec<(u64, String)> {
        path.split('/').map(|part| (part.parse().unwrap_or(0), part.to_owned())).collect()
    };
    parts(one).cmp(&parts(other))
}

/// Adds the paths of fields that are in `below` and in none of `ours`.
fn collect(parent: &Value, key: &str, below: &Value, ours: &[&Value], path: &str, paths: &mut Vec<String>) {
    // "." stands for the field itself; "v:" for an item of a set, which belongs to the list.
    let Some((part, value)) = step(parent, key) else { return };
    let path = format!("{path}/{}", part.replace('~', "~0").replace('/', "~1"));
    let ours: Vec<&Value> = ours.iter().filter_map(|fields| fields.get(key)).collect();
    if ours.is_empty() {
        if part != RESTARTED {
            paths.push(path);
        }
        return;
    }
    // The whole field is ours, even if others own parts of it: an apply has set it.
    if ours.iter().any(|fields| fields.as_object().is_none_or(Map::is_empty)) {
        return;
    }
    for (key, below) in below.as_object().into_iter().flatten() {
        collect(value, key, below, &ours, &path, paths);
    }
}

/// The member or item that a key of managed fields stands for: its name or index, and its value.
fn step<'a>(parent: &'a Value, key: &str) -> Option<(String, &'a Value)> {
    let (form, rest) = key.split_once(':')?;
    match form {
        "f" => Some((rest.to_owned(), parent.get(rest)?)),
        "k" => {
            let wanted: Map<String, Value> = serde_json::from_str(rest).ok()?;
            let (place, item) = parent.as_array()?.iter().enumerate().find(|(_, item)| {
                // A key may contain a default that the item leaves out, such as a port's protocol.
                wanted.iter().all(|(name, value)| item.get(name).is_none_or(|found| found == value))
            })?;
            Some((place.to_string(), item))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({
            "metadata": {"resourceVersion": "7", "managedFields": [
                {"manager": NAME, "operation": "Apply", "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:a": {}}},
                    "f:spec": {"f:replicas": {}, "f:template": {
                        "f:metadata": {"f:annotations": {"f:ours": {}}},
                        "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                            ".": {}, "f:name": {}, "f:args": {}, "f:env": {"k:{\"name\":\"E\"}": {".": {}, "f:value": {}}},
                        }}},
                    }},
                }},
                {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                    "fieldsV1": {"f:status": {"f:replicas": {}}}},
                {"manager": "kube-controller-manager", "operation": "Update",
                    "fieldsV1": {"f:metadata": {"f:annotations": {"f:deployment.kubernetes.io/revision": {}}}}},
            ]},
            "spec": {"replicas": 2, "template": {
                "metadata": {"annotations": {"ours": "x"}},
                "spec": {"containers": [{"name": "a", "args": ["x"], "env": [{"name": "E", "value": "1"}]}]},
            }},
        })
    }

    fn with(mut object: Value, fields: Value) -> Value {
        let entry = json!({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields});
        object["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
        object
    }

    #[test]
    fn fields_of_our_own_are_kept() {
        assert_eq!(removal(&deployment()), None);
        // A client that wrote the same values shares the fields.
        let shared = with(deployment(), json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(removal(&shared), None);
        assert_eq!(removal(&json!({"metadata": {}})), None);
    }

    #[test]
    fn fields_of_other_writers_are_removed() {
        let mut object = with(
            deployment(),
            json!({"f:spec": {"f:paused": {}, "f:template": {
                "f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}, "f:x/y": {}}},
                "f:spec": {"f:containers": {
                    "k:{\"name\":\"a\"}": {"f:env": {"k:{\"name\":\"F\"}": {".": {}, "f:value": {}}}},
                    "k:{\"name\":\"b\"}": {".": {}, "f:name": {}},
                    "k:{\"name\":\"c\"}": {".": {}, "f:name": {}},
                }},
            }}}),
        );
        let template = &mut object["spec"]["template"];
        template["metadata"]["annotations"] = json!({"ours": "x", "x/y": "", RESTARTED: "now"});
        let containers = template["spec"]["containers"].as_array_mut().unwrap();
        containers[0]["env"] = json!([{"name": "E", "value": "1"}, {"name": "F", "value": "2"}]);
        containers.extend([json!({"name": "b"}), json!({"name": "c"})]);
        object["spec"]["paused"] = json!(true);
        let patch = removal(&object).unwrap();
        let paths: Vec<&str> =
            patch.as_array().unwrap().iter().map(|operation| operation["path"].as_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/metadata/resourceVersion",
                "/spec/template/spec/containers/2",
                "/spec/template/spec/containers/1",
                "/spec/template/spec/containers/0/env/1",
                "/spec/template/metadata/annotations/x~1y",
                "/spec/paused",
            ]
        );
        // It is a valid JSON patch.
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(object["spec"]["template"]["spec"], deployment()["spec"]["template"]["spec"]);
    }

    #[test]
    fn an_absent_field_of_another_writer_is_not_removed() {
        let object = with(deployment(), json!({"f:spec": {"f:gone": {}}}));
        assert_eq!(removal(&object), None);
    }
}
