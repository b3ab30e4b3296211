//! PCI addresses that a manifest gives to disks and network interfaces, as `0000:00:10.0`: domain, bus, slot, function.
//!
//! Bus 00 is the machine's own (QEMU's pcie.0). The other buses are those of its root ports, which firmware counts in their order,
//! from 1: on each there is one device, at 00.0.

use crate::v1::VirtualMachineInstanceSpec;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Slots of bus 00 that a manifest may give away. Below are host bridge and display, above what the chipset has there.
pub const SLOTS: RangeInclusive<u16> = 2..=0x1a;
/// Functions of a slot.
pub const FUNCTIONS: u16 = 8;

/// A place in the one domain that the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the bus.
    pub bus: u16,
    /// Slot on it.
    pub slot: u16,
    /// Function of the slot.
    pub function: u16,
}

/// Who is to have an address: a volume's disk or a network's interface, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// A disk.
    Disk(&'a str),
    /// An interface.
    Interface(&'a str),
}

/// What a manifest says of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish<'a> {
    /// Of which.
    pub owner: Owner<'a>,
    /// Path of the address, below `domain.devices` of the specification.
    pub field: String,
    /// The address as it was written; not empty.
    pub address: &'a str,
}

/// All that a specification says of disks on virtio that are there from the start, and of interfaces.
pub fn wishes(spec: &VirtualMachineInstanceSpec) -> Vec<Wish<'_>> {
    let is_plugged_in =
        |name: &str| spec.volumes.iter().any(|volume| volume.name == name && volume.is_hotpluggable());
    let given = |address: &'_ Option<String>| address.as_deref().is_some_and(|address| !address.is_empty());
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().enumerate().filter_map(|(at, disk)| {
        let on_virtio = disk.bus() == Some("virtio");
        let target = disk.disk.as_ref().filter(|target| on_virtio && given(&target.pci_address))?;
        let address = target.pci_address.as_deref().filter(|_| !is_plugged_in(&disk.name))?;
        Some(Wish { owner: Owner::Disk(&disk.name), field: format!("disks[{at}].disk.pciAddress"), address })
    });
    let interfaces = devices.interfaces.iter().enumerate().filter_map(|(at, interface)| {
        let address = interface.pci_address.as_deref().filter(|_| given(&interface.pci_address))?;
        let owner = Owner::Interface(&interface.name);
        Some(Wish { owner, field: format!("interfaces[{at}].pciAddress"), address })
    });
    disks.chain(interfaces).collect()
}

/// Slots of bus 00 where root ports are, given those that have devices. The last one is theirs only where others are not.
pub fn port_slots(given: &BTreeSet<u16>) -> impl Iterator<Item = u16> {
    let spare = usize::from(given.is_empty());
    let all = SLOTS.filter(|slot| !given.contains(slot)).collect::<Vec<_>>();
    let count = all.len() - spare;
    all.into_iter().take(count)
}

/// How many root ports there may be.
pub fn most_ports(given: &BTreeSet<u16>) -> u16 {
    port_slots(given).map(|_| FUNCTIONS).sum()
}

impl Wish<'_> {
    /// The place that it means; none where it is no address, or in a domain that is not there.
    pub fn place(&self) -> Option<Place> {
        let number = |text: &str| u16::from_str_radix(text, 16).ok();
        let (rest, function) = self.address.rsplit_once('.')?;
        let [domain, bus, slot] = <[&str; 3]>::try_from(rest.split(':').collect::<Vec<_>>()).ok()?;
        let place = Place { bus: number(bus)?, slot: number(slot)?, function: number(function)? };
        (number(domain)? == 0).then_some(place)
    }
}

/// Those that no device can have, and why. `has_ports` where all root ports are there, used or not, so that the buses have their
/// numbers.
pub fn refused<'a, 'b>(wishes: &'b [Wish<'a>], has_ports: bool) -> Vec<(&'b Wish<'a>, &'static str)> {
    let places: BTreeSet<Place> = wishes.iter().filter_map(Wish::place).collect();
    let slots: BTreeSet<u16> = places.iter().filter(|place| place.bus == 0).map(|place| place.slot).collect();
    let mut seen = BTreeSet::new();
    let mut why = |wish: &Wish<'_>| match wish.place() {
        None => Some("the machine has the PCI domain 0000 alone"),
        Some(place) if !seen.insert(place) => Some("another device has it"),
        Some(Place { bus: 0, slot, function }) if !SLOTS.contains(&slot) || function >= FUNCTIONS => {
            Some("of bus 00 the slots 02 to 1a are free")
        }
        Some(Place { bus: 0, slot, .. }) if !places.contains(&Place { bus: 0, slot, function: 0 }) => {
            Some("guests look for further functions of a slot only where there is function 0")
        }
        Some(Place { bus: 0, .. }) => None,
        Some(Place { bus, .. }) if bus > most_ports(&slots) => Some("there are not so many root ports"),
        Some(Place { slot: 0, function: 0, .. }) if has_ports => None,
        Some(Place { slot: 0, function: 0, .. }) => {
            Some("without hotplug (disableHotplug) there are addresses on bus 00 alone")
        }
        Some(_) => Some("a bus other than 00 is that of one device, at 00.0"),
    };
    wishes.iter().filter_map(|wish| Some((wish, why(wish)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(all: &[&'static str], has_ports: bool) -> Vec<&'static str> {
        let wish = |address: &&'static str| Wish { owner: Owner::Disk("d"), field: String::new(), address };
        let wishes: Vec<Wish<'_>> = all.iter().map(wish).collect();
        refused(&wishes, has_ports).into_iter().map(|(_, why)| why).collect()
    }

    #[test]
    fn what_no_device_can_have_is_refused() {
        let free =
            ["0000:00:10.0", "0000:00:02.1", "0000:00:02.0", "0000:00:1a.0", "0000:03:00.0", "0000:b0:00.0"];
        assert_eq!(judged(&free, true), [""; 0]);
        for (all, why) in [
            (&["0000:04:10.0"][..], "a bus other than 00 is that of one device, at 00.0"),
            (&["0000:c1:00.0"], "there are not so many root ports"),
            (&["0000:04:00.1"], "a bus other than 00 is that of one device, at 00.0"),
            (&["0001:00:10.0"], "the machine has the PCI domain 0000 alone"),
            (&["0000:00:01.0"], "of bus 00 the slots 02 to 1a are free"),
            (&["0000:00:1b.0"], "of bus 00 the slots 02 to 1a are free"),
            (&["0000:05:00.0", "0000:05:00.0"], "another device has it"),
            (&["0000:00:04.2"], "guests look for further functions of a slot only where there is function 0"),
        ] {
            assert_eq!(judged(all, true), [why], "{all:?}");
        }
        let why = "without hotplug (disableHotplug) there are addresses on bus 00 alone";
        assert_eq!(judged(&["0000:01:00.0", "0000:00:10.0"], false), [why]);
    }
}
