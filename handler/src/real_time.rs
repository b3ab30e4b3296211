//! Realtime scheduling of virtual CPUs (`spec.domain.cpu.realtime`).
//!
//! A launcher may not set it itself: that takes a capability which Pod Security's level `restricted` does not
//! allow. So the handler sets it from outside, as KubeVirt's does: `SCHED_FIFO` with the lowest priority of
//! that class. It changes only threads of the launcher's own container, and only threads that run on CPUs
//! that the kubelet has given to that container exclusively ([`crate::exclusive`]): on shared CPUs such a
//! thread would block everything else without end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use barevirt_api::vcpu_mask::VcpuMask;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use thiserror::Error;

use crate::launchers::cgroup::Container;
use crate::launchers::peer::Peer;
use crate::{exclusive, kernel};

/// Higher than all threads without realtime scheduling, and lower than all others with it.
pub const PRIORITY: i32 = 1;

/// Larger than any file in `/proc` about a process or its children.
const LARGEST: u64 = 256 * 1024;

/// Why virtual CPUs do not get realtime scheduling.
#[derive(Debug, Error)]
pub enum RealTimeError {
    /// The launcher has no such child.
    #[error("realtime: QEMU of launcher process {launcher} is not found")]
    NoQemu {
        /// Process id of the launcher.
        launcher: i32,
    },
    /// Other processes share its CPUs and would have to wait for it.
    #[error(
        "realtime: virtual CPU {vcpu} runs on CPUs that the kubelet has not given to its container alone"
    )]
    Shared {
        /// Number of the virtual CPU.
        vcpu: u32,
    },
    /// The kernel refused.
    #[error("realtime: virtual CPU {vcpu} cannot be scheduled first in, first out")]
    Refused {
        /// Number of the virtual CPU.
        vcpu: u32,
        /// The kernel's error. On cgroup v1 the cause may be that the pods' control groups have no realtime
        /// budget.
        source: io::Error,
    },
}

/// Gives the named virtual CPUs realtime scheduling and returns their number. `qemu` is QEMU's process id as
/// the launcher knows it. `own` are the CPUs that its container has exclusively.
///
/// Processes and threads are accessed through their directories in `/proc`, held open. Their ids are only
/// used where the kernel takes nothing else, and only while they are known to belong to them.
///
/// # Errors
/// When QEMU is not found, a virtual CPU may run on other CPUs, or the kernel refuses.
pub fn schedule(
    launcher: &Peer,
    container: &Container,
    qemu: u32,
    mask: &VcpuMask,
    own: &BTreeSet<u32>,
) -> Result<usize, RealTimeError> {
    for child in children(launcher) {
        // A child that has ended meanwhile, or whose id now belongs to another container, is not QEMU.
        let Ok(process) = Peer::verify_process(child, container) else { continue };
        if own_id(&process) == Some(qemu) {
            return of_process(&process, mask, own);
        }
    }
    Err(RealTimeError::NoQemu { launcher: launcher.pid() })
}

fn of_process(process: &Peer, mask: &VcpuMask, own: &BTreeSet<u32>) -> Result<usize, RealTimeError> {
    let wanted = vcpus(process).into_iter().filter(|(vcpu, _)| mask.has(*vcpu));
    let mut count = 0;
    for (vcpu, thread) in wanted {
        let runs_on = thread.allowed();
        if runs_on.is_empty() || !runs_on.is_subset(own) {
            return Err(RealTimeError::Shared { vcpu });
        }
        thread.schedule().map_err(|source| RealTimeError::Refused { vcpu, source })?;
        count += 1;
    }
    Ok(count)
}

/// A thread with its open directory in `/proc`.
struct Thread {
    id: i32,
    directory: OwnedFd,
}

impl Thread {
    fn name(&self) -> io::Result<String> {
        read(openat(&self.directory, "comm", OFlag::O_CLOEXEC, Mode::empty())?)
    }

    /// CPUs on which it may run.
    fn allowed(&self) -> BTreeSet<u32> {
        let status = openat(&self.directory, "status", OFlag::O_CLOEXEC, Mode::empty());
        let status = status.map_err(io::Error::from).and_then(read).unwrap_or_default();
        let said = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        said.and_then(exclusive::list).unwrap_or_default()
    }

    /// Its name can be read before and after the call, so its id was not reused meanwhile.
    fn schedule(&self) -> io::Result<()> {
        self.name()?;
        let done = kernel::first_in_first_out(self.id, PRIORITY);
        self.name()?;
        done
    }
}

/// The child processes of a process.
fn children(parent: &Peer) -> Vec<i32> {
    let lists = threads(parent).into_iter().filter_map(|thread| {
        let list = openat(&thread.directory, "children", OFlag::O_CLOEXEC, Mode::empty());
        read(list.ok()?).ok()
    });
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The id of a process in its own pid namespace.
fn own_id(process: &Peer) -> Option<u32> {
    let status = read(process.open("status", OFlag::O_RDONLY).ok()?).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

fn threads(process: &Peer) -> Vec<Thread> {
    let Ok(tasks) = process.open("task", OFlag::O_RDONLY | OFlag::O_DIRECTORY) else { return Vec::new() };
    // The path of the descriptor in `/proc/self` leads to the directory itself, even if the process id was
    // reused.
    let entries =
        fs::read_dir(format!("/proc/self/fd/{}", tasks.as_raw_fd())).into_iter().flatten().flatten();
    let thread = |name: OsString| {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(&tasks, name.as_os_str(), flags, Mode::empty()).ok()?;
        Some(Thread { id: name.to_str()?.parse().ok()?, directory })
    };
    entries.filter_map(|entry| thread(entry.file_name())).collect()
}

/// Virtual CPUs and their threads, which QEMU names `CPU 0/KVM`.
fn vcpus(process: &Peer) -> Vec<(u32, Thread)> {
    let vcpu = |thread: &Thread| {
        let name = thread.name().ok()?;
        let (number, accelerator) = name.trim_end().strip_prefix("CPU ")?.split_once('/')?;
        matches!(accelerator, "KVM" | "TCG").then(|| number.parse().ok()).flatten()
    };
    threads(process).into_iter().filter_map(|thread| Some((vcpu(&thread)?, thread))).collect()
}

fn read(file: OwnedFd) -> io::Result<String> {
    let mut text = String::new();
    File::from(file).take(LARGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Scheduling policy of a thread of this process: 0 is `SCHED_OTHER`, 1 is `SCHED_FIFO`.
    fn policy(thread: i32) -> String {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(38).unwrap().to_owned()
    }

    #[test]
    fn only_named_virtual_cpus_become_realtime() {
        let (tell, told) = mpsc::channel();
        let mut ends = Vec::new();
        for name in ["CPU 0/TCG", "CPU 1/KVM", "CPU x/KVM", "IO iothread1"] {
            let (end, ended) = mpsc::channel::<()>();
            let tell = tell.clone();
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    tell.send(nix::unistd::gettid().as_raw()).unwrap();
                    let _ = ended.recv();
                })
                .unwrap();
            ends.push(end);
        }
        let threads: Vec<i32> = told.iter().take(4).collect();
        let this = Peer::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut found: Vec<(u32, i32)> =
            vcpus(&this).iter().map(|(vcpu, thread)| (*vcpu, thread.id)).collect();
        found.sort_unstable();
        assert_eq!(found.iter().map(|(vcpu, _)| *vcpu).collect::<Vec<_>>(), [0, 1]);
        assert!(found.iter().all(|(_, thread)| threads.contains(thread)));
        let (first, second) = (found[0].1, found[1].1);
        let mask = VcpuMask::parse("0-1,^0").unwrap();
        let own = vcpus(&this)[0].1.allowed();
        // CPUs that other processes use are refused, even if only one of them is shared.
        let shared: BTreeSet<u32> = own.iter().skip(1).copied().collect();
        for cpus in [&BTreeSet::new(), &shared] {
            let refused = of_process(&this, &mask, cpus);
            assert!(matches!(refused, Err(RealTimeError::Shared { vcpu: 1 })), "{refused:?}");
            assert_eq!(policy(second), "0");
        }
        match of_process(&this, &mask, &own) {
            Ok(count) => assert_eq!((count, policy(first), policy(second)), (1, "0".into(), "1".into())),
            // Without the permission, the error names the virtual CPU.
            Err(error) => assert!(error.to_string().contains("virtual CPU 1"), "{error}"),
        }
    }

    #[test]
    fn a_child_is_known_by_its_own_id() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let this = Peer::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let found = children(&this).into_iter().find(|found| u32::try_from(*found) == Ok(child.id()));
        let own = found.and_then(|found| own_id(&Peer::of(found).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.is_some());
    }
}
