//! The serial console, ttyS0 in the guest.

use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;

/// A 16550 at the first ISA serial port, whose other end is a connected socket of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial {
    /// QEMU's end of the socket pair.
    pub socket: Fd,
}

impl Serial {
    const CHARDEV: &'static str = "serial0-socket";

    pub(crate) fn chardev(self) -> String {
        socket_chardev(Self::CHARDEV, self.socket)
    }

    pub(crate) fn props(self) -> Props {
        Props::device("isa-serial", "serial0").with("chardev", Self::CHARDEV).with("index", 0)
    }
}

/// A chardev on a connected socket.
pub(crate) fn socket_chardev(id: &str, socket: Fd) -> String {
    Options::kind("socket").with("id", id).with("fd", socket).into_string()
}
