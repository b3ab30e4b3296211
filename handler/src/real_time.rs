//! Realtime scheduling of virtual CPUs (`spec.domain.cpu.realtime`).
//!
//! A launcher may not ask for it: that takes a capability which Pod Security's `restricted` takes away. So this process does,
//! from outside, as KubeVirt's handler does: first in, first out, with the lowest priority of that class. Only threads of the
//! launcher's own container are touched, and they run only on the CPUs that the container has for itself.

use std::fs;
use std::io;

use barevirt_api::vcpu_mask::VcpuMask;
use thiserror::Error;

use crate::kernel;
use crate::launchers::cgroup::Container;
use crate::launchers::peer::{Peer, PeerError};

/// Above all that is not realtime, below all that is.
pub const PRIORITY: i32 = 1;

/// Why virtual CPUs are not realtime.
#[derive(Debug, Error)]
pub enum RealTimeError {
    /// The launcher has no such child.
    #[error("realtime: QEMU of launcher process {launcher} is not found")]
    NoQemu {
        /// The launcher.
        launcher: i32,
    },
    /// What looks like it is another container's.
    #[error("realtime")]
    Stranger(#[from] PeerError),
    /// The kernel refused.
    #[error("realtime: virtual CPU {vcpu} cannot be scheduled first in, first out")]
    Refused {
        /// Which.
        vcpu: u32,
        /// What the kernel said. On cgroup v1 it may be that the pods' groups have no realtime of their own.
        source: io::Error,
    },
}

/// Makes the named virtual CPUs realtime; gives how many. `qemu` is QEMU's process id as the launcher knows it.
///
/// # Errors
/// When QEMU is not found, or the kernel refuses.
pub fn schedule(
    launcher: i32,
    container: &Container,
    qemu: u32,
    mask: &VcpuMask,
) -> Result<usize, RealTimeError> {
    let known_as = |child: &i32| own_id(*child) == Some(qemu);
    let process = children(launcher).into_iter().find(known_as).ok_or(RealTimeError::NoQemu { launcher })?;
    Peer::verify(process, container)?;
    of_process(process, mask)
}

fn of_process(process: i32, mask: &VcpuMask) -> Result<usize, RealTimeError> {
    let wanted = vcpus(process).into_iter().filter(|(vcpu, _)| mask.has(*vcpu));
    let mut count = 0;
    for (vcpu, thread) in wanted {
        kernel::first_in_first_out(thread, PRIORITY)
            .map_err(|source| RealTimeError::Refused { vcpu, source })?;
        count += 1;
    }
    Ok(count)
}

/// Processes that a process has started.
fn children(parent: i32) -> Vec<i32> {
    let lists = tasks(parent)
        .into_iter()
        .filter_map(|task| fs::read_to_string(format!("/proc/{parent}/task/{task}/children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The id that a process has in its own namespace.
fn own_id(process: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

fn tasks(process: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Virtual CPUs and their threads, which QEMU names `CPU 0/KVM`.
fn vcpus(process: i32) -> Vec<(u32, i32)> {
    let vcpu = |task: &i32| {
        let name = fs::read_to_string(format!("/proc/{process}/task/{task}/comm")).ok()?;
        let (number, accelerator) = name.trim_end().strip_prefix("CPU ")?.split_once('/')?;
        matches!(accelerator, "KVM" | "TCG").then(|| number.parse().ok()).flatten()
    };
    tasks(process).into_iter().filter_map(|task| Some((vcpu(&task)?, task))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Scheduling policy of a thread of this process: 0 is the usual, 1 first in, first out.
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
        let this = i32::try_from(std::process::id()).unwrap();
        let mut found = vcpus(this);
        found.sort_unstable();
        assert_eq!(found.iter().map(|(vcpu, _)| *vcpu).collect::<Vec<_>>(), [0, 1]);
        assert!(found.iter().all(|(_, thread)| threads.contains(thread)));
        let (first, second) = (found[0].1, found[1].1);
        match of_process(this, &VcpuMask::parse("0-1,^0").unwrap()) {
            Ok(count) => assert_eq!((count, policy(first), policy(second)), (1, "0".into(), "1".into())),
            // Without the right to it, the refusal names the virtual CPU.
            Err(error) => assert!(error.to_string().contains("virtual CPU 1"), "{error}"),
        }
    }

    #[test]
    fn a_child_is_known_by_its_own_id() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let this = i32::try_from(std::process::id()).unwrap();
        let found = children(this).into_iter().find(|found| u32::try_from(*found) == Ok(child.id()));
        let own = found.and_then(own_id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.is_some());
    }
}
