//! Rules for changes of an instance: which fields may change, and which clients may change them. [`handler`]
//! has the rules for handlers.

mod handler;

pub use self::handler::handler_update;

use super::{Cause, Path, Requester, cards, hotplug, metadata};
use crate::gates::Gates;
use crate::v1::{
    StorageMigratedVolumeInfo, VirtualMachineInstance, VirtualMachineInstanceSpec,
    VirtualMachineInstanceStatus, Volume,
};

/// Everything wrong with a change of an instance.
pub fn vmi_update(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    // virt-controller and virt-api may change these fields of a running guest; virt-api also records a
    // shorter grace period for a stop.
    let mut before = old.spec.clone();
    if requester == Requester::Component && old.spec != new.spec {
        before.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
        let mut moved = old.clone();
        moved_volumes(&mut moved.spec, old, new);
        before.volumes.clone_from(&moved.spec.volumes);
        hotplug::take_over(&mut before, &new.spec);
        hotplug::sockets(new, &mut causes);
        hotplug::volumes(&moved, new, gates, &mut causes);
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

/// Copies volumes that start to move to other claims with this change, or whose move is given up.
fn moved_volumes(
    before: &mut VirtualMachineInstanceSpec,
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
) {
    let moved =
        [old, new].into_iter().flat_map(|vmi| vmi.status.iter().flat_map(|status| &status.migrated_volumes));
    for StorageMigratedVolumeInfo { volume_name, source_pvc_info, destination_pvc_info } in moved {
        let is_named = |volume: &Volume| {
            let claim = volume.claim().filter(|claim| !claim.is_ephemeral).map(|claim| claim.name);
            let named = [source_pvc_info, destination_pvc_info].into_iter().flatten();
            claim.is_some() && named.into_iter().any(|info| info.claim_name.as_deref() == claim)
        };
        let next = new.spec.volumes.iter().find(|volume| volume.name == *volume_name && is_named(volume));
        let is = before.volumes.iter_mut().find(|volume| volume.name == *volume_name && is_named(volume));
        if let (Some(is), Some(next)) = (is, next) {
            is.clone_from(next);
        }
    }
}

/// The status after a write. Only our components may change it; for all other clients it stays as it was.
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
