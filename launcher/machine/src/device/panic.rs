//! The device with which a guest reports that its kernel has panicked.
//!
//! Every machine has one. Without it, a guest that panics would stay forever while its VM is reported as
//! running. With it, QEMU ends with the reason `guest-panic`, the instance fails, and its VM decides whether
//! to start another one. A guest with a loaded crash kernel can still make its dump: Linux then tells the
//! device not to end the guest.

use crate::props::Props;

/// pvpanic on PCI, at a fixed address of the root bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panic {
    /// Whether it is also at an I/O port, for guests that support only that.
    pub isa: bool,
}

impl Panic {
    pub(crate) fn props(self) -> Vec<Props> {
        let pci = Props::device("pvpanic-pci", "panic0").with("bus", "pcie.0").with("addr", "0x1b");
        let isa = self.isa.then(|| Props::device("pvpanic", "panic1"));
        [pci].into_iter().chain(isa).collect()
    }
}
