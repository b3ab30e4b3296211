//! `VirtualMachineInstanceReplicaSet`.

use super::{not_there, selector};
use crate::defaults;
use crate::gates::Gates;
use crate::v1::VirtualMachineInstanceReplicaSet;
use crate::validate::{self, Cause, Path};

/// Everything wrong with a new one.
pub fn create(set: &VirtualMachineInstanceReplicaSet, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let template = &set.spec.template;
    let mut spec = template.spec.clone();
    defaults::spec(&mut spec);
    let mut causes = validate::spec(&path.child("template.spec"), &spec, gates);
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    match selector::matches(&set.spec.selector, labels) {
        Ok(true) => {}
        Ok(false) => causes.push(Cause::invalid(&path.child("selector"), "selector does not match labels.")),
        Err(why) => causes.push(Cause::invalid(&path.child("selector"), why)),
    }
    causes.push(not_there("VirtualMachineInstanceReplicaSet", "nothing keeps its instances running"));
    causes
}
