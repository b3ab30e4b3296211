//! Places of devices, and their common properties.

use super::addresses::Addresses;
use crate::device::virtio::Virtio;
use crate::error::PlanError;
use crate::layout::{Layout, Port, Seat};
use barevirt_api::v1::Devices;

/// Path of all devices, for errors about all of them.
pub(super) const DEVICES: &str = "spec.domain.devices";

/// The version of virtio of all devices.
pub(super) fn virtio(devices: &Devices) -> Virtio {
    if devices.use_virtio_transitional == Some(true) { Virtio::Transitional } else { Virtio::Current }
}

/// The ports of a finished layout, and the other places of devices.
pub(super) struct Ports<'a> {
    pub(super) layout: &'a Layout,
    pub(super) addresses: &'a Addresses,
}

impl Ports<'_> {
    /// The port of a placed device.
    pub(super) fn of(&self, name: &str) -> Result<Port, PlanError> {
        self.layout.port(name).ok_or_else(|| PlanError::Layout {
            field: DEVICES.to_owned(),
            source: crate::layout::LayoutError::Saved(format!("{name} has no port")),
        })
    }

    /// The place of a device that the manifest may have chosen.
    pub(super) fn seat(&self, name: &str) -> Result<Seat, PlanError> {
        self.addresses.seat(name).map_or_else(|| self.of(name).map(Seat::Behind), Ok)
    }
}
