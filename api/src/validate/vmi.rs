//! Rules for instances and their specifications.

use super::{Cause, Path, Requester};
use super::{
    access_credentials, architecture, bounds, claims, cpu, dedicated, devices, disks, features, filesystems,
    firmware, host_devices, interfaces, launch_security, live_update, memory, mesh, metadata, networks,
    peripherals, placement, pod, probes, root_complex, supported, volumes,
};
use crate::gates::Gates;
use crate::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};

/// Everything wrong with a new instance, defaults already filled in, created by `requester`.
pub fn vmi_create(vmi: &VirtualMachineInstance, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let mut causes = self::vmi(vmi, gates);
    metadata::validate(&Path::new("metadata"), &vmi.metadata, requester, gates, &mut causes);
    let annotations = vmi.metadata.annotations.as_ref();
    mesh::validate(&Path::new("spec"), annotations, &vmi.spec, &mut causes);
    root_complex::validate(&Path::new("metadata"), annotations, &vmi.spec, &mut causes);
    causes
}

/// Everything wrong with an instance's specification, defaults already filled in.
pub fn vmi(vmi: &VirtualMachineInstance, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let mut causes = spec(&path, &vmi.spec, gates);
    memory::given(&path, &vmi.spec, &mut causes);
    causes
}

/// Everything wrong with a specification at this path, defaults already filled in. A template may have no
/// memory, because an instance type may add it later.
pub fn spec(path: &Path, spec: &VirtualMachineInstanceSpec, gates: &Gates) -> Vec<Cause> {
    let mut causes = Vec::new();
    bounds::validate(path, spec, &mut causes);
    architecture::validate(path, spec, &mut causes);
    pod::validate(path, spec, &mut causes);
    placement::validate(path, spec, &mut causes);
    probes::validate(path, spec, &mut causes);
    memory::validate(path, spec, &mut causes);
    live_update::of_instance(path, spec, &mut causes);
    cpu::validate(path, spec, &mut causes);
    dedicated::validate(path, spec, &mut causes);
    features::validate(path, spec, &mut causes);
    firmware::validate(path, spec, gates, &mut causes);
    launch_security::validate(path, spec, gates, &mut causes);
    devices::validate(path, spec, &mut causes);
    peripherals::validate(path, spec, &mut causes);
    claims::validate(path, spec, gates, &mut causes);
    host_devices::validate(path, spec, &mut causes);
    disks::validate(path, spec, gates, &mut causes);
    filesystems::validate(path, spec, &mut causes);
    volumes::validate(path, spec, gates, &mut causes);
    access_credentials::validate(path, spec, &mut causes);
    networks::validate(path, spec, gates, &mut causes);
    interfaces::validate(path, spec, gates, &mut causes);
    supported::vmi(path, spec, gates, &mut causes);
    causes
}
