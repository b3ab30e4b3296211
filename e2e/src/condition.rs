//! Conditions in the status of objects.

use serde_json::Value;

/// The condition of that type; null if the object does not have it.
pub fn condition(object: &Value, type_: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
}
