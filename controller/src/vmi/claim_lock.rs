//! Claims that are devices: while one guest writes to a device, no other has it open, unless all that write share it. Any
//! number of guests read one that nobody else writes to. Pure.
//!
//! On the same node the launcher opens the device exclusively, and a second guest fails. Two nodes do not know of each
//! other: so an instance waits here until the earlier one has ended.
//!
//! ```text
//!   disks from the start    an instance that has left `Pending`, then the older one
//!   plugged volumes         the one whose entry in the status reserves the claim, then the older instance
//!   one of each             the disk from the start, unless the plugged volume's entry reserves the claim
//!   volumes that move here  an instance that has it, then that of the oldest instance; the others give way and say so, unless
//!                           their guest moves already. A disk from the start that waits for the move gives way, too
//! ```
//!
//! The order does not depend on the state of the cache. An instance that asks sees all that was written before its own object,
//! or before its own entry: an entry is written first, and its pod is made only once the cache shows the entry, if no other
//! has the claim then. Of two entries that reserve the same claim, the later one sees the earlier one, and gives way. A move of
//! a volume is written before its target opens anything, too. The guest is handed over only in the version of its instance that
//! was looked at, in which it does not give way: so a younger instance that gives way stays until it has taken that back, and
//! has looked again. An older one sees either that, or that the younger one may be on its way; then it waits itself. Once one
//! has arrived, the others give way to it as long as it has the claim.

use super::hotplug::volumes;
use barevirt_api::names::{
    CONDITION_SYNCHRONIZED, PHASE_PENDING, PHASE_RUNNING, REASON_CLAIM_IN_USE, is_final_phase,
};
use barevirt_api::v1::{Condition, VirtualMachineInstance, VolumeStatus};
use barevirt_plan::phase;
use barevirt_plan::pod::attachment::Access;
use barevirt_plan::pod::claims::Mode;
use barevirt_plan::volume_migration::turn::gives_way;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// A claim that a guest opens, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened<'a> {
    pub(super) claim: &'a str,
    pub(super) access: Access,
}

impl Opened<'_> {
    /// Whether two guests cannot have both at a time. Guests that share a device know that it changes, so it may be read, too.
    fn excludes(&self, other: &Opened<'_>) -> bool {
        self.claim == other.claim && [self.access, other.access].contains(&Access::Writes)
    }
}

/// The claims that an instance's guest has open from its start to its end.
pub(super) fn opened(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Opened<'_>> {
    of_spec(vmi, false).map(|(_, opened)| opened)
}

/// Disks of the specification, with their claims: those that come and go, or the others.
fn of_spec(vmi: &VirtualMachineInstance, come: bool) -> impl Iterator<Item = (&str, Opened<'_>)> {
    let volumes = vmi.spec.volumes.iter().filter(move |volume| volume.is_hotpluggable() == come);
    volumes.filter_map(move |volume| {
        // A volume that is no disk is a directory, which has no device.
        let disk = vmi.spec.domain.devices.disks.iter().any(|disk| disk.name == volume.name);
        let claim = volume.claim().filter(|_| disk)?;
        let access = Access::of(&vmi.spec, &volume.name, claim);
        Some((volume.name.as_str(), Opened { claim: claim.name, access }))
    })
}

/// The claims that an instance has reserved for plugged volumes.
fn reserved(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Opened<'_>> {
    let reserved = entries(vmi).filter_map(move |entry| volumes::reserved(vmi, entry));
    reserved.map(|(claim, access)| Opened { claim, access })
}

fn entries(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &VolumeStatus> {
    vmi.status.iter().flat_map(|status| &status.volume_status)
}

/// The claims that a guest's volumes are leaving, and those that they move to. Two QEMUs have them until it has arrived. Only
/// volumes that the guest alone writes to move.
fn moved(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Opened<'_>> {
    let moved = vmi.status.iter().flat_map(|status| &status.migrated_volumes);
    let claims = moved.flat_map(|moved| [&moved.source_pvc_info, &moved.destination_pvc_info]);
    let claims = claims.filter_map(|info| info.as_ref()?.claim_name.as_deref());
    claims.map(|claim| Opened { claim, access: Access::Writes })
}

/// The claims that an instance wants for volumes that are to be plugged in, and has not reserved.
fn awaited(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Opened<'_>> {
    let runs = phase(vmi) == PHASE_RUNNING && vmi.metadata.deletion_timestamp.is_none();
    let wanted = of_spec(vmi, true).filter(move |_| runs);
    let waits = wanted.filter(move |(volume, opened)| !is_reserved(vmi, volume, opened));
    waits.map(|(_, opened)| opened)
}

fn is_reserved(vmi: &VirtualMachineInstance, volume: &str, opened: &Opened<'_>) -> bool {
    let mut of_volume = entries(vmi).filter(|entry| entry.name == volume);
    of_volume.any(|entry| volumes::reserved(vmi, entry).is_some_and(|(claim, _)| claim == opened.claim))
}

/// The claims that an instance's volumes move to, and how containers see them.
fn destinations(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&str, Mode)> {
    let moved = vmi.status.iter().flat_map(|status| &status.migrated_volumes);
    let infos = moved.filter_map(|moved| moved.destination_pvc_info.as_ref());
    infos.filter_map(|info| Some((info.claim_name.as_deref()?, Mode::of(info.volume_mode.as_deref()))))
}

/// The first of an instance's new claims that a volume of another one moves to, too.
fn shared_destination<'a>(
    vmi: &'a VirtualMachineInstance,
    other: &VirtualMachineInstance,
) -> Option<&'a str> {
    let is_theirs = |own: &str| destinations(other).any(|(theirs, _)| theirs == own);
    destinations(vmi).map(|(claim, _)| claim).find(|own| is_theirs(own))
}

/// Message about the first of these devices that another instance has; `starts`: also by its disks from the start.
fn used(devices: &[Opened<'_>], other: &VirtualMachineInstance, starts: bool) -> Option<String> {
    let mut has = opened(other).filter(|_| starts).chain(moved(other)).chain(reserved(other));
    let clash = has.find(|theirs| devices.iter().any(|own| own.excludes(theirs)))?;
    Some(open_in(&clash, other))
}

/// Message about the first of these claims, which a guest needs for its start, that another instance of the namespace has.
pub(super) fn taken(
    vmi: &VirtualMachineInstance,
    devices: &[Opened<'_>],
    others: impl IntoIterator<Item = VirtualMachineInstance>,
) -> Option<String> {
    let mut others: Vec<_> = others.into_iter().filter(|other| is_other(other, vmi)).collect();
    // Of several whose volumes move there, the oldest is to move: it looks for itself in the message.
    others.sort_by(|one, other| seniority(one).cmp(&seniority(other)));
    let started = |other: &VirtualMachineInstance| phase(other) != PHASE_PENDING;
    // An instance that has the device is named before one that waits, too: a guest whose volume moves there needs to know it.
    let has = others.iter().find_map(|other| used(devices, other, started(other)));
    has.or_else(|| {
        let mut first = others.iter().filter(|other| !started(other) && starts_before(other, vmi));
        first.find_map(|other| used(devices, other, true))
    })
}

/// Message about the instance that goes before this one, whose volumes are to move to other claims: one that has such a claim,
/// else the oldest of the older ones whose volumes move there, too.
pub(super) fn goes_first(
    vmi: &VirtualMachineInstance,
    others: impl IntoIterator<Item = VirtualMachineInstance>,
) -> Option<String> {
    destinations(vmi).next()?;
    let others: Vec<_> = others.into_iter().filter(|other| is_other(other, vmi)).collect();
    others.iter().find_map(|other| had_by(vmi, other)).or_else(|| {
        let older = others.iter().filter(|other| is_older(other, vmi));
        let rivals = older.filter_map(|other| Some((shared_destination(vmi, other)?, other)));
        let oldest = rivals.min_by(|(_, one), (_, other)| seniority(one).cmp(&seniority(other)));
        oldest.map(|(claim, other)| moves_there(claim, other))
    })
}

/// Message about the first of an instance's new claims that another one has, and does not move to: files as soon as its
/// specification names them and until its volume has left them, a device once it has started with it.
fn had_by(vmi: &VirtualMachineInstance, other: &VirtualMachineInstance) -> Option<String> {
    let moves_too = |claim: &str| destinations(other).any(|(theirs, _)| theirs == claim);
    let has_device = |claim: &str| {
        let mut theirs = opened(other).filter(|_| phase(other) != PHASE_PENDING);
        theirs.find(|theirs| theirs.claim == claim)
    };
    let has_files = |claim: &str| {
        let named = other.spec.volumes.iter().filter_map(|volume| volume.claim()).map(|theirs| theirs.name);
        named.chain(moved(other).map(|theirs| theirs.claim)).any(|theirs| theirs == claim)
    };
    destinations(vmi).find_map(|(claim, mode)| match mode {
        Mode::Block => has_device(claim).filter(|_| !moves_too(claim)).map(|theirs| open_in(&theirs, other)),
        Mode::Filesystem => (has_files(claim) && !moves_too(claim))
            .then(|| format!("VMI {} uses PVC {claim}", other.name_any())),
    })
}

/// Message about the first claim that a guest's volumes move to and another instance has, or may have in a moment: because it
/// uses the claim, or because a volume of it moves there, too. Asked before the target opens any of them, of a cache that
/// shows these moves.
pub(super) fn held(
    vmi: &VirtualMachineInstance,
    others: impl IntoIterator<Item = VirtualMachineInstance>,
) -> Option<String> {
    destinations(vmi).next()?;
    if let Some(why) = gives_way(vmi) {
        return Some(why.to_owned());
    }
    others.into_iter().filter(|other| is_other(other, vmi)).find_map(|other| held_by(vmi, &other))
}

/// The same about this instance.
fn held_by(vmi: &VirtualMachineInstance, other: &VirtualMachineInstance) -> Option<String> {
    let yields = gives_way(other).is_some() && is_older(vmi, other);
    if let Some(claim) = shared_destination(vmi, other).filter(|_| !yields) {
        return Some(moves_there(claim, other));
    }
    if let Some(why) = had_by(vmi, other) {
        return Some(why);
    }
    // The others of its claims count, even if it gives way.
    let left = |claim: &str| yields && destinations(other).any(|(theirs, _)| theirs == claim);
    // Disks that guests share do not move.
    let devices = destinations(vmi).filter(|(claim, mode)| *mode == Mode::Block && !left(claim));
    let devices: Vec<_> = devices.map(|(claim, _)| Opened { claim, access: Access::Writes }).collect();
    let told = used(&devices, other, true)?;
    (!waits_for(other, vmi, &devices)).then_some(told)
}

fn moves_there(claim: &str, other: &VirtualMachineInstance) -> String {
    format!("a volume of VMI {} moves to PVC {claim}, too", other.name_any())
}

/// Whether an instance says that it does not start because this one has one of these devices: it has seen that, and sees it
/// for as long as it is so.
fn waits_for(other: &VirtualMachineInstance, vmi: &VirtualMachineInstance, devices: &[Opened<'_>]) -> bool {
    let said = wait(other).and_then(|said| said.message.as_deref());
    let said = said.filter(|_| phase(other) == PHASE_PENDING);
    said.is_some_and(|said| devices.iter().any(|device| said == open_in(device, vmi)))
}

/// Message about the instance that has a claim, or is to get it first, which a running guest needs for a volume.
pub(super) fn withheld(
    vmi: &VirtualMachineInstance,
    volume: &str,
    device: Opened<'_>,
    others: impl IntoIterator<Item = VirtualMachineInstance>,
) -> Option<String> {
    let is_reserved = is_reserved(vmi, volume, &device);
    others.into_iter().filter(|other| is_other(other, vmi)).find_map(|other| {
        if let Some(told) = used(&[device], &other, true) {
            return Some(told);
        }
        let clash = |theirs: Opened<'_>| device.excludes(&theirs);
        let first = !is_reserved && is_older(&other, vmi) && awaited(&other).any(clash);
        let name = other.name_any();
        first.then(|| format!("PVC {} is a device that VMI {name} waits for, too", device.claim))
    })
}

/// Message about an instance that opens a device like that.
fn open_in(device: &Opened<'_>, other: &VirtualMachineInstance) -> String {
    let does = match device.access {
        Access::Writes | Access::Shares => "writes to",
        Access::Reads => "reads",
    };
    format!(
        "PVC {} is a device that VMI {} {does}; disks that guests are to share need shareable",
        device.claim,
        other.name_any()
    )
}

/// Whether it is another instance, which has not ended.
fn is_other(other: &VirtualMachineInstance, vmi: &VirtualMachineInstance) -> bool {
    other.metadata.uid != vmi.metadata.uid && !is_final_phase(phase(other))
}

/// Whether another instance, which is `Pending`, too, may start before this one.
fn starts_before(other: &VirtualMachineInstance, vmi: &VirtualMachineInstance) -> bool {
    // Of two instances of one second the first one may have made its pod before it could see the other one.
    is_older(other, vmi) || (created(other) == created(vmi) && !waits(other))
}

/// Whether an instance does not start because of another one's claim.
fn waits(vmi: &VirtualMachineInstance) -> bool {
    wait(vmi).is_some()
}

/// The condition that says so.
fn wait(vmi: &VirtualMachineInstance) -> Option<&Condition> {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let told = Condition::find(conditions, CONDITION_SYNCHRONIZED)?;
    (told.reason.as_deref() == Some(REASON_CLAIM_IN_USE)).then_some(told)
}

fn is_older(other: &VirtualMachineInstance, vmi: &VirtualMachineInstance) -> bool {
    seniority(other) < seniority(vmi)
}

/// When an instance was created, then its UID.
fn seniority(vmi: &VirtualMachineInstance) -> (Option<Timestamp>, Option<&str>) {
    (created(vmi), vmi.metadata.uid.as_deref())
}

fn created(vmi: &VirtualMachineInstance) -> Option<Timestamp> {
    vmi.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests;
