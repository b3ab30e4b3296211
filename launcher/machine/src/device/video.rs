//! The display and the VNC server that shows it.

use crate::props::Props;
use crate::quote;

/// Standard VGA with 16 MiB of video memory, which is what the API promises with BIOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Video {
    /// Path of the unix socket that QEMU's VNC server listens on.
    pub vnc_socket: String,
}

impl Video {
    /// The argument of `-vnc`.
    pub(crate) fn vnc(&self) -> String {
        format!("unix:{}", quote::quote(&self.vnc_socket))
    }

    pub(crate) fn props(&self) -> Props {
        Props::device("VGA", "video0").with("bus", "pcie.0").with("addr", "0x1").with("vgamem_mb", 16)
    }
}
