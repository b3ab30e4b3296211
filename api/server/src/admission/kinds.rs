//! Rules for all kinds except machines and instances, and warnings for all kinds.

use barevirt_api::instancetype::{VirtualMachineClusterInstancetype, VirtualMachineInstancetype};
use barevirt_api::migratable::SERVED;
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::preference::{VirtualMachineClusterPreference, VirtualMachinePreference};
use barevirt_api::v1::{
    KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration,
    VirtualMachineInstancePreset, VirtualMachineInstanceReplicaSet,
};
use barevirt_api::validate::kinds::{
    backup, clone, export, instancetype, kubevirt, migration, migration_policy, pool, preference, preset,
    replica_set, snapshot, status, without_effect,
};
use barevirt_api::validate::{self, Cause, Path, Requester};
use barevirt_api::webhooks::Hook;
use kube::core::admission::Operation;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::request::{Known, Request, read};

/// Everything wrong with the object, or why it cannot be decoded.
pub(super) fn causes(
    hook: Hook,
    known: &Known<'_>,
    request: &Request,
    requester: Requester,
) -> Result<Vec<Cause>, Vec<Cause>> {
    let gates = &known.settings.gates;
    let facts = known.facts;
    match hook {
        Hook::ReplicaSet => either(
            request,
            |new| replica_set::create(new, requester, gates),
            |old, new| replica_set::update(old, new, requester, gates),
        ),
        Hook::Pool => either(
            request,
            |new| pool::create(new, requester, gates),
            |old, new| pool::update(old, new, requester, gates),
        ),
        Hook::Preset => either(request, preset::create, free::<VirtualMachineInstancePreset>),
        Hook::MigrationCreate => {
            let new = read(request.object.as_ref())?;
            let (instance, others) = (facts.instance.as_ref(), facts.migrations.as_slice());
            Ok(migration::create(&new, instance, others, requester, gates))
        }
        Hook::MigrationUpdate => {
            Ok(migration::update(&read(request.old_object.as_ref())?, &read(request.object.as_ref())?))
        }
        Hook::Snapshot => either(request, |new| snapshot::create(new, gates), snapshot::update),
        Hook::SnapshotContent => either(request, |_: &Value| snapshot::create_content(), free::<Value>),
        Hook::Restore => either(
            request,
            |new| snapshot::create_restore(new, &facts.restores, gates),
            snapshot::update_restore,
        ),
        Hook::Backup => either(request, |new| backup::create(new, &facts.backups, gates), backup::update),
        Hook::BackupTracker => {
            either(request, |new| backup::create_tracker(new, gates), backup::update_tracker)
        }
        Hook::Export => either(request, |new| export::create(new, gates), export::update),
        Hook::Clone => either(request, |new| clone::create(new, gates), clone::update),
        Hook::MigrationPolicy => either(
            request,
            |new| migration_policy::create(new, gates),
            |old, new| migration_policy::update(old, new, gates),
        ),
        Hook::Instancetype => {
            let object: VirtualMachineInstancetype = read(request.object.as_ref())?;
            Ok(instancetype::validate(&object.spec))
        }
        Hook::ClusterInstancetype => {
            let object: VirtualMachineClusterInstancetype = read(request.object.as_ref())?;
            Ok(instancetype::validate(&object.spec.spec))
        }
        Hook::Preference => {
            let object: VirtualMachinePreference = read(request.object.as_ref())?;
            Ok(preference::validate(&object.spec))
        }
        Hook::ClusterPreference => {
            let object: VirtualMachineClusterPreference = read(request.object.as_ref())?;
            Ok(preference::validate(&object.spec.spec))
        }
        Hook::Status => status_of(request),
        Hook::KubeVirtCreate => {
            Ok(kubevirt::create(&read(request.object.as_ref())?, facts.installed, known.namespace))
        }
        Hook::KubeVirtUpdate => {
            Ok(kubevirt::update(&read(request.old_object.as_ref())?, &read(request.object.as_ref())?))
        }
        Hook::KubeVirtDelete => {
            Ok(kubevirt::delete(&read(request.old_object.as_ref())?, facts.workloads.as_deref()))
        }
        // Decided elsewhere: machines, instances and pods in the parent module, evictions together with the pod.
        Hook::MutateMachine
        | Hook::MutateLauncher
        | Hook::MutateInstance
        | Hook::MutateMigration
        | Hook::Machine
        | Hook::InstanceCreate
        | Hook::InstanceUpdate
        | Hook::Eviction => Ok(Vec::new()),
    }
}

/// Warnings for values that are accepted; no warnings if the object cannot be decoded.
pub(super) fn warnings(hook: Hook, request: &Request) -> Result<Vec<String>, Vec<Cause>> {
    Ok(match hook {
        Hook::Machine => {
            let object: VirtualMachine = read(request.object.as_ref())?;
            validate::vm_warnings(&object)
        }
        Hook::InstanceCreate => {
            let object: VirtualMachineInstance = read(request.object.as_ref())?;
            validate::spec_warnings(&Path::new("spec"), &object.spec)
        }
        Hook::ReplicaSet => {
            let object: VirtualMachineInstanceReplicaSet = read(request.object.as_ref())?;
            validate::spec_warnings(&Path::new("spec.template.spec"), &object.spec.template.spec)
        }
        Hook::Pool => {
            let object: VirtualMachinePool = read(request.object.as_ref())?;
            let machine = object.spec.virtual_machine_template.spec;
            let path = Path::new("spec.virtualMachineTemplate.spec");
            machine.map(|machine| validate::vm_spec_warnings(&path, &machine)).unwrap_or_default()
        }
        Hook::Instancetype | Hook::ClusterInstancetype => {
            // Both kinds have the same specification.
            let object: VirtualMachineInstancetype = read(request.object.as_ref())?;
            instancetype::warnings(&object.spec)
        }
        Hook::Preference | Hook::ClusterPreference => {
            let object: VirtualMachinePreference = read(request.object.as_ref())?;
            preference::warnings(&object.spec)
        }
        Hook::KubeVirtCreate | Hook::KubeVirtUpdate => {
            let object: KubeVirt = read(request.object.as_ref())?;
            kubevirt::warnings(&object)
        }
        Hook::MigrationPolicy if SERVED => Vec::new(),
        Hook::Preset | Hook::SnapshotContent | Hook::Clone | Hook::MigrationPolicy
            if request.operation == Operation::Update =>
        {
            let old: Value = read(request.old_object.as_ref())?;
            let new: Value = read(request.object.as_ref())?;
            without_effect(&request.kind.kind, &old["spec"], &new["spec"]).into_iter().collect()
        }
        _ => Vec::new(),
    })
}

/// The rules for a new object, or those for a change.
fn either<T: DeserializeOwned>(
    request: &Request,
    create: impl FnOnce(&T) -> Vec<Cause>,
    update: impl FnOnce(&T, &T) -> Vec<Cause>,
) -> Result<Vec<Cause>, Vec<Cause>> {
    let new: T = read(request.object.as_ref())?;
    Ok(if request.operation == Operation::Create {
        create(&new)
    } else {
        update(&read(request.old_object.as_ref())?, &new)
    })
}

/// No rules for a change; [`warnings`] says that the change has no effect.
fn free<T>(_old: &T, _new: &T) -> Vec<Cause> {
    Vec::new()
}

fn status_of(request: &Request) -> Result<Vec<Cause>, Vec<Cause>> {
    let object = request.object.as_ref();
    match request.resource.resource.as_str() {
        "virtualmachines" => {
            let old = request.old_object.as_ref().map(|old| read::<VirtualMachine>(Some(old))).transpose()?;
            Ok(status::machine(old.as_ref(), &read(object)?))
        }
        // The status only has to be readable.
        "virtualmachineinstancereplicasets" => {
            read::<VirtualMachineInstanceReplicaSet>(object).map(|_| Vec::new())
        }
        _ => read::<VirtualMachineInstanceMigration>(object).map(|_| Vec::new()),
    }
}
