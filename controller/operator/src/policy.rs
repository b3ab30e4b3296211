//! Limits of a stolen token and of users who make pods, enforced in the API server: these policies also hold while virt-api
//! is down.
//!
//! A handler's token may only change objects on its own node. For a service account token of a pod, the API server puts the
//! pod's node into the user's `extra` (`authentication.kubernetes.io/node-name`); the policy compares it with the object.
//! [`instances`]: fields of an instance that it may change. [`pods`]: pods that look like ours. [`copies`]: copies of claims
//! of other namespaces.

mod copies;
mod instances;
mod pods;

use crate::objects::metadata;
use barevirt_api::names::{
    HANDLER_SIGNER, INSTALL_NAMESPACE, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER,
};
use serde_json::{Value, json};

const NAME: &str = "kubevirt-node-restriction-policy";
/// Whether handlers write this label of nodes.
const OWN_LABEL: &str = "k == 'cpumanager' || k.startsWith('kubevirt.io/') || k.contains('.kubevirt.io/')";
/// Policy for handlers' certificate requests.
const REQUESTS: &str = "kubevirt-handler-certificates-policy";

pub(crate) fn objects() -> Vec<Value> {
    let handler = format!("system:serviceaccount:{INSTALL_NAMESPACE}:{SERVICE_ACCOUNT_HANDLER}");
    let controller = format!("system:serviceaccount:{INSTALL_NAMESPACE}:{SERVICE_ACCOUNT_CONTROLLER}");
    let mut objects = node_restriction(&handler).to_vec();
    objects.extend(certificate_requests(&handler));
    objects.extend(pods::objects(&controller));
    objects.extend(copies::objects());
    objects
}

/// A handler may only ask our own signer: so no other request of a stolen token can be approved by mistake. The signer
/// itself checks the node in the request.
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
    let mut variables = vec![
        json!({
            "name": "node",
            "expression": "request.userInfo.?extra['authentication.kubernetes.io/node-name'][0].orValue('')",
        }),
        json!({"name": "isNode", "expression": "request.resource.group == ''"}),
        json!({"name": "labelsBefore", "expression": "oldObject.metadata.?labels.orValue({})"}),
        json!({"name": "labelsAfter", "expression": "object.metadata.?labels.orValue({})"}),
    ];
    variables.extend(instances::variables());
    let mut validations = vec![
        json!({
            "expression": "variables.node != ''",
            "message": "Node restriction failed, virt-handler service account is missing node name",
        }),
        json!({
            "expression": "!variables.isNode || object.metadata.name == variables.node",
            "message": "this user cannot modify this node",
        }),
        json!({
            "expression": "!variables.isNode || object.spec == oldObject.spec",
            "message": "this user cannot modify spec of node",
        }),
        json!({
            "expression": format!(
                "!variables.isNode || variables.labelsAfter.all(k, {OWN_LABEL} || \
                 (k in variables.labelsBefore && variables.labelsBefore[k] == variables.labelsAfter[k]))"
            ),
            "message": "this user cannot update non kubevirt-owned labels",
        }),
        json!({
            "expression": format!(
                "!variables.isNode || variables.labelsBefore.all(k, {OWN_LABEL} || k in variables.labelsAfter)"
            ),
            "message": "this user cannot add/delete non kubevirt-owned labels",
        }),
    ];
    validations.extend(instances::validations());
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
                "variables": variables,
                "validations": validations,
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
