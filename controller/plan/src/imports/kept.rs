//! A volume that was there before the claim of its DataVolume, as after the move to another cluster: it names the claim, and
//! has its contents. Pure.
//!
//! ```text
//!   DataVolume with storage.checkStaticVolume, no claim --a free volume names the claim--> claim of that volume, marked as filled
//!                                                      \--there is none--> claim, filled from the source
//! ```

use super::claim;
use super::origin::is_waiting;
use super::profile::FILES;
use barevirt_api::cdi::{DataVolume, annotation};
use barevirt_api::quantity;
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::time::Duration;

/// The longest pause between two looks at the volumes.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The part of the time since the DataVolume was made that is the pause: a tenth.
const PART: u32 = 10;

/// Whether a DataVolume takes such a volume, if there is one.
pub(super) fn asks(data_volume: &DataVolume) -> bool {
    data_volume.annotations().contains_key(annotation::STATIC)
}

/// Whether such a volume is looked for, as long as there is no claim: all volumes of the cluster are listed for that.
pub fn is_looked_for(data_volume: &DataVolume) -> bool {
    asks(data_volume)
        && is_waiting(data_volume)
        && data_volume.metadata.deletion_timestamp.is_none()
        // Its claim comes from a backup.
        && !data_volume.annotations().contains_key(annotation::RESTORED)
}

/// How often a source that is missing is looked at, and with it the volumes: at `often` at first, then ever less often.
pub(super) fn pause(data_volume: &DataVolume, often: Duration, now: &Time) -> Duration {
    let made = data_volume.metadata.creation_timestamp.as_ref();
    let age = made.map(|made| Duration::try_from(now.0.duration_since(made.0)).unwrap_or_default());
    (age.unwrap_or_default() / PART).clamp(often, LONGEST_PAUSE)
}

/// Of these volumes the one that is free and names the claim of the DataVolume.
pub fn of(data_volume: &DataVolume, all: Vec<PersistentVolume>) -> Option<PersistentVolume> {
    let names = |reference: &ObjectReference| {
        reference.namespace == data_volume.metadata.namespace
            && reference.name == data_volume.metadata.name
            // Otherwise it is that of a former claim.
            && reference.uid.as_deref().unwrap_or_default().is_empty()
    };
    let is_for = |volume: &PersistentVolume| {
        let free = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available");
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        free && volume.metadata.deletion_timestamp.is_none() && reference.is_some_and(names)
    };
    all.into_iter().filter(is_for).min_by_key(ResourceExt::name_any)
}

/// The claim as it takes that volume with its contents. A volume that is not what the claim asks for is left alone.
pub(super) fn taken(
    mut wanted: PersistentVolumeClaim,
    data_volume: &DataVolume,
    volume: Option<&PersistentVolume>,
) -> PersistentVolumeClaim {
    let fitting = volume.filter(|volume| fits(volume, &wanted));
    let offered = fitting.and_then(|volume| Some((volume.name_any(), volume.spec.as_ref()?)));
    if let (Some(spec), Some((name, offered))) = (&mut wanted.spec, offered) {
        spec.volume_name = Some(name);
        spec.storage_class_name = Some(offered.storage_class_name.clone().unwrap_or_default());
        wanted.annotations_mut().extend(claim::filled(data_volume));
    }
    wanted
}

/// Whether a volume is what a claim asks for.
pub(super) fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(has), Some(asks)) = (&volume.spec, &claim.spec) else { return false };
    let named = asks.volume_name.as_deref().filter(|name| !name.is_empty());
    named.is_none_or(|name| name == volume.name_any()) && serves(has, asks)
}

/// Whether class, modes and size of a volume are those that a claim asks for.
fn serves(volume: &PersistentVolumeSpec, claim: &PersistentVolumeClaimSpec) -> bool {
    let class = volume.storage_class_name.as_deref().unwrap_or_default();
    let has = volume.access_modes.as_deref().unwrap_or_default();
    let size = volume.capacity.as_ref().and_then(|capacity| quantity::bytes(capacity.get("storage")?).ok());
    let asked = claim.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    claim.storage_class_name.as_deref().is_none_or(|wanted| wanted == class)
        && claim.access_modes.iter().flatten().all(|mode| has.contains(mode))
        && claim.volume_mode.as_deref().unwrap_or(FILES) == volume.volume_mode.as_deref().unwrap_or(FILES)
        && asked.and_then(|asked| quantity::bytes(asked).ok()) <= size
}
