//! Common parts of an installation's objects.

use barevirt_api::names::INSTALL_NAMESPACE;
use serde_json::{Value, json};

/// Priority class of the components: evicted after everything that is not critical for the cluster.
pub(crate) const PRIORITY_CLASS: &str = "kubevirt-cluster-critical";

/// A definition without the empty status of its type.
pub(crate) fn definition(definition: &impl serde::Serialize) -> Value {
    // A definition consists of strings, numbers and lists: it always has a JSON form.
    let mut value = serde_json::to_value(definition).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    value["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "kubevirt", "kubevirt.io": ""});
    value
}

/// Name and labels; `component`, if not empty, becomes a label.
pub(crate) fn metadata(name: &str, component: &str) -> Value {
    json!({
        "name": name,
        "labels": {"app.kubernetes.io/part-of": "kubevirt", "kubevirt.io": component},
    })
}

/// [`metadata`] in the components' namespace.
pub(crate) fn namespaced(name: &str, component: &str) -> Value {
    let mut metadata = metadata(name, component);
    metadata["namespace"] = json!(INSTALL_NAMESPACE);
    metadata
}
