//! Who is on the other end of a launcher's socket.
//!
//! ```text
//! connection --SO_PEERCRED--> pid --/proc/<pid>, held open--> cgroup --> (pod, container) == what was expected
//! ```
//!
//! Everything later done to the launcher (entering its network namespace, reading its resolver settings) goes through
//! the directory that was held open meanwhile: a process id may be given to another process, this directory cannot.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cgroups_rs::fs::cgroup::get_cgroups_relative_paths_by_pid;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{Gid, Uid, fchownat};
use thiserror::Error;

use super::cgroup::{self, CgroupError, Container};
use super::counters::Counters;

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
    /// Its control groups could not be read.
    #[error("read control groups of process {pid}: {reason}")]
    Cgroups {
        /// Its process id.
        pid: i32,
        /// What cgroups-rs said.
        reason: String,
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
        what: &'static str,
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
    process: OwnedFd,
}

/// Where a process is.
struct Place {
    container: Container,
    /// Its control groups, by controller.
    groups: HashMap<String, String>,
}

impl Peer {
    /// Makes sure that process `pid`, which a socket named as its peer, is in container `expected`.
    pub fn verify(pid: i32, expected: &Container) -> Result<Self, PeerError> {
        Self::expect(pid, expected).map(|(peer, _)| peer)
    }

    /// The same, and opens what the kernel counts for that container.
    pub fn verify_with_counters(pid: i32, expected: &Container) -> Result<(Self, Counters), PeerError> {
        let (peer, place) = Self::expect(pid, expected)?;
        Ok((peer, Counters::open(&place.groups, &place.container)))
    }

    fn expect(pid: i32, expected: &Container) -> Result<(Self, Place), PeerError> {
        let (peer, place) = Self::look(pid)?;
        if place.container != *expected {
            return Err(PeerError::Stranger { pid, found: place.container, expected: expected.clone() });
        }
        Ok((peer, place))
    }

    /// Makes sure that process `pid`, which a socket named as its peer, is in a container of the pod with that UID.
    pub fn verify_pod(pid: i32, uid: &str) -> Result<Self, PeerError> {
        let (peer, Place { container, .. }) = Self::look(pid)?;
        if container.pod_uid != uid {
            return Err(PeerError::OtherPod { pid, found: container.pod_uid, expected: uid.to_owned() });
        }
        Ok(peer)
    }

    fn look(pid: i32) -> Result<(Self, Place), PeerError> {
        let id = u32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(PeerError::NoProcess)?;
        let gone = |errno: nix::Error| PeerError::Gone { pid, source: errno.into() };
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty()).map_err(gone)?;
        let groups = get_cgroups_relative_paths_by_pid(id);
        // Still the process whose directory is held: then the paths were its own, for its id was not free meanwhile.
        openat(&process, "stat", OFlag::O_CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|stat| File::from(stat).read(&mut [0; 1]))
            .map_err(|source| PeerError::Gone { pid, source })?;
        let groups = groups.map_err(|error| PeerError::Cgroups { pid, reason: error.to_string() })?;
        let container = cgroup::container(&groups).map_err(|source| PeerError::Container { pid, source })?;
        Ok((Self { pid, process }, Place { container, groups }))
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
        let failed = |source| PeerError::Open { what: "etc/resolv.conf", pid: self.pid, source };
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
        let failed =
            |errno: nix::Error| PeerError::Open { what: directory, pid: self.pid, source: errno.into() };
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
            what: "net/dev",
            pid: self.pid,
            source,
        })?;
        Ok(text)
    }

    fn open(&self, what: &'static str, flags: OFlag) -> Result<OwnedFd, PeerError> {
        openat(&self.process, what, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| PeerError::Open { what, pid: self.pid, source: errno.into() })
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
