//! How many virtual CPUs a guest can have, and whether its memory can grow.

use crate::architecture;
use crate::quantity::{self, is_zero};
use crate::v1::{ResourceRequirements, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Most virtual CPUs of a guest: more need interrupt remapping in the guest.
pub const MAX_VCPUS: u64 = 255;

/// Memory is added in whole blocks of this many bytes: transparent huge pages, or pages of 1 GiB.
const BLOCK: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// Sockets from the CPU limit, else from the CPU request: one for each CPU.
pub(crate) fn sockets_from_resources(resources: &ResourceRequirements) -> Option<u32> {
    let cpus = resources.limit("cpu").filter(|limit| !is_zero(limit)).or_else(|| resources.request("cpu"))?;
    // A part of a CPU counts as a whole CPU. Validation reports a quantity that cannot be read.
    let millis = quantity::millis(cpus).ok()?;
    u32::try_from(millis.div_ceil(1000)).ok()
}

/// Why the memory of a guest cannot grow up to `max_guest`: the first reason, or `None` if it can.
pub fn memory_cannot_grow(spec: &VirtualMachineInstanceSpec, max_guest: Option<&Quantity>) -> Option<String> {
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
