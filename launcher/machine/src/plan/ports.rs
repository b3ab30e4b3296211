//! Where devices are, and what they have alike.

use super::addresses::Addresses;
use crate::device::virtio::Virtio;
use crate::error::PlanError;
use crate::layout::{Layout, Port, Seat};
use barevirt_api::v1::Devices;

/// Path of all devices, for what concerns them together.
pub(super) const DEVICES: &str = "spec.domain.devices";

/// Which virtio all devices of the machine speak.
pub(super) fn virtio(devices: &Devices) -> Virtio {
    if devices.use_virtio_transitional == Some(true) { Virtio::Transitional } else { Virtio::Current }
}

/// The ports of a finished layout, and where else devices are.
pub(super) struct Ports<'a> {
    pub(super) layout: &'a Layout,
    pub(super) addresses: &'a Addresses,
}

impl Ports<'_> {
    /// The port of a device that was placed.
    pub(super) fn of(&self, name: &str) -> Result<Port, PlanError> {
        self.layout.port(name).ok_or_else(|| PlanError::Layout {
            field: DEVICES.to_owned(),
            source: crate::layout::LayoutError::Saved(format!("{name} has no port")),
        })
    }

    /// Where a device sits that the manifest may have put elsewhere.
    pub(super) fn seat(&self, name: &str) -> Result<Seat, PlanError> {
        self.addresses.seat(name).map_or_else(|| self.of(name).map(Seat::Behind), Ok)
    }
}
