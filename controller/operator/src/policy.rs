//! A handler's token changes only what is on its own node, even when the token is stolen.
//!
//! The API server puts the node of the pod that a service account token was made for into the user's `extra`
//! (`authentication.kubernetes.io/node-name`). The policy compares it with the object, inside the API server, and so also
//! holds while virt-api is away.

use crate::objects::metadata;
use barevirt_api::names::{HANDLER_SIGNER, INSTALL_NAMESPACE, SERVICE_ACCOUNT_HANDLER};
use serde_json::{Value, json};

const NAME: &str = "kubevirt-node-restriction-policy";
/// Whether a label of a node is one that handlers write.
const OWN_LABEL: &str = "k == 'cpumanager' || k.startsWith('kubevirt.io/') || k.contains('.kubevirt.io/')";
/// Policy for what handlers ask to be certified.
const REQUESTS: &str = "kubevirt-handler-certificates-policy";

pub(crate) fn objects() -> Vec<Value> {
    let handler = format!("system:serviceaccount:{INSTALL_NAMESPACE}:{SERVICE_ACCOUNT_HANDLER}");
    let mut objects = node_restriction(&handler).to_vec();
    objects.extend(certificate_requests(&handler));
    objects
}

/// A handler asks our own signer only: whatever a stolen token asks another for, nobody can approve by mistake. Whether
/// a request is for the right node is the signer's to decide.
fn certificate_requests(handler: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(REQUESTS, "virt-handler"),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["certificates.k8s.io"], "apiVersions": ["v1"],
                    "resources": ["certificatesigningrequests"], "operations": ["CREATE"],
                }]},
                "matchConditions": [{
                    "name": "by-a-handler",
                    "expression": format!("request.userInfo.username == '{handler}'"),
                }],
                "validations": [
                    {
                        "expression": format!("object.spec.signerName == '{HANDLER_SIGNER}'"),
                        "message": format!("virt-handler is only allowed to ask {HANDLER_SIGNER} for certificates"),
                    },
                    {
                        "expression": "object.metadata.?generateName.orValue('').startsWith('virt-handler-')",
                        "message": "virt-handler is only allowed to make requests of generated names virt-handler-*",
                    },
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata("kubevirt-handler-certificates-binding", "virt-handler"),
            "spec": {"policyName": REQUESTS, "validationActions": ["Deny"]},
        }),
    ]
}

fn node_restriction(handler: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(NAME, "virt-handler"),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    {
                        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes"], "operations": ["UPDATE"],
                    },
                    {
                        "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"],
                        "resources": ["virtualmachineinstances"], "operations": ["UPDATE"],
                    },
                ]},
                "matchConditions": [{
                    "name": "by-a-handler",
                    "expression": format!("request.userInfo.username == '{handler}'"),
                }],
                "variables": [
                    {
                        "name": "node",
                        "expression": "request.userInfo.?extra['authentication.kubernetes.io/node-name'][0].orValue('')",
                    },
                    {"name": "isNode", "expression": "request.resource.group == ''"},
                    {"name": "labelsBefore", "expression": "oldObject.metadata.?labels.orValue({})"},
                    {"name": "labelsAfter", "expression": "object.metadata.?labels.orValue({})"},
                    {"name": "before", "expression": "oldObject.?status.?nodeName.orValue('')"},
                    {"name": "after", "expression": "object.?status.?nodeName.orValue('')"},
                ],
                "validations": [
                    {
                        "expression": "variables.node != ''",
                        "message": "Node restriction failed, virt-handler service account is missing node name",
                    },
                    {
                        "expression": "!variables.isNode || object.metadata.name == variables.node",
                        "message": "this user cannot modify this node",
                    },
                    {
                        "expression": "!variables.isNode || object.spec == oldObject.spec",
                        "message": "this user cannot modify spec of node",
                    },
                    {
                        "expression": format!(
                            "!variables.isNode || variables.labelsAfter.all(k, {OWN_LABEL} || \
                             (k in variables.labelsBefore && variables.labelsBefore[k] == variables.labelsAfter[k]))"
                        ),
                        "message": "this user cannot update non kubevirt-owned labels",
                    },
                    {
                        "expression": format!(
                            "!variables.isNode || variables.labelsBefore.all(k, {OWN_LABEL} || k in variables.labelsAfter)"
                        ),
                        "message": "this user cannot add/delete non kubevirt-owned labels",
                    },
                    {
                        "expression": "variables.isNode || variables.before == variables.node",
                        "message": "Node restriction, virt-handler is only allowed to modify VMIs it owns",
                    },
                    {
                        "expression": "variables.isNode || variables.after == variables.before",
                        "message": "Node restriction, virt-handler is not allowed to set target node",
                    },
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata("kubevirt-node-restriction-binding", "virt-handler"),
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        }),
    ]
}
