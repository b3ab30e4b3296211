//! Dedicated CPUs of the guest: the CPUs of its threads, and its NUMA nodes.

use crate::cpu::Flag;
use crate::error::PlanError;
use crate::facts::{Accelerator, Facts};
use crate::host_cpus::HostCpus;
use crate::memory::Memory;
use crate::numa::{self, NoCells, NumaCell};
use crate::pinning::{Demand, Pinning};
use crate::units::Bytes;
use barevirt_api::sizing::DedicatedCpus;
use barevirt_api::valid::ValidVmi;

const FIELD: &str = "spec.domain.cpu.dedicatedCpuPlacement";
const NUMA: &str = "spec.domain.cpu.numa.guestMappingPassthrough";

/// The threads that need CPUs; `None` if the manifest has no dedicated CPUs.
#[must_use]
pub fn demand(vmi: &ValidVmi, io_threads: u32) -> Option<Demand> {
    let (cpus, topology) = (DedicatedCpus::of(vmi)?, vmi.topology());
    Some(Demand { topology, cpus, io_threads, on_one_node: has_numa(vmi) })
}

fn has_numa(vmi: &ValidVmi) -> bool {
    let numa = vmi.spec().domain.cpu.as_ref().and_then(|cpu| cpu.numa.as_ref());
    numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some())
}

/// CPUs of all threads.
pub(super) fn pinning(
    vmi: &ValidVmi,
    facts: &Facts,
    io_threads: usize,
) -> Result<Option<Pinning>, PlanError> {
    let io_threads = u32::try_from(io_threads).unwrap_or(u32::MAX);
    let Some(demand) = demand(vmi, io_threads) else { return Ok(None) };
    let host = host(facts)?;
    let refused = |source| PlanError::Pinning { field: FIELD.to_owned(), source };
    demand.check_exclusive(host).map_err(refused)?;
    demand.pin(host).map(Some).map_err(refused)
}

/// The guest's NUMA nodes; empty if it should not see any.
pub(super) fn cells(
    vmi: &ValidVmi,
    facts: &Facts,
    pinning: Option<&Pinning>,
    memory: Memory,
) -> Result<Vec<NumaCell>, PlanError> {
    let (true, Some(pinning), Some(page)) = (has_numa(vmi), pinning, vmi.huge_page()) else {
        return Ok(Vec::new());
    };
    let cells = numa::cells(host(facts)?, pinning, vmi.topology(), memory.size(), Bytes(page));
    cells.map_err(|NoCells::TooFewPages| PlanError::Unsupported {
        field: NUMA.to_owned(),
        value: memory.size().0.to_string(),
        why: "each NUMA node needs a huge page at least",
    })
}

fn host(facts: &Facts) -> Result<&HostCpus, PlanError> {
    facts
        .host_cpus
        .as_ref()
        .ok_or_else(|| PlanError::Unprepared { field: FIELD.to_owned(), what: "list of CPUs" })
}

/// Hints to the guest's kernel about its CPUs, which emulation does not have: that no other guest uses them,
/// and for realtime that there are no performance counters, whose interrupts could come at any time.
pub(super) fn flags(vmi: &ValidVmi, accelerator: &Accelerator) -> Vec<Flag> {
    let cpu = vmi.spec().domain.cpu.as_ref();
    let dedicated = cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement == Some(true));
    if !dedicated || !matches!(accelerator, Accelerator::Kvm { .. }) {
        return Vec::new();
    }
    let realtime = cpu.is_some_and(|cpu| cpu.realtime.is_some());
    let hint = Flag::switch("kvm-hint-dedicated", true);
    std::iter::once(hint).chain(realtime.then(|| Flag::switch("pmu", false))).collect()
}
