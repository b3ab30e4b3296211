//! Restricts copies of claims of other namespaces: CDI's rule, checked by the API server when a DataVolume is written.
//!
//! A DataVolume does not name its author, so it is checked when it is made, and its source cannot be changed afterwards.
//! virt-controller copies from other namespaces only for DataVolumes that were made while this policy existed. The
//! DataVolumes of machines are made by virt-controller itself, which has already checked the machine's account.

use crate::objects::metadata;
use barevirt_api::cdi::GROUP;
use barevirt_api::names::{COPIES_BINDING, COPIES_POLICY};
use serde_json::{Value, json};

/// The policy and its binding.
pub(super) fn objects() -> [Value; 2] {
    let may = |check: &str| {
        format!("authorizer.{check}.namespace(variables.from).name(variables.name).check('create').allowed()")
    };
    let explicit = may(&format!("group('{GROUP}').resource('datavolumes').subresource('source')"));
    let implicit = may("group('').resource('pods')");
    let same =
        |field: &str| format!("object.?spec.{field}.orValue({{}}) == oldObject.?spec.{field}.orValue({{}})");
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(COPIES_POLICY, "virt-controller"),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["datavolumes"],
                    "operations": ["CREATE", "UPDATE"],
                }]},
                "variables": [
                    {"name": "claim", "expression": "object.?spec.?source.?pvc.?namespace.orValue('')"},
                    {
                        // Empty where nothing is copied, or from the same namespace.
                        "name": "from",
                        "expression": "variables.claim != '' ? variables.claim : \
                                       object.?spec.?sourceRef.?namespace.orValue('')",
                    },
                    {
                        // A DataSource may refer to another claim at any time, so only its namespace is checked.
                        "name": "name",
                        "expression": "variables.claim != '' ? object.?spec.?source.?pvc.?name.orValue('') : ''",
                    },
                ],
                "validations": [
                    {
                        "expression": format!(
                            "request.operation != 'CREATE' || variables.from in ['', request.namespace] || \
                             {explicit} || {implicit}"
                        ),
                        "messageExpression": "'User ' + request.userInfo.username + \
                                              ' has insufficient permissions in clone source namespace ' + string(variables.from)",
                        "reason": "Forbidden",
                    },
                    {
                        "expression": format!(
                            "request.operation != 'UPDATE' || {} && {}",
                            same("?source.?pvc"),
                            same("?sourceRef")
                        ),
                        "message": "Cannot update DataVolume Spec: what is copied is judged when the DataVolume is made",
                    },
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(COPIES_BINDING, "virt-controller"),
            "spec": {"policyName": COPIES_POLICY, "validationActions": ["Deny"]},
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end-to-end test checks the expressions in the API server (`e2e/tests/together/copies.rs`); this test checks their
    /// scope.
    #[test]
    fn copies_between_namespaces_are_authorized_and_their_source_is_immutable() {
        let [policy, binding] = objects();
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        let all = policy["spec"]["validations"].as_array().unwrap();
        let texts: Vec<&str> = all.iter().map(|entry| entry["expression"].as_str().unwrap()).collect();
        assert_eq!(
            texts,
            [
                "request.operation != 'CREATE' || variables.from in ['', request.namespace] || \
                 authorizer.group('cdi.kubevirt.io').resource('datavolumes').subresource('source')\
                 .namespace(variables.from).name(variables.name).check('create').allowed() || \
                 authorizer.group('').resource('pods')\
                 .namespace(variables.from).name(variables.name).check('create').allowed()",
                "request.operation != 'UPDATE' || \
                 object.?spec.?source.?pvc.orValue({}) == oldObject.?spec.?source.?pvc.orValue({}) && \
                 object.?spec.?sourceRef.orValue({}) == oldObject.?spec.?sourceRef.orValue({})",
            ]
        );
    }
}
