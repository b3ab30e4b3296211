//! Slots for USB devices of clients: who comes is led to the first that is free, until there is none.
//!
//! QEMU listens on a socket for each slot, has one client at a time there and lets others wait without a word. So bytes go
//! through here: a slot is taken for as long as they do, and whoever would have to wait is told so instead.

use std::cell::Cell;
use std::rc::Rc;

use barevirt_api::v1::ClientPassthroughDevices;
use tokio::io::{copy, split};
use tokio::net::UnixStream;
use tokio::task::spawn_local;

use super::switchboard::connect;
use crate::assembly::UsbSockets;

/// How many there are.
const SLOTS: usize = ClientPassthroughDevices::SLOTS;

/// The slots of the guest.
#[derive(Debug, Clone)]
pub struct UsbSlots {
    /// Where QEMU listens, once it does.
    sockets: UsbSockets,
    taken: Rc<Cell<[bool; SLOTS]>>,
}

/// One that is taken, until this value goes.
struct Taken {
    number: usize,
    taken: Rc<Cell<[bool; SLOTS]>>,
}

impl UsbSlots {
    /// All of them free.
    #[must_use]
    pub fn new(sockets: UsbSockets) -> Self {
        Self { sockets, taken: Rc::default() }
    }

    /// The other end of a slot. Must run within a `LocalSet`.
    ///
    /// # Errors
    /// Says that none is free, or that QEMU does not take the client.
    pub async fn open(&self) -> Result<UnixStream, String> {
        let slot = self.take().ok_or_else(|| format!("all {SLOTS} USB slots of the guest are in use"))?;
        let qemu = connect(&self.sockets[slot.number], "the USB slot").await?;
        let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        tracing::info!(slot = slot.number, "USB client");
        spawn_local(async move {
            carry(ours, qemu).await;
            tracing::info!(slot = slot.number, "USB client has gone");
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

/// Carries bytes both ways until a side ends: half a connection is of no use to either.
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
            // A client goes: QEMU is told, and the next one gets that slot. The same where QEMU lets one go.
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
