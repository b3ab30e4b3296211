//! What a machine was like when its instance was started: a ControllerRevision that the machine owns.
//!
//! ```text
//!   start:    specification --copy--> revision-start-vm-<uid>-<generation>, named in the instance's status
//!   later:    specification <--compared--> revision: does what runs differ from what the machine says?
//! ```
//!
//! Name and content are KubeVirt's, whose snapshots of running machines read them. The newest is kept. Where the machine
//! changed in nothing that the instance has, the instance is noted to be of the new generation.

use crate::cluster::Cluster;
use crate::error::{Error, response};
use crate::kin;
use crate::shell::{FIELD_MANAGER, call, call_opt};
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::names::{REVISION_OF_LABEL, VM_GENERATION_ANNOTATION, is_final_phase, vmi_id};
use barevirt_api::v1::{
    InstancetypeStatusRef, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
    VirtualMachineSpec,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tracing::info;

const PREFIX: &str = "revision-start-vm-";

/// How far the machine has moved on from what its instance was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drift {
    /// It is the same generation, or there is nothing to compare.
    #[default]
    None,
    /// Nothing is known of what the instance was made from.
    Unknown,
    /// Another generation, with the same template.
    Generation,
    /// Only labels or annotations of the template.
    Metadata,
    /// What the guest would be.
    Guest,
}

/// Name of the revision that the machine's next start is from.
pub(super) fn name(vm: &VirtualMachine) -> String {
    let uid = vm.metadata.uid.as_deref().unwrap_or_default();
    format!("{PREFIX}{uid}-{}", vm.metadata.generation.unwrap_or_default())
}

/// The machine as it is. An instance type and a preference are named with the copies in use.
fn of(vm: &VirtualMachine) -> ControllerRevision {
    let mut spec = vm.spec.clone();
    let copy = |reference: Option<&InstancetypeStatusRef>| {
        reference?.controller_revision_ref.as_ref()?.name.clone().filter(|name| !name.is_empty())
    };
    if let (Some(matcher), Some(name)) = (&mut spec.instancetype, copy(Family::Instancetype.reference(vm))) {
        matcher.revision_name = Some(name);
    }
    if let (Some(matcher), Some(name)) = (&mut spec.preference, copy(Family::Preference.reference(vm))) {
        matcher.revision_name = Some(name);
    }
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(vm)),
            namespace: vm.metadata.namespace.clone(),
            labels: Some([(REVISION_OF_LABEL.to_owned(), vmi_id(&vm.name_any()))].into()),
            owner_references: Some(vec![kin::owner(vm)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({ "spec": spec }))),
        revision: vm.metadata.generation.unwrap_or_default(),
    }
}

/// Generation of the machine that an instance is of.
pub(super) fn generation(vmi: &VirtualMachineInstance) -> Option<i64> {
    vmi.annotations().get(VM_GENERATION_ANNOTATION).and_then(|generation| generation.parse().ok())
}

/// What a revision says about the machine as it is now.
fn compare(vm: &VirtualMachine, revision: &ControllerRevision, live: bool) -> Drift {
    let spec = revision.data.as_ref().map(|data| data.0["spec"].clone()).unwrap_or_default();
    let Ok(mut then) = serde_json::from_value::<VirtualMachineSpec>(spec) else { return Drift::Unknown };
    let now = of(vm).data.map(|data| data.0["spec"].clone()).unwrap_or_default();
    let Ok(now) = serde_json::from_value::<VirtualMachineSpec>(now) else { return Drift::Unknown };
    if live {
        forget_live(&mut then.template.spec, &now.template.spec);
    }
    let guest = |spec: &VirtualMachineSpec| {
        (spec.template.spec.clone(), spec.instancetype.clone(), spec.preference.clone())
    };
    if guest(&then) != guest(&now) {
        Drift::Guest
    } else if then.template.metadata != now.template.metadata {
        Drift::Metadata
    } else {
        Drift::Generation
    }
}

/// Takes over what a running instance takes over: that is compared with the instance itself (`live_update`).
fn forget_live(then: &mut VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) {
    then.node_selector.clone_from(&now.node_selector);
    then.affinity.clone_from(&now.affinity);
    then.tolerations.clone_from(&now.tolerations);
    if let (Some(then), Some(now)) = (&mut then.domain.cpu, &now.domain.cpu) {
        then.sockets = now.sockets;
    }
    if let Some(guest) = now.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()) {
        then.domain.memory.get_or_insert_default().guest = Some(guest.clone());
    }
}

/// How far the machine has moved on from its instance. Asks the API server only where the generations differ.
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
    let live = cluster.config().settings.guest.live_update.is_some();
    Ok(found.map_or(Drift::Unknown, |revision| compare(vm, &revision, live)))
}

/// Keeps the machine as it is now, and nothing that is older.
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
        // Its name has the machine's identifier and generation in it: it says the same.
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whether a revision is the machine's, or was left behind by a machine of its name that let go of everything. One of another
/// machine is not touched: it goes with that.
fn is_old_or_ours(vm: &VirtualMachine, revision: &ObjectMeta) -> bool {
    revision.name.as_deref().is_some_and(|name| name.starts_with(PREFIX))
        && (kin::controller(revision).is_none() || kin::is_controlled_by(revision, vm.meta()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn vm(generation: i64, change: impl FnOnce(&mut Value)) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "generation": generation},
            "spec": {
                "runStrategy": "Manual", "instancetype": {"name": "small"},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"devices": {}}}},
            },
            "status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "c1"}}},
        });
        change(&mut vm);
        serde_json::from_value(vm).unwrap()
    }

    #[test]
    fn a_revision_is_kubevirts() {
        let revision = of(&vm(3, |_| {}));
        assert_eq!(revision.metadata.name.as_deref(), Some("revision-start-vm-m1-3"));
        assert_eq!(revision.revision, 3);
        assert_eq!(revision.metadata.owner_references.unwrap()[0].uid, "m1");
        let data = revision.data.unwrap().0;
        assert_eq!(data["spec"]["runStrategy"], "Manual");
        assert_eq!(data["spec"]["instancetype"]["revisionName"], "c1");
        assert_eq!(data.as_object().unwrap().len(), 1);
    }

    #[test]
    fn only_what_the_guest_would_be_makes_a_difference() {
        let then = of(&vm(3, |_| {}));
        for (change, drift) in [
            (("/spec/runStrategy", json!("Halted")), Drift::Generation),
            (("/spec/template/metadata/labels", json!({"a": "c"})), Drift::Metadata),
            (("/spec/template/spec/domain", json!({"devices": {}, "cpu": {"cores": 2}})), Drift::Guest),
            (("/spec/instancetype", json!({"name": "big"})), Drift::Guest),
            (("/status/instancetypeRef/controllerRevisionRef/name", json!("c2")), Drift::Guest),
        ] {
            let (pointer, value) = change;
            let now = vm(4, |vm| *vm.pointer_mut(pointer).unwrap() = value);
            assert_eq!(compare(&now, &then, true), drift, "{pointer}");
        }
        let garbage = ControllerRevision { data: Some(RawExtension(json!({"spec": 1}))), ..then };
        assert_eq!(compare(&vm(4, |_| {}), &garbage, true), Drift::Unknown);
    }

    #[test]
    fn what_is_taken_over_live_is_no_difference_where_it_is() {
        let cores = |sockets: u32| json!({"devices": {}, "cpu": {"sockets": sockets, "cores": 2}});
        let machine = |generation, domain: Value| {
            vm(generation, |vm| *vm.pointer_mut("/spec/template/spec/domain").unwrap() = domain)
        };
        let then = of(&machine(3, cores(1)));
        let mut more = cores(2);
        more["memory"] = json!({"guest": "2Gi"});
        assert_eq!(compare(&machine(4, more.clone()), &then, true), Drift::Generation);
        assert_eq!(compare(&machine(4, more), &then, false), Drift::Guest);
    }

    #[test]
    fn what_another_machine_left_is_its_own() {
        let machine = vm(3, |_| {});
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
