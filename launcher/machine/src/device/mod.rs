//! The devices, one kind to a file. Each is a plain value that knows its one serialisation.

pub(crate) mod balloon;
pub(crate) mod blockdev;
pub(crate) mod channel;
pub(crate) mod controller;
pub(crate) mod disk;
pub(crate) mod nic;
pub(crate) mod panic;
pub(crate) mod rng;
pub(crate) mod serial;
pub(crate) mod video;

use crate::layout::Port;
use crate::props::Props;

impl Props {
    /// The device's place behind a root port; it is alone there, so always at slot 0.
    pub(crate) fn behind(self, port: Port) -> Self {
        self.with("bus", port.bus()).with("addr", "0x0")
    }
}
