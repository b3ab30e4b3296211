//! Counters that the kernel keeps for a launcher's container: how often its CPUs were throttled, how often
//! its memory reached a limit, and how many of its processes were killed for lack of memory.
//!
//! ```text
//!  /proc/<launcher>/cgroup ──(verified: the container's)──┐
//!  /proc/1/mountinfo ───────(where hierarchies are)───────┴─► two directories, held open ─► files, read at each use
//! ```
//!
//! | | cgroup v1 | cgroup v2 |
//! |---|---|---|
//! | throttling | `cpu.stat`: `nr_periods`, `nr_throttled`, `throttled_time` (ns) | `cpu.stat`: the same, `throttled_usec` |
//! | the limit was reached | `memory.failcnt` | `memory.events`: `max` |
//! | killed for lack of memory | `memory.oom_control`: `oom_kill` | `memory.events`: `oom_kill` |
//! | limit, use, most use | `memory.limit_in_bytes`, `.usage_in_bytes`, `.max_usage_in_bytes` | `memory.max`, `.current`, `.peak` |
//!
//! The directories are opened once, beneath the root of the node's first process, and keep referring to this
//! container: when it is gone they are empty, and a later group of the same name is a different directory.
//! They must be on the kernel's control group file system, which limits the size of what is read there.
//!
//! cgroups-rs reads keys and values, file by file. Its `MemController::memory_stat` is not used: it does not
//! know `memory.events`, panics when a line of `memory.oom_control` is not as expected, reads a dozen files
//! where four are needed, and reports zero for a file that cannot be read. `CpuController::cpu` only returns
//! the text of `cpu.stat`. Both need a path, and the group at that path may be a different one by the time it
//! is opened.

mod mounts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use cgroups_rs::fs::{MaxValue, flat_keyed_to_hashmap, parse_max_value};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};

use self::mounts::Mount;
use super::cgroup::Container;

/// Processes whose mounts are read: first the first process of the node, since this one may see only its own
/// container. This process follows for the case that the first one may not be inspected, as on a machine that
/// runs the handler without a container.
const PROCESSES: [&str; 2] = ["/proc/1", "/proc/self"];
/// Larger than the mount table of any node.
const MOUNTS_LARGEST: u64 = 16 << 20;
/// Larger than any number as text.
const VALUE_LARGEST: u64 = 64;
/// From this value on, a limit of cgroup v1 means no limit: the largest number of bytes in whole pages, of at
/// most 64 KiB.
const UNLIMITED: u64 = (1 << 63) - (1 << 16);

/// The control groups of a container.
#[derive(Debug, Default)]
pub struct Counters {
    cpu: Option<Group>,
    memory: Option<Group>,
}

/// One control group.
#[derive(Debug)]
struct Group {
    directory: OwnedFd,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// How the container's CPUs were throttled: held back because the container had used up its CPU limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which the container ran while it had a limit.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
    /// How long it was throttled, summed over CPUs.
    pub throttled: Duration,
}

/// The container's memory. Values that a version of cgroups does not provide are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// The memory limit, in bytes.
    pub limit: Option<u64>,
    /// Current use, in bytes, including the page cache.
    pub usage: Option<u64>,
    /// Highest use so far, in bytes.
    pub peak: Option<u64>,
    /// How often the container was about to exceed its limit.
    pub limit_hits: Option<u64>,
    /// How often memory was reclaimed although the container used less than its protected amount (v2).
    pub low: Option<u64>,
    /// How often it was slowed down because it exceeded its soft limit (v2).
    pub high: Option<u64>,
    /// How often an allocation was about to fail because of the limit (v2).
    pub ooms: Option<u64>,
    /// Processes that the kernel has killed for lack of memory.
    pub oom_kills: Option<u64>,
}

impl Counters {
    /// Opens the groups of `container`. `paths` are those of one of its processes, as
    /// [`paths`](super::cgroup::paths) returns them. A group that cannot be opened has no counters.
    pub(super) fn open(paths: &HashMap<String, String>, container: &Container) -> Self {
        match node() {
            Ok((root, mounts)) => Self::beneath(&root, &mounts, paths, container),
            Err(error) => {
                tracing::debug!(%error, "the node's control groups are not found");
                Self::default()
            }
        }
    }

    fn beneath(
        root: &OwnedFd,
        mounts: &[Mount],
        paths: &HashMap<String, String>,
        container: &Container,
    ) -> Self {
        let group = |controller: &str| {
            let (path, version) = mounts::find(mounts, paths, controller, container)?;
            let group = Group::open(root, &path, version);
            group
                .inspect_err(|error| tracing::debug!(%error, controller, "a control group is not opened"))
                .ok()
        };
        Self { cpu: group("cpu"), memory: group("memory") }
    }

    /// How the CPUs were throttled; `None` if that is not counted or the container is gone.
    pub fn throttling(&self) -> Option<Throttling> {
        let group = self.cpu.as_ref()?;
        let stat = group.keyed("cpu.stat")?;
        let throttled = match group.version {
            Version::V1 => Duration::from_nanos(count(&stat, "throttled_time")?),
            Version::V2 => Duration::from_micros(count(&stat, "throttled_usec")?),
        };
        Some(Throttling {
            periods: count(&stat, "nr_periods")?,
            throttled_periods: count(&stat, "nr_throttled")?,
            throttled,
        })
    }

    /// Its memory use; `None` if that is not counted or the container is gone.
    pub fn memory(&self) -> Option<Memory> {
        let group = self.memory.as_ref()?;
        Some(match group.version {
            Version::V1 => Memory {
                oom_kills: count(&group.keyed("memory.oom_control")?, "oom_kill"),
                limit: group.value("memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED),
                usage: group.value("memory.usage_in_bytes"),
                peak: group.value("memory.max_usage_in_bytes"),
                limit_hits: group.value("memory.failcnt"),
                ..Memory::default()
            },
            Version::V2 => {
                let events = group.keyed("memory.events")?;
                Memory {
                    limit: group.value("memory.max"),
                    usage: group.value("memory.current"),
                    peak: group.value("memory.peak"),
                    limit_hits: count(&events, "max"),
                    low: count(&events, "low"),
                    high: count(&events, "high"),
                    ooms: count(&events, "oom"),
                    oom_kills: count(&events, "oom_kill"),
                }
            }
        })
    }
}

impl Group {
    /// Opens the group at `path` beneath `root` and follows no links.
    fn open(root: &OwnedFd, path: &Path, version: Version) -> io::Result<Self> {
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        let directory = openat2(root, path, how)?;
        let expected = match version {
            Version::V1 => CGROUP_SUPER_MAGIC,
            Version::V2 => CGROUP2_SUPER_MAGIC,
        };
        if fstatfs(&directory)?.filesystem_type() != expected {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not on a control group file system"));
        }
        Ok(Self { directory, version })
    }

    fn file(&self, name: &str) -> Option<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).ok().map(File::from)
    }

    /// Reads a file with a key and a number in each line.
    fn keyed(&self, name: &str) -> Option<HashMap<String, i64>> {
        flat_keyed_to_hashmap(self.file(name)?).ok()
    }

    /// Reads a file with one number; also `None` for `max`.
    fn value(&self, name: &str) -> Option<u64> {
        // cgroups-rs has a private function for this; its parser is public.
        let mut text = String::new();
        self.file(name)?.take(VALUE_LARGEST).read_to_string(&mut text).ok()?;
        match parse_max_value(&text).ok()? {
            MaxValue::Max => None,
            MaxValue::Value(number) => u64::try_from(number).ok(),
        }
    }
}

fn count(keyed: &HashMap<String, i64>, key: &str) -> Option<u64> {
    keyed.get(key).and_then(|number| u64::try_from(*number).ok())
}

/// The node's root and the control group hierarchies mounted there.
fn node() -> io::Result<(OwnedFd, Vec<Mount>)> {
    let [first, this] = PROCESSES;
    root_of(first).or_else(|_| root_of(this))
}

fn root_of(process: &str) -> io::Result<(OwnedFd, Vec<Mount>)> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(format!("{process}/root").as_str(), flags, Mode::empty())?;
    let mut text = String::new();
    File::open(format!("{process}/mountinfo"))?.take(MOUNTS_LARGEST).read_to_string(&mut text)?;
    Ok((root, mounts::parse(&text)))
}
