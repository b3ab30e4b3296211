//! Volumes that come and go: those that are wanted, and how far those of the status have come.

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

/// Those that the specification has.
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

/// The name of the pod that offers the disk of an entry where its guest is now: that of the pod which it names, or of the
/// one that is in its place since the guest has moved.
pub(super) fn pod_of(vmi: &VirtualMachineInstance, entry: &VolumeStatus) -> Option<String> {
    let noted = entry.hotplug_volume.as_ref()?.attach_pod_name.as_deref()?;
    Some(successor(vmi, entry, noted).unwrap_or_else(|| noted.to_owned()))
}

/// The one in the place of a pod of the launcher before.
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

/// Those that the status has.
pub(super) fn entries(
    vmi: &VirtualMachineInstance,
) -> impl Iterator<Item = (&VolumeStatus, &HotplugVolumeStatus)> {
    let volumes = vmi.status.iter().flat_map(|status| &status.volume_status);
    volumes.filter_map(|entry| Some((entry, entry.hotplug_volume.as_ref()?)))
}

/// How far a volume has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nobody but us knows of it.
    Waiting,
    /// Its pod offers the disk: the launcher may have it at any time.
    Offered,
    /// The launcher or the guest has it; the entry is the handler's.
    Taken,
    /// The handler takes it out.
    Leaving,
    /// The launcher has let go of it.
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
