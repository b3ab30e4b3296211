//! Admission: the writes that virt-api and virt-operator validate. `barevirt_api` has the list; certificates are added where
//! the objects are written.

use crate::objects::metadata;
use crate::operator::NAME;
use crate::workloads::{api_metadata, api_reference, operator_reference};
use barevirt_api::names::{
    APP_LABEL, APP_LAUNCHER, CONTAINER_PATHS_LABEL, INSTALL_NAMESPACE, SERVICE_ACCOUNT_API,
    SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER, SERVICE_ACCOUNT_OPERATOR,
};
use barevirt_api::webhooks::{Configuration, Hook, WEBHOOKS, Webhook};
use barevirt_component::certificates::Seal;
use serde_json::{Value, json};
use virt_api::route::EVACUATION_PATH;

pub(crate) fn objects() -> Vec<Value> {
    Configuration::ALL.into_iter().map(object).collect()
}

fn object(configuration: Configuration) -> Value {
    let kind = match configuration {
        Configuration::Mutator => "MutatingWebhookConfiguration",
        Configuration::Validator | Configuration::Operator => "ValidatingWebhookConfiguration",
    };
    let listed = WEBHOOKS.iter().filter(|webhook| webhook.configuration == configuration);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": match configuration {
            Configuration::Mutator | Configuration::Validator => api_metadata(configuration.name()),
            Configuration::Operator => metadata(configuration.name(), NAME),
        },
        "webhooks": listed.map(entry).collect::<Vec<Value>>(),
    })
}

/// The API server converts requests of other versions to the listed one (`matchPolicy`).
fn entry(webhook: &Webhook) -> Value {
    let mut service = match webhook.configuration {
        Configuration::Mutator | Configuration::Validator => api_reference(),
        Configuration::Operator => operator_reference(),
    };
    service["path"] = json!(format!("/{}", webhook.path));
    let mut entry = json!({
        "name": webhook.name,
        "clientConfig": {"service": service},
        "rules": [{
            "apiGroups": [webhook.api.0],
            "apiVersions": [webhook.api.1],
            "operations": webhook.operations,
            "resources": webhook.resources,
            "scope": "*",
        }],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
    });
    if webhook.hook == Hook::MutateLauncher {
        // No other pod waits for virt-api.
        entry["objectSelector"] = json!({
            "matchLabels": {APP_LABEL: APP_LAUNCHER},
            "matchExpressions": [{"key": CONTAINER_PATHS_LABEL, "operator": "Exists"}],
        });
        // Mounts that other webhooks add later count, too.
        entry["reinvocationPolicy"] = json!("IfNeeded");
    }
    if let Some((name, expression)) = condition(webhook.hook) {
        entry["matchConditions"] = json!([{"name": name, "expression": expression}]);
    }
    entry
}

/// The webhook by which an eviction marks its instance: for the same evictions as [`Hook::Eviction`], at a path that only
/// the API server and virt-api know. If it cannot be reached, the API server continues, and does not reveal the path to the
/// client; whether the pod is evicted is decided by the other webhook.
pub(crate) fn evacuation(seal: &Seal) -> Option<Value> {
    let webhook = WEBHOOKS.iter().find(|webhook| webhook.hook == Hook::Eviction)?;
    let mut entry = entry(webhook);
    entry["name"] = json!("virt-launcher-evacuation.kubevirt.io");
    entry["clientConfig"]["service"]["path"] = json!(format!("/{EVACUATION_PATH}/{}", seal.as_str()));
    entry["failurePolicy"] = json!("Ignore");
    entry["sideEffects"] = json!("NoneOnDryRun");
    Some(entry)
}

/// A further condition for virt-api to be called, as a name and a CEL expression.
fn condition(hook: Hook) -> Option<(&'static str, String)> {
    match hook {
        // The object of the request is the eviction, which has the pod's name and not its labels: evictions of other pods do
        // not wait for virt-api.
        Hook::Eviction => {
            let begins = |with: &str| format!("object.metadata.name.startsWith(\"{with}\")");
            Some(("only-vms", format!("{} || {}", begins("virt-launcher"), begins("hp-volume-"))))
        }
        // Writes of our components must not depend on virt-api, which includes virt-api's own start.
        Hook::Status | Hook::KubeVirtUpdate => Some(("not-by-a-component", not_by_a_component())),
        Hook::MutateMachine
        | Hook::MutateInstance
        | Hook::MutateMigration
        | Hook::MutateLauncher
        | Hook::InstanceCreate
        | Hook::InstanceUpdate
        | Hook::Machine
        | Hook::ReplicaSet
        | Hook::Pool
        | Hook::Preset
        | Hook::MigrationCreate
        | Hook::MigrationUpdate
        | Hook::Snapshot
        | Hook::SnapshotContent
        | Hook::Restore
        | Hook::Backup
        | Hook::BackupTracker
        | Hook::Export
        | Hook::Instancetype
        | Hook::ClusterInstancetype
        | Hook::Preference
        | Hook::ClusterPreference
        | Hook::MigrationPolicy
        | Hook::Clone
        | Hook::KubeVirtCreate
        | Hook::KubeVirtDelete => None,
    }
}

fn not_by_a_component() -> String {
    let accounts =
        [SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER, SERVICE_ACCOUNT_OPERATOR];
    let names = accounts.map(|account| format!("'system:serviceaccount:{INSTALL_NAMESPACE}:{account}'"));
    format!("!(request.userInfo.username in [{}])", names.join(", "))
}
