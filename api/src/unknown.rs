//! Unknown fields of a manifest. The API server names them by its schema; here there is none, so that what was
//! read is written again and compared: what is missing then was not read.

use serde_json::Value;

/// Paths of what is in the manifest and not in what was read from it. An empty list says nothing, and is no loss; an empty
/// object may switch something on.
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
        // A value that is written in another way, such as a number for a text, was read all the same.
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
