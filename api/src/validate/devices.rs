//! Rules over several kinds of devices: boot order and numbers of devices.

use super::{Cause, Path};
use crate::pci;
use crate::v1::VirtualMachineInstanceSpec;
use std::collections::HashSet;

/// Most disks on a bus, and most interfaces, of one machine. SATA has six drives on each of four controllers.
/// Virtio devices and interfaces share the PCI slots that the machine's own devices leave free.
const MAX_SATA: usize = 24;
const MAX_PCI: usize = 170;
/// The USB controller has fifteen ports, which other devices use as well.
const MAX_USB: usize = 8;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let disks = path.child("domain.devices.disks");
    let interfaces = path.child("domain.devices.interfaces");
    let on_bus = |bus: &str| devices.disks.iter().filter(|disk| disk.bus() == Some(bus)).count();
    let (on_virtio, cards) = (on_bus("virtio"), devices.interfaces.len());
    let more = if cards > on_virtio { &interfaces } else { &disks };
    for (field, count, most, what) in [
        (&disks, on_bus("sata"), MAX_SATA, "sata drives"),
        (&disks, on_bus("usb"), MAX_USB, "usb disks"),
        (more, on_virtio + cards, MAX_PCI, "virtio disks and interfaces together"),
    ] {
        if count > most {
            causes.push(Cause::not_supported(
                field,
                format!("{field}: more than {most} {what} are not supported yet"),
            ));
        }
    }
    let orders =
        devices.disks.iter().enumerate().map(|(index, disk)| (disks.index(index), disk.boot_order)).chain(
            devices
                .interfaces
                .iter()
                .enumerate()
                .map(|(index, interface)| (interfaces.index(index), interface.boot_order)),
        );
    let has_ports = devices.disable_hotplug != Some(true);
    for (request, why) in pci::refused(&pci::requests(spec), has_ports) {
        let message = format!("Invalid PCI address {}: {why}", request.address);
        causes.push(Cause::invalid(&path.child("domain.devices").child(&request.field), message));
    }
    let mut seen = HashSet::new();
    for (device, order) in orders {
        let Some(order) = order else { continue };
        let field = device.child("bootOrder");
        if order < 1 {
            causes.push(Cause::invalid(&field, format!("{device} must have a boot order > 0, if supplied")));
        } else if !seen.insert(order) {
            causes.push(Cause::invalid(
                &field,
                format!("Boot order for {field} already set for a different device."),
            ));
        }
    }
}
