//! The aggregated API `subresources.kubevirt.io` and the service that answers it. The leading operator adds the
//! certificates.

use crate::workloads::{api_metadata, api_reference};
use serde_json::{Value, json};

/// Group of the aggregated API.
const GROUP: &str = "subresources.kubevirt.io";

pub(crate) fn objects() -> Vec<Value> {
    ["v1", "v1alpha3"]
        .into_iter()
        .map(|version| {
            json!({
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": api_metadata(&format!("{version}.{GROUP}")),
                "spec": {
                    "group": GROUP,
                    "version": version,
                    // Lower than the priority of custom resources: `kubectl get virtualmachines` means those.
                    "groupPriorityMinimum": 900,
                    "versionPriority": 15,
                    "service": api_reference(),
                },
            })
        })
        .collect()
}
