//! Rules for memory that can grow while the guest runs: the features that cannot be combined with it.

use super::{Cause, Path};
use crate::capacity::memory_cannot_grow;
use crate::v1::VirtualMachineInstanceSpec;

/// The specification in a machine's template.
pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(memory) = spec.domain.memory.as_ref().filter(|memory| memory.max_guest.is_some()) else {
        return;
    };
    if let Some(message) = memory_cannot_grow(spec, memory.max_guest.as_ref()) {
        causes.push(Cause::invalid(&path.child("domain.memory.guest"), message));
    }
}

/// The same for an instance. KubeVirt has no rules for instances; only memory that cannot be built is
/// refused.
pub(super) fn of_instance(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let memory = spec.domain.memory.as_ref();
    if memory.is_some_and(|memory| memory.max_guest.is_some() && memory.hugepages.is_some()) {
        let field = path.child("domain.memory.maxGuest");
        causes.push(Cause::not_supported(&field, format!("{field} is not supported yet with huge pages")));
    }
}
