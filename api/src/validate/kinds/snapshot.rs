//! `snapshot.kubevirt.io`: snapshots, their contents, and restores.

use super::{IMMUTABLE, gated, immutable, not_there};
use crate::gates::Gates;
use crate::restore::{VirtualMachineRestore, VirtualMachineRestoreSpec};
use crate::snapshot::VirtualMachineSnapshot;
use crate::syntax::quoted;
use crate::validate::{Cause, CauseKind, Path};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;

/// Gate of all kinds of the group.
const GATE: &str = "Snapshot";
const WHY: &str = "volumes cannot be snapshotted";

/// Everything wrong with a new snapshot.
pub fn create(snapshot: &VirtualMachineSnapshot, gates: &Gates) -> Vec<Cause> {
    let mut causes = Vec::new();
    machine(&Path::new("spec.source"), &snapshot.spec.source, &mut causes);
    causes.push(gated(gates, GATE, "snapshot feature gate not enabled", "VirtualMachineSnapshot", WHY));
    causes
}

/// Everything wrong with a change of a snapshot.
pub fn update(old: &VirtualMachineSnapshot, new: &VirtualMachineSnapshot) -> Vec<Cause> {
    immutable(&old.spec, &new.spec, IMMUTABLE)
}

/// Why users may not create contents: only the snapshot controller creates them.
pub fn create_content() -> Vec<Cause> {
    vec![not_there("VirtualMachineSnapshotContent", WHY)]
}

/// Everything wrong with a new restore; `others` are the restores of its namespace.
pub fn create_restore(
    restore: &VirtualMachineRestore,
    others: &[VirtualMachineRestore],
    gates: &Gates,
) -> Vec<Cause> {
    let target = Path::new("spec.target");
    let mut causes = Vec::new();
    if machine(&target, &restore.spec.target, &mut causes) {
        patches(&restore.spec, &mut causes);
        policies(&restore.spec, &mut causes);
    }
    for other in others.iter().filter(|other| other.metadata.name != restore.metadata.name) {
        let complete = other.status.as_ref().and_then(|status| status.complete).unwrap_or_default();
        if other.spec.target == restore.spec.target && !complete {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            causes.push(Cause::invalid(&target, format!("VirtualMachineRestore {name:?} in progress")));
        }
    }
    causes.push(gated(
        gates,
        GATE,
        "Snapshot/Restore feature gate not enabled",
        "VirtualMachineRestore",
        WHY,
    ));
    causes
}

/// Everything wrong with a change of a restore.
pub fn update_restore(old: &VirtualMachineRestore, new: &VirtualMachineRestore) -> Vec<Cause> {
    immutable(&old.spec, &new.spec, IMMUTABLE)
}

/// Whether the reference is to a machine; adds a cause if it is not.
fn machine(path: &Path, reference: &TypedLocalObjectReference, causes: &mut Vec<Cause>) -> bool {
    let before = causes.len();
    match reference.api_group.as_deref() {
        None => causes.push(Cause::new(CauseKind::NotFound, &path.child("apiGroup"), "missing apiGroup")),
        Some("kubevirt.io") if reference.kind != "VirtualMachine" => {
            causes.push(Cause::invalid(&path.child("kind"), "invalid kind"));
        }
        Some("kubevirt.io") => {}
        Some(_) => causes.push(Cause::invalid(&path.child("apiGroup"), "invalid apiGroup")),
    }
    causes.len() == before
}

/// JSON patches in KubeVirt's restricted form: an object whose values are strings, with a path in labels,
/// annotations or the specification.
fn patches(spec: &VirtualMachineRestoreSpec, causes: &mut Vec<Cause>) {
    let field = Path::new("spec.patches");
    for pair in spec.patches.iter().flat_map(|patch| patch.trim_matches(['{', '}']).split(',')) {
        let words: Vec<&str> = pair.split(':').map(str::trim).collect();
        let [key, value] = words.as_slice() else {
            causes.push(Cause::invalid(
                &field,
                format!(
                    "patch format is not valid - one \":\" expected in a single key-value json patch: {}",
                    quoted(pair)
                ),
            ));
            continue;
        };
        let allowed = ["\"/metadata/labels/", "\"/metadata/annotations/", "\"/spec/"];
        if *key == "\"path\"" && !allowed.iter().any(|start| value.starts_with(start)) {
            let message = format!("patching is valid only for elements under /spec/ only: {}", quoted(pair));
            causes.push(Cause::invalid(&field, message));
        }
    }
}

fn policies(spec: &VirtualMachineRestoreSpec, causes: &mut Vec<Cause>) {
    let path = Path::new("spec");
    for (index, other) in spec.volume_restore_overrides.iter().enumerate() {
        let path = path.child("volumeRestoreOverrides").index(index);
        let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
        if empty(&other.volume_name) {
            causes.push(Cause::required(&path.child("volumeName"), "must provide a volume name"));
        }
        if empty(&other.restore_name) && other.annotations.is_empty() && other.labels.is_empty() {
            causes.push(Cause::required(&path, "must provide at least one overriden field"));
        }
    }
    if let Some(policy) = spec.volume_restore_policy.as_deref()
        && !["InPlace", "RandomizeNames", "PrefixTargetName"].contains(&policy)
    {
        causes.push(Cause::invalid(
            &path.child("volumeRestorePolicy"),
            format!("volume restore policy \"{}\" doesn't exist", quoted(policy)),
        ));
    }
    if let Some(policy) = spec.volume_ownership_policy.as_deref()
        && !["Vm", "None"].contains(&policy)
    {
        causes.push(Cause::invalid(
            &path.child("volumeOwnershipPolicy"),
            format!("volume ownership policy \"{}\" doesn't exist", quoted(policy)),
        ));
    }
}
