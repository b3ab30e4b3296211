//! Places QEMU's threads on the planned CPUs.
//!
//! ```text
//!   before QEMU starts    launcher ──> CPUs of the emulator; swtpm and QEMU begin there
//!   QEMU answers          every thread of it ──> its CPUs; then the guest starts
//!   sockets come and go   container's CPUs, plan and threads are checked, and again every ten seconds
//! ```
//!
//! QEMU may not do this itself, because its sandbox forbids it. The launcher has the same user, which is all
//! that the kernel requires. Threads that QEMU starts later begin on the CPUs of the thread that started
//! them, which is never one of a virtual CPU.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use barevirt_api::valid::ValidVmi;
use barevirt_machine::{CpuSet, NumaCell, Pinning, demand, misplaced};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use nix::unistd::Pid;

use crate::host_cpus;
use crate::standstill::threads;
use crate::stats::answers;

/// Time limit for QEMU's list of its threads.
const COMMAND: Duration = Duration::from_secs(10);

/// Why threads are not on their planned CPUs.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    /// QEMU did not list its threads.
    #[error("threads of QEMU could not be found")]
    Threads(#[source] Error),
    /// Its list lacks a planned thread.
    #[error("{what} has no thread in QEMU")]
    Missing {
        /// The missing thread.
        what: String,
    },
    /// The kernel refused.
    #[error("{what} cannot be put on host CPUs {cpus}")]
    Refused {
        /// The thread.
        what: String,
        /// The CPUs that it should run on.
        cpus: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Memory is on another node than planned.
    #[error("spec.domain.cpu.numa.guestMappingPassthrough: {0}")]
    Memory(String),
}

/// The plan for a machine.
#[derive(Clone, Debug)]
pub struct Pins {
    /// CPUs of its threads.
    pub pinning: Pinning,
    /// NUMA nodes whose memory is checked.
    pub cells: Vec<NumaCell>,
}

impl Pins {
    /// Called before any process is started.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn prepare(&self) -> Result<(), PinsError> {
        let Some(emulator) = &self.pinning.emulator else { return Ok(()) };
        host_cpus::narrow(emulator).map_err(|source| PinsError::Refused {
            what: "virt-launcher".to_owned(),
            cpus: emulator.to_string(),
            source,
        })
    }

    /// Called before the guest is started.
    ///
    /// # Errors
    /// If threads or memory cannot be placed as planned.
    pub async fn complete(&self, qmp: &Qmp) -> Result<(), PinsError> {
        let pid = place(qmp, &self.pinning).await?;
        if !self.cells.is_empty() {
            let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
            if let Some(wrong) = misplaced(&self.cells, &maps) {
                return Err(PinsError::Memory(wrong));
            }
        }
        Ok(())
    }

    /// The places for the machine's current size.
    ///
    /// # Errors
    /// Why there are none.
    pub fn again(&self, vmi: &ValidVmi) -> Result<Pinning, String> {
        let io_threads = u32::try_from(self.pinning.io_threads.len()).unwrap_or(u32::MAX);
        let host = host_cpus::find_again(Path::new(host_cpus::SYSTEM));
        let host = host.map_err(|error| format!("CPUs of the container cannot be found: {error}"))?;
        match demand(vmi, io_threads) {
            Some(demand) => demand.pin(&host).map_err(|error| error.to_string()),
            None => Ok(self.pinning.clone()),
        }
    }
}

/// Checks every thread of QEMU, and moves those that are elsewhere. Returns the id of a thread, which leads
/// to the process.
///
/// # Errors
/// If a thread is missing, or the kernel refuses.
pub async fn place(monitor: &Qmp, pinning: &Pinning) -> Result<i32, PinsError> {
    let cpus = monitor.execute_list(qmp::query_cpus_fast {}, Deadline::after(COMMAND)).await;
    let cpus = cpus.map_err(PinsError::Threads)?;
    let io_threads = monitor.execute_list(qmp::query_iothreads {}, Deadline::after(COMMAND)).await;
    let io_threads = io_threads.map_err(PinsError::Threads)?;
    let planned = planned(pinning, &cpus, &io_threads)?;
    let pid = planned.keys().next().copied().unwrap_or_default();
    for thread in threads(pid) {
        match planned.get(&thread) {
            Some((what, wanted)) => put(thread, what, wanted)?,
            None => {
                let Some(emulator) = &pinning.emulator else { continue };
                let outcome = put(thread, "a thread of QEMU", emulator);
                // The thread may have ended in the meantime; only for a thread that still exists this is an
                // error.
                if outcome.is_err() && threads(pid).contains(&thread) {
                    outcome?;
                }
            }
        }
    }
    Ok(pid)
}

/// Thread id, name, and CPUs to run on.
type Planned = BTreeMap<i32, (String, CpuSet)>;

/// The CPUs of each thread, from the answers to `query-cpus-fast` and `query-iothreads`.
fn planned(
    pinning: &Pinning,
    cpus: &[qmp::CpuInfoFast],
    io_threads: &[qmp::IOThreadInfo],
) -> Result<Planned, PinsError> {
    let mut planned = Planned::new();
    let mut add = |what: String, thread: Option<i64>, wanted: CpuSet| match thread
        .and_then(|id| i32::try_from(id).ok())
    {
        Some(thread) => {
            planned.insert(thread, (what, wanted));
            Ok(())
        }
        None => Err(PinsError::Missing { what }),
    };
    for cpu in cpus.iter().filter_map(answers::cpu) {
        let index = usize::try_from(cpu.cpu_index).ok();
        // A virtual CPU that is to be unplugged has no planned place any more: it stays where it is until it
        // is gone.
        let Some((index, place)) = index.and_then(|index| Some((index, pinning.vcpus.get(index)?))) else {
            continue;
        };
        add(format!("virtual CPU {index}"), Some(cpu.thread_id), [*place].into_iter().collect())?;
    }
    for (number, wanted) in (1..).zip(&pinning.io_threads) {
        let id = barevirt_machine::IoThread(number).id();
        let found = io_threads.iter().find(|thread| thread.id == id.as_str());
        add(id, found.map(|thread| thread.thread_id), wanted.clone())?;
    }
    Ok(planned)
}

/// All threads of the process that this thread belongs to.
fn threads(of: i32) -> Vec<i32> {
    let ids = threads::ids(Path::new("/proc"), of.unsigned_abs());
    ids.filter_map(|id| i32::try_from(id).ok()).collect()
}

fn put(thread: i32, what: &str, wanted: &CpuSet) -> Result<(), PinsError> {
    let pid = Pid::from_raw(thread);
    let refused = |source| PinsError::Refused { what: what.to_owned(), cpus: wanted.to_string(), source };
    if host_cpus::affinity(pid).map_err(refused)? == *wanted {
        return Ok(());
    }
    host_cpus::set_affinity(pid, wanted).map_err(refused)?;
    // If some CPUs of the set no longer belong to the container, the kernel uses the rest.
    let now = host_cpus::affinity(pid).map_err(refused)?;
    if now != *wanted {
        return Err(refused(io::Error::other(format!("it runs on {now}"))));
    }
    tracing::info!(thread, what, cpus = %wanted, "pinned");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(cpu_index: i64, thread_id: i64) -> qmp::CpuInfoFast {
        qmp::CpuInfoFast::x86_64(qmp::CpuInfoFastBase {
            props: None,
            cpu_index,
            qom_path: String::new(),
            thread_id,
        })
    }

    fn io_thread(id: &str, thread_id: i64) -> qmp::IOThreadInfo {
        qmp::IOThreadInfo {
            id: id.to_owned(),
            thread_id,
            aio_max_batch: 0,
            poll_grow: 0,
            poll_max_ns: 0,
            poll_shrink: 0,
        }
    }

    fn pinning() -> Pinning {
        let one = |cpu: u32| [cpu].into_iter().collect();
        Pinning { vcpus: vec![4, 6], io_threads: vec![one(5)], emulator: Some(one(7)) }
    }

    #[test]
    fn threads_are_known_by_what_qemu_calls_them() {
        let cpus = [cpu(1, 21), cpu(0, 20), cpu(2, 22)];
        let io = [io_thread("other", 30), io_thread("iothread1", 31)];
        let planned = planned(&pinning(), &cpus, &io).unwrap();
        let told: Vec<_> =
            planned.iter().map(|(thread, (what, cpus))| format!("{thread} {what} {cpus}")).collect();
        assert_eq!(told, ["20 virtual CPU 0 4", "21 virtual CPU 1 6", "31 iothread1 5"]);
    }

    #[test]
    fn a_thread_that_qemu_does_not_have_is_named() {
        let error = planned(&pinning(), &[cpu(0, 20)], &[]).unwrap_err();
        assert_eq!(error.to_string(), "iothread1 has no thread in QEMU");
    }
}
