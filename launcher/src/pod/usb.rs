//! Slots for USB devices of clients: a client gets the first free one.
//!
//! QEMU listens on a socket for each slot, serves one client at a time there and lets others wait silently.
//! So bytes are copied here: a slot is taken as long as the copy runs, and further clients get an error
//! instead of waiting.

use std::cell::Cell;
use std::rc::Rc;

use barevirt_api::v1::ClientPassthroughDevices;
use tokio::io::{copy, split};
use tokio::net::UnixStream;
use tokio::task::spawn_local;

use super::stream_router::connect;
use crate::assembly::UsbSockets;

/// Number of slots.
const SLOTS: usize = ClientPassthroughDevices::SLOTS;

/// The slots of the guest.
#[derive(Debug, Clone)]
pub struct UsbSlots {
    /// QEMU's sockets.
    sockets: UsbSockets,
    taken: Rc<Cell<[bool; SLOTS]>>,
}

/// A taken slot, until this value is dropped.
struct Taken {
    number: usize,
    taken: Rc<Cell<[bool; SLOTS]>>,
}

impl UsbSlots {
    /// All slots are free.
    #[must_use]
    pub fn new(sockets: UsbSockets) -> Self {
        Self { sockets, taken: Rc::default() }
    }

    /// The client's end of a slot. Must run within a `LocalSet`.
    ///
    /// # Errors
    /// If no slot is free, or QEMU does not accept the client.
    pub async fn open(&self) -> Result<UnixStream, String> {
        let slot = self.take().ok_or_else(|| format!("all {SLOTS} USB slots of the guest are in use"))?;
        let qemu = connect(&self.sockets[slot.number], "the USB slot").await?;
        let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        tracing::info!(slot = slot.number, "USB client");
        spawn_local(async move {
            carry(ours, qemu).await;
            tracing::info!(slot = slot.number, "USB client has disconnected");
            drop(slot);
        });
        Ok(theirs)
    }

    fn take(&self) -> Option<Taken> {
        let mut taken = self.taken.get();
        let number = taken.iter().position(|taken| !taken)?;
        taken[number] = true;
        self.taken.set(taken);
        Some(Taken { number, taken: self.taken.clone() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.taken.get();
        taken[self.number] = false;
        self.taken.set(taken);
    }
}

/// Copies bytes in both directions until a side ends, because half a connection is useless.
async fn carry(client: UnixStream, qemu: UnixStream) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_qemu, mut to_qemu) = split(qemu);
    // How a side ended makes no difference to the other one.
    tokio::select! {
        _ = copy(&mut from_client, &mut to_qemu) => {}
        _ = copy(&mut from_qemu, &mut to_client) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::usb_sockets;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    #[tokio::test]
    async fn clients_get_a_slot_each_until_all_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        let sockets = usb_sockets(directory.path());
        let slots = UsbSlots::new(sockets.clone());
        let tested = async {
            let early = slots.open().await.unwrap_err();
            assert!(early.starts_with("the USB slot cannot be connected to: "), "{early}");
            let listeners = sockets.map(|socket| UnixListener::bind(socket).unwrap());
            let mut pairs = Vec::new();
            for listener in &listeners {
                let client = slots.open().await.unwrap();
                pairs.push((client, listener.accept().await.unwrap().0));
            }
            for (number, (client, qemu)) in pairs.iter_mut().enumerate() {
                let word = [u8::try_from(number).unwrap(); 3];
                let mut heard = [0; 3];
                client.write_all(&word).await.unwrap();
                qemu.read_exact(&mut heard).await.unwrap();
                qemu.write_all(&heard).await.unwrap();
                client.read_exact(&mut heard).await.unwrap();
                assert_eq!(heard, word);
            }
            assert_eq!(slots.open().await.unwrap_err(), "all 4 USB slots of the guest are in use");
            // If a client leaves, QEMU is notified, and the next client gets that slot. The same happens if QEMU
            // closes one.
            let (client, mut qemu) = pairs.remove(2);
            drop(client);
            assert_eq!(qemu.read(&mut [0]).await.unwrap(), 0);
            let mut again = slots.open().await.unwrap();
            drop(listeners[2].accept().await.unwrap());
            assert_eq!(again.read(&mut [0]).await.unwrap(), 0);
            assert!(slots.open().await.is_ok());
        };
        timeout(Duration::from_secs(20), LocalSet::new().run_until(tested)).await.unwrap();
    }
}
