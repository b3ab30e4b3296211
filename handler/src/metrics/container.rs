//! The kernel's counters for the container of a guest. KubeVirt has no such metrics: the names are
//! Barevirt's.

use barevirt_component::metrics::names::{Kind, Metric};

use super::samples::{Sample, number, sample};
use crate::launchers::counters::{Memory, Throttling};

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Gauge }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Counter }
}

const PERIODS: Metric = counter(
    "barevirt_vmi_cpu_periods_total",
    "Scheduling periods in which the guest's container ran under its CPU limit.",
);
const THROTTLED_PERIODS: Metric = counter(
    "barevirt_vmi_cpu_throttled_periods_total",
    "Scheduling periods in which the guest's container had used up its CPU limit and was held back.",
);
const THROTTLED_SECONDS: Metric = counter(
    "barevirt_vmi_cpu_throttled_seconds_total",
    "Time for which the guest's container was held back by its CPU limit, summed over CPUs.",
);
const MEMORY_LIMIT: Metric =
    gauge("barevirt_vmi_memory_limit_bytes", "Memory limit of the guest's container; absent if it has none.");
const MEMORY_USAGE: Metric =
    gauge("barevirt_vmi_memory_usage_bytes", "Memory that the guest's container uses, page cache included.");
const MEMORY_PEAK: Metric =
    gauge("barevirt_vmi_memory_peak_bytes", "Highest memory use of the guest's container.");
const LIMIT_HITS: Metric = counter(
    "barevirt_vmi_memory_limit_hits_total",
    "How often the guest's container was about to exceed its memory limit.",
);
const LOW_EVENTS: Metric = counter(
    "barevirt_vmi_memory_low_events_total",
    "How often memory was reclaimed from the guest's container below its protected amount.",
);
const HIGH_EVENTS: Metric = counter(
    "barevirt_vmi_memory_high_events_total",
    "How often the guest's container was slowed down above its soft memory limit.",
);
const OOM_EVENTS: Metric = counter(
    "barevirt_vmi_memory_oom_events_total",
    "How often an allocation of the guest's container was about to fail because of its memory limit.",
);
const OOM_KILLS: Metric = counter(
    "barevirt_vmi_oom_kills_total",
    "Processes of the guest's container that the kernel killed for lack of memory.",
);

/// All metrics of a container.
pub(super) const ALL: &[Metric] = &[
    PERIODS,
    THROTTLED_PERIODS,
    THROTTLED_SECONDS,
    MEMORY_LIMIT,
    MEMORY_USAGE,
    MEMORY_PEAK,
    LIMIT_HITS,
    LOW_EVENTS,
    HIGH_EVENTS,
    OOM_EVENTS,
    OOM_KILLS,
];

/// The samples of a container.
pub(super) fn samples(throttling: Option<Throttling>, memory: Option<Memory>) -> Vec<Sample> {
    let mut samples = Vec::new();
    if let Some(Throttling { periods, throttled_periods, throttled }) = throttling {
        samples.extend([
            sample(&PERIODS, &[], number(periods)),
            sample(&THROTTLED_PERIODS, &[], number(throttled_periods)),
            sample(&THROTTLED_SECONDS, &[], throttled.as_secs_f64()),
        ]);
    }
    let Memory { limit, usage, peak, limit_hits, low, high, ooms, oom_kills } = memory.unwrap_or_default();
    let counts = [
        (&MEMORY_LIMIT, limit),
        (&MEMORY_USAGE, usage),
        (&MEMORY_PEAK, peak),
        (&LIMIT_HITS, limit_hits),
        (&LOW_EVENTS, low),
        (&HIGH_EVENTS, high),
        (&OOM_EVENTS, ooms),
        (&OOM_KILLS, oom_kills),
    ];
    samples
        .extend(counts.into_iter().filter_map(|(metric, count)| Some(sample(metric, &[], number(count?)))));
    samples
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn missing_counters_have_no_sample() {
        let throttling =
            Throttling { periods: 10, throttled_periods: 4, throttled: Duration::from_millis(1500) };
        let memory = Memory { limit_hits: Some(3), oom_kills: Some(1), ..Memory::default() };
        let told: Vec<(&str, f64)> = samples(Some(throttling), Some(memory))
            .iter()
            .map(|sample| (sample.metric.name, sample.value))
            .collect();
        assert_eq!(
            told,
            [
                ("barevirt_vmi_cpu_periods_total", 10.0),
                ("barevirt_vmi_cpu_throttled_periods_total", 4.0),
                ("barevirt_vmi_cpu_throttled_seconds_total", 1.5),
                ("barevirt_vmi_memory_limit_hits_total", 3.0),
                ("barevirt_vmi_oom_kills_total", 1.0),
            ]
        );
        assert_eq!(samples(None, None), []);
    }

    #[test]
    fn metric_names_are_unique_and_have_our_prefix() {
        let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert!(names.iter().all(|name| name.starts_with("barevirt_vmi_")), "{names:?}");
        assert!(ALL.iter().all(|metric| metric.name.ends_with("_total") == (metric.kind == Kind::Counter)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
