//! The node's metrics from `/proc` and `/sys`, which a container shares with its node. Metrics that cannot be
//! read are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::xml::{Amount, Metric, Subject};

/// Clock ticks per second in `/proc`, on every architecture that we support.
const TICKS: u64 = 100;

/// The values that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    packages: Option<usize>,
    /// Ticks of CPU time: of users, niced, of the kernel.
    ticks: Option<u64>,
    memory: Option<Memory>,
    swapped: Option<Swapped>,
    seconds: i64,
}

/// From `/proc/meminfo`, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    total: u64,
    free: u64,
    buffers: u64,
    cached: u64,
    swap_total: u64,
    swap_free: u64,
    swap_cached: u64,
}

/// From `/proc/vmstat`, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Swapped {
    read: u64,
    written: u64,
}

impl Host {
    /// Reads the values at this time.
    #[must_use]
    pub fn read(proc: &Path, sys: &Path, seconds: i64) -> Self {
        let text = |name: &str| fs::read_to_string(proc.join(name)).ok();
        Self {
            packages: packages(sys),
            ticks: text("stat").as_deref().and_then(ticks),
            memory: text("meminfo").as_deref().map(memory),
            swapped: text("vmstat").as_deref().and_then(swapped),
            seconds,
        }
    }

    /// The metrics with KubeVirt's names and order.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let of = |name, amount, unit| Metric::new(Subject::Host, name, amount, unit);
        let kibibytes = |name, amount| of(name, Amount::Unsigned(amount), "KiB");
        let mut metrics = Vec::new();
        if let Some(packages) = self.packages {
            let packages = i64::try_from(packages).unwrap_or(i64::MAX);
            metrics.push(of("NumberOfPhysicalCPUs", Amount::Signed(packages), ""));
        }
        if let Some(ticks) = self.ticks {
            metrics.push(of("TotalCPUTime", Amount::Micros(ticks.saturating_mul(1_000_000 / TICKS)), "s"));
        }
        if let Some(Memory { total, free, buffers, cached, swap_total, swap_free, swap_cached }) = self.memory
        {
            let unused = free.saturating_add(buffers).saturating_add(cached);
            let used = total.saturating_sub(unused);
            let with_swap =
                total.saturating_add(swap_total).saturating_sub(unused.saturating_add(swap_cached));
            metrics.extend([
                kibibytes("FreePhysicalMemory", free),
                kibibytes("FreeVirtualMemory", free.saturating_add(swap_free)),
                kibibytes("MemoryAllocatedToVirtualServers", used),
                kibibytes("UsedVirtualMemory", with_swap),
            ]);
        }
        if let Some(Swapped { read, written }) = self.swapped {
            // Pages of 4 KiB, as on every machine that we support.
            metrics.extend([
                kibibytes("PagedInMemory", read.saturating_mul(4)),
                kibibytes("PagedOutMemory", written.saturating_mul(4)),
            ]);
        }
        metrics.push(of("Time", Amount::Signed(self.seconds), "s"));
        metrics
    }
}

/// Number of sockets with a processor.
fn packages(sys: &Path) -> Option<usize> {
    let processors = fs::read_dir(sys.join("devices/system/cpu")).ok()?;
    let packages: BTreeSet<String> = processors
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("topology/physical_package_id")).ok())
        .collect();
    (!packages.is_empty()).then_some(packages.len())
}

fn ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (user, nice, system) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(user.saturating_add(nice).saturating_add(system))
}

fn memory(meminfo: &str) -> Memory {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
    };
    Memory {
        total: value("MemTotal"),
        free: value("MemFree"),
        buffers: value("Buffers"),
        cached: value("Cached"),
        swap_total: value("SwapTotal"),
        swap_free: value("SwapFree"),
        swap_cached: value("SwapCached"),
    }
}

fn swapped(vmstat: &str) -> Option<Swapped> {
    let value = |name: &str| vmstat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Swapped { read: value("pswpin ")?, written: value("pswpout ")? })
}

#[cfg(test)]
mod tests {
    use super::super::xml::document;
    use super::*;

    #[test]
    fn host_facts_become_kubevirts_metrics() {
        let directory = tempfile::tempdir().unwrap();
        let (proc, sys) = (directory.path().join("proc"), directory.path().join("sys"));
        fs::create_dir_all(&proc).unwrap();
        for (cpu, package) in [("cpu0", "0\n"), ("cpu1", "1\n"), ("cpu2", "1\n")] {
            let topology = sys.join("devices/system/cpu").join(cpu).join("topology");
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("physical_package_id"), package).unwrap();
        }
        fs::write(proc.join("stat"), "cpu  150 30 20 5 6 7 8 0 0 0\ncpu0 1 2 3\n").unwrap();
        let meminfo = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 30 kB\nSwapCached: 4 kB\nSwapTotal: 50 kB\nSwapFree: 40 kB\n";
        fs::write(proc.join("meminfo"), meminfo).unwrap();
        fs::write(proc.join("vmstat"), "nr_free 1\npswpin 3\npswpout 5\n").unwrap();
        let text = document(&Host::read(&proc, &sys, 77).metrics());
        for (name, value) in [
            ("NumberOfPhysicalCPUs", "2"),
            ("TotalCPUTime", "2.000000"),
            ("FreePhysicalMemory", "100"),
            ("FreeVirtualMemory", "140"),
            ("MemoryAllocatedToVirtualServers", "850"),
            ("UsedVirtualMemory", "896"),
            ("PagedInMemory", "12"),
            ("PagedOutMemory", "20"),
            ("Time", "77"),
        ] {
            let line = format!("<name>{name}</name>\n    <value>{value}</value>");
            assert!(text.contains(&line), "{name} is not {value} in {text}");
        }
    }

    #[test]
    fn missing_host_files_give_no_metrics() {
        let nothing = Host::read(Path::new("/nowhere"), Path::new("/nowhere"), 5);
        assert_eq!(nothing, Host { seconds: 5, ..Host::default() });
        assert_eq!(nothing.metrics().len(), 1);
    }

    #[test]
    fn this_machine_can_be_read() {
        let host = Host::read(Path::new("/proc"), Path::new("/sys"), 0);
        assert!(host.ticks.is_some_and(|ticks| ticks > 0));
        assert!(host.memory.is_some_and(|memory| memory.total > 0));
    }
}
