//! What may change on an instance, and who may change it; [`handler`]: what handlers may.

mod handler;

pub use self::handler::handler_update;

use super::{Cause, Path, Requester, cards, hotplug, metadata};
use crate::gates::Gates;
use crate::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};

/// Everything wrong with a change of an instance.
pub fn vmi_update(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    // What virt-controller and virt-api change on a running guest, and a stop with a shorter grace period, recorded by virt-api.
    let mut before = old.spec.clone();
    if requester == Requester::Component && old.spec != new.spec {
        before.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
        hotplug::take_over(&mut before, &new.spec);
        hotplug::sockets(new, &mut causes);
        hotplug::volumes(old, new, gates, &mut causes);
        cards::validate(old, new, gates, &mut causes);
    }
    if before != new.spec {
        if requester == Requester::Component {
            hotplug::validate(old, new, &mut causes);
        }
        if causes.is_empty() {
            causes.push(Cause::not_supported(&Path::new("spec"), "update of VMI object is restricted"));
        }
    }
    if requester == Requester::User {
        let before = metadata::reserved(old.metadata.labels.as_ref());
        let after = metadata::reserved(new.metadata.labels.as_ref());
        if before != after {
            causes.push(Cause::not_supported(
                &Path::new("metadata.labels"),
                "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited",
            ));
        }
    }
    causes
}

/// The status that a write leaves behind: only our components write it; from anyone else it stays as it was.
pub fn protected_status<'a>(
    old: &'a VirtualMachineInstance,
    new: &'a VirtualMachineInstance,
    requester: Requester,
) -> Option<&'a VirtualMachineInstanceStatus> {
    match requester {
        Requester::Component => new.status.as_ref(),
        Requester::User => old.status.as_ref(),
    }
}
