//! Memory that is plugged in and out while the guest runs.
//!
//! The device and room for all of it are there from the start; how much of the room is memory is one property of the device,
//! `requested-size`, and `size` is what the guest's driver has made of it. Nothing is added to a running machine, and
//! nothing has to be remembered: after a reset the guest plugs in anew what is requested.

use crate::layout::Port;
use crate::props::Props;
use crate::units::Bytes;

/// virtio-mem and the memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioMem {
    /// The root port it is behind.
    pub port: Port,
    /// All that may be plugged in.
    pub room: Bytes,
}

impl VirtioMem {
    /// Id of the device.
    pub const ID: &'static str = "virtio-mem0";
    /// Id of its memory: in every migration stream, it stays for ever.
    const BACKEND: &'static str = "mem-room";
    /// What is plugged in and out at once: a transparent huge page, as in KubeVirt.
    pub const BLOCK: Bytes = Bytes::mib(2);

    /// Room from what a machine starts with to what it may grow to, in whole blocks; none where that is none.
    #[must_use]
    pub fn room(boot: Bytes, max: Bytes) -> Option<Bytes> {
        let room = max.0.saturating_sub(boot.0) / Self::BLOCK.0 * Self::BLOCK.0;
        (room > 0).then_some(Bytes(room))
    }

    /// Shared for the reasons of [`crate::Memory`], and not reserved: it is room, not memory.
    pub(crate) fn object(self) -> Props {
        Props::new("qom-type", "memory-backend-memfd")
            .with("id", Self::BACKEND)
            .with("size", self.room.0)
            .with("share", true)
            .with("reserve", false)
    }

    pub(crate) fn props(self) -> Props {
        Props::device("virtio-mem-pci", Self::ID)
            .with("memdev", Self::BACKEND)
            .with("block-size", Self::BLOCK.0)
            .with("requested-size", 0)
            .behind(self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_whole_blocks() {
        assert_eq!(VirtioMem::room(Bytes::mib(1024), Bytes::mib(4096)), Some(Bytes::mib(3072)));
        assert_eq!(VirtioMem::room(Bytes::mib(1024), Bytes::mib(1027)), Some(Bytes::mib(2)));
        assert_eq!(VirtioMem::room(Bytes::mib(1024), Bytes::mib(1025)), None);
        assert_eq!(VirtioMem::room(Bytes::mib(2), Bytes::mib(1)), None);
    }
}
