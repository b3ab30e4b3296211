//! The balloon: reports memory statistics, and returns unused pages.

use crate::device::virtio::Virtio;
use crate::layout::Seat;
use crate::props::Props;

/// virtio-balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balloon {
    /// Its place on the PCI bus.
    pub seat: Seat,
    /// The version of virtio.
    pub virtio: Virtio,
    /// Whether the guest reports unused pages, which the host then takes back.
    pub free_page_reporting: bool,
}

impl Balloon {
    pub(crate) const ID: &'static str = "balloon0";

    pub(crate) fn props(self) -> Props {
        let driver = self.virtio.of("virtio-balloon-pci", "virtio-balloon-pci-transitional");
        Props::device(driver, Self::ID)
            .with("free-page-reporting", self.free_page_reporting)
            .seated(self.seat, Some(self.virtio))
    }
}
