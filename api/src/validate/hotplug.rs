//! Changes that our components may make to a running instance: sockets, memory, placement, network cards
//! ([`super::cards`]), and hotplugged volumes with their disks. They make these changes for a user who used a
//! subresource or changed the machine.

use super::{Cause, Path, root_complex};
use crate::gates::Gates;
use crate::syntax::quoted;
use crate::v1::{Disk, UtilityVolume, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};
use crate::{hotplug, quantity};
use std::collections::{BTreeMap, BTreeSet};

/// Copies the fields that may change.
pub(super) fn take_over(old: &mut VirtualMachineInstanceSpec, new: &VirtualMachineInstanceSpec) {
    old.node_selector.clone_from(&new.node_selector);
    old.affinity.clone_from(&new.affinity);
    old.tolerations.clone_from(&new.tolerations);
    hotplug::take_over(old, new);
    old.networks.clone_from(&new.networks);
    old.domain.devices.interfaces.clone_from(&new.domain.devices.interfaces);
    if let (Some(old), Some(new)) = (&mut old.domain.cpu, &new.domain.cpu) {
        old.sockets = new.sockets;
    }
    if let (Some(old), Some(new)) = (&mut old.domain.memory, &new.domain.memory) {
        old.guest.clone_from(&new.guest);
    }
    if let (Some(old), Some(new)) = (&mut old.domain.resources, &new.domain.resources) {
        for (old, new) in [(&mut old.requests, &new.requests), (&mut old.limits, &new.limits)] {
            if let (Some(old), Some(new)) = (old, new)
                && let (Some(old), Some(new)) = (old.get_mut("memory"), new.get("memory"))
            {
                old.clone_from(new);
            }
        }
    }
}

/// Whether two specifications differ only in fields that may change.
#[cfg(test)]
pub(crate) fn differs_live(old: &VirtualMachineInstance, new: &VirtualMachineInstance) -> bool {
    let mut before = old.spec.clone();
    before.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
    take_over(&mut before, &new.spec);
    before == new.spec
}

/// The sockets must fit in the machine.
pub(super) fn sockets(new: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    let Some(cpu) = &new.spec.domain.cpu else { return };
    if let (Some(sockets), Some(most @ 1..)) = (cpu.sockets, cpu.max_sockets)
        && sockets > most
    {
        causes.push(Cause::invalid(
            &Path::new("spec.domain.cpu.sockets"),
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        ));
    }
}

pub(super) fn validate(old: &VirtualMachineInstance, new: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    let domain = Path::new("spec.domain");
    let max_sockets = |vmi: &VirtualMachineInstance| {
        vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.max_sockets).unwrap_or(0)
    };
    if max_sockets(old) != max_sockets(new) {
        causes.push(Cause::invalid(&domain.child("cpu.maxSockets"), "CPU topology maxSockets changed"));
    }
    let max_guest = |vmi: &VirtualMachineInstance| {
        let max = vmi.spec.domain.memory.as_ref()?.max_guest.as_ref()?;
        Some(quantity::bytes(max).map_err(|_| max.0.clone()))
    };
    if let (Some(before), Some(after)) = (max_guest(old), max_guest(new))
        && before != after
    {
        causes.push(Cause::invalid(&domain.child("memory.maxGuest"), "Memory maxGuest changed"));
    }
    utility_volumes(old, new, causes);
}

fn utility_volumes(old: &VirtualMachineInstance, new: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    let field = Path::new("spec.utilityVolumes");
    let volumes = Path::new("spec.volumes");
    let before: BTreeMap<&str, &UtilityVolume> =
        old.spec.utility_volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, volume) in new.spec.utility_volumes.iter().enumerate() {
        let at = field.index(index);
        let field_name = at.child("name");
        if volume.name.is_empty() {
            causes.push(Cause::required(&field_name, "UtilityVolume 'name' must be set"));
        }
        if let Some(earlier) = first.insert(&volume.name, index) {
            causes.push(Cause::duplicate(
                &field_name,
                format!("{at} and {} must not have the same Name.", field.index(earlier)),
            ));
        }
        if let Some(other) = new.spec.volumes.iter().position(|other| other.name == volume.name) {
            causes.push(Cause::duplicate(
                &field_name,
                format!(
                    "{at} conflicts with {}. UtilityVolume names must be unique across both volumes and utilityVolumes.",
                    volumes.index(other)
                ),
            ));
        }
        if volume.claim_name.is_empty() {
            causes.push(Cause::required(&at.child("claimName"), "UtilityVolume PVC 'claimName' must be set"));
        }
        if before.get(volume.name.as_str()).is_some_and(|before| *before != volume) {
            causes.push(Cause::invalid(&at, format!("utility volume {} has changed", quoted(&volume.name))));
        }
    }
}

/// Volumes that the instance started with do not change; others are plugged and unplugged with their disks.
pub(super) fn volumes(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let disks = |vmi: &VirtualMachineInstance| vmi.spec.domain.devices.disks.clone();
    if old.spec.volumes == new.spec.volumes && disks(old) == disks(new) {
        return;
    }
    let broken = causes.len();
    declared(new, causes);
    if causes.len() == broken {
        exchanged(old, new, causes);
    }
    if causes.len() == broken {
        in_themselves(old, new, gates, causes);
    }
}

/// Each disk has its volume, except a CD drive, which may be empty, and each volume is shown to the guest
/// once.
fn declared(new: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    let devices = &new.spec.domain.devices;
    let names: BTreeSet<&str> = new
        .spec
        .volumes
        .iter()
        .filter(|volume| volume.memory_dump.is_none())
        .map(|volume| volume.name.as_str())
        .collect();
    let full = |disk: &&Disk| !disk.is_cdrom() || names.contains(disk.name.as_str());
    let required = devices.filesystems.len() + devices.disks.iter().filter(full).count();
    if required != names.len() {
        let message =
            format!("mismatch between volumes declared ({}) and required ({required})", names.len());
        causes.push(Cause::invalid(&Path::new("spec.volumes"), message));
    }
}

/// Which disks and volumes may be added, which may be removed, and which must stay.
fn exchanged(old: &VirtualMachineInstance, new: &VirtualMachineInstance, causes: &mut Vec<Cause>) {
    let field = Path::new("spec.volumes");
    let field_disks = Path::new("spec.domain.devices.disks");
    let told = old.status.iter().flat_map(|status| &status.volume_status);
    let started_with =
        told.filter(|volume| volume.hotplug_volume.is_none()).map(|volume| volume.name.as_str());
    // The status of a guest that has just started does not list its volumes yet.
    let fixed = old.spec.volumes.iter().filter(|volume| !volume.is_hotpluggable());
    let permanent: BTreeSet<&str> = started_with.chain(fixed.map(|volume| volume.name.as_str())).collect();
    let is_permanent = |volume: &&Volume| permanent.contains(volume.name.as_str());
    let count = |vmi: &VirtualMachineInstance| vmi.spec.volumes.iter().filter(is_permanent).count();
    if count(old) != count(new) {
        causes.push(Cause::invalid(&field, "Number of permanent volumes has changed"));
        return;
    }
    let (before, after) = (Disks::of(old), Disks::of(new));
    for (index, volume) in new.spec.volumes.iter().enumerate() {
        let name = volume.name.as_str();
        let at = field.index(index);
        let shown = quoted(name);
        let kind = if is_permanent(&volume) { "permanent" } else { "hotplug" };
        let disk = after.0.get(name);
        match before.1.get(name) {
            Some(other) if *other != volume => {
                causes.push(Cause::invalid(&at, format!("{kind} volume {shown}, changed")));
            }
            Some(_) => {
                if disk != before.0.get(name) {
                    causes.push(Cause::invalid(&field_disks, format!("{kind} disk {shown}, changed")));
                }
            }
            None if kind == "permanent" => {
                causes.push(Cause::invalid(&at, format!("permanent volume {shown}, not found")));
            }
            None if volume.memory_dump.is_some() => {}
            None if volume.data_volume.is_none() && volume.persistent_volume_claim.is_none() => {
                causes.push(Cause::invalid(&at, format!("volume {shown} is not a PVC or DataVolume")));
            }
            None => match disk {
                None => {
                    causes.push(Cause::invalid(&field_disks, format!("disk {shown} does not exist")));
                }
                // The drive exists and gets a disc.
                Some(_) if before.0.contains_key(name) => {}
                Some(disk) => causes.extend(plugged(&field_disks, disk, "Hotplug configuration")),
            },
        }
    }
}

/// Plugged disks must satisfy the same rules as at the start.
fn in_themselves(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let (before, after) = (Disks::of(old), Disks::of(new));
    let mut disks = after.0.iter();
    let comes =
        disks.any(|(name, disk)| before.0.get(name) != Some(disk) || before.1.get(name) != after.1.get(name));
    if comes {
        // Faults that the instance had before, because the rules are newer than the instance, are no
        // obstacle.
        let judged = |vmi: &VirtualMachineInstance| {
            let mut causes = super::spec(&Path::new("spec"), &vmi.spec, gates);
            let annotations = vmi.metadata.annotations.as_ref();
            root_complex::validate(&Path::new("metadata"), annotations, &vmi.spec, &mut causes);
            causes
        };
        let (known, found) = (judged(old), judged(new));
        causes.extend(found.into_iter().filter(|cause| !known.contains(cause)));
    }
}

/// An instance's disks and volumes by name.
struct Disks<'a>(BTreeMap<&'a str, &'a Disk>, BTreeMap<&'a str, &'a Volume>);

impl<'a> Disks<'a> {
    fn of(vmi: &'a VirtualMachineInstance) -> Self {
        let disks = vmi.spec.domain.devices.disks.iter();
        Disks(
            disks.map(|disk| (disk.name.as_str(), disk)).collect(),
            vmi.spec.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect(),
        )
    }
}

/// Why a disk cannot be plugged into a running guest: its bus must support hotplug. `what` begins the message.
pub fn plugged(field: &Path, disk: &Disk, what: &str) -> Option<Cause> {
    let name = quoted(&disk.name);
    let bus = disk.bus().unwrap_or_default();
    let shown = quoted(bus);
    let message = match disk {
        Disk { disk: Some(_), .. } if !matches!(bus, "scsi" | "virtio") => format!(
            "{what} for disk [{name}] requires bus to be 'scsi' or 'virtio'. [{shown}] is not permitted."
        ),
        Disk { disk: None, lun: Some(_), .. } if bus != "scsi" => {
            format!("{what} for LUN [{name}] requires bus to be 'scsi'. [{shown}] is not permitted.")
        }
        Disk { disk: None, lun: None, .. } => {
            format!("{what} for [{name}] requires diskDevice of type 'disk' or 'lun' to be used.")
        }
        _ if disk.dedicated_io_thread == Some(true) && bus != "virtio" => {
            format!("{what} for [{name}] requires virtio bus for IOThreads.")
        }
        _ => return None,
    };
    Some(Cause::invalid(field, message))
}
