//! Which thread of QEMU runs on which CPU of the host. Pure: from the container's CPUs and the host's
//! topology to a CPU for each virtual one.
//!
//! ```text
//!   container's CPUs ──> cores of one NUMA node with enough siblings   ──> guest cores, their threads on siblings
//!                    ──> the rest of a node                            ──> further guest cores
//!                    ──> the rest of all nodes, unless nodes matter    ──> further guest cores
//!                    ──> one by one                                    ──> threads of the supplemental pool, then the emulator
//! ```
//!
//! The same guest on the same CPUs gets the same places, so no state has to be kept when a socket is plugged
//! in. I/O threads without a CPU of their own run on the CPUs of QEMU's other threads, if these have any,
//! else they are spread over those of the virtual CPUs: KubeVirt's rules.

use crate::host_cpus::{CpuSet, HostCell, HostCpus};
use barevirt_api::sizing::{DedicatedCpus, Topology};
use std::collections::VecDeque;
use thiserror::Error;

/// Why threads cannot get CPUs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PinningError {
    /// The container has fewer CPUs than needed.
    #[error("the container may use {given} CPUs ({cpus}), and its guest needs {needed} of its own")]
    TooFew {
        /// Number of the container's CPUs.
        given: usize,
        /// The container's CPUs.
        cpus: String,
        /// Number of needed CPUs.
        needed: usize,
    },
    /// The container has more CPUs, so they are not dedicated.
    #[error(
        "the container may use {given} CPUs ({cpus}) where its guest needs {needed} of its own: they are shared with others, \
         the node's kubelet needs the CPU manager policy static"
    )]
    NotExclusive {
        /// Number of the container's CPUs.
        given: usize,
        /// The container's CPUs.
        cpus: String,
        /// Number of needed CPUs.
        needed: usize,
    },
    /// A guest core would have threads on two NUMA nodes.
    #[error("{cores} cores of the guest do not fit on a NUMA node each: the container's CPUs are {cpus}")]
    AcrossNodes {
        /// Number of cores.
        cores: usize,
        /// The container's CPUs.
        cpus: String,
    },
}

/// The places of all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// One for each virtual CPU, by QEMU's index.
    pub vcpus: Vec<u32>,
    /// CPUs of each I/O thread, from the first.
    pub io_threads: Vec<CpuSet>,
    /// CPUs of all other threads of QEMU, if they have dedicated ones. Without, they run on all CPUs of the
    /// container.
    pub emulator: Option<CpuSet>,
}

/// The threads that need CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The guest's arrangement; CPUs that are not plugged in need none.
    pub topology: Topology,
    /// CPUs that the container requested.
    pub cpus: DedicatedCpus,
    /// Number of I/O threads.
    pub io_threads: u32,
    /// Whether a guest core must be on one NUMA node.
    pub on_one_node: bool,
}

impl Demand {
    fn needed(&self) -> usize {
        usize::try_from(self.cpus.all()).unwrap_or(usize::MAX)
    }

    /// Checks that there are exactly as many CPUs as requested, which is only so if they are dedicated.
    ///
    /// # Errors
    /// If the numbers differ.
    pub fn check_exclusive(&self, host: &HostCpus) -> Result<(), PinningError> {
        let (given, needed, cpus) = (host.allowed.len(), self.needed(), host.allowed.to_string());
        match given.cmp(&needed) {
            std::cmp::Ordering::Less => Err(PinningError::TooFew { given, cpus, needed }),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(PinningError::NotExclusive { given, cpus, needed }),
        }
    }

    /// Assigns CPUs to every thread.
    ///
    /// # Errors
    /// If there are too few CPUs, or their topology does not fit.
    pub fn pin(&self, host: &HostCpus) -> Result<Pinning, PinningError> {
        let (given, needed, cpus) = (host.allowed.len(), self.needed(), host.allowed.to_string());
        if given < needed {
            return Err(PinningError::TooFew { given, cpus, needed });
        }
        let threads = usize::try_from(self.topology.threads.max(1)).unwrap_or(1);
        let cores = self.topology.vcpus() / self.topology.threads.max(1);
        let cores = usize::try_from(cores).unwrap_or(usize::MAX);
        let mut pool = Pool::new(host, threads);
        let vcpus = pool.cores(cores, threads, !self.on_one_node);
        let missing = cores.saturating_sub(vcpus.len() / threads);
        if missing > 0 {
            return Err(PinningError::AcrossNodes { cores: missing, cpus });
        }
        let one = |pool: &mut Pool| {
            pool.one().ok_or_else(|| PinningError::TooFew { given, cpus: cpus.clone(), needed })
        };
        let mut io_threads = Vec::new();
        for _ in 0..self.cpus.io_threads {
            io_threads.push(CpuSet::from_iter([one(&mut pool)?]));
        }
        let mut emulator = CpuSet::default();
        for _ in 0..self.cpus.emulator {
            emulator.0.insert(one(&mut pool)?);
        }
        let emulator = (!emulator.is_empty()).then_some(emulator);
        if self.cpus.io_threads == 0 {
            let own: CpuSet = vcpus.iter().copied().collect();
            io_threads = without_own(self.io_threads, &own, emulator.as_ref());
        }
        Ok(Pinning { vcpus, io_threads, emulator })
    }
}

/// CPUs of I/O threads without their own: the emulator's, else spread over the guest's.
fn without_own(count: u32, guest: &CpuSet, emulator: Option<&CpuSet>) -> Vec<CpuSet> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if let Some(emulator) = emulator {
        return vec![emulator.clone(); count];
    }
    let cpus: Vec<u32> = guest.iter().collect();
    if count >= cpus.len() {
        // KubeVirt counts threads from 1, and so starts with the second CPU.
        return (1..=count)
            .filter_map(|thread| cpus.get(thread % cpus.len().max(1)))
            .map(|cpu| [*cpu].into_iter().collect())
            .collect();
    }
    // Equal shares; the first ones have one more.
    let mut rest = cpus.as_slice();
    let mut shares = Vec::new();
    for left in (1..=count).rev() {
        let (share, others) = rest.split_at(rest.len().div_ceil(left));
        shares.push(share.iter().copied().collect());
        rest = others;
    }
    shares
}

/// The remaining CPUs of the container on one node.
#[derive(Debug, Default)]
struct Left {
    /// CPUs of cores with enough of them for a guest core.
    cores: VecDeque<Vec<u32>>,
    /// The other CPUs.
    loose: VecDeque<u32>,
}

impl Left {
    /// The CPUs for a guest core, all of one host core.
    fn siblings(&mut self, threads: usize) -> Option<Vec<u32>> {
        let mut core = self.cores.pop_front()?;
        let rest = core.split_off(threads);
        self.give_back(rest, threads);
        Some(core)
    }

    fn give_back(&mut self, rest: Vec<u32>, threads: usize) {
        if rest.len() >= threads {
            self.cores.push_front(rest);
        } else {
            self.loose.extend(rest);
        }
    }

    /// The CPUs for a guest core, of several host cores.
    fn scattered(&mut self, threads: usize) -> Option<Vec<u32>> {
        (self.loose.len() >= threads).then(|| self.loose.drain(..threads).collect())
    }

    /// A single CPU, preferably one that belongs to no whole core.
    fn one(&mut self, threads: usize) -> Option<u32> {
        self.loose.pop_front().or_else(|| {
            let mut core = self.cores.pop_front()?;
            let rest = core.split_off(1);
            self.give_back(rest, threads);
            core.pop()
        })
    }
}

struct Pool {
    nodes: Vec<Left>,
    threads: usize,
}

impl Pool {
    fn new(host: &HostCpus, threads: usize) -> Self {
        let mut nodes: Vec<Left> = Vec::new();
        let mut strangers = host.allowed.clone();
        for HostCell { cores, .. } in &host.cells {
            let mut left = Left::default();
            for core in cores {
                let own: Vec<u32> = core.iter().copied().filter(|cpu| strangers.0.remove(cpu)).collect();
                if own.is_empty() {
                    continue;
                }
                if own.len() >= threads {
                    left.cores.push_back(own);
                } else {
                    left.loose.extend(own);
                }
            }
            nodes.push(left);
        }
        // If the kernel reports no topology, each CPU counts as a core.
        if !strangers.is_empty() {
            let mut left = Left::default();
            if threads == 1 {
                left.cores.extend(strangers.iter().map(|cpu| vec![cpu]));
            } else {
                left.loose.extend(strangers.iter());
            }
            nodes.push(left);
        }
        Self { nodes, threads }
    }

    /// CPUs for this many guest cores, or for as many as possible.
    fn cores(&mut self, wanted: usize, threads: usize, across: bool) -> Vec<u32> {
        let mut taken = Vec::new();
        // First guest cores on siblings, then scattered ones.
        for take in [Left::siblings as fn(&mut Left, usize) -> _, Left::scattered] {
            for node in &mut self.nodes {
                while taken.len() < wanted.saturating_mul(threads)
                    && let Some(core) = take(node, threads)
                {
                    taken.extend(core);
                }
            }
        }
        if across {
            let missing = wanted.saturating_mul(threads).saturating_sub(taken.len());
            let loose = self.nodes.iter_mut().flat_map(|node| node.loose.drain(..));
            let mut loose: VecDeque<u32> = loose.collect();
            taken.extend(loose.drain(..missing.min(loose.len())));
            if let Some(last) = self.nodes.last_mut() {
                last.loose = loose;
            }
        }
        taken
    }

    fn one(&mut self) -> Option<u32> {
        let threads = self.threads;
        self.nodes.iter_mut().find_map(|node| node.one(threads))
    }
}

#[cfg(test)]
mod tests;
