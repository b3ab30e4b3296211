//! The values of a machine's instance type and preference, written into the machine: the policies `expand` and `expandAll` of
//! the installation.
//!
//! ```text
//!   new machine --values--> template --> instance        the machine names neither any more
//! ```
//!
//! Copies that the machine has had stay as long as the machine: what its running instance was started from is compared with
//! them.

use super::instancetype::{Refusal, named};
use super::patches::patch_machine_with;
use crate::cluster::Cluster;
use crate::merge;
use crate::write;
use barevirt_api::instancetype::expand::{sentence, written_out};
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::instancetype::revision;
use barevirt_api::names::REASON_FAILED_CREATE;
use barevirt_api::settings::ReferencePolicy;
use barevirt_api::v1::VirtualMachine;
use barevirt_component::request::{Category, Error};
use kube::ResourceExt;
use serde_json::json;
use tracing::info;

/// Whether the values of what the machine names are to be written into it.
pub(super) fn is_due(vm: &VirtualMachine, policy: ReferencePolicy) -> bool {
    let matchers: Vec<_> = Family::ALL.into_iter().filter_map(|family| family.matcher(vm)).collect();
    let has_copy =
        || matchers.iter().any(|one| revision::reference(vm, one).controller_revision_ref.is_some());
    match policy {
        ReferencePolicy::Reference => false,
        ReferencePolicy::Expand => !matchers.is_empty() && !has_copy(),
        ReferencePolicy::ExpandAll => !matchers.is_empty(),
    }
}

/// Writes the values into the machine, and removes from it what it names.
pub(super) async fn expand(cluster: &Cluster, vm: &VirtualMachine) -> Result<Result<(), Refusal>, Error> {
    let chosen = match named(cluster, vm).await? {
        Ok(chosen) => chosen,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let expanded = match written_out(vm, &chosen, cluster.config().settings.guest.binding) {
        Ok(expanded) => expanded,
        Err(causes) => return Ok(Err(refusal("while expanding into VirtualMachine", &sentence(&causes)))),
    };
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (serde_json::to_value(&vm.spec), serde_json::to_value(&expanded.spec));
    let Some(spec) = merge::difference(&old.unwrap_or_default(), &new.unwrap_or_default()) else {
        return Ok(Ok(()));
    };
    match patch_machine_with(cluster, vm, json!({ "spec": spec })).await {
        Ok(()) => {}
        Err(error) if error.category() == Category::Refused => {
            let during = "when trying to update expanded VirtualMachine";
            return Ok(Err(refusal(during, &error.message())));
        }
        Err(error) => return Err(error),
    }
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    info!(namespace, vm = name, "the machine has the values of what it named");
    let recorded = Family::ALL.into_iter().any(|family| family.reference(vm).is_some());
    if recorded {
        let body = json!({"status": {"instancetypeRef": null, "preferenceRef": null}});
        write::patch_status::<VirtualMachine>(cluster, "report the status of", &namespace, &name, &body)
            .await?;
    }
    Ok(Ok(()))
}

/// KubeVirt's words for a machine that cannot have the values.
fn refusal(during: &str, why: &str) -> Refusal {
    Refusal { reason: REASON_FAILED_CREATE, message: format!("error encountered {during}: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn vm(spec: &Value, status: &Value) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}},
            "status": status,
        });
        for (name, value) in spec.as_object().unwrap() {
            vm["spec"][name] = value.clone();
        }
        serde_json::from_value(vm).unwrap()
    }

    #[test]
    fn the_policy_decides_which_machines_get_the_values() {
        use ReferencePolicy::{Expand, ExpandAll, Reference};
        let none = json!({});
        let both = json!({"instancetype": {"name": "small"}, "preference": {"name": "linux"}});
        let pinned = json!({"instancetype": {"name": "small", "revisionName": "r"}});
        let copied = json!({"preferenceRef": {"name": "linux", "controllerRevisionRef": {"name": "r"}}});
        let former = json!({"instancetypeRef": {"name": "big", "controllerRevisionRef": {"name": "r"}}});
        for (spec, status, policy, due) in [
            (&both, &none, Reference, false),
            (&both, &none, Expand, true),
            (&both, &none, ExpandAll, true),
            (&none, &none, ExpandAll, false),
            // A copy of either keeps the machine as it is.
            (&both, &copied, Expand, false),
            (&both, &copied, ExpandAll, true),
            (&pinned, &none, Expand, false),
            (&pinned, &none, ExpandAll, true),
            // The copy of another one does not count.
            (&both, &former, Expand, true),
        ] {
            assert_eq!(is_due(&vm(spec, status), policy), due, "{spec} {status} {policy:?}");
        }
    }
}
