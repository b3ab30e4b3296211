//! The machine at the start of its instance: a ControllerRevision that the machine owns.
//!
//! ```text
//!   start:    specification --copy--> revision-start-vm-<uid>-<generation>, named in the instance's status
//!   later:    specification <--compared--> revision: does the running instance match the machine?
//! ```
//!
//! Only the newest is kept. If a change of the machine does not concern its instance, the new generation is recorded on the
//! instance. [`barevirt_plan::revision`] defines the contents of a copy and the comparison.
//!
//! Where the machine names another instance type or preference than at the start, both specifications are compared with what
//! they name applied: copies of the former ones are kept as long as the machine.

use super::instancetype;
use crate::cluster::Cluster;
use crate::ownership;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{REVISION_OF_LABEL, VM_GENERATION_ANNOTATION, is_final_phase, vmi_id};
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_component::error::response;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use barevirt_plan::hotplug;
use barevirt_plan::live_update::Follows;
pub(super) use barevirt_plan::revision::generation;
use barevirt_plan::revision::{Comparison, Drift, PREFIX, name, of};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::info;

/// How the machine differs from its instance. Reads the copy only where the generations differ, and instance types and
/// preferences only where others are named.
pub(super) async fn drift(
    cluster: &Cluster,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
) -> Result<Drift, Error> {
    let Some(vmi) = vmi
        .filter(|vmi| vmi.metadata.deletion_timestamp.is_none() && !is_final_phase(crate::vmi::phase(vmi)))
    else {
        return Ok(Drift::None);
    };
    if generation(vmi) == vm.metadata.generation {
        return Ok(Drift::None);
    }
    let kept = vmi.status.as_ref().and_then(|status| status.virtual_machine_revision_name.as_deref());
    let Some(kept) = kept.filter(|kept| !kept.is_empty()) else { return Ok(Drift::Unknown) };
    let namespace = vm.namespace().unwrap_or_default();
    let revisions: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), &namespace);
    let subject = || format!("controller revision {namespace}/{kept}");
    let found = call_opt("get", subject, revisions.get(kept)).await?;
    let follows = Follows::of(&cluster.config().settings);
    let compared = found.and_then(|revision| Comparison::of(vm, &revision, vmi, &follows));
    let Some(comparison) = compared else { return Ok(Drift::Unknown) };
    if !comparison.names_others() {
        return Ok(comparison.drift());
    }
    // Nothing is kept yet of what was named a moment ago.
    if !instancetype::is_recorded(vm) {
        return Ok(Drift::Unknown);
    }
    Ok(applied(cluster, vm, comparison).await?.drift())
}

/// The comparison of what the guest would be. Where that cannot be known, for example because a user has deleted a copy, the
/// names are compared: the start with other ones is a restart.
async fn applied(
    cluster: &Cluster,
    vm: &VirtualMachine,
    comparison: Comparison,
) -> Result<Comparison, Error> {
    let [then, now] = comparison.machines(vm);
    let Ok(then) = instancetype::expanded(cluster, &then).await? else { return Ok(comparison) };
    let Ok(now) = instancetype::expanded(cluster, &now).await? else { return Ok(comparison) };
    Ok(comparison.applied([then, now]))
}

/// Annotations of an instance that has followed a change of its machine: the generation, if it has followed all of it, and
/// which volumes are still its own.
pub(super) fn annotations(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    generation: Option<i64>,
) -> Value {
    let mut annotations = json!({});
    if let Some(generation) = generation {
        annotations[VM_GENERATION_ANNOTATION] = json!(generation.to_string());
    }
    if let Some((name, value)) = hotplug::adopted(&vm.spec.template.spec, vmi) {
        annotations[name] = value;
    }
    annotations
}

/// Stores the present machine, and removes older copies.
pub(super) async fn keep(cluster: &Cluster, vm: &VirtualMachine) -> Result<(), Error> {
    let (namespace, machine, wanted) = (vm.namespace().unwrap_or_default(), vm.name_any(), name(vm));
    let revisions: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), &namespace);
    let subject = |name: &str| format!("controller revision {namespace}/{name}");
    let label = format!("{REVISION_OF_LABEL}={}", vmi_id(&machine));
    let ours = ListParams::default().labels(&label);
    let list = revisions.list_metadata(&ours);
    let found = call("list", || format!("controller revisions of {namespace}/{machine}"), list).await?;
    let mut there = false;
    for old in found.iter().filter(|old| is_old_or_ours(vm, &old.metadata)) {
        let name = old.name_any();
        if name == wanted {
            there = true;
            continue;
        }
        let params = DeleteParams::default();
        call_opt("delete", || subject(&name), revisions.delete(&name, &params)).await?;
        info!(namespace, vm = machine, revision = name, "removed an older revision");
    }
    if there {
        return Ok(());
    }
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match call("create", || subject(&wanted), revisions.create(&params, &of(vm))).await {
        Ok(_) => info!(namespace, vm = machine, revision = wanted, "kept what the machine is started from"),
        // Its name has the machine's UID and generation in it: the contents are the same.
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whether a revision is the machine's, or was left behind by a former machine of its name and has no owner. A revision of
/// another machine is left alone: it is deleted with that machine.
fn is_old_or_ours(vm: &VirtualMachine, revision: &ObjectMeta) -> bool {
    revision.name.as_deref().is_some_and(|name| name.starts_with(PREFIX))
        && (ownership::controller(revision).is_none() || ownership::is_controlled_by(revision, vm.meta()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "generation": 3},
            "spec": {"template": {"spec": {"domain": {"devices": {}}}}},
        }))
        .unwrap()
    }

    #[test]
    fn revisions_of_another_machine_are_not_ours() {
        let machine = machine();
        let revision = |name: &str, owner: Option<&str>| -> ObjectMeta {
            let owners: Vec<_> = owner
                .map(|uid| json!({"apiVersion": "v1", "kind": "K", "name": "web", "uid": uid, "controller": true}))
                .into_iter()
                .collect();
            serde_json::from_value(json!({"name": name, "ownerReferences": owners})).unwrap()
        };
        assert!(is_old_or_ours(&machine, &revision("revision-start-vm-m1-2", Some("m1"))));
        assert!(is_old_or_ours(&machine, &revision("revision-start-vm-m0-2", None)));
        assert!(!is_old_or_ours(&machine, &revision("revision-start-vm-m0-2", Some("m0"))));
        assert!(!is_old_or_ours(&machine, &revision("web-3", None)));
    }
}
