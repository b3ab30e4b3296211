//! Which fields differ between two values.

use serde_json::Value;

/// A field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its path.
    pub path: String,
    /// The old value; null where the field did not exist.
    pub from: Value,
    /// The new value; null where the field is gone.
    pub to: Value,
}

/// The fields in which two values differ, as deep as both have them. Elements of lists are matched by their names, where
/// they have names.
pub fn changed(path: &str, old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(path, old, new, &mut changes);
    changes
}

fn compare(path: &str, old: &Value, new: &Value, changes: &mut Vec<Change>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(before), Value::Object(after)) => {
            for (name, new) in after {
                compare(&format!("{path}.{name}"), before.get(name).unwrap_or(&Value::Null), new, changes);
            }
            for (name, old) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
                compare(&format!("{path}.{name}"), old, &Value::Null, changes);
            }
        }
        (Value::Array(before), Value::Array(after)) => match (names(before), names(after)) {
            (Some(olds), Some(news)) => {
                for (new, name) in after.iter().zip(&news) {
                    let old = olds.iter().position(|old| old == name).and_then(|at| before.get(at));
                    compare(&format!("{path}[{name}]"), old.unwrap_or(&Value::Null), new, changes);
                }
                for (old, name) in before.iter().zip(&olds).filter(|(_, name)| !news.contains(name)) {
                    compare(&format!("{path}[{name}]"), old, &Value::Null, changes);
                }
            }
            _ => changes.push(Change { path: path.to_owned(), from: old.clone(), to: new.clone() }),
        },
        _ => changes.push(Change { path: path.to_owned(), from: old.clone(), to: new.clone() }),
    }
}

/// Names of all elements, where each has its own name.
fn names(list: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = list.iter().filter_map(|item| item.get("name")?.as_str()).collect();
    let unique = names.iter().collect::<std::collections::BTreeSet<_>>().len() == list.len();
    (names.len() == list.len() && unique).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_changed_field_is_reported_once() {
        let old = json!({"a": {"b": 1, "c": 2}, "l": [{"name": "x", "v": 1}, {"name": "y"}], "p": [1]});
        let new = json!({"a": {"b": 1, "d": 3}, "l": [{"name": "z"}, {"name": "x", "v": 2}], "p": [1, 2]});
        let changes = changed("spec", &old, &new);
        let paths: Vec<&str> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["spec.a.d", "spec.a.c", "spec.l[z]", "spec.l[x].v", "spec.l[y]", "spec.p"]);
        assert_eq!(changes[1], Change { path: "spec.a.c".to_owned(), from: json!(2), to: Value::Null });
        assert_eq!(changed("spec", &new, &new), []);
    }
}
