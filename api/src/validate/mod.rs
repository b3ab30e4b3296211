//! Validation: pure functions that return every cause at once, each with the path of its field.
//!
//! Messages and paths are KubeVirt's where KubeVirt has the rule, since tools compare them. What
//! this version cannot do yet is refused here, by name, and never ignored.

mod cause;
mod cpu;
mod devices;
mod disks;
mod firmware;
mod interfaces;
mod memory;
mod metadata;
mod networks;
mod pod;
mod supported;
mod text;
mod update;
mod vm;
mod volumes;

#[cfg(test)]
mod tests;

pub use cause::{Cause, CauseKind, Path};
pub use cpu::MAX_VCPUS;
pub use interfaces::{BRIDGE_MAC, MODELS, parse_mac};
pub use update::{Requester, handler_update, protected_status, vmi_update};
pub use vm::{vm, vm_update, vm_warnings};
pub use volumes::{CLOUD_INIT_LIMIT, NotBase64, decode_base64};

use crate::gates::Gates;
use crate::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};

/// Everything wrong with a new instance, defaults already filled in, created by `requester`.
pub fn vmi_create(vmi: &VirtualMachineInstance, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let mut causes = self::vmi(vmi, gates);
    metadata::reserved_labels(&Path::new("metadata"), vmi.metadata.labels.as_ref(), requester, &mut causes);
    causes
}

/// Everything wrong with an instance's specification, defaults already filled in.
pub fn vmi(vmi: &VirtualMachineInstance, gates: &Gates) -> Vec<Cause> {
    spec(&Path::new("spec"), &vmi.spec, gates)
}

/// Everything wrong with a specification at that path, defaults already filled in.
pub fn spec(path: &Path, spec: &VirtualMachineInstanceSpec, gates: &Gates) -> Vec<Cause> {
    let mut causes = Vec::new();
    pod::validate(path, spec, &mut causes);
    memory::validate(path, spec, &mut causes);
    cpu::validate(path, spec, &mut causes);
    firmware::validate(path, spec, &mut causes);
    devices::validate(path, spec, &mut causes);
    disks::validate(path, spec, &mut causes);
    volumes::validate(path, spec, &mut causes);
    networks::validate(path, spec, &mut causes);
    interfaces::validate(path, spec, &mut causes);
    supported::vmi(path, spec, gates, &mut causes);
    causes
}
