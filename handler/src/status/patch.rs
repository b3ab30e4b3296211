//! Makes one merge patch from the present status of a VMI to the wanted one, or none if they are the same.
//!
//! The patch contains the resource version that the computation saw. If another client wrote meanwhile, the
//! API server refuses the patch and everything is computed again. It contains only what differs.

use barevirt_api::names::{NODE_NAME_LABEL, PCI_LAYOUT_ANNOTATION};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use serde_json::{Map, Value, json};

/// The patch that gives the VMI the status `wanted`; `None` if it has it. The launcher's layout of PCI
/// addresses is added for the next start, but is not by itself a reason for a patch. If the VMI changes
/// nodes, its label follows.
pub fn patch(
    vmi: &VirtualMachineInstance,
    wanted: &VirtualMachineInstanceStatus,
    layout: &str,
) -> Option<Value> {
    let present = vmi.status.clone().unwrap_or_default();
    if present == *wanted {
        return None;
    }
    let (present, wanted) = (fields(&present), fields(wanted));
    // A removed field is written as null; an equal field is not written.
    let mut changes: Map<String, Value> = present
        .keys()
        .filter(|name| !wanted.contains_key(*name))
        .map(|name| (name.clone(), Value::Null))
        .collect();
    changes.extend(wanted.into_iter().filter(|(name, value)| present.get(name) != Some(value)));
    let mut metadata = json!({ "resourceVersion": vmi.metadata.resource_version });
    let stored = vmi.metadata.annotations.as_ref().and_then(|stored| stored.get(PCI_LAYOUT_ANNOTATION));
    if !layout.is_empty() && stored.is_none_or(|stored| stored != layout) {
        metadata["annotations"] = json!({ PCI_LAYOUT_ANNOTATION: layout });
    }
    if let Some(node) = changes.get("nodeName").filter(|node| node.is_string()) {
        metadata["labels"] = json!({ NODE_NAME_LABEL: node });
    }
    Some(json!({ "metadata": metadata, "status": changes }))
}

fn fields(status: &VirtualMachineInstanceStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        // A struct with named fields is always an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use barevirt_api::v1::Condition;

    use super::*;

    fn vmi() -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance {
            status: Some(VirtualMachineInstanceStatus {
                phase: Some("Scheduled".to_owned()),
                node_name: Some("node01".to_owned()),
                reason: Some("Old".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        };
        vmi.metadata.resource_version = Some("42".to_owned());
        vmi
    }

    #[test]
    fn nothing_is_written_when_nothing_differs() {
        let vmi = vmi();
        assert_eq!(patch(&vmi, &vmi.status.clone().unwrap(), "{}"), None);
        assert_eq!(patch(&VirtualMachineInstance::default(), &Default::default(), ""), None);
    }

    #[test]
    fn the_label_of_the_node_follows() {
        let vmi = vmi();
        let mut wanted = vmi.status.clone().unwrap();
        wanted.node_name = Some("node02".to_owned());
        let patch = patch(&vmi, &wanted, "").unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"kubevirt.io/nodeName": "node02"}));
        assert_eq!(patch["metadata"]["resourceVersion"], "42");
    }

    #[test]
    fn only_differences_are_written_under_the_version_that_was_seen() {
        let vmi = vmi();
        let mut wanted = vmi.status.clone().unwrap();
        wanted.phase = Some("Running".to_owned());
        wanted.reason = None;
        wanted.conditions.push(Condition::new("Ready", true, "", ""));
        let expected = json!({
            "metadata": {"resourceVersion": "42"},
            "status": {
                "phase": "Running",
                "reason": null,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        assert_eq!(patch(&vmi, &wanted, ""), Some(expected.clone()));
        let with_layout = patch(&vmi, &wanted, "{}").unwrap();
        assert_eq!(with_layout["metadata"]["annotations"], json!({PCI_LAYOUT_ANNOTATION: "{}"}));
        assert_eq!(with_layout["status"], expected["status"]);
    }
}
