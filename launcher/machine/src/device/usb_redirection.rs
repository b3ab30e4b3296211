//! Slots for USB devices of a remote client.

use crate::device::controller::Controllers;
use crate::props::Props;
use crate::quote::Options;

/// One slot: a USB device that appears in the guest when a client connects to its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbSlot {
    /// Counted from 0.
    pub number: usize,
    /// Path of the unix socket that QEMU listens on; one client at a time.
    pub socket: String,
}

impl UsbSlot {
    fn chardev_id(&self) -> String {
        format!("usb-slot{}-socket", self.number)
    }

    pub(crate) fn chardev(&self) -> String {
        Options::kind("socket")
            .with("id", self.chardev_id())
            .with("path", &self.socket)
            .switch("server", true)
            .switch("wait", false)
            .into_string()
    }

    pub(crate) fn props(&self) -> Props {
        Props::device("usb-redir", &format!("usb-slot{}", self.number))
            .with("chardev", self.chardev_id())
            .with("bus", format!("{}.0", Controllers::USB))
    }
}
