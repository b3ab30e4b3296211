//! Who may copy a claim of another namespace: CDI's rule, asked of the API server while a DataVolume is written.
//!
//! A DataVolume says nothing of who made it, so it is judged when it is made, and what it copies is not changed afterwards.
//! virt-controller copies from elsewhere only what was made while this policy was there. The DataVolumes of machines are made by
//! virt-controller itself, which has asked for the machine's account before.

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
                        // Empty where nothing is copied, or something of the same namespace.
                        "name": "from",
                        "expression": "variables.claim != '' ? variables.claim : \
                                       object.?spec.?sourceRef.?namespace.orValue('')",
                    },
                    {
                        // What a DataSource stands for has another name, and may have a third one tomorrow: the namespace counts.
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

    /// What the expressions do is shown by the API server (`e2e/tests/together/copies.rs`); here, what they are about.
    #[test]
    fn who_copies_from_elsewhere_is_asked_about_and_nothing_is_exchanged_afterwards() {
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
