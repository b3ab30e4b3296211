//! Roles for people, KubeVirt's names, aggregated to the roles of Kubernetes: who has `edit` in a
//! namespace can work with virtual machines there.

use crate::metadata;
use serde_json::{Value, json};

const KINDS: [&str; 2] = ["virtualmachines", "virtualmachineinstances"];
const READ: [&str; 3] = ["get", "list", "watch"];

pub(crate) fn objects() -> Vec<Value> {
    let write = ["get", "delete", "create", "update", "patch", "list", "watch"];
    let all = ["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];
    let commands = rule(
        "subresources.kubevirt.io",
        &["virtualmachines/start", "virtualmachines/stop", "virtualmachines/restart"],
        &["update"],
    );
    let console = |resources: &[&str]| rule("subresources.kubevirt.io", resources, &["get"]);
    let qmp = rule("subresources.kubevirt.io", &["virtualmachineinstances/qmp"], &["create"]);
    vec![
        role(
            "kubevirt.io:admin",
            Some("admin"),
            vec![
                console(&["virtualmachineinstances/console", "virtualmachineinstances/vnc"]),
                commands.clone(),
                qmp.clone(),
                rule("kubevirt.io", &KINDS, &all),
            ],
        ),
        role(
            "kubevirt.io:edit",
            Some("edit"),
            vec![
                console(&["virtualmachineinstances/console", "virtualmachineinstances/vnc"]),
                commands,
                qmp,
                rule("kubevirt.io", &KINDS, &write),
                rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
            ],
        ),
        role("kubevirt.io:view", Some("view"), vec![rule("kubevirt.io", &KINDS, &READ)]),
        role(
            "kubevirt.io:default",
            None,
            vec![
                rule("subresources.kubevirt.io", &["version", "guestfs"], &["get", "list"]),
                rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
            ],
        ),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata("kubevirt.io:default", ""),
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubevirt.io:default",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"},
            ],
        }),
    ]
}

fn role(name: &str, aggregate_to: Option<&str>, rules: Vec<Value>) -> Value {
    let mut metadata = metadata(name, "");
    if let Some(target) = aggregate_to {
        metadata["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{target}")] = json!("true");
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules,
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}
