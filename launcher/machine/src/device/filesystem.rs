//! A directory that the guest mounts by virtiofs. Another process serves it and maps the guest's memory.

use crate::device::serial::socket_chardev;
use crate::layout::Seat;
use crate::name;
use crate::props::Props;
use crate::units::Fd;

/// Most pending requests of the guest, as in KubeVirt.
const QUEUE: u16 = 1024;

/// vhost-user-fs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Name of the volume, by which the guest mounts it.
    pub name: String,
    /// A connection to its server.
    pub socket: Fd,
    /// Its place on the PCI bus.
    pub seat: Seat,
}

impl Filesystem {
    /// Id of the device for a volume.
    pub(crate) fn id(volume: &str) -> String {
        name::device("fs", volume)
    }

    fn chardev_id(&self) -> String {
        format!("{}-socket", Self::id(&self.name))
    }

    pub(crate) fn chardev(&self) -> String {
        socket_chardev(&self.chardev_id(), self.socket)
    }

    pub(crate) fn props(&self) -> Props {
        Props::device("vhost-user-fs-pci", &Self::id(&self.name))
            .with("chardev", self.chardev_id())
            .with("tag", self.name.as_str())
            .with("queue-size", QUEUE)
            .seated(self.seat, None)
    }
}
