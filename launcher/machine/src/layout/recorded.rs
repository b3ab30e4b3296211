//! What a guest started or was changed with and has to find again where it moves, beside the places of its devices.

use super::Layout;
use crate::blocks::Blocks;

impl Layout {
    /// The unit of a disk on the SCSI controller that was plugged in while the machine ran.
    #[must_use]
    pub fn unit(&self, name: &str) -> Option<u16> {
        self.units.get(name).copied()
    }

    /// Records that unit.
    pub(crate) fn note_unit(&mut self, name: &str, unit: u16) {
        self.units.insert(name.to_owned(), unit);
    }

    /// Whether the SCSI controller was plugged in while the machine ran.
    #[must_use]
    pub const fn is_scsi_plugged(&self) -> bool {
        self.scsi_came
    }

    /// Records whether it was.
    pub(crate) const fn note_scsi(&mut self, came: bool) {
        self.scsi_came = came;
    }

    /// Sockets with processors when the machine started; `None` if it cannot get more, or the number is
    /// unknown.
    #[must_use]
    pub fn sockets(&self) -> Option<u32> {
        (self.sockets > 0).then_some(self.sockets)
    }

    /// Records the number.
    pub(crate) const fn note_sockets(&mut self, sockets: u32) {
        self.sockets = sockets;
    }

    /// Records whether the balloon has no free page reporting, if annotations and settings say what `wanted` says. A guest that
    /// comes from another machine keeps the features that its devices have there.
    pub(crate) const fn note_silence(&mut self, wanted: bool) -> bool {
        if !self.arrives {
            self.silent = wanted;
        }
        self.silent
    }

    /// Records in the same way whether PCI devices have no memory above the guest's. Firmware would find another map of
    /// memory at the next reset, and QEMU may map the memory of a guest of a tebibyte elsewhere.
    pub(crate) const fn note_low(&mut self, wanted: bool) -> bool {
        if !self.arrives {
            self.low = wanted;
        }
        self.low
    }

    /// The block sizes that a disk got from its volume.
    #[must_use]
    pub fn blocks(&self, name: &str) -> Option<Blocks> {
        self.blocks.get(name).copied()
    }

    /// Records them.
    pub(crate) fn note_blocks(&mut self, name: &str, blocks: Blocks) {
        self.blocks.insert(name.to_owned(), blocks);
    }
}
