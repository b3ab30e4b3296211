//! Places of devices that the manifest chooses, which validation has already checked, and whether all are on the root complex.

use crate::error::PlanError;
use crate::layout::{Given, Layout, Port, Seat};
use crate::name;
use barevirt_api::pci::{self, Owner, Place};
use barevirt_api::valid::ValidVmi;
use std::collections::BTreeMap;

/// The places that a manifest chooses.
#[derive(Default)]
pub(super) struct Addresses {
    /// Devices that the layout does not place, by id.
    seats: BTreeMap<String, Seat>,
    pub(super) given: Given,
    /// Whether all devices are on pcie.0, and there are no root ports.
    pub(super) on_root: bool,
}

/// Path of the annotation by which they are.
pub(super) fn on_root_field() -> String {
    format!("metadata.{}", pci::ON_ROOT_FIELD)
}

impl Addresses {
    /// The places of a manifest, for a machine that had this layout.
    ///
    /// # Errors
    /// If a device is to be behind a root port, and there is none.
    pub(super) fn of(vmi: &ValidVmi, saved: Option<&Layout>) -> Result<Self, PlanError> {
        let place = |request: pci::AddressRequest<'_>| match request.owner {
            Owner::Disk(name) => (request.place, name::device("disk", name)),
            Owner::Interface(name) => (request.place, name::device("nic", name)),
        };
        let places: BTreeMap<Place, String> = pci::requests(vmi.spec()).into_iter().map(place).collect();
        let wanted = pci::are_on_root(vmi.vmi().metadata.annotations.as_ref());
        let on_root = saved.map_or(wanted, |layout| layout.goes_on_root(wanted));
        let mut found = Self { on_root, ..Self::default() };
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
        if on_root && !found.given.ports.is_empty() {
            let why = "it leaves no root ports, and a pciAddress is not on bus 00";
            return Err(PlanError::Unsupported { field: on_root_field(), value: "true".to_owned(), why });
        }
        Ok(found)
    }

    /// Devices that the layout does not place.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &str> {
        self.seats.keys().map(String::as_str)
    }

    /// Whether the layout places a device.
    pub(super) fn is_placed(&self, device: &str) -> bool {
        !self.seats.contains_key(device)
    }

    /// Place of a device that the layout does not place.
    pub(super) fn seat(&self, device: &str) -> Option<Seat> {
        self.seats.get(device).copied()
    }
}

#[cfg(test)]
mod tests;
