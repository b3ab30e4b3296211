//! Requests on the descriptor socket: given descriptors are stored, requested streams are connected.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use barevirt_protocol::descriptors::{Call, Reply};
use barevirt_protocol::message::{Give, Request, Take};
use barevirt_protocol::names::{MigrationChannel, STREAM_QMP, STREAM_SERIAL0, STREAM_USB, STREAM_VNC};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::descriptor_store::DescriptorStore;
use super::report::Circumstances;
use super::usb::UsbSlots;
use crate::migration::Connections;

/// Time limit for a socket of QEMU to accept.
const CONNECT: Duration = Duration::from_secs(5);

/// The targets of streams. A client of the console or the monitor may come before the guest, and is served
/// when the guest is there.
#[derive(Debug, Clone)]
pub struct StreamRouter {
    /// Connections to the serial console.
    pub console: mpsc::Sender<UnixStream>,
    /// Clients of the monitor for users.
    pub people: mpsc::Sender<UnixStream>,
    /// Socket of QEMU's VNC server.
    pub vnc: PathBuf,
    /// Slots for USB devices of clients.
    pub usb: UsbSlots,
    /// Stored descriptors.
    pub store: Rc<RefCell<DescriptorStore>>,
    /// Connections of a migration.
    pub connections: Connections,
    /// Gets the names of stored descriptors.
    pub circumstances: watch::Sender<Circumstances>,
}

impl StreamRouter {
    /// Answers calls until the channel closes.
    pub async fn serve(self, mut calls: mpsc::Receiver<Call>) {
        while let Some(Call { request, descriptors, reply }) = calls.recv().await {
            let answer = match request {
                Request::Give(give) => self.give(&give, descriptors),
                Request::Take(take) => self.take(&take).await,
            };
            // This fails if the client is gone; its descriptor is then closed.
            let _ = reply.send(answer);
        }
    }

    fn give(&self, give: &Give, descriptors: Vec<OwnedFd>) -> Reply {
        let Give { revision, name } = give;
        if let Some(channel) = MigrationChannel::parse(name) {
            tracing::info!(name, "connection of a migration");
            return self.connections.give(channel, descriptors).map(|()| Vec::new());
        }
        let mut store = self.store.borrow_mut();
        match store.give(*revision, name, descriptors) {
            Ok(()) => {
                tracing::info!(name, revision, "descriptor");
                let names = store.names();
                self.circumstances.send_if_modified(|circumstances| {
                    let new = circumstances.descriptors != names;
                    circumstances.descriptors = names;
                    new
                });
                Ok(Vec::new())
            }
            Err(why) => {
                tracing::warn!(name, revision, why, "descriptor refused");
                Err(why)
            }
        }
    }

    async fn take(&self, take: &Take) -> Reply {
        tracing::info!(stream = take.stream, "stream taken");
        match take.stream.as_str() {
            STREAM_SERIAL0 => lead_to(&self.console, "the serial console"),
            STREAM_QMP => lead_to(&self.people, "the monitor"),
            STREAM_VNC => hand_over(connect(&self.vnc, "the display").await?),
            STREAM_USB => hand_over(self.usb.open().await?),
            other => Err(format!("there is no stream {other}")),
        }
    }
}

/// A connection to a socket that QEMU listens on.
pub(super) async fn connect(socket: &Path, what: &str) -> Result<UnixStream, String> {
    match timeout(CONNECT, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("{what} cannot be connected to: {error}")),
        Err(_) => Err(format!("{what} does not accept")),
    }
}

fn lead_to(who: &mpsc::Sender<UnixStream>, what: &str) -> Reply {
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    who.try_send(ours).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => format!("too many connections wait for {what} already"),
        mpsc::error::TrySendError::Closed(_) => format!("{what} is gone"),
    })?;
    hand_over(theirs)
}

/// A connection as a blocking descriptor, which its receiver expects.
fn hand_over(stream: UnixStream) -> Reply {
    let hand_over = || {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(vec![OwnedFd::from(stream)])
    };
    hand_over().map_err(|error: std::io::Error| error.to_string())
}
