//! Linux' figures about this process, under the names that Prometheus' own clients use.

use super::base;
use super::names::{
    self, Kind, PROCESS_CPU, PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT, PROCESS_START,
    PROCESS_VIRTUAL,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Clock ticks per second in /proc: the same on all architectures that we support.
const TICKS: f64 = 100.0;

/// Reads /proc/self at each scrape.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for (metric, value) in look() {
            let kind = match metric.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
            };
            let to =
                encoder.encode_descriptor(base(&metric), metric.help.trim_end_matches('.'), None, kind)?;
            match metric.kind {
                // No metric of a process is a histogram.
                Kind::Gauge | Kind::Histogram => ConstGauge::new(value).encode(to)?,
                Kind::Counter => ConstCounter::new(value).encode(to)?,
            }
        }
        Ok(())
    }
}

/// All figures that can be read; the others are left out.
fn look() -> Vec<(names::Metric, f64)> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut values = of_stat(&text("/proc/self/stat"), &text("/proc/stat")).unwrap_or_default();
    values.extend(of_status(&text("/proc/self/status")));
    values.extend(of_limits(&text("/proc/self/limits")));
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One of the descriptors belongs to this read itself.
        values.push((PROCESS_OPEN_FDS, f64::from(u32::try_from(open.count()).unwrap_or(u32::MAX)) - 1.0));
    }
    values
}

/// CPU time and start time, from the stat lines of the process and of the machine.
fn of_stat(own: &str, machine: &str) -> Option<Vec<(names::Metric, f64)>> {
    // The name is in parentheses and may contain any character.
    let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<f64>().ok();
    let boot = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok())?;
    let used = (field(14)? + field(15)?) / TICKS;
    Some(vec![(PROCESS_CPU, used), (PROCESS_START, boot + field(22)? / TICKS)])
}

fn of_status(status: &str) -> Vec<(names::Metric, f64)> {
    let kibibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().strip_suffix(" kB")?.parse::<f64>().ok()
    };
    [(PROCESS_RESIDENT, "VmRSS"), (PROCESS_VIRTUAL, "VmSize")]
        .into_iter()
        .filter_map(|(metric, name)| Some((metric, kibibytes(name)? * 1024.0)))
        .collect()
}

fn of_limits(limits: &str) -> Option<(names::Metric, f64)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some((PROCESS_MAX_FDS, line.split_whitespace().next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let own = "42 (virt (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 3 0 500 6000 70 1844";
        let values = of_stat(own, "cpu 1 2\nbtime 1000\n").unwrap();
        assert_eq!(values, [(PROCESS_CPU, 2.0), (PROCESS_START, 1005.0)]);
        assert_eq!(of_stat("", "btime 1"), None);
        assert_eq!(of_stat(own, ""), None);
        let status = "Name:\ta\nVmSize:\t    8 kB\nVmRSS:\t    2 kB\n";
        assert_eq!(of_status(status), [(PROCESS_RESIDENT, 2048.0), (PROCESS_VIRTUAL, 8192.0)]);
        let limits = "Max processes    1 1 processes\nMax open files            1024                 4096                 files\n";
        assert_eq!(of_limits(limits), Some((PROCESS_MAX_FDS, 1024.0)));
    }

    #[test]
    fn this_process_has_all_of_them() {
        assert_eq!(look().len(), 6);
    }
}
