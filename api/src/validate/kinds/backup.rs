//! `backup.kubevirt.io`: backups and their trackers.

use super::{gated, immutable};
use crate::backup::{VirtualMachineBackup, VirtualMachineBackupTracker};
use crate::gates::Gates;
use crate::syntax::quoted;
use crate::validate::{Cause, Path};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;

const GATE: &str = "IncrementalBackup";
const OFF: &str = "IncrementalBackup feature gate not enabled";
const WHY: &str = "changed blocks are not recorded";
const IMMUTABLE: &str = "spec is immutable after creation";
const MACHINE: (&str, &str) = ("kubevirt.io", "VirtualMachine");
const TRACKER: (&str, &str) = ("backup.kubevirt.io", "VirtualMachineBackupTracker");

/// Everything wrong with a new backup; `others` are the backups of its namespace.
pub fn create(backup: &VirtualMachineBackup, others: &[VirtualMachineBackup], gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let spec = &backup.spec;
    let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let mut causes = Vec::new();
    source(&path.child("source"), &spec.source, &[MACHINE, TRACKER], &mut causes);
    if empty(&spec.pvc_name) {
        causes.push(Cause::invalid(&path, "pvcName is required"));
    }
    if spec.mode.as_deref() == Some("Pull") && empty(&spec.token_secret_ref) {
        causes.push(Cause::invalid(&path, "tokenSecretRef is required when mode is Pull"));
    }
    if let Some(mode) = spec.mode.as_deref()
        && !["Push", "Pull"].contains(&mode)
    {
        let message = format!("Unsupported value: {:?}: supported values: \"Push\", \"Pull\"", quoted(mode));
        causes.push(Cause::invalid(&path.child("mode"), message));
    }
    for other in others.iter().filter(|other| other.metadata.name != backup.metadata.name) {
        let ended = other.status.iter().flat_map(|status| &status.conditions).any(|condition| {
            ["Complete", "Failed"].contains(&condition.type_.as_str()) && condition.status == "True"
        });
        if other.spec.source == spec.source && !ended {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            let message = format!("VirtualMachineBackup {name:?} in progress for source");
            causes.push(Cause::invalid(&path.child("source"), message));
        }
    }
    causes.push(gated(gates, GATE, OFF, "VirtualMachineBackup", WHY));
    causes
}

/// Everything wrong with a change of a backup.
pub fn update(old: &VirtualMachineBackup, new: &VirtualMachineBackup) -> Vec<Cause> {
    immutable(&old.spec, &new.spec, IMMUTABLE)
}

/// Everything wrong with a new tracker.
pub fn create_tracker(tracker: &VirtualMachineBackupTracker, gates: &Gates) -> Vec<Cause> {
    let mut causes = Vec::new();
    source(&Path::new("spec.source"), &tracker.spec.source, &[MACHINE], &mut causes);
    causes.push(gated(gates, GATE, OFF, "VirtualMachineBackupTracker", WHY));
    causes
}

/// Everything wrong with a change of a tracker.
pub fn update_tracker(old: &VirtualMachineBackupTracker, new: &VirtualMachineBackupTracker) -> Vec<Cause> {
    immutable(&old.spec, &new.spec, IMMUTABLE)
}

/// A reference to one of these kinds, each with its group.
fn source(
    path: &Path,
    reference: &TypedLocalObjectReference,
    allowed: &[(&str, &str)],
    causes: &mut Vec<Cause>,
) {
    let group = reference.api_group.as_deref().unwrap_or_default();
    let groups: Vec<&str> = allowed.iter().map(|(group, _)| *group).collect();
    match allowed.iter().find(|(allowed, _)| *allowed == group) {
        None if reference.api_group.is_none() && allowed.len() > 1 => {
            causes.push(Cause::invalid(path, "apiGroup is required"));
        }
        None => causes.push(Cause::invalid(path, format!("apiGroup must be {}", groups.join(" or ")))),
        Some((_, kind)) if reference.kind != *kind => {
            let kinds: Vec<String> = match allowed {
                [(_, kind)] => vec![(*kind).to_owned()],
                several => several.iter().map(|(group, kind)| format!("{kind} for {group}")).collect(),
            };
            causes.push(Cause::invalid(path, format!("kind must be {}", kinds.join(" or "))));
        }
        Some(_) => {}
    }
    if reference.name.is_empty() {
        causes.push(Cause::invalid(path, "name is required"));
    }
}
