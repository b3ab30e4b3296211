//! Which thread serves which disk, by KubeVirt's rules.
//!
//! Threads 1 and up are shared in turn by the disks without their own thread; the threads of single disks
//! follow. With a supplemental pool, all of its threads serve every disk, each with a share of the queues.
//!
//! The own thread of a disk that is plugged in comes and goes with the disk, and does not count here.

use crate::device::io_thread::{IoThread, Served};
use crate::error::PlanError;
use barevirt_api::quantity;
use barevirt_api::v1::{Cpu, Disk, ResourceRequirements, VirtualMachineInstanceSpec};

/// Most threads of a machine: KubeVirt has no limit, but the pod's limit on processes would end QEMU.
const MOST: u32 = 256;

/// Threads that are not assigned yet.
#[derive(Debug, Default)]
pub(super) struct IoThreads {
    pool: Vec<IoThread>,
    shared: u32,
    next_shared: u32,
    next_own: u32,
    count: u32,
}

impl IoThreads {
    pub(super) fn of(spec: &VirtualMachineInstanceSpec) -> Result<Self, PlanError> {
        let domain = &spec.domain;
        let policy = domain.io_threads_policy.as_deref().unwrap_or_default();
        let brings_own = |disk: &&Disk| {
            let mut hot = spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
            has_own(disk) && hot.any(|volume| volume.name == disk.name)
        };
        let disks = domain.devices.disks.iter().filter(|disk| !brings_own(disk));
        let (own, others): (Vec<_>, Vec<_>) = disks.partition(|disk| has_own(disk));
        let (own, others) = (own.len(), others.len());
        if policy.is_empty() && own == 0 {
            return Ok(Self::default());
        }
        if policy == "supplementalPool" {
            let threads =
                domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
            let count = threads
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| (1..=MOST).contains(count));
            let Some(count) = count else {
                return Err(PlanError::Unsupported {
                    field: "spec.domain.ioThreads.supplementalPoolThreadCount".to_owned(),
                    value: threads.unwrap_or_default().to_string(),
                    why: "1 to 256 threads are",
                });
            };
            return Ok(Self { pool: (1..=count).map(IoThread).collect(), count, ..Self::default() });
        }
        let own = u32::try_from(own).unwrap_or(u32::MAX);
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        let limit = match policy {
            // QEMU's other threads have their own CPU, which one I/O thread can share.
            "auto" if domain.cpu.as_ref().is_some_and(is_isolated) => 1,
            "auto" => domain.resources.as_ref().map_or(1, cpus).saturating_mul(THREADS_FOR_A_CPU),
            _ => 1,
        };
        let shared = if others + own > limit { limit.saturating_sub(own).max(1) } else { others };
        Ok(Self { pool: Vec::new(), shared, next_shared: 1, next_own: shared + 1, count: shared + own })
    }

    /// All threads.
    pub(super) fn all(&self) -> Vec<IoThread> {
        (1..=self.count).map(IoThread).collect()
    }

    /// The threads that serve the next virtio disk of the list.
    pub(super) fn serve(&mut self, disk: &Disk) -> Served {
        if !self.pool.is_empty() {
            return Served::ByPool(self.pool.clone());
        }
        if self.count == 0 {
            return Served::ByMainLoop;
        }
        if has_own(disk) {
            self.next_own += 1;
            return Served::By(IoThread(self.next_own - 1));
        }
        let thread = self.next_shared;
        self.next_shared = thread % self.shared + 1;
        Served::By(IoThread(thread))
    }

    /// The thread that serves the SCSI controller: the next shared one after the disks.
    pub(super) fn serve_scsi(&self) -> Served {
        if self.pool.is_empty() && self.shared > 0 {
            Served::By(IoThread(self.next_shared))
        } else {
            Served::ByMainLoop
        }
    }
}

/// Number of threads that are assumed to keep one CPU busy.
const THREADS_FOR_A_CPU: u32 = 2;

pub(super) fn has_own(disk: &Disk) -> bool {
    disk.dedicated_io_thread.unwrap_or(false)
}

fn is_isolated(cpu: &Cpu) -> bool {
    cpu.dedicated_cpu_placement == Some(true) && cpu.isolate_emulator_thread == Some(true)
}

/// CPUs that the pod requests, else its limit; at least one.
fn cpus(resources: &ResourceRequirements) -> u32 {
    let given = resources.request("cpu").or_else(|| resources.limit("cpu"));
    let millis = given.and_then(|cpus| quantity::millis(cpus).ok()).unwrap_or(0);
    u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}
