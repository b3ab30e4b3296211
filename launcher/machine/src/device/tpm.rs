//! The TPM 2.0: a register interface here, its works in swtpm, a process beside QEMU.

use crate::device::serial::socket_chardev;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;

/// A TPM with the command response buffer interface, which current guests have a driver for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tpm {
    /// QEMU's end of the socket pair with swtpm: the control channel. The one for commands QEMU makes itself.
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
