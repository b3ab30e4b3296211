//! State of machines that outlives them: their claims, which the next machine with the same number uses again.
//!
//! ```text
//!   opportunistic, Offline   every machine is held, by a finalizer, whichever client deletes it
//!   proactive, Offline       a machine is held once the pool has selected it, and deleted then
//!
//!   held --deleted--> its claims and DataVolumes lose it as an owner --> not held, and gone
//!     \---------no longer a reason-------------------------------------> not held
//! ```
//!
//! A machine's dependents are deleted only after the machine is gone, so a held machine can be detached from them first. The
//! finalizer also records that this is to be done: nothing is lost if this process ends between two steps. A pool with held
//! machines is held itself; otherwise no process would release them.

use super::action::Action;
use super::machine;
use super::observed::{Machine, Observed};
use barevirt_api::names::POOL_FINALIZER;
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::v1::VirtualMachine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use std::collections::BTreeSet;

/// The value that keeps state; admission accepts only one other, which keeps nothing.
const OFFLINE: &str = "Offline";

/// The machines whose state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// No machine's.
    Nothing,
    /// The state of machines that the pool deletes.
    Picked,
    /// Every machine's.
    All,
}

impl Kept {
    pub(super) fn of(pool: &VirtualMachinePool) -> Self {
        let is_offline = |word: Option<&String>| word.is_some_and(|word| word == OFFLINE);
        let Some(strategy) = &pool.spec.scale_in_strategy else { return Kept::Nothing };
        let opportunistic = strategy.opportunistic.as_ref().and_then(|one| one.state_preservation.as_ref());
        let proactive = strategy.proactive.as_ref().and_then(|one| one.state_preservation.as_ref());
        match (is_offline(opportunistic), is_offline(proactive)) {
            (true, _) => Kept::All,
            (false, true) => Kept::Picked,
            (false, false) => Kept::Nothing,
        }
    }
}

/// Whether a pool or a machine of it is held.
pub fn is_held(object: &impl ResourceExt) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == POOL_FINALIZER)
}

/// Its finalizers while it is held.
pub(super) fn held(object: &impl ResourceExt) -> Vec<String> {
    let mut finalizers = free(object);
    finalizers.push(POOL_FINALIZER.to_owned());
    finalizers
}

/// Its finalizers while it is not held.
pub(super) fn free(object: &impl ResourceExt) -> Vec<String> {
    object.finalizers().iter().filter(|finalizer| *finalizer != POOL_FINALIZER).cloned().collect()
}

/// Whether a held machine without a controller was once the pool's: its name is one that the pool gives.
pub(super) fn is_stray(pool: &VirtualMachinePool, vm: &VirtualMachine) -> bool {
    let name = vm.name_any();
    is_held(vm) && machine::index(&name).is_some_and(|index| machine::name(pool, index) == name)
}

/// Detaches deleted machines from their dependents, and releases machines that have no controller any more.
pub(super) fn settle(observed: &Observed) -> Vec<Action> {
    let leaving = observed.machines.iter().map(|machine| &machine.vm).filter(|vm| is_leaving(vm));
    let all = leaving.chain(&observed.strays).filter(|vm| is_held(*vm));
    all.map(|vm| if is_leaving(vm) { Action::Keep(boxed(vm)) } else { Action::Unhold(boxed(vm)) }).collect()
}

fn is_leaving(vm: &VirtualMachine) -> bool {
    vm.metadata.deletion_timestamp.is_some()
}

fn boxed(vm: &VirtualMachine) -> Box<VirtualMachine> {
    Box::new(vm.clone())
}

/// The pool is being deleted: the state of machines that are already being deleted is kept; the others are deleted with all
/// dependents.
pub(super) fn part(observed: &Observed) -> Vec<Action> {
    let mut actions = settle(observed);
    actions.extend(living(observed, is_held).map(Action::Unhold));
    if actions.is_empty() && is_held(&observed.pool) {
        actions.push(Action::Unguard);
    }
    actions
}

/// Holds the pool before any machine, and holds all machines that need it before the number of machines changes.
pub(super) fn hold(observed: &Observed) -> Vec<Action> {
    let kept = Kept::of(&observed.pool);
    if kept == Kept::Nothing {
        return vec![];
    }
    if !is_held(&observed.pool) {
        return vec![Action::Guard];
    }
    match kept {
        Kept::All => living(observed, |vm| !is_held(vm)).map(Action::Hold).collect(),
        Kept::Picked | Kept::Nothing => vec![],
    }
}

/// When no machine is to be deleted: releases machines that are held without a reason, and the pool after the last one.
pub(super) fn relax(observed: &Observed) -> Vec<Action> {
    let kept = Kept::of(&observed.pool);
    if kept == Kept::All {
        return vec![];
    }
    let idle: Vec<Action> = living(observed, is_held).map(Action::Unhold).collect();
    if idle.is_empty() && kept == Kept::Nothing && is_held(&observed.pool) {
        return vec![Action::Unguard];
    }
    idle
}

/// The action by which the pool deletes a machine.
pub(super) fn take_away(pool: &VirtualMachinePool, machine: &Machine) -> Action {
    let vm = boxed(&machine.vm);
    if Kept::of(pool) != Kept::Nothing && !is_held(&machine.vm) {
        Action::Hold(vm)
    } else {
        Action::Delete(vm)
    }
}

fn living(
    observed: &Observed,
    which: impl Fn(&VirtualMachine) -> bool,
) -> impl Iterator<Item = Box<VirtualMachine>> {
    let all = observed.machines.iter().map(|machine| &machine.vm);
    all.filter(move |vm| !is_leaving(vm) && which(vm)).map(boxed)
}

/// Names of claims and DataVolumes that a machine may own: those of its volumes, and those of its templates.
pub(super) fn names(vm: &VirtualMachine) -> BTreeSet<String> {
    let templates = vm.spec.data_volume_templates.iter();
    let made = templates.filter_map(|template| template.metadata.as_ref()?.name.clone());
    let volumes = vm.spec.template.spec.volumes.iter();
    made.chain(volumes.filter_map(|volume| volume.claim().map(|claim| claim.name.to_owned()))).collect()
}

/// The owners of an object without that machine; `None` where the machine is not an owner.
pub(super) fn other_owners(object: &ObjectMeta, machine: &VirtualMachine) -> Option<Vec<OwnerReference>> {
    let owners = object.owner_references.as_deref().unwrap_or_default();
    let left: Vec<_> =
        owners.iter().filter(|owner| Some(&owner.uid) != machine.meta().uid.as_ref()).cloned().collect();
    (left.len() < owners.len()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn machine(spec: Value) -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": {"name": "web-3", "uid": "m3", "finalizers": ["a", POOL_FINALIZER, "b"]}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn claims_of_a_machine_are_named_once() {
        let machine = machine(json!({
            "dataVolumeTemplates": [{"metadata": {"name": "root-3"}, "spec": {}}],
            "template": {"spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "a", "dataVolume": {"name": "root-3"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "c", "configMap": {"name": "settings"}},
            ]}},
        }));
        assert_eq!(names(&machine).into_iter().collect::<Vec<_>>(), ["data", "root-3"]);
    }

    #[test]
    fn only_the_machine_is_no_owner_any_more() {
        let machine = machine(json!({"template": {"spec": {"domain": {"devices": {}}}}}));
        let owned = |uids: &[&str]| -> ObjectMeta {
            let owner = |uid: &&str| json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid});
            let owners: Vec<Value> = uids.iter().map(owner).collect();
            serde_json::from_value(json!({ "ownerReferences": owners })).unwrap()
        };
        let left = |uids: &[&str]| {
            let left = other_owners(&owned(uids), &machine)?;
            Some(left.into_iter().map(|owner| owner.uid).collect::<Vec<_>>())
        };
        assert_eq!(left(&["x", "m3"]), Some(vec!["x".to_owned()]));
        assert_eq!(left(&["m3"]), Some(vec![]));
        assert_eq!((left(&["x"]), left(&[])), (None, None));
    }

    #[test]
    fn finalizers_of_others_stay() {
        let machine = machine(json!({"template": {"spec": {"domain": {"devices": {}}}}}));
        assert_eq!(free(&machine), ["a", "b"]);
        assert_eq!(held(&machine), ["a", "b", POOL_FINALIZER]);
    }

    #[test]
    fn a_stray_has_a_name_that_the_pool_gives() {
        let pool = |name: &str| -> VirtualMachinePool {
            serde_json::from_value(json!({
                "metadata": {"name": name}, "spec": {"selector": {}, "virtualMachineTemplate": {}},
            }))
            .unwrap()
        };
        let mut machine = machine(json!({"template": {"spec": {"domain": {"devices": {}}}}}));
        assert!(is_stray(&pool("web"), &machine));
        assert!(!is_stray(&pool("db"), &machine));
        machine.metadata.name = Some("web-03".to_owned());
        assert!(!is_stray(&pool("web"), &machine));
        machine.metadata.name = Some("web-3".to_owned());
        machine.metadata.finalizers = None;
        assert!(!is_stray(&pool("web"), &machine));
    }
}
