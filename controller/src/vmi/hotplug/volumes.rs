//! Hotpluggable volumes: those that are wanted, and the stage of each entry in the status.

use barevirt_api::hotplug;
use barevirt_api::names::{
    REASON_CLAIM_IN_USE, VOLUME_ATTACHED, VOLUME_BOUND, VOLUME_DETACHING, VOLUME_PENDING, VOLUME_UNMOUNTED,
};
use barevirt_api::v1::{HotplugVolumeStatus, VirtualMachineInstance, Volume, VolumeClaim, VolumeStatus};
use barevirt_plan::pod::attachment::{self, Access};
use barevirt_plan::pod::target::launcher_name;

/// A volume of the specification.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) claim: VolumeClaim<'a>,
    pub(super) access: Access,
    pub(super) pod: String,
}

/// The volumes of the specification.
pub(super) fn wanted(vmi: &VirtualMachineInstance) -> Vec<Wanted<'_>> {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let launcher = launcher_name(vmi);
    let target = attachment::target(vmi, &launcher);
    let hot = vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    hot.filter_map(|volume| {
        let (name, claim) = (volume.name.as_str(), hotplug::present(vmi, volume)?);
        let access = Access::of(&vmi.spec, name, claim);
        Some(Wanted { name, claim, access, pod: attachment::name(uid, name, claim.name, access, target) })
    })
    .collect()
}

/// The name of the pod that offers an entry's disk on the guest's present node: the pod that the entry names, or its
/// successor after a migration.
pub(super) fn pod_of(vmi: &VirtualMachineInstance, entry: &VolumeStatus) -> Option<String> {
    let noted = entry.hotplug_volume.as_ref()?.attach_pod_name.as_deref()?;
    Some(successor(vmi, entry, noted).unwrap_or_else(|| noted.to_owned()))
}

/// The successor of a pod that belonged to the former launcher.
fn successor(vmi: &VirtualMachineInstance, entry: &VolumeStatus, noted: &str) -> Option<String> {
    let launcher = launcher_name(vmi);
    let now = Some(attachment::target(vmi, &launcher)?);
    let (uid, claim) = (vmi.metadata.uid.as_deref()?, claim_of(entry)?);
    let access = access_of(vmi, entry, noted).or_else(|| access_at_target(vmi, entry, claim))?;
    Some(attachment::name(uid, &entry.name, claim, access, now))
}

/// How the disk of an entry was opened where the guest has moved to, if its volume has moved to that claim with the guest:
/// the entry names the claim, and still the pod with the former one.
fn access_at_target(vmi: &VirtualMachineInstance, entry: &VolumeStatus, claim: &str) -> Option<Access> {
    let mut hot = vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    let volume = hot.find(|volume| volume.name == entry.name)?;
    let wanted = volume.claim().filter(|wanted| wanted.name == claim)?;
    Some(Access::of(&vmi.spec, &volume.name, wanted))
}

/// How the pod of that name opens the disk of an entry: the name is derived from that, too.
fn access_of(vmi: &VirtualMachineInstance, entry: &VolumeStatus, pod: &str) -> Option<Access> {
    let (uid, claim) = (vmi.metadata.uid.as_deref()?, claim_of(entry)?);
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let source = state.and_then(|state| state.source_pod.as_deref());
    let launcher = launcher_name(vmi);
    let launchers = [Some(launcher.as_str()), source].map(|of| of.and_then(|of| attachment::target(vmi, of)));
    Access::ALL.into_iter().find(|access| {
        let name = |of| attachment::name(uid, &entry.name, claim, *access, of);
        name(None) == pod || launchers.iter().any(|of| name(*of) == pod)
    })
}

/// The claim of an entry.
fn claim_of(entry: &VolumeStatus) -> Option<&str> {
    entry.persistent_volume_claim_info.as_ref()?.claim_name.as_deref()
}

/// The claim that an entry reserves for its guest, and how the guest uses it. From the moment at which virt-controller
/// writes that nothing is in the way of a volume, until the launcher has released its disk, no other guest gets the claim.
pub(in crate::vmi) fn reserved<'a>(
    vmi: &VirtualMachineInstance,
    entry: &'a VolumeStatus,
) -> Option<(&'a str, Access)> {
    let noted = entry.hotplug_volume.as_ref()?.attach_pod_name.as_deref()?;
    let reserves = match Stage::of(entry) {
        Stage::Waiting => entry.reason.as_deref() != Some(REASON_CLAIM_IN_USE),
        Stage::Offered | Stage::Taken | Stage::Leaving => true,
        Stage::Left => false,
    };
    let claim = claim_of(entry).filter(|_| reserves)?;
    // A pod of an unknown form may do anything.
    Some((claim, access_of(vmi, entry, noted).unwrap_or(Access::Writes)))
}

/// The entries of the status.
pub(super) fn entries(
    vmi: &VirtualMachineInstance,
) -> impl Iterator<Item = (&VolumeStatus, &HotplugVolumeStatus)> {
    let volumes = vmi.status.iter().flat_map(|status| &status.volume_status);
    volumes.filter_map(|entry| Some((entry, entry.hotplug_volume.as_ref()?)))
}

/// Whether an instance has such volumes, or still has pods with the disks of former ones.
pub(in crate::vmi) fn has_any(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.volumes.iter().any(Volume::is_hotpluggable) || entries(vmi).next().is_some()
}

/// The stage of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Only this program knows of it.
    Waiting,
    /// Its pod offers the disk: the launcher may have it at any time.
    Offered,
    /// The launcher or the guest has it; the handler owns the entry.
    Taken,
    /// The handler is removing it.
    Leaving,
    /// The launcher has released it.
    Left,
}

impl Stage {
    pub(super) fn of(entry: &VolumeStatus) -> Self {
        match entry.phase.as_deref().unwrap_or_default() {
            "" | VOLUME_PENDING | VOLUME_BOUND => Stage::Waiting,
            VOLUME_ATTACHED => Stage::Offered,
            VOLUME_DETACHING => Stage::Leaving,
            VOLUME_UNMOUNTED => Stage::Left,
            _ => Stage::Taken,
        }
    }
}
