//! vsock: a connection between guest and host without a network.

use crate::layout::Seat;
use crate::props::Props;
use crate::units::Fd;

/// A vsock device whose traffic the kernel transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vsock {
    /// The guest's address, unique in the cluster.
    pub context_id: u32,
    /// /dev/vhost-vsock, opened by a process with the right to do so.
    pub vhost: Fd,
    /// Its place on the PCI bus.
    pub seat: Seat,
}

impl Vsock {
    pub(crate) const ID: &'static str = "vsock0";

    pub(crate) fn props(self) -> Props {
        Props::device("vhost-vsock-pci", Self::ID)
            .with("guest-cid", self.context_id)
            .with("vhostfd", self.vhost.to_string())
            .seated(self.seat, None)
    }
}
