//! JSON merge patches (RFC 7396) from two values.
//!
//! Status is computed whole; only its difference to the stored status is sent, and nothing where there is none.

use serde_json::{Map, Value};

/// The merge patch that turns `old` into `new`, or none when they are equal.
///
/// Members that are gone become null; lists are replaced whole. A null member of `new` cannot be distinguished from a missing one;
/// our types leave such members out.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(stored) => {
                if let Some(change) = difference(stored, value) {
                    patch.insert(name.clone(), change);
                }
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

/// Applies a merge patch as the API server does: RFC 7396, section 2.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::default());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            apply(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..3i64).prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_patch_leads_from_old_to_new(old in value(), new in value()) {
            // At the root only objects are used: that is how whole objects are patched.
            let (old, new) = (json!({"o": old}), json!({"o": new}));
            match difference(&old, &new) {
                None => prop_assert_eq!(old, new),
                Some(patch) => {
                    let mut patched = old.clone();
                    apply(&mut patched, &patch);
                    prop_assert_eq!(patched, new);
                }
            }
        }
    }

    #[test]
    fn only_what_differs() {
        let old = json!({"phase": "Pending", "list": [1, 2], "gone": 1, "same": {"a": 1}});
        let new = json!({"phase": "Scheduled", "list": [1, 3], "same": {"a": 1}});
        assert_eq!(difference(&old, &new), Some(json!({"phase": "Scheduled", "list": [1, 3], "gone": null})));
        assert_eq!(difference(&new, &new), None);
    }
}
