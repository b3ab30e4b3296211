//! Finds the CPUs that this process may use, and the host's CPU topology.
//!
//! With the kubelet's static CPU manager a container has its own cpuset, on cgroup v1 as on v2. The initial
//! affinity of its processes is that set, so one call finds it, without reading the cgroup file system.

use std::fs;
use std::io;
use std::path::Path;

use barevirt_machine::{CpuSet, HostCell, HostCpus};
use nix::errno::Errno;
use nix::sched::{self, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::process;

/// Directory in which the kernel describes its CPU topology.
pub const SYSTEM: &str = "/sys/devices/system";
/// This thread, which is the launcher's only one.
const SELF: Pid = Pid::from_raw(0);

/// The CPUs before the affinity is narrowed.
///
/// # Errors
/// If the kernel has more CPUs than a mask of 1024.
pub fn find(system: &Path) -> io::Result<HostCpus> {
    Ok(HostCpus { allowed: affinity(SELF)?, cells: cells(system), may_bind: process::may_bind_memory() })
}

/// Finds them again, because the container may have got other CPUs. If this process requests all CPUs, the
/// kernel gives it those of its container. Afterwards its former affinity is restored.
///
/// # Errors
/// As for [`find`].
pub fn find_again(system: &Path) -> io::Result<HostCpus> {
    let before = affinity(SELF)?;
    let all: CpuSet = (0..MOST).collect();
    set_affinity(SELF, &all)?;
    let found = find(system);
    // If the former CPUs no longer belong to the container, the affinity stays at all CPUs of the container.
    if let Err(error) = set_affinity(SELF, &before) {
        tracing::debug!(%error, "the launcher runs on all CPUs of its container");
    }
    found
}

/// Number of CPUs in a mask.
const MOST: u32 = 1024;

/// The CPUs that a thread may run on.
///
/// # Errors
/// If the thread does not exist.
pub fn affinity(thread: Pid) -> io::Result<CpuSet> {
    let mask = sched_getaffinity(thread)?;
    let is_set = |cpu: &u32| usize::try_from(*cpu).is_ok_and(|cpu| mask.is_set(cpu).unwrap_or(false));
    Ok((0..MOST).filter(is_set).collect())
}

/// Restricts a thread to these CPUs.
///
/// # Errors
/// If the thread does not exist, or none of the CPUs belongs to the container.
pub fn set_affinity(thread: Pid, cpus: &CpuSet) -> io::Result<()> {
    let mut mask = sched::CpuSet::new();
    for cpu in cpus.iter() {
        mask.set(usize::try_from(cpu).map_err(|_| Errno::EINVAL)?)?;
    }
    Ok(sched_setaffinity(thread, &mask)?)
}

/// Restricts this process, and those that it starts from now on, to these CPUs.
///
/// # Errors
/// If none of them belongs to the container.
pub fn narrow(cpus: &CpuSet) -> io::Result<()> {
    set_affinity(SELF, cpus)
}

/// NUMA nodes with their cores, by number. A kernel without NUMA has one node.
fn cells(system: &Path) -> Vec<HostCell> {
    let list = |path: &Path| fs::read_to_string(path).ok().and_then(|text| CpuSet::parse(&text));
    let nodes = list(&system.join("node/online")).unwrap_or_default();
    let mut cells = Vec::new();
    for id in nodes.iter() {
        let directory = system.join(format!("node/node{id}"));
        let cpus = list(&directory.join("cpulist")).unwrap_or_default();
        let distances = fs::read_to_string(directory.join("distance")).unwrap_or_default();
        let distances = distances.split_whitespace().map_while(|word| word.parse().ok());
        cells.push(HostCell {
            id,
            cores: cores(system, &cpus),
            distances: nodes.iter().zip(distances).collect(),
        });
    }
    if cells.is_empty() {
        let cpus = list(&system.join("cpu/online")).unwrap_or_default();
        cells.push(HostCell { id: 0, cores: cores(system, &cpus), distances: Vec::new() });
    }
    cells
}

/// The CPUs, grouped by core.
fn cores(system: &Path, cpus: &CpuSet) -> Vec<Vec<u32>> {
    let mut rest = cpus.clone();
    let mut cores = Vec::new();
    for cpu in cpus.iter() {
        if !rest.0.remove(&cpu) {
            continue;
        }
        let path = system.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
        let siblings =
            fs::read_to_string(path).ok().and_then(|text| CpuSet::parse(&text)).unwrap_or_default();
        let others: Vec<u32> = siblings.iter().filter(|sibling| rest.0.remove(sibling)).collect();
        cores.push(std::iter::once(cpu).chain(others).collect());
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two cores, each core of two CPUs, and one without memory or CPUs.
    #[test]
    fn nodes_cores_and_distances_are_read() {
        let system = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node/online", "0,2\n");
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node0/distance", "10 21\n");
        write("node/node2/cpulist", "2-3,6-7\n");
        write("node/node2/distance", "21 10\n");
        for cpu in 0..8 {
            let core = cpu % 4;
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), &format!("{core},{}\n", core + 4));
        }
        let cells = cells(system.path());
        assert_eq!(cells[0].cores, [[0, 4], [1, 5]]);
        assert_eq!((cells[1].id, cells[1].cores.as_slice()), (2, [vec![2, 6], vec![3, 7]].as_slice()));
        assert_eq!(cells[1].distances, [(0, 21), (2, 10)]);
    }

    #[test]
    fn a_kernel_without_nodes_has_one() {
        let system = tempfile::tempdir().unwrap();
        fs::create_dir_all(system.path().join("cpu")).unwrap();
        fs::write(system.path().join("cpu/online"), "0-1\n").unwrap();
        let cells = cells(system.path());
        assert_eq!((cells.len(), cells[0].cores.as_slice()), (1, [vec![0], vec![1]].as_slice()));
    }

    /// In its own thread, because the affinity is narrowed.
    #[test]
    fn a_narrowed_affinity_is_restored_only_for_reading_the_hosts_cpus() {
        let all = affinity(SELF).unwrap();
        std::thread::spawn(move || {
            let last: CpuSet = all.iter().last().into_iter().collect();
            narrow(&last).unwrap();
            assert_eq!(affinity(SELF).unwrap(), last);
            assert_eq!(find(Path::new(SYSTEM)).unwrap().allowed, last);
            assert!(find_again(Path::new(SYSTEM)).unwrap().allowed.len() >= all.len());
            assert_eq!(affinity(SELF).unwrap(), last);
        })
        .join()
        .unwrap();
    }
}
