//! What a handler changes of an instance. Its tokens are spread over all nodes, beside tenants' guests, so it may change what it
//! must and nothing else.
//!
//! ```text
//!   the instance is on its node, or a migration moves it there:
//!     status               all but `activePods` and the target of a migration, which are the controller's
//!     status.nodeName      the label with it: only to the target of a migration
//!     annotations          the PCI layout
//!   anything else          nothing
//! ```
//!
//! With the specification a stolen token would bring any claim of a namespace to its node.

use super::super::{Cause, Path};
use crate::names::{NODE_NAME_LABEL, PCI_LAYOUT_ANNOTATION};
use crate::v1::VirtualMachineInstance;
use std::collections::BTreeMap;

/// Everything wrong with a change of an instance by the handler of the node `node`. `None` is a token without a node.
pub fn handler_update(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    node: Option<&str>,
) -> Vec<Cause> {
    let field = Path::new("status.nodeName");
    let Some(node) = node else {
        let message = "Node restriction failed, virt-handler service account is missing node name";
        return vec![Cause::invalid(&field, message)];
    };
    let (before, after, moves_to) = (home(old), home(new), target(old));
    if before != Some(node) && moves_to != Some(node) {
        let message = "Node restriction, virt-handler is only allowed to modify VMIs it owns";
        return vec![Cause::invalid(&field, message)];
    }
    let arrives = after.is_some() && after == moves_to;
    if (before != after && !arrives) || moves_to != target(new) {
        let message = "Node restriction, virt-handler is not allowed to set target node";
        return vec![Cause::invalid(&field, message)];
    }
    let mut causes = Vec::new();
    let mut refuse = |field: &str, message: &str| causes.push(Cause::invalid(&Path::new(field), message));
    if old.spec != new.spec {
        refuse("spec", "virt-handler is not allowed to modify spec of VMIs");
    }
    let (labels, new_labels) = (&old.metadata.labels, &new.metadata.labels);
    if without(labels.as_ref(), NODE_NAME_LABEL) != without(new_labels.as_ref(), NODE_NAME_LABEL) {
        refuse("metadata.labels", "virt-handler is not allowed to modify labels of VMIs");
    }
    let label = of(new_labels.as_ref(), NODE_NAME_LABEL);
    if of(labels.as_ref(), NODE_NAME_LABEL) != label && !(arrives && label == moves_to) {
        refuse(
            "metadata.labels",
            "virt-handler is only allowed to label VMIs with the node they are moved to",
        );
    }
    let (notes, new_notes) = (old.metadata.annotations.as_ref(), new.metadata.annotations.as_ref());
    if without(notes, PCI_LAYOUT_ANNOTATION) != without(new_notes, PCI_LAYOUT_ANNOTATION) {
        refuse("metadata.annotations", "virt-handler is not allowed to modify annotations of VMIs");
    }
    let list = |given: &Option<Vec<_>>| given.clone().unwrap_or_default();
    if list(&old.metadata.owner_references) != list(&new.metadata.owner_references) {
        refuse("metadata.ownerReferences", "virt-handler is not allowed to modify owners of VMIs");
    }
    if old.metadata.finalizers.iter().flatten().ne(new.metadata.finalizers.iter().flatten()) {
        refuse("metadata.finalizers", "virt-handler is not allowed to modify finalizers of VMIs");
    }
    let pods = |vmi: &VirtualMachineInstance| {
        vmi.status.as_ref().map(|status| status.active_pods.clone()).unwrap_or_default()
    };
    if pods(old) != pods(new) {
        refuse("status.activePods", "virt-handler is not allowed to say which pod a VMI runs in");
    }
    causes
}

/// The node that an instance is on.
fn home(vmi: &VirtualMachineInstance) -> Option<&str> {
    vmi.status.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// The node that a migration moves an instance to.
fn target(vmi: &VirtualMachineInstance) -> Option<&str> {
    let migration = vmi.status.as_ref()?.migration_state.as_ref()?;
    migration.target_node.as_deref().filter(|node| !node.is_empty())
}

type Texts = BTreeMap<String, String>;

fn of<'a>(texts: Option<&'a Texts>, key: &str) -> Option<&'a str> {
    texts?.get(key).map(String::as_str)
}

fn without<'a>(texts: Option<&'a Texts>, key: &str) -> BTreeMap<&'a str, &'a str> {
    let others = texts.into_iter().flatten().filter(|(name, _)| *name != key);
    others.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// On node a, and from there to b.
    fn object() -> Value {
        json!({
            "metadata": {
                "name": "web", "labels": {"kubevirt.io/nodeName": "a", "app": "shop"},
                "annotations": {"note": "x"}, "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"],
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1"}],
            },
            "spec": {"domain": {"devices": {}}},
            "status": {
                "phase": "Running", "nodeName": "a", "activePods": {"p1": "a"},
                "migrationState": {"targetNode": "b"},
            },
        })
    }

    fn read(object: &Value) -> VirtualMachineInstance {
        serde_json::from_value(object.clone()).unwrap()
    }

    /// Fields that a handler of that node is refused.
    fn refused(node: &str, changes: &[(&str, Value)]) -> Vec<String> {
        let mut changed = object();
        for (at, value) in changes {
            let (parent, key) = at.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
        }
        let causes = handler_update(&read(&object()), &read(&changed), Some(node));
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_handler_changes_what_it_must_and_nothing_else() {
        let layout = ("/metadata/annotations/barevirt.dev~1pci-layout", json!("{}"));
        for node in ["a", "b"] {
            assert!(refused(node, &[("/status/phase", json!("Failed")), layout.clone()]).is_empty());
        }
        let volume = json!([{"name": "loot", "persistentVolumeClaim": {"claimName": "of-another"}}]);
        for (at, value, field) in [
            ("/spec/volumes", volume, "spec"),
            ("/spec/nodeSelector", json!({"a": "b"}), "spec"),
            ("/metadata/labels/app", json!("bank"), "metadata.labels"),
            ("/metadata/labels/more", json!(""), "metadata.labels"),
            ("/metadata/labels", json!({"kubevirt.io/nodeName": "a"}), "metadata.labels"),
            ("/metadata/labels/kubevirt.io~1nodeName", json!("b"), "metadata.labels"),
            ("/metadata/annotations/note", json!("y"), "metadata.annotations"),
            ("/metadata/annotations", json!({}), "metadata.annotations"),
            ("/metadata/ownerReferences", json!([]), "metadata.ownerReferences"),
            ("/metadata/finalizers", json!([]), "metadata.finalizers"),
            ("/status/activePods", json!({"p1": "a", "p2": "a"}), "status.activePods"),
            ("/status/activePods", json!({}), "status.activePods"),
        ] {
            assert_eq!(refused("a", &[(at, value.clone())]), [field], "{at} {value}");
            assert_eq!(refused("b", &[(at, value.clone())]), [field], "{at} {value}");
        }
    }

    #[test]
    fn an_instance_moves_only_where_its_migration_goes() {
        let (node, label) = ("/status/nodeName", "/metadata/labels/kubevirt.io~1nodeName");
        for by in ["a", "b"] {
            assert!(refused(by, &[(node, json!("b")), (label, json!("b"))]).is_empty());
            assert!(refused(by, &[(node, json!("b"))]).is_empty());
            assert_eq!(refused(by, &[(node, json!("c")), (label, json!("c"))]), ["status.nodeName"]);
            assert_eq!(refused(by, &[(node, json!(""))]), ["status.nodeName"]);
            assert_eq!(refused(by, &[(node, json!("b")), (label, json!("c"))]), ["metadata.labels"]);
            assert_eq!(
                refused(by, &[("/status/migrationState/targetNode", json!("c"))]),
                ["status.nodeName"]
            );
        }
        assert_eq!(refused("c", &[]), ["status.nodeName"]);
        assert_eq!(refused("c", &[("/status/migrationState/targetNode", json!("c"))]), ["status.nodeName"]);
    }
}
