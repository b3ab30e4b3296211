//! Volumes that come and go: those that are wanted, and the stage of each entry in the status.

use barevirt_api::names::{
    VOLUME_ATTACHED, VOLUME_BOUND, VOLUME_DETACHING, VOLUME_PENDING, VOLUME_UNMOUNTED,
};
use barevirt_api::v1::{HotplugVolumeStatus, VirtualMachineInstance, VolumeClaim, VolumeStatus};
use barevirt_plan::pod::attachment;
use barevirt_plan::pod::target::launcher_name;

/// A volume of the specification.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) claim: VolumeClaim<'a>,
    pub(super) reads: bool,
    pub(super) pod: String,
}

/// The volumes of the specification.
pub(super) fn wanted(vmi: &VirtualMachineInstance) -> Vec<Wanted<'_>> {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let launcher = launcher_name(vmi);
    let target = attachment::target(vmi, &launcher);
    let hot = vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    hot.filter_map(|volume| {
        let (name, claim) = (volume.name.as_str(), volume.claim()?);
        let reads = attachment::reads(&vmi.spec, name, claim);
        Some(Wanted { name, claim, reads, pod: attachment::name(uid, name, claim.name, reads, target) })
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
    let uid = vmi.metadata.uid.as_deref()?;
    let claim = entry.persistent_volume_claim_info.as_ref()?.claim_name.as_deref()?;
    let state = vmi.status.as_ref()?.migration_state.as_ref();
    let source = state.and_then(|state| state.source_pod.as_deref());
    let before = [None, source.and_then(|source| attachment::target(vmi, source))];
    let name = |reads, launcher| attachment::name(uid, &entry.name, claim, reads, launcher);
    let reads = [false, true].into_iter().find(|reads| before.iter().any(|of| name(*reads, *of) == noted))?;
    Some(name(reads, now))
}

/// The entries of the status.
pub(super) fn entries(
    vmi: &VirtualMachineInstance,
) -> impl Iterator<Item = (&VolumeStatus, &HotplugVolumeStatus)> {
    let volumes = vmi.status.iter().flat_map(|status| &status.volume_status);
    volumes.filter_map(|entry| Some((entry, entry.hotplug_volume.as_ref()?)))
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
