//! Places of devices that the manifest chooses, which validation has already checked.

use crate::layout::{Given, Port, Seat};
use crate::name;
use barevirt_api::pci::{self, Owner, Place};
use barevirt_api::valid::ValidVmi;
use std::collections::BTreeMap;

/// The places that a manifest chooses.
#[derive(Default)]
pub(super) struct Addresses {
    /// Devices that are not behind a root port, by id.
    seats: BTreeMap<String, Seat>,
    pub(super) given: Given,
}

impl Addresses {
    /// The places of a manifest.
    pub(super) fn of(vmi: &ValidVmi) -> Self {
        let place = |request: pci::AddressRequest<'_>| match request.owner {
            Owner::Disk(name) => (request.place, name::device("disk", name)),
            Owner::Interface(name) => (request.place, name::device("nic", name)),
        };
        let places: BTreeMap<Place, String> = pci::requests(vmi.spec()).into_iter().map(place).collect();
        let mut found = Self::default();
        for (&place, device) in &places {
            let Place { bus, slot, function } = place;
            let shared = places.keys().filter(|other| (other.bus, other.slot) == (bus, slot)).count() > 1;
            let port = Port::of_bus(bus);
            if place.is_bridged() {
                found.given.ports.insert(port.bridge(), port);
                found.given.bridges.insert(port);
                found.seats.insert(device.clone(), Seat::Bridged { port, slot, function, shared });
            } else if bus > 0 {
                found.given.ports.insert(device.clone(), port);
            } else {
                found.given.slots.insert(slot);
                found.seats.insert(device.clone(), Seat::Root { slot, function, shared });
            }
        }
        found
    }

    /// Devices that need no root port.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &str> {
        self.seats.keys().map(String::as_str)
    }

    /// Whether a device needs a root port.
    pub(super) fn is_behind_port(&self, device: &str) -> bool {
        !self.seats.contains_key(device)
    }

    /// Place of a device that needs no root port.
    pub(super) fn seat(&self, device: &str) -> Option<Seat> {
        self.seats.get(device).copied()
    }
}
