//! Channels: the guest agent's, and the one on which the guest requests metrics of its node.

use crate::device::controller::Controllers;
use crate::device::serial::socket_chardev;
use crate::props::Props;
use crate::units::Fd;

/// The virtio-serial port that qemu-guest-agent looks for in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestAgent {
    /// QEMU's end of the socket pair.
    pub socket: Fd,
}

impl GuestAgent {
    /// The device's id, by which `VSERPORT_CHANGE` names it.
    pub const ID: &'static str = "agent0";
    const CHARDEV: &'static str = "agent0-socket";

    pub(crate) fn chardev(self) -> String {
        socket_chardev(Self::CHARDEV, self.socket)
    }

    pub(crate) fn props(self) -> Props {
        Props::device("virtserialport", Self::ID)
            .with("bus", format!("{}.0", Controllers::SERIAL))
            // Old guests reserve port 0 for a console.
            .with("nr", 1)
            .with("chardev", Self::CHARDEV)
            .with("name", "org.qemu.guest_agent.0")
    }
}

/// The virtio-serial port on which vhostmd's tools in the guest send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownwardMetrics {
    /// QEMU's end of the socket pair.
    pub socket: Fd,
}

impl DownwardMetrics {
    const ID: &'static str = "downward-metrics0";
    const CHARDEV: &'static str = "downward-metrics0-socket";

    pub(crate) fn chardev(self) -> String {
        socket_chardev(Self::CHARDEV, self.socket)
    }

    pub(crate) fn props(self) -> Props {
        Props::device("virtserialport", Self::ID)
            .with("bus", format!("{}.0", Controllers::SERIAL))
            .with("nr", 2)
            .with("chardev", Self::CHARDEV)
            .with("name", "org.github.vhostmd.1")
    }
}
