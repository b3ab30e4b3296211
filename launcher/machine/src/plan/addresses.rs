//! Where the manifest puts devices: validation has found that they can be there.

use crate::layout::{Given, Port, Seat};
use crate::name;
use barevirt_api::pci::{self, Owner, Place};
use barevirt_api::valid::ValidVmi;
use std::collections::BTreeMap;

/// What a manifest says.
#[derive(Default)]
pub(super) struct Addresses {
    /// Devices on pcie.0, by id.
    seats: BTreeMap<String, Seat>,
    pub(super) given: Given,
}

impl Addresses {
    /// Those of a manifest.
    pub(super) fn of(vmi: &ValidVmi) -> Self {
        let place = |wish: pci::Wish<'_>| match wish.owner {
            Owner::Disk(name) => (wish.place, name::device("disk", name)),
            Owner::Interface(name) => (wish.place, name::device("nic", name)),
        };
        let places: BTreeMap<Place, String> = pci::wishes(vmi.spec()).into_iter().map(place).collect();
        let mut found = Self::default();
        for (&Place { bus, slot, function }, device) in &places {
            if bus > 0 {
                found.given.ports.insert(device.clone(), Port::of_bus(bus));
                continue;
            }
            let shared = places.keys().filter(|other| (other.bus, other.slot) == (0, slot)).count() > 1;
            found.given.slots.insert(slot);
            found.seats.insert(device.clone(), Seat::Root { slot, function, shared });
        }
        found
    }

    /// Devices that need no root port.
    pub(super) fn on_root(&self) -> impl Iterator<Item = &str> {
        self.seats.keys().map(String::as_str)
    }

    /// Whether the device needs a root port.
    pub(super) fn is_behind_port(&self, device: &str) -> bool {
        !self.seats.contains_key(device)
    }

    /// Its place on pcie.0, where it has one.
    pub(super) fn seat(&self, device: &str) -> Option<Seat> {
        self.seats.get(device).copied()
    }
}
