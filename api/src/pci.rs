//! PCI addresses that a manifest gives to disks and network interfaces, as `0000:00:10.0`: domain, bus, slot, function.
//!
//! Bus 00 is the machine's own (QEMU's pcie.0). The other buses belong to its root ports, which firmware
//! numbers in their order, from 1. Each has one device, at 00.0. If a conventional PCI card has another slot
//! on such a bus, a bridge replaces that root port, and such cards can have its slots 01 to 1f.

use crate::names::PCI_LAYOUT_ANNOTATION;
use crate::v1::VirtualMachineInstanceSpec;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::ops::RangeInclusive;

/// Annotation of instances, "true": all devices are on bus 00, and none is behind a root port. KubeVirt's.
pub const ON_ROOT_ANNOTATION: &str = "kubevirt.io/placePCIDevicesOnRootComplex";
/// Path of this annotation in an instance's metadata.
pub const ON_ROOT_FIELD: &str = "annotations[kubevirt.io/placePCIDevicesOnRootComplex]";
/// Slots of bus 00 that a manifest may assign. The host bridge and the display use the slots below, the
/// chipset those above.
pub const SLOTS: RangeInclusive<u16> = 2..=0x1a;
/// How many these are.
pub const SLOT_COUNT: u16 = *SLOTS.end() - *SLOTS.start() + 1;
/// Slots behind a bridge to conventional PCI; slot 0 belongs to its controller.
pub const BRIDGED_SLOTS: RangeInclusive<u16> = 1..=0x1f;
/// Models of cards that are conventional PCI.
const CONVENTIONAL: [&str; 4] = ["e1000", "ne2k_pci", "pcnet", "rtl8139"];
/// Functions of a slot.
pub const FUNCTIONS: u16 = 8;

/// A place in the machine's only PCI domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the bus.
    pub bus: u16,
    /// Slot on it.
    pub slot: u16,
    /// Function of the slot.
    pub function: u16,
}

/// Domain and place of an address; `None` if the text is not an address.
pub fn parse(text: &str) -> Option<(u16, Place)> {
    let digits = |byte: u8, at: usize| match at {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        11 => (b'0'..=b'7').contains(&byte),
        _ => byte.is_ascii_hexdigit(),
    };
    if text.len() != 12 || !text.bytes().enumerate().all(|(at, byte)| digits(byte, at)) {
        return None;
    }
    let number = |from: usize, to: usize| u16::from_str_radix(text.get(from..to)?, 16).ok();
    Some((number(0, 4)?, Place { bus: number(5, 7)?, slot: number(8, 10)?, function: number(11, 12)? }))
}

/// The device that gets an address: a volume's disk or a network's interface, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// A disk.
    Disk(&'a str),
    /// An interface.
    Interface(&'a str),
}

/// The address that a manifest gives to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRequest<'a> {
    /// The device.
    pub owner: Owner<'a>,
    /// Path of the address's field, below `domain.devices` of the specification.
    pub field: String,
    /// The address as it was written.
    pub address: &'a str,
    /// Its domain.
    pub domain: u16,
    /// The place of the address.
    pub place: Place,
    /// Whether the device is conventional PCI, which can be behind a bridge.
    pub conventional: bool,
}

impl<'a> AddressRequest<'a> {
    /// `None` if no address is given or it is invalid.
    fn new(owner: Owner<'a>, field: String, address: Option<&'a String>, conventional: bool) -> Option<Self> {
        let address = address?;
        let (domain, place) = parse(address)?;
        Some(AddressRequest { owner, field, address, domain, place, conventional })
    }
}

/// Bus, slot and function, as `03:00.0`.
impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Place { bus, slot, function } = self;
        write!(f, "{bus:02x}:{slot:02x}.{function:x}")
    }
}

impl Place {
    /// Whether it is behind a bridge that replaces the root port of that bus.
    #[must_use]
    pub const fn is_bridged(self) -> bool {
        self.bus > 0 && self.slot > 0
    }
}

/// Whether an instance with these annotations has all its devices on bus 00, without root ports. As in KubeVirt, any value but
/// `true` says no.
pub fn are_on_root(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.and_then(|all| all.get(ON_ROOT_ANNOTATION)).is_some_and(|value| value == "true")
}

/// Whether all devices of the guest are on bus 00, by the layout that its launcher has reported; `None` if none was, or it cannot be
/// read. An instance that has not started may have the layout of its machine's last run.
pub fn guest_is_on_root(annotations: Option<&BTreeMap<String, String>>) -> Option<bool> {
    let layout = annotations?.get(PCI_LAYOUT_ANNOTATION)?;
    Some(!serde_json::from_str::<Layout>(layout).ok()?.slots.is_empty())
}

/// The part of a saved layout that matters here.
#[derive(Deserialize)]
struct Layout {
    /// Slots on bus 00, if all devices are there.
    #[serde(default)]
    slots: BTreeMap<String, u16>,
}

/// All addresses that a specification gives to virtio disks that are there from the start, and to interfaces.
pub fn requests(spec: &VirtualMachineInstanceSpec) -> Vec<AddressRequest<'_>> {
    let is_plugged_in =
        |name: &str| spec.volumes.iter().any(|volume| volume.name == name && volume.is_hotpluggable());
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().enumerate().filter_map(|(at, disk)| {
        let target =
            disk.disk.as_ref().filter(|_| disk.bus() == Some("virtio") && !is_plugged_in(&disk.name))?;
        AddressRequest::new(
            Owner::Disk(&disk.name),
            format!("disks[{at}].disk.pciAddress"),
            target.pci_address.as_ref(),
            false,
        )
    });
    let interfaces = devices.interfaces.iter().enumerate().filter_map(|(at, interface)| {
        let owner = Owner::Interface(&interface.name);
        // The model of a card of the node has no effect.
        let model = interface.model.as_deref().filter(|_| interface.sriov.is_none());
        let conventional = model.is_some_and(|model| CONVENTIONAL.contains(&model));
        AddressRequest::new(
            owner,
            format!("interfaces[{at}].pciAddress"),
            interface.pci_address.as_ref(),
            conventional,
        )
    });
    disks.chain(interfaces).collect()
}

/// Slots of bus 00 for root ports; `given` are the slots of devices. The last slot is only used if the others
/// are taken.
pub fn port_slots(given: &BTreeSet<u16>) -> impl Iterator<Item = u16> {
    let last = SLOTS.end() - u16::from(given.is_empty());
    (*SLOTS.start()..=last).filter(|slot| !given.contains(slot))
}

/// How many root ports there may be.
pub fn most_ports(given: &BTreeSet<u16>) -> u16 {
    port_slots(given).map(|_| FUNCTIONS).sum()
}

/// Message about a device that must be alone on its bus.
const ONE_DEVICE: &str = "a bus other than 00 is that of one device, at 00.0, or of conventional PCI cards (model e1000, \
                          ne2k_pci, pcnet or rtl8139), at 01.0 and up";

/// The addresses that no device can have, and why. `has_ports` says that all root ports exist, used or not,
/// so that the buses have fixed numbers.
pub fn refused<'a, 'b>(
    requests: &'b [AddressRequest<'a>],
    has_ports: bool,
) -> Vec<(&'b AddressRequest<'a>, &'static str)> {
    let places: BTreeSet<Place> = requests.iter().map(|request| request.place).collect();
    let slots: BTreeSet<u16> = places.iter().filter(|place| place.bus == 0).map(|place| place.slot).collect();
    let bridges: BTreeSet<u16> =
        places.iter().filter(|place| place.is_bridged()).map(|place| place.bus).collect();
    let mut seen = BTreeSet::new();
    let mut why = |request: &AddressRequest<'_>| match request.place {
        _ if request.domain != 0 => Some("the machine has the PCI domain 0000 alone"),
        place if !seen.insert(place) => Some("another device has it"),
        Place { bus: 0, slot, .. } if !SLOTS.contains(&slot) => Some("of bus 00 the slots 02 to 1a are free"),
        Place { bus, .. } if bus > 0 && bus > most_ports(&slots) => Some("there are not so many root ports"),
        Place { bus, slot, function } if bus > 0 && !bridges.contains(&bus) && (slot, function) != (0, 0) => {
            Some(ONE_DEVICE)
        }
        Place { bus, .. } if bus > 0 && !has_ports => {
            Some("without hotplug (disableHotplug) there are addresses on bus 00 alone")
        }
        Place { bus, .. } if bridges.contains(&bus) && !request.conventional => Some(ONE_DEVICE),
        Place { bus, slot, .. } if bridges.contains(&bus) && !BRIDGED_SLOTS.contains(&slot) => {
            Some("behind a bridge to conventional PCI the slots 01 to 1f are free")
        }
        Place { bus, slot, .. } if !places.contains(&Place { bus, slot, function: 0 }) => {
            Some("guests look for further functions of a slot only where there is function 0")
        }
        _ => None,
    };
    requests.iter().filter_map(|request| Some((request, why(request)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(all: &[&'static str], has_ports: bool) -> Vec<&'static str> {
        judged_cards(all, &[], has_ports)
    }

    /// Reasons for `all`, the addresses of disks, and `cards`, those of conventional PCI cards.
    fn judged_cards(all: &[&'static str], cards: &[&'static str], has_ports: bool) -> Vec<&'static str> {
        let cards: Vec<String> = cards.iter().map(|address| (*address).to_owned()).collect();
        let all: Vec<String> = all.iter().map(|address| (*address).to_owned()).collect();
        let request = |address, conventional| {
            AddressRequest::new(Owner::Disk("d"), String::new(), Some(address), conventional)
        };
        let disks = all.iter().filter_map(|address| request(address, false));
        let requests: Vec<AddressRequest<'_>> =
            disks.chain(cards.iter().filter_map(|address| request(address, true))).collect();
        refused(&requests, has_ports).into_iter().map(|(_, why)| why).collect()
    }

    #[test]
    fn an_address_is_domain_bus_slot_and_function() {
        assert_eq!(parse("0001:a2:1F.7"), Some((1, Place { bus: 0xa2, slot: 0x1f, function: 7 })));
        for wrong in [
            "",
            "4.2",
            "81:01.0",
            "0000:81:01.8",
            "0000:81:01,0",
            "0000:81:01.00",
            "+000:81:01.0",
            "0000:81:0é.0",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn impossible_pci_addresses_are_refused() {
        let free =
            ["0000:00:10.0", "0000:00:02.1", "0000:00:02.0", "0000:00:1a.0", "0000:03:00.0", "0000:b0:00.0"];
        assert_eq!(judged(&free, true), [""; 0]);
        for (all, why) in [
            (&["0000:04:10.0"][..], ONE_DEVICE),
            (&["0000:c1:00.0"], "there are not so many root ports"),
            (&["0000:04:00.1"], ONE_DEVICE),
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

    #[test]
    fn conventional_cards_share_a_bus_behind_a_bridge() {
        assert_eq!(
            judged_cards(&["0000:03:00.0"], &["0000:02:01.0", "0000:02:1f.0", "0000:02:1f.7"], true),
            [""; 0]
        );
        // The card is alone on a root port.
        assert_eq!(judged_cards(&[], &["0000:02:00.0"], true), [""; 0]);
        assert_eq!(judged_cards(&["0000:02:00.0"], &["0000:02:01.0"], true), [ONE_DEVICE]);
        assert_eq!(judged_cards(&["0000:02:02.0"], &["0000:02:01.0"], true), [ONE_DEVICE]);
        let no_slot = "behind a bridge to conventional PCI the slots 01 to 1f are free";
        assert_eq!(judged_cards(&[], &["0000:02:00.0", "0000:02:01.0"], true), [no_slot]);
        assert_eq!(judged_cards(&[], &["0000:02:20.0"], true), [no_slot]);
        let no_function = "guests look for further functions of a slot only where there is function 0";
        assert_eq!(judged_cards(&[], &["0000:02:01.1"], true), [no_function]);
        assert_eq!(judged_cards(&[], &["0000:02:01.0", "0000:02:01.0"], true), ["another device has it"]);
        let no_ports = "without hotplug (disableHotplug) there are addresses on bus 00 alone";
        assert_eq!(judged_cards(&[], &["0000:02:01.0"], false), [no_ports]);
        assert_eq!(judged_cards(&[], &["0000:c1:01.0"], true), ["there are not so many root ports"]);
    }
}
