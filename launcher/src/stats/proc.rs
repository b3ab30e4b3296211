//! The kernel's counts for QEMU and its threads, read from `/proc`.

use std::fs;

use barevirt_protocol::v1::{ProcessStats, VcpuStats};

/// Nanoseconds of a tick in `/proc`: a hundredth of a second on every architecture that we support.
const TICK: u64 = 10_000_000;

/// QEMU's process; `None` if there is none.
#[must_use]
pub fn process(pid: u32) -> Option<ProcessStats> {
    if pid == 0 {
        return None;
    }
    let [user, system, _] = times(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let resident_bytes = resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
    Some(ProcessStats { user_ns: user * TICK, system_ns: system * TICK, resident_bytes })
}

/// One thread; `None` if it is gone.
pub(super) fn vcpu(pid: u32, thread: u32, index: u32) -> Option<VcpuStats> {
    let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).ok();
    let stat = text("stat")?;
    let [user, system, waited] = times(&stat)?;
    // Without schedstat in the kernel, the coarser counts are used.
    let (run, delay) = text("schedstat").as_deref().and_then(schedule).unwrap_or(((user + system) * TICK, 0));
    let processors = text("status").as_deref().map_or(0, processors);
    Some(VcpuStats { index, run_ns: run, delay_ns: delay, wait_ns: waited * TICK, processors })
}

/// Ticks in user mode, in the kernel, and waiting for block devices.
fn times(stat: &str) -> Option<[u64; 3]> {
    // The name is in parentheses and may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some([field(14)?, field(15)?, field(42)?])
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Nanoseconds on a CPU and on a run queue.
fn schedule(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Number of CPUs in a line such as `Cpus_allowed_list: 0-3,7`.
fn processors(status: &str) -> u32 {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let span = |span: &str| {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.split(',').filter_map(span).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let stat = "42 (CPU 0/TCG) b) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 3 0 500 6000 70 18446744073709551615 \
                    1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 12 0 0";
        assert_eq!(times(stat), Some([150, 50, 12]));
        assert_eq!(times("42 (x) S 1"), None);
        assert_eq!(resident("Name:\tq\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(schedule("5 6 7\n"), Some((5, 6)));
        assert_eq!(schedule("5"), None);
        assert_eq!(processors("Cpus_allowed_list:\t0-3,7\n"), 5);
        assert_eq!((processors("Cpus_allowed_list:\t2"), processors("")), (1, 0));
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert!(process(pid).unwrap().resident_bytes > 0);
        assert_eq!(process(0), None);
        let thread = vcpu(pid, pid, 3).unwrap();
        assert_eq!(thread.index, 3);
        assert!(thread.processors > 0);
        assert_eq!(vcpu(pid, 0, 0), None);
    }
}
