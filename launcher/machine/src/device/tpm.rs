//! The TPM 2.0: its register interface is here; swtpm, a process beside QEMU, emulates the rest.

use crate::device::serial::socket_chardev;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;

/// A TPM with the command response buffer interface, for which current guests have a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tpm {
    /// QEMU's end of the socket pair with swtpm: the control channel. QEMU makes the channel for commands
    /// itself.
    pub socket: Fd,
}

impl Tpm {
    const CHARDEV: &'static str = "tpm0-socket";
    const BACKEND: &'static str = "tpm0-backend";

    pub(crate) fn chardev(self) -> String {
        socket_chardev(Self::CHARDEV, self.socket)
    }

    pub(crate) fn backend(self) -> String {
        Options::kind("emulator").with("id", Self::BACKEND).with("chardev", Self::CHARDEV).into_string()
    }

    pub(crate) fn props(self) -> Props {
        Props::device("tpm-crb", "tpm0").with("tpmdev", Self::BACKEND)
    }
}
