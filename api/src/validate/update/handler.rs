//! Changes of an instance by a handler. Its tokens are on all nodes, next to users' guests, so it may only
//! change what it needs to change.
//!
//! ```text
//!   the instance is on its node:
//!     status                   all but `nodeName`, `activePods`, `selinuxContext` and the controller's fields of a
//!                              migration
//!     annotations              the PCI layout
//!   a migration in progress moves it to the node:
//!     status.migrationState    all but the controller's fields
//!     status.nodeName          with the label, to its own node; then also the rest of the status
//!     annotations              then the PCI layout
//!   anything else              nothing
//! ```
//!
//! A migration is over as soon as its `completed` or `failed` is true. From then on the handler of its target
//! may not change the instance, unless the guest has arrived there. A migration cannot both fail and succeed:
//! the result that is written first counts.
//!
//! If a handler could change the specification, a stolen token could bring any claim of a namespace to its
//! node.

use super::super::{Cause, Path};
use crate::names::{NODE_NAME_LABEL, PCI_LAYOUT_ANNOTATION};
use crate::v1::{HotplugVolumeStatus, VirtualMachineInstance, VirtualMachineInstanceStatus};
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
    let (before, after) = (home(old), home(new));
    let moves_to = target(old).filter(|_| !is_over(old));
    let owns = before == Some(node);
    if !owns && moves_to != Some(node) {
        let message = "Node restriction, virt-handler is only allowed to modify VMIs it owns";
        return vec![Cause::invalid(&field, message)];
    }
    let arrives = before != after && after == Some(node) && moves_to == Some(node);
    if (before != after && !arrives) || target(old) != target(new) {
        let message = "Node restriction, virt-handler is not allowed to set target node";
        return vec![Cause::invalid(&field, message)];
    }
    let mut causes = Vec::new();
    let mut refuse = |field: &str, message: &str| causes.push(Cause::invalid(&Path::new(field), message));
    if !owns && !arrives && beside_migration(old) != beside_migration(new) {
        refuse("status", "virt-handler is only allowed to modify the migration of VMIs that move to it");
    }
    if of_controller(old) != of_controller(new) {
        refuse(
            "status.migrationState",
            "virt-handler is not allowed to say what is migrated, from where, to where and how",
        );
    }
    let known = attachments(old);
    if attachments(new).iter().any(|(volume, pod)| known.get(volume) != Some(pod)) {
        refuse(
            "status.volumeStatus",
            "virt-handler is not allowed to say which pods offer the disks of VMIs",
        );
    }
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
    let layout = of(notes, PCI_LAYOUT_ANNOTATION) == of(new_notes, PCI_LAYOUT_ANNOTATION);
    let others = without(notes, PCI_LAYOUT_ANNOTATION) == without(new_notes, PCI_LAYOUT_ANNOTATION);
    if !others || !(layout || owns || arrives) {
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
    let context = |vmi: &VirtualMachineInstance| vmi.status.as_ref()?.selinux_context.clone();
    if context(old) != context(new) {
        // The pod of a migration's target, on another node, gets its level.
        refuse(
            "status.selinuxContext",
            "virt-handler is not allowed to say under which SELinux label a VMI runs",
        );
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

/// Whether the latest migration has ended.
fn is_over(vmi: &VirtualMachineInstance) -> bool {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    state.is_some_and(|state| state.completed == Some(true) || state.failed == Some(true))
}

/// The status without the state of a migration.
fn beside_migration(vmi: &VirtualMachineInstance) -> VirtualMachineInstanceStatus {
    let status = vmi.status.clone().unwrap_or_default();
    VirtualMachineInstanceStatus { migration_state: None, ..status }
}

/// The fields of a migration that only the controller may write.
fn of_controller(vmi: &VirtualMachineInstance) -> impl PartialEq + use<'_> {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    state.map(|state| {
        let source = state.source_state.clone().unwrap_or_default();
        let target = state.target_state.clone().unwrap_or_default();
        (
            (&state.migration_uid, &state.migration_policy_name, &state.migration_configuration),
            (&state.source_node, &state.source_pod, &state.target_pod, state.abort_requested),
            (source.node, source.pod, source.migration_uid),
            (target.node, target.pod, target.migration_uid),
            (&state.target_attachment_pod_uid, target.attachment_pod_uid),
            (&state.source_persistent_state_pvc_name, &state.target_persistent_state_pvc_name),
        )
    })
}

/// Attachment pods by the names of their volumes. A handler takes the disks that these pods offer.
fn attachments(vmi: &VirtualMachineInstance) -> BTreeMap<&str, &HotplugVolumeStatus> {
    let told = vmi.status.iter().flat_map(|status| &status.volume_status);
    told.filter_map(|told| Some((told.name.as_str(), told.hotplug_volume.as_ref()?))).collect()
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
mod tests;
