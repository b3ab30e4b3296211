//! I/O threads for disks.

use crate::name;
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
        object(&self.id())
    }
}

/// A thread with this id.
pub(crate) fn object(id: &str) -> Props {
    Props::new("qom-type", "iothread").with("id", id)
}

/// The id of the thread that comes and goes with a disk that is plugged in.
pub(crate) fn plugged(disk: &str) -> String {
    name::device("iothread", disk)
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
    /// A thread with this id, which comes and goes with the disk.
    ByOwn(String),
}
