//! Restricts a handler's token to the fields of an instance that handlers change.
//!
//! The same rules as virt-api's `validate::handler_update`, for when virt-api is down. The specification is critical: with
//! it, a stolen token could bring any claim of the namespace to its node. Labels and owner references show the owner of an
//! instance, finalizers show when it is gone, `status.activePods` names the pod that counts as the launcher, and the level in
//! `status.selinuxContext` is that of the pod to which a migration moves the guest.

use barevirt_api::names::{NODE_NAME_LABEL, PCI_LAYOUT_ANNOTATION};
use serde_json::{Value, json};

/// Fields of a migration that only the controller writes. `migrationConfiguration`, the names in both sides' details and the
/// pods that offer disks to a guest that stays are left to virt-api.
const OF_CONTROLLER: [&str; 6] = [
    "migrationUid",
    "sourceNode",
    "sourcePod",
    "targetPod",
    "migrationPolicyName",
    // A handler uses the disks that these pods offer.
    "targetAttachmentPodUID",
];

/// Variables of the rules. `before`, `after`: the node of the instance; `target`: the target node of its migration, until
/// the migration has ended.
pub(super) fn variables() -> Vec<Value> {
    let text = |name: &str, expression: &str| json!({"name": name, "expression": expression});
    vec![
        text("before", "oldObject.?status.?nodeName.orValue('')"),
        text("after", "object.?status.?nodeName.orValue('')"),
        text("targetBefore", "oldObject.?status.?migrationState.?targetNode.orValue('')"),
        text("targetAfter", "object.?status.?migrationState.?targetNode.orValue('')"),
        text(
            "target",
            "oldObject.?status.?migrationState.?completed.orValue(false) || \
             oldObject.?status.?migrationState.?failed.orValue(false) ? '' : variables.targetBefore",
        ),
        text(
            "arrives",
            "variables.target != '' && variables.target == variables.node && \
             variables.after == variables.target && variables.before != variables.after",
        ),
        text("notesBefore", "oldObject.metadata.?annotations.orValue({})"),
        text("notesAfter", "object.metadata.?annotations.orValue({})"),
    ]
}

pub(super) fn validations() -> Vec<Value> {
    let label = |labels: &str| format!("variables.{labels}[?'{NODE_NAME_LABEL}'].orValue('')");
    vec![
        rule(
            "variables.before == variables.node || \
             (variables.target != '' && variables.target == variables.node)",
            "Node restriction, virt-handler is only allowed to modify VMIs it owns",
        ),
        rule(
            "(variables.after == variables.before || variables.arrives) && \
             variables.targetAfter == variables.targetBefore",
            "Node restriction, virt-handler is not allowed to set target node",
        ),
        rule(
            "variables.before == variables.node || variables.arrives || \
             object.?status.?phase.orValue('') == oldObject.?status.?phase.orValue('')",
            "virt-handler is only allowed to modify the migration of VMIs that move to it",
        ),
        rule(
            &of_controller(),
            "virt-handler is not allowed to say what is migrated, from where, to where and how",
        ),
        rule("object.spec == oldObject.spec", "virt-handler is not allowed to modify spec of VMIs"),
        rule(&same("labels", NODE_NAME_LABEL), "virt-handler is not allowed to modify labels of VMIs"),
        rule(
            &format!(
                "{after} == {before} || (variables.arrives && {after} == variables.target)",
                before = label("labelsBefore"),
                after = label("labelsAfter"),
            ),
            "virt-handler is only allowed to label VMIs with the node they are moved to",
        ),
        rule(
            &same("notes", PCI_LAYOUT_ANNOTATION),
            "virt-handler is not allowed to modify annotations of VMIs",
        ),
        rule(&list("ownerReferences"), "virt-handler is not allowed to modify owners of VMIs"),
        rule(&list("finalizers"), "virt-handler is not allowed to modify finalizers of VMIs"),
        rule(
            "object.?status.?activePods.orValue({}) == oldObject.?status.?activePods.orValue({})",
            "virt-handler is not allowed to say which pod a VMI runs in",
        ),
        rule(
            "object.?status.?selinuxContext.orValue('') == oldObject.?status.?selinuxContext.orValue('')",
            "virt-handler is not allowed to say under which SELinux label a VMI runs",
        ),
    ]
}

/// Whether the migration and its abort request are unchanged.
fn of_controller() -> String {
    let value =
        |of: &str, name: &str, none: &str| format!("{of}.?status.?migrationState.?{name}.orValue({none})");
    let texts = OF_CONTROLLER.into_iter().map(|name| (name, "''"));
    texts
        .chain([("abortRequested", "false")])
        .map(|(name, none)| format!("{} == {}", value("object", name, none), value("oldObject", name, none)))
        .collect::<Vec<_>>()
        .join(" && ")
}

fn rule(expression: &str, message: &str) -> Value {
    json!({"expression": format!("variables.isNode || ({expression})"), "message": message})
}

/// Whether a map is unchanged, except for one key.
fn same(map: &str, but: &str) -> String {
    format!(
        "variables.{map}Before.all(k, k == '{but}' || \
         (k in variables.{map}After && variables.{map}After[k] == variables.{map}Before[k])) && \
         variables.{map}After.all(k, k == '{but}' || k in variables.{map}Before)"
    )
}

/// Whether a list of the metadata is unchanged.
fn list(name: &str) -> String {
    format!("object.metadata.?{name}.orValue([]) == oldObject.metadata.?{name}.orValue([])")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end-to-end test checks the expressions in the API server (`e2e/tests/together/stolen.rs`); this test checks that
    /// none is missing.
    #[test]
    fn the_policy_has_a_rule_for_each_field() {
        let rules = validations();
        let of = |words: &str| {
            let found = rules.iter().find(|rule| rule["message"].as_str().unwrap().contains(words));
            found.unwrap_or_else(|| panic!("{words}"))["expression"].as_str().unwrap()
        };
        for (words, part) in [
            ("allowed to modify VMIs it owns", "variables.before == variables.node"),
            ("set target node", "variables.after == variables.before"),
            ("set target node", "variables.targetAfter == variables.targetBefore"),
            ("the migration of VMIs that move to it", "status.?phase"),
            ("what is migrated", "migrationState.?migrationUid"),
            ("what is migrated", "migrationState.?abortRequested"),
            ("what is migrated", "migrationState.?targetAttachmentPodUID"),
            ("modify spec", "object.spec == oldObject.spec"),
            ("modify labels", "k == 'kubevirt.io/nodeName'"),
            ("node they are moved to", "[?'kubevirt.io/nodeName']"),
            ("modify annotations", "k == 'barevirt.dev/pci-layout'"),
            ("modify owners", "metadata.?ownerReferences"),
            ("modify finalizers", "metadata.?finalizers"),
            ("which pod a VMI runs in", "status.?activePods"),
            ("under which SELinux label a VMI runs", "status.?selinuxContext"),
        ] {
            let expression = of(words);
            assert!(
                expression.starts_with("variables.isNode || (") && expression.contains(part),
                "{expression}"
            );
        }
    }
}
