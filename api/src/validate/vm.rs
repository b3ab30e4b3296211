//! Machines.

use super::text::quoted;
use super::{Cause, Path, Requester, metadata, supported};
use crate::defaults;
use crate::gates::Gates;
use crate::names;
use crate::v1::VirtualMachine;

/// Everything wrong with a machine, written by `requester`. Its template is looked at with the defaults that an instance
/// of it would get.
pub fn vm(vm: &VirtualMachine, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let template = path.child("template");
    let mut causes = Vec::new();
    let labels = vm.spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    metadata::reserved_labels(&template.child("metadata"), labels, requester, &mut causes);
    let mut spec = vm.spec.template.spec.clone();
    defaults::spec(&mut spec);
    causes.extend(super::spec(&template.child("spec"), &spec, gates));
    run_strategy(&path, vm, &mut causes);
    supported::vm(&path, &vm.spec, gates, &mut causes);
    causes
}

/// Everything wrong with a change of a machine. A machine that is being deleted may always change, so that its finalizer
/// can go.
pub fn vm_update(
    _old: &VirtualMachine,
    new: &VirtualMachine,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    if new.metadata.deletion_timestamp.is_some() { Vec::new() } else { vm(new, requester, gates) }
}

/// What is accepted with a warning.
pub fn vm_warnings(vm: &VirtualMachine) -> Vec<String> {
    let mut warnings = Vec::new();
    if vm.spec.running.is_some() {
        warnings.push("spec.running is deprecated, please use spec.runStrategy instead.".to_owned());
    }
    warnings
}

fn run_strategy(path: &Path, vm: &VirtualMachine, causes: &mut Vec<Cause>) {
    let field = path.child("runStrategy");
    match (vm.spec.running, vm.spec.run_strategy.as_deref()) {
        (Some(_), Some(_)) => causes.push(Cause::invalid(
            &path.child("running"),
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        )),
        (None, None) => causes.push(Cause::invalid(&path.child("running"), "RunStrategy must be specified")),
        (Some(_), None)
        | (None, Some(names::RUN_STRATEGY_ALWAYS | names::RUN_STRATEGY_HALTED | names::RUN_STRATEGY_MANUAL)) => {}
        (
            None,
            Some(
                known @ (names::RUN_STRATEGY_RERUN_ON_FAILURE
                | names::RUN_STRATEGY_ONCE
                | names::RUN_STRATEGY_WAIT_AS_RECEIVER),
            ),
        ) => causes.push(Cause::not_supported_yet(&field, known)),
        (None, Some(other)) => {
            causes.push(Cause::invalid(&field, format!("Invalid RunStrategy ({})", quoted(other))));
        }
    }
}
