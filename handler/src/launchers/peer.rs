//! Who is on the other end of a launcher's socket.
//!
//! ```text
//! connection --SO_PEERPIDFD--> descriptor of the process --> /proc/<pid>, held open --> cgroup --> (pod, container) == expected
//! ```
//!
//! A process id may be given to another process once its own is gone. The kernel's descriptor of the process cannot: while it
//! says that the process is there, its id is nobody else's, and so the directory opened by that id is the process' own. Everything
//! later done to the launcher (entering its network namespace, reading its resolver settings) goes through that directory. What
//! the kernel takes only by number is done between two looks at the descriptor ([`Peer::act`]).
//!
//! Kernels before 6.5 do not give the descriptor for a connection. It is opened by the number there, which is the listener's for
//! as long as that lives; who has it then is looked at as anybody else.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{Gid, Uid, fchownat};
use thiserror::Error;

use super::cgroup::{self, CgroupError, Container, Paths};
use super::counters::Counters;
use crate::kernel;

/// More than a process has control groups for.
const CGROUPS_LARGEST: u64 = 256 * 1024;

/// More than any resolver reads.
const RESOLV_CONF_LARGEST: u64 = 64 * 1024;

/// More than a pod has interfaces for.
const DEVICES_LARGEST: u64 = 256 * 1024;

/// Why a peer is not trusted.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The system did not say, or the process is in a pid namespace that this one cannot see.
    #[error("peer of the launcher's socket has no process id here")]
    NoProcess,
    /// It ended meanwhile.
    #[error("process {pid} on the launcher's socket is gone")]
    Gone {
        /// Its process id.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// Its control groups, or those of this process, could not be read.
    #[error("read control groups of process {pid}")]
    Cgroups {
        /// Its process id.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// Something could not be done to it.
    #[error("{what} of process {pid}")]
    Act {
        /// What.
        what: &'static str,
        /// Its process id.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// It is in no container, or in two.
    #[error("process {pid} on the launcher's socket")]
    Container {
        /// Its process id.
        pid: i32,
        /// Why.
        source: CgroupError,
    },
    /// It is another container than the launcher's.
    #[error(
        "process {pid} on the launcher's socket is in container {} of pod {}, not in {} of {}",
        found.id, found.pod_uid, expected.id, expected.pod_uid
    )]
    Stranger {
        /// Its process id.
        pid: i32,
        /// Where it is.
        found: Container,
        /// Where the launcher is.
        expected: Container,
    },
    /// It is in another pod.
    #[error("process {pid} on the socket of pod {expected} is in pod {found}")]
    OtherPod {
        /// Its process id.
        pid: i32,
        /// UID of the pod where it is.
        found: String,
        /// UID of the pod that the socket is of.
        expected: String,
    },
    /// Something of the verified process could not be opened.
    #[error("open {what} of launcher process {pid}")]
    Open {
        /// What.
        what: String,
        /// Its process id.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
}

/// A process that was found to be in the launcher's container.
#[derive(Debug)]
pub struct Peer {
    pid: i32,
    /// The kernel's descriptor of the process.
    itself: OwnedFd,
    /// Its directory in `/proc`.
    process: OwnedFd,
}

/// Where a process is.
struct Place {
    container: Container,
    /// Its control groups, by controller.
    groups: Paths,
}

impl Peer {
    /// Makes sure that who is at the other end of the connection is in container `expected`.
    pub fn verify(socket: impl AsFd, expected: &Container) -> Result<Self, PeerError> {
        Self::within(kernel::peer(socket), expected).map(|(peer, _)| peer)
    }

    /// The same, and opens what the kernel counts for that container.
    pub fn verify_with_counters(
        socket: impl AsFd,
        expected: &Container,
    ) -> Result<(Self, Counters), PeerError> {
        let (peer, place) = Self::within(kernel::peer(socket), expected)?;
        Ok((peer, Counters::open(&place.groups, &place.container)))
    }

    /// Makes sure that the process that has this id now is in container `expected`.
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

    /// Makes sure that who is at the other end of the connection is in a container of the pod with that UID.
    pub fn verify_pod(socket: impl AsFd, uid: &str) -> Result<Self, PeerError> {
        let (peer, Place { container, .. }) = Self::look(kernel::peer(socket))?;
        if container.pod_uid != uid {
            let expected = uid.to_owned();
            return Err(PeerError::OtherPod { pid: peer.pid, found: container.pod_uid, expected });
        }
        Ok(peer)
    }

    /// A process, wherever it is.
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
        // Its id was not free meanwhile: the directory is its own.
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

    /// An error where the process is no more.
    fn is_there(&self) -> io::Result<()> {
        if id(&self.itself)? == self.pid { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Does something to the process that the kernel takes only by its number, between two looks at whether the number is its own.
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
    pub fn network_namespace(&self) -> Result<OwnedFd, PeerError> {
        self.open("ns/net", OFlag::O_RDONLY)
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

    /// Gives the launcher the nodes of devices beneath a directory of its container's `/dev`, as far as the container runtime
    /// left them to root. Gives how many that were.
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

    /// Opens something in its directory of `/proc`: of this process, or of none.
    pub(crate) fn open(&self, what: &str, flags: OFlag) -> Result<OwnedFd, PeerError> {
        openat(&self.process, what, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| PeerError::Open { what: what.to_owned(), pid: self.pid, source: errno.into() })
    }
}

/// The id of the process of such a descriptor, as this process sees it: 0 where it does not.
fn id(process: &OwnedFd) -> io::Result<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    match id.and_then(|id| id.trim().parse().ok()) {
        Some(id @ 0..) => Ok(id),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Levels of directories that devices are in: `/dev/bus/usb/003/007` is the deepest.
const DEVICES_DEPTH: u32 = 2;

/// Gives away the character devices in a directory and in those beneath it.
fn own(directory: OwnedFd, owner: u32, depth: u32) -> nix::Result<usize> {
    let mut given = 0;
    // By this process' own name for the descriptor: the directory itself, wherever it is.
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
