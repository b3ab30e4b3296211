//! Unix packet sockets (SOCK_SEQPACKET) on tokio: whole messages with descriptors, of limited size,
//! close-on-exec.
//!
//! The launcher also uses them to receive the disks of `containerDisk` volumes.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, getsockopt,
    listen, sendmsg, socket, socketpair,
};
use tokio::io::unix::AsyncFd;

use crate::bind::bind_in_parent;
use crate::message::{LARGEST, MOST_DESCRIPTORS};
use crate::system;

/// Why a packet was not transferred.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system refused an operation on the socket.
    #[error("{operation} on packet socket")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The peer sent more bytes than a message may have.
    #[error("packet is larger than {LARGEST} bytes")]
    TooLarge,
    /// The peer sent more descriptors than a message may have.
    #[error("packet carries {0} descriptors, more than {MOST_DESCRIPTORS}")]
    TooManyDescriptors(usize),
    /// Descriptors were lost, because this process cannot hold more.
    #[error("descriptors of the packet could not be received")]
    DescriptorsLost,
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> SocketError {
    move |source| SocketError::Io { operation, source }
}

/// The process at the other end, as the kernel recorded it when the connection (or the listener) was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id in the pid namespace of this process; 0 if it is not visible there.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// One whole message.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes, at most [`LARGEST`].
    pub bytes: Vec<u8>,
    /// Its descriptors, at most [`MOST_DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
}

/// A connected packet socket.
#[derive(Debug)]
pub struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
}

impl PacketSocket {
    /// Takes over a connected, non-blocking packet socket.
    ///
    /// # Errors
    /// If it cannot be registered with the runtime.
    pub fn new(socket: OwnedFd) -> Result<Self, SocketError> {
        let socket = system::register(socket).map_err(failed("register"))?;
        Ok(Self { socket })
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn pair() -> Result<(Self, Self), SocketError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
            .map_err(|errno| failed("make pair")(errno.into()))?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn peer(&self) -> Result<Peer, SocketError> {
        let credentials = getsockopt(self.socket.get_ref(), PeerCredentials)
            .map_err(|errno| failed("read peer credentials")(errno.into()))?;
        Ok(Peer { pid: credentials.pid(), uid: credentials.uid(), gid: credentials.gid() })
    }

    /// The next packet, `None` at the end of the stream. Cancelling loses no data.
    ///
    /// # Errors
    /// If the packet violates a limit; its descriptors are then closed.
    pub async fn receive(&self) -> Result<Option<Packet>, SocketError> {
        let mut buffer = vec![0; LARGEST];
        let packet = loop {
            let mut ready = self.socket.readable().await.map_err(failed("wait to receive"))?;
            match ready.try_io(|socket| system::receive(socket.get_ref().as_fd(), &mut buffer)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => break result.map_err(failed("receive"))?,
                Err(_would_block) => {}
            }
        };
        if packet.truncated {
            return Err(SocketError::TooLarge);
        }
        if packet.descriptors_lost {
            return Err(SocketError::DescriptorsLost);
        }
        if packet.descriptors.len() > MOST_DESCRIPTORS {
            return Err(SocketError::TooManyDescriptors(packet.descriptors.len()));
        }
        if packet.length == 0 && packet.descriptors.is_empty() {
            return Ok(None);
        }
        buffer.truncate(packet.length);
        buffer.shrink_to_fit();
        Ok(Some(Packet { bytes: buffer, descriptors: packet.descriptors }))
    }

    /// Sends one packet. The descriptors are duplicated into it; the caller keeps its own.
    ///
    /// # Errors
    /// If a limit is violated or the peer is gone.
    pub async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        if bytes.len() > LARGEST {
            return Err(SocketError::TooLarge);
        }
        if descriptors.len() > MOST_DESCRIPTORS {
            return Err(SocketError::TooManyDescriptors(descriptors.len()));
        }
        loop {
            let mut ready = self.socket.writable().await.map_err(failed("wait to send"))?;
            match ready.try_io(|socket| send_now(socket.get_ref().as_fd(), bytes, descriptors)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result.map_err(failed("send")),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?;
    Ok(())
}

/// A listening packet socket.
#[derive(Debug)]
pub struct PacketListener {
    socket: AsyncFd<OwnedFd>,
}

impl PacketListener {
    /// Listens at `path`, and replaces any socket left there. The path may have any length.
    ///
    /// # Errors
    /// If the directory does not exist, or the path is used by a file that cannot be removed.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(|errno| failed("make socket")(errno.into()))?;
        bind_in_parent(socket.as_fd(), path).map_err(failed("bind"))?;
        let backlog = Backlog::new(64).map_err(|errno| failed("listen")(errno.into()))?;
        listen(&socket, backlog).map_err(|errno| failed("listen")(errno.into()))?;
        Ok(Self { socket: system::register(socket).map_err(failed("register"))? })
    }

    /// The next connection. Cancelling loses no connection.
    ///
    /// # Errors
    /// If this process cannot hold more descriptors.
    pub async fn accept(&self) -> Result<PacketSocket, SocketError> {
        loop {
            let mut ready = self.socket.readable().await.map_err(failed("wait to accept"))?;
            match ready.try_io(|socket| accept_now(socket.get_ref())) {
                Ok(Err(error)) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => {}
                Ok(result) => return PacketSocket::new(result.map_err(failed("accept"))?),
                Err(_would_block) => {}
            }
        }
    }
}

fn accept_now(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let raw = accept4(socket.as_raw_fd(), flags)?;
    Ok(system::own(raw))
}

/// Connects a new packet socket to the address without waiting.
pub(crate) fn connect_now(address: &UnixAddr) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    nix::sys::socket::connect(socket.as_raw_fd(), address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
