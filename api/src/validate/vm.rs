//! Rules for machines.

use super::{
    Cause, Path, Requester, bounds, data_volume_templates, live_update, mesh, metadata, root_complex,
    supported,
};
use crate::defaults;
use crate::gates::Gates;
use crate::names;
use crate::syntax::quoted;
use crate::v1::{VirtualMachine, VirtualMachineSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Everything wrong with a machine, written by `requester`. Its template is validated with the defaults that
/// an instance of it would get.
pub fn vm(vm: &VirtualMachine, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let mut causes = vm_spec(&Path::new("spec"), &vm.spec, requester, gates);
    data_volume_templates::namespaces(None, vm, &mut causes);
    causes
}

/// Everything wrong with a change of a machine. A machine that is being deleted may always change, so that its finalizer
/// can go.
pub fn vm_update(
    old: &VirtualMachine,
    new: &VirtualMachine,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    if new.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let mut causes = vm_spec(&Path::new("spec"), &new.spec, requester, gates);
    data_volume_templates::namespaces(Some(old), new, &mut causes);
    causes
}

/// Everything wrong with a machine's specification at this path. Pools have it at another path.
pub fn vm_spec(path: &Path, spec: &VirtualMachineSpec, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let template = path.child("template");
    let mut causes = Vec::new();
    let mut instance = spec.template.spec.clone();
    defaults::spec(&mut instance);
    if let Some(metadata) = &spec.template.metadata {
        metadata::validate(&template.child("metadata"), metadata, requester, gates, &mut causes);
        let annotations = metadata.annotations.as_ref();
        mesh::validate(&template.child("spec"), annotations, &spec.template.spec, &mut causes);
        root_complex::validate(&template.child("metadata"), annotations, &instance, &mut causes);
    }
    causes.extend(super::spec(&template.child("spec"), &instance, gates));
    live_update::validate(&template.child("spec"), &instance, &mut causes);
    bounds::validate(&path.child("dataVolumeTemplates"), &spec.data_volume_templates, &mut causes);
    data_volume_templates::validate(path, spec, &mut causes);
    run_strategy(path, spec, gates, &mut causes);
    update_volumes(path, spec, &mut causes);
    supported::vm(path, spec, gates, &mut causes);
    causes
}

/// Decodes an object as its kind.
///
/// # Errors
/// The field that has a value of another type, or that is missing.
pub fn read<T: DeserializeOwned>(object: &Value) -> Result<T, Cause> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let is_machine = object["kind"] == "VirtualMachine";
        if is_machine && object.pointer("/spec/template").is_none_or(Value::is_null) {
            return Cause::required(&Path::new("spec.template"), "missing virtual machine template.");
        }
        // Where a kind is flattened into another, the deserializer does not know the rest of the path.
        let path = error.path().to_string();
        let known = path.trim_end_matches('?').trim_end_matches('.');
        Cause::invalid(&Path::new(known), error.inner().to_string())
    })
}

fn run_strategy(path: &Path, spec: &VirtualMachineSpec, gates: &Gates, causes: &mut Vec<Cause>) {
    const RECEIVER_GATE: &str = "DecentralizedLiveMigration";
    let field = path.child("runStrategy");
    let field_running = path.child("running");
    match (spec.running, &spec.run_strategy) {
        (Some(_), Some(_)) => causes.push(Cause::invalid(
            &field_running,
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        )),
        (None, None) => causes.push(Cause::invalid(&field_running, "RunStrategy must be specified")),
        (Some(_), None) | (None, Some(_)) => {}
    }
    let Some(strategy) = spec.run_strategy.as_deref() else { return };
    match strategy {
        names::RUN_STRATEGY_ALWAYS
        | names::RUN_STRATEGY_HALTED
        | names::RUN_STRATEGY_MANUAL
        | names::RUN_STRATEGY_RERUN_ON_FAILURE
        | names::RUN_STRATEGY_ONCE => {}
        names::RUN_STRATEGY_WAIT_AS_RECEIVER if gates.is_on(RECEIVER_GATE) => {}
        names::RUN_STRATEGY_WAIT_AS_RECEIVER => causes.push(Cause::invalid(
            &field,
            format!(
                "Invalid RunStrategy ({strategy}), {RECEIVER_GATE} feature gate is not enabled in kubevirt resource"
            ),
        )),
        other => causes.push(Cause::invalid(&field, format!("Invalid RunStrategy ({})", quoted(other)))),
    }
}

fn update_volumes(path: &Path, spec: &VirtualMachineSpec, causes: &mut Vec<Cause>) {
    if let Some(strategy) = spec.update_volumes_strategy.as_deref()
        && !matches!(strategy, "" | "Replacement" | "Migration")
    {
        let field = path.child("updateVolumesStrategy");
        causes.push(Cause::invalid(
            &field,
            format!("{field} is set with an unrecognized option: {}", quoted(strategy)),
        ));
    }
}
