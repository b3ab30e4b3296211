//! Places of devices, and their common properties.

use super::addresses::Addresses;
use crate::device::virtio::Virtio;
use crate::error::PlanError;
use crate::layout::{Layout, LayoutError, Seat};
use barevirt_api::v1::Devices;

/// Path of all devices, for errors about all of them.
pub(super) const DEVICES: &str = "spec.domain.devices";

/// The version of virtio of all devices.
pub(super) fn virtio(devices: &Devices) -> Virtio {
    if devices.use_virtio_transitional == Some(true) { Virtio::Transitional } else { Virtio::Current }
}

/// The places of a finished layout, and those that the manifest chooses.
pub(super) struct Ports<'a> {
    pub(super) layout: &'a Layout,
    pub(super) addresses: &'a Addresses,
}

impl Ports<'_> {
    /// The place of a device.
    pub(super) fn seat(&self, name: &str) -> Result<Seat, PlanError> {
        let seat = self.addresses.seat(name).or_else(|| self.layout.seat(name));
        seat.ok_or_else(|| PlanError::Layout {
            field: DEVICES.to_owned(),
            source: LayoutError::Saved(format!("{name} has no place")),
        })
    }
}
