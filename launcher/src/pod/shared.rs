//! What the tasks of a pod's launcher share: each value has one writer or is watched.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use barevirt_machine::QEMU_DIRECTORY;
use barevirt_qmp::Qmp;
use tokio::sync::watch;

use super::args::Args;
use super::holdings::Holdings;
use super::report::Circumstances;
use super::wanted::Wanted;
use crate::assembly::{UsbSockets, usb_sockets};
use crate::disk::ContainerDisks;
use crate::migration::Connections;
use crate::{guest_agent, people, real_time};

/// What the parts of a pod's launcher share.
#[derive(Debug)]
pub struct Pod {
    /// What the command line says.
    pub args: Args,
    /// User id of this process, and of the containers with images.
    pub uid: u32,
    /// The instance as the handler last gave it.
    pub wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// What the handler is told beside the process' status.
    pub circumstances: watch::Sender<Circumstances>,
    /// The descriptors that the handler gave.
    pub holdings: Rc<RefCell<Holdings>>,
    /// None where the images are volumes.
    pub container_disks: Option<ContainerDisks>,
    /// The monitor for people, while it is open.
    pub people: watch::Sender<Option<Qmp>>,
    /// What QEMU last told.
    pub journal: people::journal::Journal,
    /// What the guest agent tells.
    pub guest: watch::Sender<Option<guest_agent::Facts>>,
    /// What the handler says of virtual CPUs that are to be realtime.
    pub real_time: watch::Sender<real_time::Word>,
    /// Connections of a migration, until QEMU takes them.
    pub connections: Connections,
}

impl Pod {
    /// Where QEMU makes its sockets: the one directory that it may make anything in, and nothing else is there.
    pub fn qemu_directory(&self) -> PathBuf {
        self.args.private.join(QEMU_DIRECTORY)
    }

    /// Where QEMU reads the key of a migration, and nothing else is.
    pub fn keys(&self) -> PathBuf {
        self.args.private.join("migration")
    }

    /// Where QEMU listens for VNC.
    pub fn vnc_socket(&self) -> PathBuf {
        self.qemu_directory().join("vnc.sock")
    }

    /// Where QEMU listens for USB devices of clients.
    pub fn usb_sockets(&self) -> UsbSockets {
        usb_sockets(&self.qemu_directory())
    }
}
