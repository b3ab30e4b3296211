//! State that the tasks of a pod's launcher share: each value has one writer or is watched.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use barevirt_machine::QEMU_DIRECTORY;
use barevirt_qmp::Qmp;
use tokio::sync::watch;

use super::args::Args;
use super::descriptor_store::DescriptorStore;
use super::report::Circumstances;
use super::wanted::Wanted;
use crate::assembly::{UsbSockets, usb_sockets};
use crate::disk::ContainerDisks;
use crate::migration::Connections;
use crate::{guest_agent, people, real_time};

/// State that the parts of a pod's launcher share.
#[derive(Debug)]
pub struct Pod {
    /// The command line.
    pub args: Args,
    /// User id of this process, and of the containers with images.
    pub uid: u32,
    /// The instance as the handler last gave it.
    pub wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// The parts of the status other than the process's.
    pub circumstances: watch::Sender<Circumstances>,
    /// The descriptors that the handler gave.
    pub store: Rc<RefCell<DescriptorStore>>,
    /// `None` if the images are volumes.
    pub container_disks: Option<ContainerDisks>,
    /// The monitor for users, while it is open.
    pub people: watch::Sender<Option<Qmp>>,
    /// QEMU's last events.
    pub journal: people::journal::Journal,
    /// Facts from the guest agent.
    pub guest: watch::Sender<Option<guest_agent::Facts>>,
    /// The handler's result for virtual CPUs with realtime scheduling.
    pub real_time: watch::Sender<real_time::RealTimeReport>,
    /// Connections of a migration, until QEMU takes them.
    pub connections: Connections,
}

impl Pod {
    /// Directory of QEMU's sockets. It is the only directory in which QEMU may create files, and contains
    /// nothing else.
    pub fn qemu_directory(&self) -> PathBuf {
        self.args.private.join(QEMU_DIRECTORY)
    }

    /// Directory of a migration's key, which contains nothing else.
    pub fn keys(&self) -> PathBuf {
        self.args.private.join("migration")
    }

    /// QEMU's socket for VNC.
    pub fn vnc_socket(&self) -> PathBuf {
        self.qemu_directory().join("vnc.sock")
    }

    /// QEMU's sockets for USB devices of clients.
    pub fn usb_sockets(&self) -> UsbSockets {
        usb_sockets(&self.qemu_directory())
    }
}
