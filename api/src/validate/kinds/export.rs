//! `VirtualMachineExport`.

use super::{IMMUTABLE, immutable, not_there};
use crate::export::VirtualMachineExport;
use crate::gates::Gates;
use crate::validate::{Cause, Path};

/// Kind of a source, its names in messages without and with its group, and the group.
const SOURCES: [(&str, &str, &str, &str); 5] = [
    ("PersistentVolumeClaim", "PVC", "PVC", ""),
    ("VirtualMachineSnapshot", "VMSnapshot", "VMSnapshot", "snapshot.kubevirt.io"),
    ("VirtualMachine", "Virtual Machine", "VM", "kubevirt.io"),
    ("VirtualMachineBackup", "VirtualMachineBackup", "VirtualMachineBackup", "backup.kubevirt.io"),
    ("VirtualMachineTemplate", "VirtualMachineTemplate", "VirtualMachineTemplate", "template.kubevirt.io"),
];

/// Everything wrong with a new export.
pub fn create(export: &VirtualMachineExport, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec.source");
    let source = &export.spec.source;
    let group = source.api_group.as_deref().unwrap_or_default();
    let mut causes = Vec::new();
    match SOURCES.into_iter().find(|(kind, ..)| *kind == source.kind) {
        None => causes.push(Cause::invalid(&path.child("kind"), "invalid kind")),
        Some(("VirtualMachineTemplate", ..)) if !(gates.is_on("OCIExport") && gates.is_on("Template")) => {
            causes.push(Cause::invalid(
                &path.child("kind"),
                "VirtualMachineTemplate source requires the OCIExport feature gate and virt-template deployment to be \
                 enabled",
            ));
        }
        Some((_, called, short, wanted)) => {
            if source.name.is_empty() {
                causes.push(Cause::invalid(&path.child("name"), format!("{called} name must not be empty")));
            }
            if group != wanted {
                let message = match wanted {
                    "" => format!("{short} API group must be missing or blank"),
                    _ => format!("{short} API group must be {wanted}"),
                };
                causes.push(Cause::invalid(&path.child("apiGroup"), message));
            }
        }
    }
    causes.push(not_there("VirtualMachineExport", "nothing serves volumes for download"));
    causes
}

/// Everything wrong with a change of an export.
pub fn update(old: &VirtualMachineExport, new: &VirtualMachineExport) -> Vec<Cause> {
    immutable(&old.spec, &new.spec, IMMUTABLE)
}
