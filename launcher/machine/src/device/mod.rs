//! The devices, one kind per file. Each is a plain value with one serialisation.

pub(crate) mod balloon;
pub(crate) mod blockdev;
pub(crate) mod channel;
pub(crate) mod controller;
pub(crate) mod disk;
pub(crate) mod filesystem;
pub(crate) mod flash;
pub(crate) mod host;
pub(crate) mod input;
pub(crate) mod io_thread;
pub(crate) mod nic;
pub(crate) mod panic;
pub(crate) mod rng;
pub(crate) mod serial;
pub(crate) mod sound;
pub(crate) mod tpm;
pub(crate) mod usb_redirection;
pub(crate) mod video;
pub(crate) mod virtio;
pub(crate) mod virtio_mem;
pub(crate) mod vsock;
pub(crate) mod watchdog;

use self::io_thread::Served;
use self::virtio::Virtio;
use crate::layout::{Port, Seat};
use crate::props::Props;
use serde_json::json;

impl Props {
    /// The device's place behind a root port; it is the only device there, so always at slot 0.
    fn behind(self, port: Port) -> Self {
        self.with("bus", port.bus()).with("addr", "0x0")
    }

    /// The device's place. `virtio` is the version of a virtio device that also exists in the older one.
    pub(crate) fn seated(self, seat: Seat, virtio: Option<Virtio>) -> Self {
        match seat {
            Seat::Behind(port) => self.behind(port),
            Seat::Root { slot, function, shared } => self
                .with("bus", "pcie.0")
                .with("addr", format!("{slot:#x}.{function:#x}"))
                .maybe("multifunction", shared.then_some(true))
                // On pcie.0, QEMU would also enable the older virtio.
                .maybe("disable-legacy", (virtio == Some(Virtio::Current)).then_some("on")),
            // No virtio device can be here.
            Seat::Bridged { port, slot, function, shared } => self
                .with("bus", port.bridge())
                .with("addr", format!("{slot:#x}.{function:#x}"))
                .maybe("multifunction", shared.then_some(true)),
        }
    }

    /// The threads that serve the device's queues.
    pub(crate) fn served(self, by: &Served) -> Self {
        match by {
            Served::ByMainLoop => self,
            Served::By(thread) => self.with("iothread", thread.id()),
            Served::ByOwn(id) => self.with("iothread", id.as_str()),
            Served::ByPool(threads) => {
                let map: Vec<_> = threads.iter().map(|thread| json!({ "iothread": thread.id() })).collect();
                self.with("iothread-vq-mapping", map)
            }
        }
    }
}
