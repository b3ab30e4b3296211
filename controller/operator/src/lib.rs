//! What an installation consists of, as pure functions: custom resource definitions, roles, workloads, webhooks.
//!
//! ```text
//! Images --strategy()--> [object, ...] --yaml::print()--> manifests/barevirt.yaml --kubectl apply--> cluster
//! ```
//!
//! The order of the list is one in which the objects can be applied. Objects are JSON values, since that is what is
//! printed; a test reads each into its type and back, so that a misspelt field does not pass.

mod api_services;
mod images;
mod policy;
mod rbac;
mod user_roles;
mod webhooks;
mod workloads;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use images::Images;

use barevirt_api::crd;
use barevirt_api::names::INSTALL_NAMESPACE;
use serde_json::{Value, json};

/// Priority class of the components: evicted after everything that is not critical for the cluster.
const PRIORITY_CLASS: &str = "kubevirt-cluster-critical";

/// All objects of an installation, in the order in which they are applied.
pub fn strategy(images: &Images) -> Vec<Value> {
    let mut objects = vec![namespace(), priority_class()];
    objects.extend(crd::all().iter().map(definition));
    objects.extend(rbac::objects());
    objects.extend(user_roles::objects());
    objects.extend(policy::objects());
    objects.extend(workloads::objects(images));
    objects.extend(webhooks::objects());
    objects.extend(api_services::objects());
    objects
}

/// The components' namespace. The handler needs node privileges, which Pod Security must let pass there.
fn namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": INSTALL_NAMESPACE,
            "labels": {
                "kubevirt.io": "",
                "pod-security.kubernetes.io/enforce": "privileged",
            },
        },
    })
}

fn priority_class() -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": metadata(PRIORITY_CLASS, ""),
        "value": 1_000_000_000,
        "globalDefault": false,
        "description": "For the components of virtualization only.",
    })
}

/// A definition, without the empty status that its type brings along.
fn definition(definition: &impl serde::Serialize) -> Value {
    // A definition is made of strings, numbers and lists: it always has a JSON form.
    let mut value = serde_json::to_value(definition).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    value["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "kubevirt", "kubevirt.io": ""});
    value
}

/// Name, labels and, where there is a component, its name as a label.
fn metadata(name: &str, component: &str) -> Value {
    json!({
        "name": name,
        "labels": {"app.kubernetes.io/part-of": "kubevirt", "kubevirt.io": component},
    })
}

/// [`metadata`] in the components' namespace.
fn namespaced(name: &str, component: &str) -> Value {
    let mut metadata = metadata(name, component);
    metadata["namespace"] = json!(INSTALL_NAMESPACE);
    metadata
}
