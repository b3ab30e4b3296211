//! A source of random numbers for the guest.

use crate::device::virtio::Virtio;
use crate::layout::Seat;
use crate::props::Props;

/// virtio-rng, fed from the host's /dev/urandom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng {
    /// Its place on the PCI bus.
    pub seat: Seat,
    /// The version of virtio.
    pub virtio: Virtio,
}

impl Rng {
    pub(crate) const ID: &'static str = "rng0";
    const SOURCE: &'static str = "rng0-source";

    pub(crate) fn object(self) -> Props {
        Props::new("qom-type", "rng-random").with("id", Self::SOURCE).with("filename", "/dev/urandom")
    }

    pub(crate) fn props(self) -> Props {
        let driver = self.virtio.of("virtio-rng-pci", "virtio-rng-pci-transitional");
        Props::device(driver, Self::ID).with("rng", Self::SOURCE).seated(self.seat, Some(self.virtio))
    }
}
