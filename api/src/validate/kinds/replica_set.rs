//! `VirtualMachineInstanceReplicaSet`.

use super::selector;
use crate::defaults;
use crate::gates::Gates;
use crate::v1::{VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetSpec};
use crate::validate::{self, Cause, Path, Requester, mesh, metadata, root_complex, supported};

/// Everything wrong with a new replica set, written by `requester`.
pub fn create(set: &VirtualMachineInstanceReplicaSet, requester: Requester, gates: &Gates) -> Vec<Cause> {
    spec(&set.spec, requester, gates)
}

/// Everything wrong with a change of a replica set. A change that leaves the specification as it is always
/// passes, so that finalizers can be removed.
pub fn update(
    old: &VirtualMachineInstanceReplicaSet,
    new: &VirtualMachineInstanceReplicaSet,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    if old.spec == new.spec { Vec::new() } else { spec(&new.spec, requester, gates) }
}

fn spec(spec: &VirtualMachineInstanceReplicaSetSpec, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let template = &spec.template;
    let mut instance = template.spec.clone();
    defaults::spec(&mut instance);
    let mut causes = validate::spec(&path.child("template.spec"), &instance, gates);
    if let Some(given) = &template.metadata {
        // Our own controller makes the instances, so this is the only place to find fields that users may not
        // set.
        let metadata = path.child("template.metadata");
        let annotations = given.annotations.as_ref();
        metadata::validate(&metadata, given, requester, gates, &mut causes);
        mesh::validate(&path.child("template.spec"), annotations, &template.spec, &mut causes);
        root_complex::validate(&metadata, annotations, &instance, &mut causes);
    }
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    match selector::matches(&spec.selector, labels) {
        Ok(true) => {}
        Ok(false) => causes.push(Cause::invalid(&path.child("selector"), "selector does not match labels.")),
        Err(why) => causes.push(Cause::invalid(&path.child("selector"), why)),
    }
    replicas(&path, spec.replicas, &mut causes);
    supported::replica_set(&path, spec, gates, &mut causes);
    causes
}

/// The API server checks this only for the `scale` call, not for the field itself.
pub(super) fn replicas(path: &Path, replicas: Option<i32>, causes: &mut Vec<Cause>) {
    if replicas.is_some_and(|replicas| replicas < 0) {
        causes.push(Cause::invalid(&path.child("replicas"), "must be greater than or equal to 0"));
    }
}
