//! Memory that is plugged and unplugged while the guest runs.
//!
//! The device and its whole address range are there from the start. The property `requested-size` sets how
//! much of the range should be memory, and `size` says how much the guest's driver has plugged. No device is
//! added to a running machine, and no state has to be kept: after a reset the guest plugs the requested size
//! again.

use crate::layout::Seat;
use crate::props::Props;
use crate::units::Bytes;

/// virtio-mem and the memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioMem {
    /// Its place on the PCI bus.
    pub seat: Seat,
    /// The most memory that may be plugged.
    pub room: Bytes,
}

impl VirtioMem {
    /// Id of the device.
    pub const ID: &'static str = "virtio-mem0";
    /// Id of its memory. Migration streams contain it, so it must never change.
    const BACKEND: &'static str = "mem-room";
    /// Unit of plugging: a transparent huge page, as in KubeVirt.
    pub const BLOCK: Bytes = Bytes::mib(2);

    /// The range from the memory at the start to the maximum, in whole blocks; `None` if it is empty.
    #[must_use]
    pub fn room(boot: Bytes, max: Bytes) -> Option<Bytes> {
        let room = max.0.saturating_sub(boot.0) / Self::BLOCK.0 * Self::BLOCK.0;
        (room > 0).then_some(Bytes(room))
    }

    /// Shared for the reasons in [`crate::Memory`], and not reserved, because it is an address range and not
    /// memory yet.
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
            .seated(self.seat, None)
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
