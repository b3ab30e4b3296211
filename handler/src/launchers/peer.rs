//! Verifies the process at the other end of a launcher's socket.
//!
//! ```text
//! connection --SO_PEERPIDFD--> descriptor of the process --> /proc/<pid>, held open --> cgroup --> (pod, container) == expected
//! ```
//!
//! A process id may be reused once its process is gone, but the kernel's descriptor of the process cannot be.
//! While the descriptor reports that the process exists, no other process has its id, and so the directory
//! opened by that id is the process' own. Everything that is later done to the launcher (entering its network
//! namespace, reading its resolver settings) goes through that directory. Calls to which the kernel only
//! takes the id are made between two checks of the descriptor ([`Peer::act`]).
//!
//! Kernels before 6.5 do not provide the descriptor for a connection. There it is opened by process id, which
//! is the listener's for as long as the listener lives. A process that has got the id since is verified like
//! any other.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, fchownat};
use thiserror::Error;

use super::cgroup::{self, CgroupError, Container, Paths};
use super::counters::Counters;
use crate::kernel;

/// Larger than the control groups of any process.
const CGROUPS_LARGEST: u64 = 256 * 1024;

/// Larger than what any resolver reads.
const RESOLV_CONF_LARGEST: u64 = 64 * 1024;

/// The network namespace of the node, whose first process the handler sees as such, and the handler's own.
const NOT_OF_A_POD: [&str; 2] = ["/proc/1/ns/net", "/proc/self/ns/net"];

/// Larger than the interface table of any pod.
const DEVICES_LARGEST: u64 = 256 * 1024;

/// Why a peer is not trusted.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The system did not report the process, or the process is in a pid namespace that this process cannot
    /// see.
    #[error("peer of the launcher's socket has no process id here")]
    NoProcess,
    /// The process has ended meanwhile.
    #[error("process {pid} on the launcher's socket is gone")]
    Gone {
        /// Its process id.
        pid: i32,
        /// The error of the system.
        source: io::Error,
    },
    /// The control groups of the process, or of this process, could not be read.
    #[error("read control groups of process {pid}")]
    Cgroups {
        /// Its process id.
        pid: i32,
        /// The error of the system.
        source: io::Error,
    },
    /// An action on the process failed.
    #[error("{what} of process {pid}")]
    Act {
        /// Name of the action.
        what: &'static str,
        /// Its process id.
        pid: i32,
        /// The error of the system.
        source: io::Error,
    },
    /// The process is in no container, or its paths name different containers.
    #[error("process {pid} on the launcher's socket")]
    Container {
        /// Its process id.
        pid: i32,
        /// Why.
        source: CgroupError,
    },
    /// The process is in another container than the launcher's.
    #[error(
        "process {pid} on the launcher's socket is in container {} of pod {}, not in {} of {}",
        found.id, found.pod_uid, expected.id, expected.pod_uid
    )]
    Stranger {
        /// Its process id.
        pid: i32,
        /// The container where it is.
        found: Container,
        /// The launcher's container.
        expected: Container,
    },
    /// The process is in another pod.
    #[error("process {pid} on the socket of pod {expected} is in pod {found}")]
    OtherPod {
        /// Its process id.
        pid: i32,
        /// UID of the pod that it is in.
        found: String,
        /// UID of the pod that the socket belongs to.
        expected: String,
    },
    /// The process is in the network namespace of the node or of the handler, where no guest's pod is.
    #[error("launcher process {pid} is in the network namespace of the node or of virt-handler")]
    NodeNetwork {
        /// Its process id.
        pid: i32,
    },
    /// A file of the verified process could not be opened.
    #[error("open {what} of launcher process {pid}")]
    Open {
        /// The file.
        what: String,
        /// Its process id.
        pid: i32,
        /// The error of the system.
        source: io::Error,
    },
}

/// A process that was verified to be in the launcher's container.
#[derive(Debug)]
pub struct Peer {
    pid: i32,
    /// The kernel's descriptor of the process.
    itself: OwnedFd,
    /// Its directory in `/proc`.
    process: OwnedFd,
}

/// Where a process runs.
struct Place {
    container: Container,
    /// Its control groups, by controller.
    groups: Paths,
}

impl Peer {
    /// Verifies that the process at the other end of the connection is in the container `expected`.
    pub fn verify(socket: impl AsFd, expected: &Container) -> Result<Self, PeerError> {
        Self::within(kernel::peer(socket), expected).map(|(peer, _)| peer)
    }

    /// Verifies the process like [`Peer::verify`], and opens the kernel's counters for its container.
    pub fn verify_with_counters(
        socket: impl AsFd,
        expected: &Container,
    ) -> Result<(Self, Counters), PeerError> {
        let (peer, place) = Self::within(kernel::peer(socket), expected)?;
        Ok((peer, Counters::open(&place.groups, &place.container)))
    }

    /// Verifies that the process that has this id now is in the container `expected`.
    pub fn verify_process(pid: i32, expected: &Container) -> Result<Self, PeerError> {
        Self::within(kernel::process(pid), expected).map(|(peer, _)| peer)
    }

    fn within(process: io::Result<OwnedFd>, expected: &Container) -> Result<(Self, Place), PeerError> {
        let (peer, place) = Self::look(process)?;
        if place.container != *expected {
            let expected = expected.clone();
            return Err(PeerError::Stranger { pid: peer.pid, found: place.container, expected });
        }
        Ok((peer, place))
    }

    /// Verifies that the process at the other end of the connection is in a container of the pod with this
    /// UID.
    pub fn verify_pod(socket: impl AsFd, uid: &str) -> Result<Self, PeerError> {
        let (peer, Place { container, .. }) = Self::look(kernel::peer(socket))?;
        if container.pod_uid != uid {
            let expected = uid.to_owned();
            return Err(PeerError::OtherPod { pid: peer.pid, found: container.pod_uid, expected });
        }
        Ok(peer)
    }

    /// A process, without verification of its container.
    #[cfg(test)]
    pub(crate) fn of(pid: i32) -> Result<Self, PeerError> {
        Self::hold(kernel::process(pid))
    }

    fn hold(process: io::Result<OwnedFd>) -> Result<Self, PeerError> {
        let itself = process.map_err(|source| PeerError::Gone { pid: 0, source })?;
        let pid = id(&itself).map_err(|source| PeerError::Gone { pid: 0, source })?;
        if pid == 0 {
            return Err(PeerError::NoProcess);
        }
        let gone = |source: io::Error| PeerError::Gone { pid, source };
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty());
        let process = process.map_err(|errno| gone(errno.into()))?;
        let peer = Self { pid, itself, process };
        // The process existed all the time, so its id was not reused: the directory is its own.
        peer.is_there().map_err(gone)?;
        Ok(peer)
    }

    fn look(process: io::Result<OwnedFd>) -> Result<(Self, Place), PeerError> {
        let peer = Self::hold(process)?;
        let pid = peer.pid;
        let failed = |source| PeerError::Cgroups { pid, source };
        let mut text = String::new();
        let file = openat(&peer.process, "cgroup", OFlag::O_CLOEXEC, Mode::empty()).map_err(io::Error::from);
        file.and_then(|file| File::from(file).take(CGROUPS_LARGEST).read_to_string(&mut text))
            .map_err(failed)?;
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(failed)?;
        let groups = cgroup::paths(&text);
        let container = cgroup::container(&groups, &cgroup::paths(&own))
            .map_err(|source| PeerError::Container { pid, source })?;
        Ok((peer, Place { container, groups }))
    }

    /// Fails if the process no longer exists.
    fn is_there(&self) -> io::Result<()> {
        if id(&self.itself)? == self.pid { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Performs an action for which the kernel only takes a process id, between two checks that the id still
    /// belongs to the process.
    pub fn act<T>(&self, what: &'static str, act: impl FnOnce(i32) -> io::Result<T>) -> Result<T, PeerError> {
        let gone = |source| PeerError::Gone { pid: self.pid, source };
        self.is_there().map_err(gone)?;
        let done = act(self.pid);
        self.is_there().map_err(gone)?;
        done.map_err(|source| PeerError::Act { what, pid: self.pid, source })
    }

    /// Its process id, for logs.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its network namespace, which is the pod's.
    ///
    /// The node's and the handler's own are refused: a process that came into the container from there must not make
    /// the handler change those networks.
    pub fn network_namespace(&self) -> Result<OwnedFd, PeerError> {
        let namespace = self.open("ns/net", OFlag::O_RDONLY)?;
        let identity = |file: &OwnedFd| fstat(file).map(|file| (file.st_dev, file.st_ino));
        let its = identity(&namespace).map_err(|errno| PeerError::Open {
            what: "ns/net".to_owned(),
            pid: self.pid,
            source: errno.into(),
        })?;
        // A handler that may not open the first one may not enter a pod's either.
        let no_pods = NOT_OF_A_POD.iter().filter_map(|path| File::open(path).ok());
        if no_pods.map(OwnedFd::from).any(|other| identity(&other) == Ok(its)) {
            return Err(PeerError::NodeNetwork { pid: self.pid });
        }
        Ok(namespace)
    }

    /// The text of the container's `/etc/resolv.conf`, beneath its root and through no link that the container made.
    pub fn resolv_conf(&self) -> Result<String, PeerError> {
        let failed = |source| PeerError::Open { what: "etc/resolv.conf".to_owned(), pid: self.pid, source };
        let root = self.open("root", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        let file = openat2(root.as_fd(), "etc/resolv.conf", how).map_err(|errno| failed(errno.into()))?;
        let mut text = Vec::new();
        File::from(file).take(RESOLV_CONF_LARGEST).read_to_end(&mut text).map_err(failed)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes the launcher the owner of the device nodes beneath a directory of its container's `/dev` that
    /// the container runtime left to root. Returns how many there were.
    pub fn own_devices(&self, directory: &'static str, owner: u32) -> Result<usize, PeerError> {
        let failed = |errno: nix::Error| PeerError::Open {
            what: directory.to_owned(),
            pid: self.pid,
            source: errno.into(),
        };
        let root = self.open("root", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        match openat2(root.as_fd(), directory, how) {
            Ok(directory) => own(directory, owner, DEVICES_DEPTH).map_err(failed),
            Err(nix::Error::ENOENT) => Ok(0),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Counters of the interfaces in its network namespace, as `/proc` has them.
    pub fn network_devices(&self) -> Result<String, PeerError> {
        let mut text = String::new();
        let file = File::from(self.open("net/dev", OFlag::O_RDONLY)?);
        file.take(DEVICES_LARGEST).read_to_string(&mut text).map_err(|source| PeerError::Open {
            what: "net/dev".to_owned(),
            pid: self.pid,
            source,
        })?;
        Ok(text)
    }

    /// Opens a file in its `/proc` directory. The call fails if the process is gone.
    pub(crate) fn open(&self, what: &str, flags: OFlag) -> Result<OwnedFd, PeerError> {
        openat(&self.process, what, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| PeerError::Open { what: what.to_owned(), pid: self.pid, source: errno.into() })
    }
}

/// The process id behind a descriptor as this process sees it, or 0 if it does not see the process.
fn id(process: &OwnedFd) -> io::Result<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    match id.and_then(|id| id.trim().parse().ok()) {
        Some(id @ 0..) => Ok(id),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Depth of directories that contain devices: `/dev/bus/usb/003/007` is the deepest.
const DEVICES_DEPTH: u32 = 2;

/// Changes the owner of the character devices in a directory and in those beneath it.
fn own(directory: OwnedFd, owner: u32, depth: u32) -> nix::Result<usize> {
    let mut given = 0;
    // The path of the descriptor in `/proc/self` leads to the directory itself, wherever it is.
    let itself = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let errno = |error: io::Error| nix::Error::from_raw(error.raw_os_error().unwrap_or(0));
    for entry in std::fs::read_dir(itself).map_err(errno)? {
        let name = entry.map_err(errno)?.file_name();
        let found = fstatat(&directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFCHR if found.st_uid != owner => {
                let (user, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
                fchownat(&directory, name.as_os_str(), user, group, AtFlags::AT_SYMLINK_NOFOLLOW)?;
                given += 1;
            }
            SFlag::S_IFDIR if depth > 0 => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let beneath = openat(&directory, name.as_os_str(), flags, Mode::empty())?;
                given += own(beneath, owner, depth - 1)?;
            }
            _ => {}
        }
    }
    Ok(given)
}
