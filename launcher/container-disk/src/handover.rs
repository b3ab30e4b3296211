//! The protocol with the launcher: one packet is sent, then the program waits until the launcher closes.
//!
//! ```json
//! {"volume":"root","path":"/disk/guest.qcow2","size":10485760}      with one read-only descriptor
//! {"volume":"root","error":"image has no disk: ..."}                without
//! ```

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, recv, sendmsg, socket,
};
use serde::Serialize;

use container_disk::disk::{Disk, DiskError};

/// How long the launcher may take to listen: a slow node may still unpack its image.
const LAUNCHER_DEADLINE: Duration = Duration::from_secs(120);

/// Delay between attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// Why the launcher did not get the message, or its end was not seen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    #[error("the container was stopped before the launcher listened")]
    Ended,
    #[error("no launcher listened on {socket} within {} s: {source}", LAUNCHER_DEADLINE.as_secs())]
    Deadline { socket: PathBuf, source: io::Error },
    #[error("{operation}: {source}")]
    Io { operation: &'static str, source: io::Error },
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> HandoverError {
    move |errno| HandoverError::Io { operation, source: errno.into() }
}

/// The message to the launcher.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Message {
    /// The volume's disk comes with this message.
    pub(crate) fn disk(volume: &str, disk: &Disk) -> Self {
        let path = disk.path.to_string_lossy().into_owned();
        Self { volume: volume.to_owned(), path: Some(path), size: Some(disk.size), error: None }
    }

    /// The volume has no disk, and why.
    pub(crate) fn error(volume: &str, error: &DiskError) -> Self {
        Self { volume: volume.to_owned(), path: None, size: None, error: Some(error.to_string()) }
    }
}

/// A connection to the launcher.
#[derive(Debug)]
pub(crate) struct Launcher {
    socket: OwnedFd,
}

/// Connects to the launcher, which may start later than this program. From here on SIGTERM does not end the
/// process.
pub(crate) fn connect(path: &Path) -> Result<Launcher, HandoverError> {
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    // SIGTERM is blocked and not ignored, so that the descriptor below sees it; it has no effect when nothing
    // reads the descriptor any more.
    terminate.thread_block().map_err(failed("block SIGTERM"))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&terminate, flags).map_err(failed("watch for SIGTERM"))?;
    let address = UnixAddr::new(path).map_err(failed("read the socket's path"))?;
    let started = Instant::now();
    loop {
        // A socket whose connect was refused cannot be used again.
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
            .map_err(failed("make socket"))?;
        match nix::sys::socket::connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(Launcher { socket }),
            Err(Errno::ENOENT | Errno::ECONNREFUSED | Errno::EAGAIN | Errno::EINTR)
                if started.elapsed() < LAUNCHER_DEADLINE => {}
            Err(errno) => {
                return Err(HandoverError::Deadline { socket: path.to_owned(), source: errno.into() });
            }
        }
        if signals.read_signal().map_err(failed("watch for SIGTERM"))?.is_some() {
            return Err(HandoverError::Ended);
        }
        std::thread::sleep(RETRY);
    }
}

impl Launcher {
    /// Sends the message, with the disk if there is one.
    pub(crate) fn send(&self, message: &Message, disk: Option<&File>) -> Result<(), HandoverError> {
        let bytes = serde_json::to_vec(message)
            .map_err(|error| HandoverError::Io { operation: "encode message", source: error.into() })?;
        let descriptors: Vec<_> = disk.map(AsRawFd::as_raw_fd).into_iter().collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control: &[ControlMessage<'_>] = if descriptors.is_empty() { &[] } else { &rights };
        let parts = [IoSlice::new(&bytes)];
        sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)
            .map_err(failed("hand over the disk"))?;
        Ok(())
    }

    /// Waits for the launcher to close the connection. Data from a later version of the launcher is ignored.
    pub(crate) fn wait(&self) -> Result<(), HandoverError> {
        loop {
            match recv(self.socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty()) {
                // The connection was reset: the launcher closed it with our message unread, for example
                // because it was killed.
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("wait for the launcher")(errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The launcher's tests have the same bytes.
    #[test]
    fn messages_are_the_agreed_ones() {
        let file = tempfile::tempfile().unwrap();
        let disk = Disk { path: "/disk/guest.qcow2".into(), size: 10_485_760, file };
        assert_eq!(
            serde_json::to_string(&Message::disk("root", &disk)).unwrap(),
            r#"{"volume":"root","path":"/disk/guest.qcow2","size":10485760}"#
        );
        let error = DiskError::Empty("/disk".into());
        assert_eq!(
            serde_json::to_string(&Message::error("root", &error)).unwrap(),
            r#"{"volume":"root","error":"image has no disk: directory /disk is empty"}"#
        );
    }
}
