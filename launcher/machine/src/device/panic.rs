//! The device by which a guest says that its kernel has panicked.
//!
//! Every machine has one. A guest that panics would otherwise sit there for ever with its VM reported as running; with
//! it QEMU ends with the reason `guest-panic`, the instance fails, and its VM decides whether to start another. A guest
//! that has a crash kernel loaded is left alone to make its dump: Linux tells the device so.

use crate::props::Props;

/// pvpanic on PCI, at a fixed address of the root bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panic {
    /// The same at an I/O port as well, for guests that know no other.
    pub isa: bool,
}

impl Panic {
    pub(crate) fn props(self) -> Vec<Props> {
        let pci = Props::device("pvpanic-pci", "panic0").with("bus", "pcie.0").with("addr", "0x1b");
        let isa = self.isa.then(|| Props::device("pvpanic", "panic1"));
        [pci].into_iter().chain(isa).collect()
    }
}
