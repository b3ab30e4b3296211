//! Memory that can grow while the guest runs: what it does not go with.

use super::architecture;
use super::{Cause, Path};
use crate::quantity;
use crate::v1::VirtualMachineInstanceSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Memory is added in whole blocks of that many bytes: transparent huge pages, or pages of 1 GiB.
const BLOCK: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// The specification in a machine's template.
pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(memory) = spec.domain.memory.as_ref().filter(|memory| memory.max_guest.is_some()) else {
        return;
    };
    if let Some(message) = obstacle(spec, memory.max_guest.as_ref()) {
        causes.push(Cause::invalid(&path.child("domain.memory.guest"), message));
    }
}

/// The same for an instance: KubeVirt has no rules for it, and neither have we but for what cannot be built.
pub(super) fn of_instance(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let memory = spec.domain.memory.as_ref();
    if memory.is_some_and(|memory| memory.max_guest.is_some() && memory.hugepages.is_some()) {
        let field = path.child("domain.memory.maxGuest");
        causes.push(Cause::not_supported(&field, format!("{field} is not supported yet with huge pages")));
    }
}

/// The first thing in the way of memory that grows up to `max_guest`.
pub fn obstacle(spec: &VirtualMachineInstanceSpec, max_guest: Option<&Quantity>) -> Option<String> {
    let cpu = spec.domain.cpu.as_ref();
    let memory = spec.domain.memory.as_ref();
    let numa = cpu.and_then(|cpu| cpu.numa.as_ref());
    let pages = memory.and_then(|memory| memory.hugepages.as_ref());
    let huge = pages.is_some_and(|pages| pages.page_size.as_deref() == Some("1Gi"));
    let (block, block_text) = if huge { (GIB, "1Gi") } else { (BLOCK, "2Mi") };
    let bytes = |quantity| quantity::bytes(quantity).ok();
    let max = max_guest.and_then(bytes);
    let guest = memory.and_then(|memory| memory.guest.as_ref()).and_then(bytes);
    let message = if cpu.is_some_and(|cpu| cpu.realtime.is_some()) {
        "Memory hotplug is not compatible with realtime VMs".to_owned()
    } else if numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()) {
        "Memory hotplug is not compatible with guest mapping passthrough".to_owned()
    } else if spec.domain.launch_security.is_some() {
        "Memory hotplug is not compatible with encrypted VMs".to_owned()
    } else {
        let Some(guest) = guest else {
            return Some("Guest memory must be configured when memory hotplug is enabled".to_owned());
        };
        let Some(max) = max else {
            return Some("Max guest memory must be configured when memory hotplug is enabled".to_owned());
        };
        if guest > max {
            "Guest memory is greater than the configured maxGuest memory".to_owned()
        } else if !guest.is_multiple_of(block) {
            format!("Guest memory must be {block_text} aligned")
        } else if !max.is_multiple_of(block) {
            format!("MaxGuest must be {block_text} aligned")
        } else if architecture::of(spec) != "amd64" {
            "Memory hotplug is only available for x86_64 VMs".to_owned()
        } else if guest < GIB {
            "Memory hotplug is only available for VMs with at least 1Gi of guest memory".to_owned()
        } else {
            return None;
        }
    };
    Some(message)
}
