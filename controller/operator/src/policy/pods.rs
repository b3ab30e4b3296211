//! Only virt-controller may make pods that look like launchers, or like the pods that bring disks to them.
//!
//! Otherwise a user who may make pods in a namespace could put one where a launcher is expected: services and network
//! policies select launchers by their labels, and so do users. virt-controller itself trusts no label: the launcher is the
//! pod whose UID the API server returned to it.
//!
//! Only targets of migrations may ask for `/dev/userfaultfd` ([`USERFAULTFD_RESOURCE`]): a process that has it can make
//! the kernel wait when it accesses the process's memory. Nodes allow that only to privileged processes.

use crate::objects::metadata;
use barevirt_api::names::{
    APP_FIRST_CONSUMER, APP_HOTPLUG_DISK, APP_LABEL, APP_LAUNCHER, CREATED_BY_LABEL, DISKS_OF_LABEL,
    MIGRATION_JOB_LABEL, USERFAULTFD_RESOURCE,
};
use serde_json::{Value, json};

const NAME: &str = "kubevirt-launcher-pods-policy";

/// The policy and its binding.
pub(super) fn objects(controller: &str) -> [Value; 2] {
    // Other values of the label, such as those of components, are ignored.
    let values =
        [APP_LAUNCHER, APP_HOTPLUG_DISK, APP_FIRST_CONSUMER].map(|value| format!("'{value}'")).join(", ");
    let app = |labels: &str| format!("variables.{labels}[?'{APP_LABEL}'].orValue('')");
    let keys = [CREATED_BY_LABEL, MIGRATION_JOB_LABEL, DISKS_OF_LABEL];
    let keys = keys.map(|key| format!("'{key}'")).join(", ");
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(NAME, "virt-controller"),
            "spec": {
                "failurePolicy": "Fail",
                // Labels can also be written together with a status.
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/status"],
                    "operations": ["CREATE", "UPDATE"],
                }]},
                "matchConditions": [{
                    "name": "by-another",
                    "expression": format!("request.userInfo.username != '{controller}'"),
                }],
                "variables": [
                    {
                        "name": "before",
                        "expression": "oldObject == null ? {} : oldObject.metadata.?labels.orValue({})",
                    },
                    {"name": "after", "expression": "object.metadata.?labels.orValue({})"},
                ],
                "validations": [
                    {
                        "expression": format!(
                            "[{values}].all(v, ({before} == v) == ({after} == v))",
                            before = app("before"),
                            after = app("after"),
                        ),
                        "message": format!(
                            "only virt-controller makes pods with the label {APP_LABEL} of launchers and their \
                             disks, and labels pods so"
                        ),
                    },
                    {
                        "expression": format!(
                            "[{keys}].all(k, variables.before[?k].orValue('') == variables.after[?k].orValue('') && \
                             (k in variables.before) == (k in variables.after))"
                        ),
                        "message": format!(
                            "only virt-controller makes pods with the labels {CREATED_BY_LABEL}, \
                             {MIGRATION_JOB_LABEL} and {DISKS_OF_LABEL}, and labels pods so"
                        ),
                    },
                    {
                        "expression": format!(
                            "request.operation != 'CREATE' || \
                             (object.spec.containers + object.spec.?initContainers.orValue([])).all(c, \
                             !('{USERFAULTFD_RESOURCE}' in c.?resources.?limits.orValue({{}})))"
                        ),
                        "message": format!("only virt-controller makes pods that ask for {USERFAULTFD_RESOURCE}"),
                    },
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata("kubevirt-launcher-pods-binding", "virt-controller"),
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end-to-end test checks the expressions in the API server (`e2e/tests/together/squatter.rs`); this test checks
    /// their scope.
    #[test]
    fn labels_of_launchers_are_compared_before_and_after() {
        let [policy, binding] = objects("system:serviceaccount:kubevirt:kubevirt-controller");
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        let spec = &policy["spec"];
        let texts: Vec<&str> = ["matchConditions", "validations"]
            .into_iter()
            .flat_map(|list| spec[list].as_array().unwrap())
            .map(|entry| entry["expression"].as_str().unwrap())
            .collect();
        assert_eq!(
            texts,
            [
                "request.userInfo.username != 'system:serviceaccount:kubevirt:kubevirt-controller'",
                "['virt-launcher', 'hotplug-disk', 'first-consumer'].all(v, \
                 (variables.before[?'kubevirt.io'].orValue('') == v) == \
                 (variables.after[?'kubevirt.io'].orValue('') == v))",
                "['kubevirt.io/created-by', 'kubevirt.io/migrationJobUID', 'barevirt.dev/disks-of'].all(k, \
                 variables.before[?k].orValue('') == variables.after[?k].orValue('') && \
                 (k in variables.before) == (k in variables.after))",
                "request.operation != 'CREATE' || \
                 (object.spec.containers + object.spec.?initContainers.orValue([])).all(c, \
                 !('devices.kubevirt.io/userfaultfd' in c.?resources.?limits.orValue({})))",
            ]
        );
    }
}
