//! Tablets: pointers with absolute positions, so that a remote display need not grab the pointer.

use crate::device::controller::Controllers;
use crate::layout::Seat;
use crate::name;
use crate::props::Props;

/// How a tablet is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputBus {
    /// The machine's USB controller.
    Usb,
    /// PCI, at this place.
    Virtio(Seat),
}

/// One tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name in the manifest.
    pub name: String,
    /// Its connection.
    pub bus: InputBus,
}

impl Input {
    /// The device's id, and its name in the PCI layout if it is on PCI.
    pub(crate) fn id_of(name: &str) -> String {
        name::device("input", name)
    }

    pub(crate) fn props(&self) -> Props {
        let id = Self::id_of(&self.name);
        match self.bus {
            InputBus::Usb => Props::device("usb-tablet", &id).with("bus", format!("{}.0", Controllers::USB)),
            InputBus::Virtio(seat) => Props::device("virtio-tablet-pci", &id).seated(seat, None),
        }
    }
}
