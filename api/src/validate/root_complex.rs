//! Rules for instances with all their devices on the PCIe root complex. KubeVirt accepts what is refused here, and the guest
//! does not start, or does not get a disk that is plugged in.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cause, Path};
use crate::networks;
use crate::pci::{self, AddressRequest};
use crate::syntax::quoted;
use crate::v1::{Disk, VirtualMachineInstanceSpec};

/// Refuses what has no place there: `metadata` is the path of the instance's metadata, and the specification has its defaults.
pub(super) fn validate(
    metadata: &Path,
    annotations: Option<&BTreeMap<String, String>>,
    spec: &VirtualMachineInstanceSpec,
    causes: &mut Vec<Cause>,
) {
    if !pci::are_on_root(annotations) {
        return;
    }
    let field = metadata.child(pci::ON_ROOT_FIELD);
    let requests = pci::requests(spec);
    for request in requests.iter().filter(|request| request.place.bus > 0) {
        let AddressRequest { field: device, address, .. } = request;
        let message =
            format!("{field} leaves no root ports: domain.devices.{device} {address} is not on bus 00");
        causes.push(Cause::invalid(&field, message));
    }
    for disk in on_virtio(spec).filter(|disk| is_plugged(spec, disk)) {
        let message = format!(
            "{field} leaves no root ports: disk {} is plugged in, and needs the bus scsi for that",
            quoted(&disk.name)
        );
        causes.push(Cause::invalid(&field, message));
    }
    let (wanted, most) = (places(spec, &requests), usize::from(pci::SLOT_COUNT));
    if wanted > most {
        let message = format!("{field} leaves places for {most} devices, and there are at least {wanted}");
        causes.push(Cause::invalid(&field, message));
    }
}

fn on_virtio(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &Disk> {
    spec.domain.devices.disks.iter().filter(|disk| disk.bus() == Some("virtio"))
}

fn is_plugged(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> bool {
    spec.volumes.iter().any(|volume| volume.name == disk.name && volume.is_hotpluggable())
}

/// Places that the machine needs at least. Only a node knows which of its devices are on USB and need none.
fn places(spec: &VirtualMachineInstanceSpec, requests: &[AddressRequest<'_>]) -> usize {
    let devices = &spec.domain.devices;
    let cards = devices.interfaces.iter().filter(|card| !networks::is_absent(card)).count();
    let disks = on_virtio(spec).filter(|disk| !is_plugged(spec, disk)).count();
    let tablets = devices.inputs.iter().filter(|input| input.bus.as_deref() == Some("virtio")).count();
    let single = [
        // Channels.
        true,
        // Disks are plugged into the SCSI controller.
        devices.disable_hotplug != Some(true) || devices.disks.iter().any(|disk| disk.bus() == Some("scsi")),
        devices.autoattach_mem_balloon.unwrap_or(true),
        devices.rng.is_some(),
        devices.watchdog.is_some(),
        devices.sound.is_some(),
        devices.autoattach_vsock == Some(true),
    ];
    let single = single.into_iter().filter(|there| *there).count();
    // Devices with an address may share a slot.
    let slots: BTreeSet<u16> = requests.iter().map(|request| request.place.slot).collect();
    let free = (cards + disks).saturating_sub(requests.len());
    free + slots.len() + tablets + single + devices.filesystems.len()
}
