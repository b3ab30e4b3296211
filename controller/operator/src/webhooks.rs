//! Admission: which writes virt-api is asked about. The controller's leader adds the certificates.

use crate::workloads::{api_metadata, api_reference};
use serde_json::{Value, json};

pub(crate) fn objects() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": api_metadata("virt-api-mutator"),
            "webhooks": [
                webhook("virtualmachines-mutator", "virtualmachines", &["CREATE", "UPDATE"], "/virtualmachines-mutate"),
                webhook(
                    "virtualmachineinstances-mutator",
                    "virtualmachineinstances",
                    &["CREATE", "UPDATE"],
                    "/virtualmachineinstances-mutate",
                ),
            ],
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": api_metadata("virt-api-validator"),
            "webhooks": [
                webhook(
                    "virtualmachineinstances-create-validator",
                    "virtualmachineinstances",
                    &["CREATE"],
                    "/virtualmachineinstances-validate-create",
                ),
                webhook(
                    "virtualmachineinstances-update-validator",
                    "virtualmachineinstances",
                    &["UPDATE"],
                    "/virtualmachineinstances-validate-update",
                ),
                webhook("virtualmachine-validator", "virtualmachines", &["CREATE", "UPDATE"], "/virtualmachines-validate"),
            ],
        }),
    ]
}

/// Requests of other versions are converted to v1 by the API server (`matchPolicy`).
fn webhook(name: &str, resource: &str, operations: &[&str], path: &str) -> Value {
    let mut service = api_reference();
    service["path"] = json!(path);
    json!({
        "name": format!("{name}.kubevirt.io"),
        "clientConfig": {"service": service},
        "rules": [{
            "apiGroups": ["kubevirt.io"],
            "apiVersions": ["v1"],
            "operations": operations,
            "resources": [resource],
            "scope": "Namespaced",
        }],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
    })
}
