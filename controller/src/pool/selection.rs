//! The order in which machines of a pool are deleted.

use super::machine;
use super::observed::Machine;
use barevirt_api::pool::VirtualMachinePoolSelectionPolicy;
use barevirt_api::validate::kinds::selector;
use kube::ResourceExt;
use sha1::{Digest, Sha1};
use std::cmp::Reverse;

/// The machines that the policy allows to be deleted, in its order. The same machines always have the same order; even the
/// random order is derived from their UIDs.
pub(super) fn pick<'a>(
    mut machines: Vec<&'a Machine>,
    policy: Option<&VirtualMachinePoolSelectionPolicy>,
) -> Vec<&'a Machine> {
    machines.retain(|machine| is_selected(machine, policy));
    let number = |machine: &Machine| (machine::index(&machine.vm.name_any()), machine.vm.name_any());
    let created = |machine: &Machine| machine.vm.metadata.creation_timestamp.as_ref().map(|time| time.0);
    match policy.and_then(|policy| policy.sort_policy.as_deref()) {
        Some("AscendingOrder") => machines.sort_by_cached_key(|machine| number(machine)),
        Some("DescendingOrder") => machines.sort_by_cached_key(|machine| Reverse(number(machine))),
        Some("Newest") => {
            machines.sort_by_cached_key(|machine| (Reverse(created(machine)), Reverse(number(machine))));
        }
        Some("Oldest") => machines.sort_by_cached_key(|machine| (created(machine), number(machine))),
        // Random is also the default. Admission accepts no other policy.
        None | Some(_) => machines.sort_by_cached_key(|machine| {
            let digest = Sha1::digest(machine.vm.uid().unwrap_or_default());
            (digest.to_vec(), number(machine))
        }),
    }
    machines
}

fn is_selected(machine: &Machine, policy: Option<&VirtualMachinePoolSelectionPolicy>) -> bool {
    let Some(selectors) = policy.and_then(|policy| policy.selectors.as_ref()) else { return true };
    let template = &machine.vm.spec.template;
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    let by_labels =
        selectors.label_selector.as_ref().is_none_or(|wanted| selector::matches(wanted, labels) == Ok(true));
    let nodes = selector::node_selector_matches(
        &selectors.node_selector_requirement_matcher,
        template.spec.node_selector.as_ref(),
    );
    by_labels && nodes == Ok(true)
}
