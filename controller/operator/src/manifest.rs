//! The objects that a user applies: the operator with everything it needs, and a `KubeVirt` object for it.
//!
//! The operator's rights are computed. It may write the objects of the strategy by their names, and delete objects of their
//! kinds, since objects of a former or newer version have names that it does not know. And it holds every right that it
//! grants: the API server lets no client write a role with more rights than its own, unless it holds `escalate` or `bind`,
//! which the operator does not.

use crate::certificates::FORMER_SECRETS;
use crate::monitoring;
use crate::network_policies::policy;
use crate::objects::{PRIORITY_CLASS, definition, metadata, namespaced};
use crate::operator::NAME;
use crate::operator::kind::{Identity, Kind};
use crate::operator::upload_service::UPLOAD_SERVICE;
use crate::rbac::{CERTIFICATES, SECRETS, named, role_ref, rule, subjects};
use crate::workloads::{environment, pod, two_replicas, unprivileged};
use crate::{INSTALLED, Images, strategy, variable};
use barevirt_api::cdi::{
    CDI_DEFINITION, CLONE_SOURCE_DEFINITION, CONFIG_DEFINITION, DATA_SOURCE_DEFINITION,
    DATA_VOLUME_DEFINITION, IMPORT_CRON_DEFINITION, IMPORT_SOURCE_DEFINITION, STORAGE_PROFILE_DEFINITION,
    UPLOAD_SOURCE_DEFINITION,
};
use barevirt_api::crd;
use barevirt_api::names::{
    CA_CONFIG_MAP, HANDLER_SIGNER, INSTALL_NAMESPACE, KUBEVIRT_NAME, SERVICE_ACCOUNT_OPERATOR as ACCOUNT,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Port of `/healthz` and `/metrics` in the operator's pod.
const PORT: u16 = 8443;
/// Port of the webhook of the `KubeVirt` object.
const WEBHOOK_PORT: u16 = 8444;
/// Namespace with the configuration of the aggregator's identity.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// Kinds by which Prometheus' operator is configured.
const MONITORING_KINDS: [&str; 2] = ["servicemonitors", "prometheusrules"];
/// Group and plural of definitions.
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const RBAC: &str = "rbac.authorization.k8s.io";

/// KubeVirt's names of the operator's environment variables.
pub(crate) struct Variables {
    /// Its own image.
    image: &'static str,
    /// The version of images that have a digest and no tag.
    pub(crate) version: &'static str,
}

/// Variables about the operator itself.
pub(crate) const OWN: Variables = Variables { image: "VIRT_OPERATOR_IMAGE", version: "KUBEVIRT_VERSION" };

/// The operator, and the objects that it needs first.
pub fn manifest(images: &Images) -> Vec<Value> {
    let strategy = strategy(images);
    let mut reader = metadata(&format!("{ACCOUNT}-auth-reader"), NAME);
    reader["namespace"] = json!(SYSTEM_NAMESPACE);
    let mut binder = metadata(ACCOUNT, NAME);
    binder["namespace"] = json!(SYSTEM_NAMESPACE);
    vec![
        namespace(),
        definition(&crd::kubevirt()),
        priority_class(),
        people(),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced(ACCOUNT, NAME)}),
        role("ClusterRole", metadata(ACCOUNT, NAME), cluster_rules(&strategy)),
        binding("ClusterRoleBinding", metadata(ACCOUNT, NAME), ("ClusterRole", ACCOUNT)),
        role("Role", namespaced(ACCOUNT, NAME), local_rules(&strategy)),
        binding("RoleBinding", namespaced(ACCOUNT, NAME), ("Role", ACCOUNT)),
        role("Role", binder.clone(), system_rules(&strategy)),
        binding("RoleBinding", binder, ("Role", ACCOUNT)),
        // Granted to virt-api, so the operator must hold it, too.
        binding("RoleBinding", reader, ("Role", "extension-apiserver-authentication-reader")),
        policy(NAME, &[PORT, WEBHOOK_PORT]),
        deployment(images),
    ]
}

/// The object that asks for an installation, with default settings.
pub fn kubevirt() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": KUBEVIRT_NAME, "namespace": INSTALL_NAMESPACE},
        "spec": {"imagePullPolicy": "IfNotPresent"},
    })
}

/// The components' namespace. The handler needs node privileges, which Pod Security must allow there.
fn namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": INSTALL_NAMESPACE,
            "labels": {
                "kubevirt.io": "",
                // OpenShift's Prometheus reads only namespaces that have it.
                "openshift.io/cluster-monitoring": "true",
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

/// Administrators of the namespace may change the installation in it.
fn people() -> Value {
    let mut metadata = metadata("kubevirt.io:operator", "");
    metadata["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] = json!("true");
    let all = ["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];
    role("ClusterRole", metadata, vec![rule("kubevirt.io", &["kubevirts"], &all)])
}

fn role(kind: &str, metadata: Value, rules: Vec<Value>) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata, "rules": rules})
}

fn binding(kind: &str, metadata: Value, (role, name): (&str, &str)) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata,
        "roleRef": role_ref(role, name), "subjects": subjects(ACCOUNT),
    })
}

fn cluster_rules(strategy: &[Value]) -> Vec<Value> {
    let mut rules = vec![
        rule("kubevirt.io", &["kubevirts"], &["get", "list", "watch", "patch"]),
        rule("kubevirt.io", &["kubevirts/status"], &["update"]),
        // To check for instances before they would be lost.
        rule(
            "kubevirt.io",
            &["virtualmachines", "virtualmachineinstances", "virtualmachineinstancereplicasets"],
            &["list"],
        ),
        // Its fields change with the operator's version.
        named(DEFINITIONS.0, &[DEFINITIONS.1], &[&own_definition()], &["get", "patch"]),
        // Made where there is none, and changed where it is ours.
        named(
            DEFINITIONS.0,
            &[DEFINITIONS.1],
            &[
                DATA_VOLUME_DEFINITION,
                DATA_SOURCE_DEFINITION,
                IMPORT_CRON_DEFINITION,
                STORAGE_PROFILE_DEFINITION,
                CONFIG_DEFINITION,
                IMPORT_SOURCE_DEFINITION,
                CLONE_SOURCE_DEFINITION,
                UPLOAD_SOURCE_DEFINITION,
            ],
            &["get", "create", "patch"],
        ),
        named(DEFINITIONS.0, &[DEFINITIONS.1], &[CDI_DEFINITION], &["get"]),
        // Made where there is none, changed and deleted where it is ours.
        named("apiregistration.k8s.io", &["apiservices"], &[UPLOAD_SERVICE], &["get", "create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        // Handlers' certificate requests, and no other signer.
        rule(CERTIFICATES, &["certificatesigningrequests"], &["list", "watch", "delete"]),
        rule(
            CERTIFICATES,
            &["certificatesigningrequests/approval", "certificatesigningrequests/status"],
            &["patch"],
        ),
        named(CERTIFICATES, &["signers"], &[HANDLER_SIGNER], &["approve", "sign"]),
    ];
    rules.extend([
        // To find Prometheus, and to configure its operator.
        rule("", &["serviceaccounts"], &["get"]),
        rule(monitoring::GROUP, &MONITORING_KINDS, &["list", "watch", "delete"]),
        named(monitoring::GROUP, &MONITORING_KINDS, &[monitoring::NAME], &["create", "patch"]),
    ]);
    rules.extend(installs(strategy, None, &["list", "watch", "delete"]));
    rules.extend(granted(strategy, "ClusterRole"));
    once(rules)
}

/// Name of the definition of the `KubeVirt` kind.
fn own_definition() -> String {
    crd::kubevirt().metadata.name.unwrap_or_default()
}

fn local_rules(strategy: &[Value]) -> Vec<Value> {
    let leases = ["leases"];
    let watched: Vec<&str> = SECRETS.into_iter().filter(|name| !FORMER_SECRETS.contains(name)).collect();
    let mut rules = vec![
        named("coordination.k8s.io", &leases, &[NAME], &["get", "update"]),
        // RBAC cannot restrict `create` by name.
        rule("coordination.k8s.io", &leases, &["create"]),
        named("coordination.k8s.io", &leases, &["virt-controller"], &["get", "delete"]),
        // To find out why a component is not ready.
        rule("", &["pods"], &["list"]),
        named("", &["secrets"], &SECRETS, &["get", "create", "patch", "delete"]),
        named("", &["secrets"], &watched, &["list", "watch"]),
        named(RBAC, &["roles", "rolebindings"], &[monitoring::ROLE], &["create", "patch"]),
        named("", &["configmaps"], &[CA_CONFIG_MAP], &["get", "list", "watch", "create", "patch", "delete"]),
    ];
    rules.extend(installs(strategy, Some(INSTALL_NAMESPACE), &["list", "watch", "delete"]));
    rules.extend(granted(strategy, "Role"));
    rules.extend(monitoring::rights());
    once(rules)
}

fn system_rules(strategy: &[Value]) -> Vec<Value> {
    let names = names(strategy, Some(SYSTEM_NAMESPACE));
    let mut rules = installs(strategy, Some(SYSTEM_NAMESPACE), &["list", "watch"]);
    for (kind, names) in &names {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        rules.push(named(kind.group(), &[kind.plural()], &names, &["delete"]));
    }
    once(rules)
}

/// The names of the strategy's objects in a namespace, or of cluster-wide ones, by kind.
fn names(strategy: &[Value], namespace: Option<&str>) -> BTreeMap<Kind, BTreeSet<String>> {
    let mut names: BTreeMap<Kind, BTreeSet<String>> = BTreeMap::new();
    for identity in strategy.iter().filter_map(Identity::of) {
        if identity.namespace.as_deref() == namespace {
            names.entry(identity.kind).or_default().insert(identity.name);
        }
    }
    names
}

/// Rights to write the strategy's objects by name, and `verbs` for all objects of their kinds there.
fn installs(strategy: &[Value], namespace: Option<&str>, verbs: &[&str]) -> Vec<Value> {
    let mut rules = vec![];
    for (kind, names) in names(strategy, namespace) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        rules.push(rule(kind.group(), &[kind.plural()], verbs));
        rules.push(named(kind.group(), &[kind.plural()], &names, &["create", "patch"]));
    }
    rules
}

/// The rights that the strategy's roles of that kind grant.
fn granted(strategy: &[Value], kind: &str) -> Vec<Value> {
    let roles = strategy.iter().filter(|object| object["kind"] == kind);
    roles.flat_map(|role| role["rules"].as_array().into_iter().flatten().cloned()).collect()
}

/// Each rule once, in the order of first mention.
fn once(rules: Vec<Value>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    rules.into_iter().filter(|rule| seen.insert(rule.to_string())).collect()
}

/// Two replicas, one of which leads. They run on the same nodes as the components that they install.
fn deployment(images: &Images) -> Value {
    let image = images.reference(NAME);
    let probe = json!({"path": "/healthz", "port": PORT, "scheme": "HTTPS"});
    let mut environment = environment();
    if let Some(variables) = environment.as_array_mut() {
        variables.push(json!({"name": OWN.image, "value": image}));
        if !images.pinned.is_empty() {
            variables.push(json!({"name": OWN.version, "value": images.tag}));
        }
        let pinned = INSTALLED.iter().filter(|name| images.pinned.contains_key(**name));
        variables.extend(pinned.map(|name| json!({"name": variable(name), "value": images.reference(name)})));
    }
    let container = json!({
        "name": NAME,
        "image": image,
        "imagePullPolicy": images.pull_policy,
        "args": [
            format!("--namespace={INSTALL_NAMESPACE}"),
            format!("--image-pull-policy={}", images.pull_policy),
            format!("--listen=[::]:{PORT}"),
            format!("--webhook-listen=[::]:{WEBHOOK_PORT}"),
        ],
        "env": environment,
        "ports": [
            {"name": "metrics", "containerPort": PORT, "protocol": "TCP"},
            {"name": "webhooks", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": probe, "periodSeconds": 2, "timeoutSeconds": 10},
        "livenessProbe": {"httpGet": probe, "initialDelaySeconds": 15, "periodSeconds": 10, "timeoutSeconds": 10},
        // The memory that clients can make it use is bounded well below.
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "768Mi"}},
        "securityContext": unprivileged(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    two_replicas(NAME, pod(NAME, ACCOUNT, container, &json!([])))
}

#[cfg(test)]
mod tests;
