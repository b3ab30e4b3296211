//! Unknown fields of a manifest. The API server finds them with its schema. There is no schema here, so the
//! decoded manifest is encoded again and compared: a field that is missing then is unknown.

use serde_json::Value;

/// Paths of fields that are in the manifest but not in `read`, the manifest after decoding and encoding. A
/// missing empty list is not reported, because it has no effect; an empty object may switch something on.
pub fn fields(manifest: &Value, read: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    compare(String::new(), manifest, read, &mut lost);
    lost
}

fn compare(path: String, manifest: &Value, read: &Value, lost: &mut Vec<String>) {
    match (manifest, read) {
        (Value::Object(members), Value::Object(known)) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => compare(path, member, known, lost),
                    None if says_nothing(member) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            for (index, (item, known)) in items.iter().zip(known).enumerate() {
                compare(format!("{path}[{index}]"), item, known, lost);
            }
        }
        // A value in another form, such as a number instead of a text, was still read.
        _ => {}
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_is_named_with_its_path() {
        let manifest =
            json!({"a": 1, "b": {"c": [{"d": 1}, {"e": 1, "f": {"g": 1}}]}, "h": null, "i": [], "j": {}});
        let read = json!({"a": "1", "b": {"c": [{"d": 1, "default": 2}, {"f": {}}]}});
        assert_eq!(fields(&manifest, &read), ["b.c[1].e", "b.c[1].f.g", "j"]);
    }
}
