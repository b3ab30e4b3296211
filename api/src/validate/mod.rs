//! Validation: pure functions that return every cause at once, each with the path of its field.
//!
//! Messages and paths are KubeVirt's where KubeVirt has the rule, since tools compare them; where KubeVirt's path is that of
//! no field of the API (`spec.Sound`), ours is the field's. What this version cannot do yet is refused here, by name, and
//! never ignored; rules about it are here all the same, and one that is broken takes the place of the refusal.

mod access_credentials;
mod architecture;
mod bounds;
mod cause;
mod claims;
mod cloud_init;
mod cpu;
mod data_volume_templates;
mod dedicated;
mod devices;
mod disks;
mod features;
mod firmware;
mod gated;
mod host_devices;
mod hotplug;
mod interfaces;
pub mod kinds;
mod launch_security;
mod live_update;
mod memory;
mod metadata;
mod networks;
mod object_volumes;
mod peripherals;
mod pod;
mod port_ranges;
mod probes;
mod supported;
mod text;
mod update;
mod vm;
mod volumes;

#[cfg(test)]
mod tests;

pub use cause::{Cause, CauseKind, Path};
pub use cloud_init::{CLOUD_INIT_LIMIT, NotBase64, decode_base64};
pub use cpu::{MAX_VCPUS, is_cpu_model};
pub use firmware::{is_machine_type_of_amd64, may_be_machine_type_of_amd64};
#[cfg(test)]
pub(crate) use hotplug::differs_live;
pub use hotplug::plugged as disk_cannot_be_plugged;
pub use interfaces::{BRIDGE_MAC, MODELS, parse_mac};
pub use live_update::obstacle as memory_cannot_grow;
pub use text::{is_dns_label, is_dns_subdomain};
pub use update::{Requester, handler_update, protected_status, vmi_update};
pub use vm::{unreadable, vm, vm_spec, vm_update, vm_warnings};

pub(crate) use firmware::fits;
pub(crate) use kinds::kubevirt::host_devices::{is_pci_selector, is_resource_name, usb_selector};
pub use kinds::selects;
pub(crate) use text::is_printable;

use crate::gates::Gates;
use crate::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};

/// Everything wrong with a new instance, defaults already filled in, created by `requester`.
pub fn vmi_create(vmi: &VirtualMachineInstance, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let mut causes = self::vmi(vmi, gates);
    metadata::validate(&Path::new("metadata"), &vmi.metadata, requester, gates, &mut causes);
    causes
}

/// Everything wrong with an instance's specification, defaults already filled in.
pub fn vmi(vmi: &VirtualMachineInstance, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let mut causes = spec(&path, &vmi.spec, gates);
    memory::given(&path, &vmi.spec, &mut causes);
    causes
}

/// Everything wrong with a specification at that path, defaults already filled in. A template may be without memory, which
/// something else may add before there is an instance of it.
pub fn spec(path: &Path, spec: &VirtualMachineInstanceSpec, gates: &Gates) -> Vec<Cause> {
    let mut causes = Vec::new();
    bounds::validate(path, spec, &mut causes);
    architecture::validate(path, spec, &mut causes);
    pod::validate(path, spec, &mut causes);
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
    volumes::validate(path, spec, gates, &mut causes);
    access_credentials::validate(path, spec, &mut causes);
    networks::validate(path, spec, gates, &mut causes);
    interfaces::validate(path, spec, gates, &mut causes);
    supported::vmi(path, spec, gates, &mut causes);
    causes
}
