//! The pod's `sockets` directory: connects below a descriptor of it, never by a path that the pod could
//! redirect.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, SFlag, fstat};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};

use crate::names::{DESCRIPTOR_SOCKET, GRPC_SOCKET};
use crate::seqpacket::{PacketSocket, SocketError, connect_now};

/// Delay before a busy listener (full backlog) is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Why a connection to a launcher's socket failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The directory itself cannot be opened.
    #[error("open sockets directory {path}")]
    Directory {
        /// The directory.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// No process listens: the launcher is not ready yet, or has ended.
    #[error("socket {name} has no listener")]
    NotListening {
        /// Name in the sockets directory.
        name: &'static str,
    },
    /// The file with the socket's name is not a socket.
    #[error("{name} is not a socket")]
    NotASocket {
        /// Name in the sockets directory.
        name: &'static str,
    },
    /// The listener exists but did not accept in time.
    #[error("socket {name} did not accept in time")]
    Deadline {
        /// Name in the sockets directory.
        name: &'static str,
    },
    /// The system reported an error.
    #[error("connect to socket {name}")]
    Io {
        /// Name in the sockets directory.
        name: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The connected socket could not be used.
    #[error("use socket {name}")]
    Socket {
        /// Name in the sockets directory.
        name: &'static str,
        /// The reason.
        #[source]
        source: SocketError,
    },
}

/// A pod's `sockets` directory.
#[derive(Debug)]
pub struct SocketsDirectory {
    directory: OwnedFd,
}

impl SocketsDirectory {
    /// Takes over a descriptor of the directory, which the caller has opened in a trusted way.
    pub fn new(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Opens the directory by its path; the last component must not be a symbolic link.
    ///
    /// # Errors
    /// If it does not exist or is not a directory.
    pub fn open(path: &Path) -> Result<Self, ConnectError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = open(path, flags, Mode::empty()).map_err(|errno| ConnectError::Directory {
            path: path.display().to_string(),
            source: errno.into(),
        })?;
        Ok(Self { directory })
    }

    /// Connects to the gRPC socket. Check `peer_cred()` of the result before passing it to
    /// [`crate::grpc::client`].
    ///
    /// # Errors
    /// If no process listens, or does not accept in time.
    pub async fn connect_grpc(&self, within: Duration) -> Result<UnixStream, ConnectError> {
        let name = GRPC_SOCKET;
        let stream = self.connect(name, within, connect_stream).await?;
        let stream = std::os::unix::net::UnixStream::from(stream);
        UnixStream::from_std(stream).map_err(|source| ConnectError::Io { name, source })
    }

    /// Connects to the descriptor socket. Check `peer()` of the result before passing it to
    /// [`crate::descriptors::Client`].
    ///
    /// # Errors
    /// If no process listens, or does not accept in time.
    pub async fn connect_descriptors(&self, within: Duration) -> Result<PacketSocket, ConnectError> {
        let name = DESCRIPTOR_SOCKET;
        let socket = self.connect(name, within, connect_now).await?;
        PacketSocket::new(socket).map_err(|source| ConnectError::Socket { name, source })
    }

    async fn connect(
        &self,
        name: &'static str,
        within: Duration,
        attempt: fn(&UnixAddr) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, ConnectError> {
        let io = |errno: Errno| ConnectError::Io { name, source: errno.into() };
        // The socket file is opened first, without following a link that the pod may have put there, and then
        // connected to through its descriptor: the checked file is the one that is used.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let node = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(node) => node,
            Err(Errno::ENOENT) => return Err(ConnectError::NotListening { name }),
            Err(errno) => return Err(io(errno)),
        };
        let kind = SFlag::from_bits_truncate(fstat(&node).map_err(io)?.st_mode) & SFlag::S_IFMT;
        if kind != SFlag::S_IFSOCK {
            return Err(ConnectError::NotASocket { name });
        }
        let address = UnixAddr::new(format!("/proc/self/fd/{}", node.as_raw_fd()).as_str()).map_err(io)?;
        let connecting = async {
            loop {
                match attempt(&address) {
                    Err(Errno::EAGAIN | Errno::EINTR) => sleep(RETRY).await,
                    Err(Errno::ECONNREFUSED) => return Err(ConnectError::NotListening { name }),
                    result => return result.map_err(io),
                }
            }
        };
        timeout_at(Instant::now() + within, connecting).await.unwrap_or(Err(ConnectError::Deadline { name }))
    }
}

impl AsFd for SocketsDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn connect_stream(address: &UnixAddr) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), address)?;
    Ok(socket)
}
