//! I/O threads for disks.

use crate::props::Props;

/// One thread, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IoThread(pub u32);

impl IoThread {
    /// The object's id, which is also the name of the thread.
    #[must_use]
    pub fn id(self) -> String {
        format!("iothread{}", self.0)
    }

    pub(crate) fn object(self) -> Props {
        Props::new("qom-type", "iothread").with("id", self.id())
    }
}

/// The threads that serve the queues of a disk or of the SCSI controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Served {
    /// QEMU's main loop.
    #[default]
    ByMainLoop,
    /// One thread.
    By(IoThread),
    /// Several threads, each with a share of the queues.
    ByPool(Vec<IoThread>),
}
