//! Converts statistics to samples. Pure.
//!
//! Texts from the guest are truncated and have no control characters, and only the beginning of its lists is
//! exported: a guest cannot fill the memory of the monitoring system.

use std::collections::{BTreeMap, BTreeSet};

use barevirt_component::metrics::guest as names;
use barevirt_component::metrics::names::Metric;
use barevirt_protocol::v1::{
    AgentStats, BlockStats, FileSystemStats, GuestMemory, LoadStats, MachineStats, MigrationStats,
    ProcessStats, StatsResponse, VcpuStats,
};

use super::network::{Device, Direction};
use crate::registry::Subject;

/// Most file systems of a guest that are exported.
const MOST_FILE_SYSTEMS: usize = 32;
/// Most disks and virtual CPUs that are exported; far more than there can be.
const MOST_DEVICES: usize = 1024;
/// Longest text, in characters.
const LONGEST_TEXT: usize = 128;

/// One sample of a guest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) metric: &'static Metric,
    /// Labels in addition to those of the guest.
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: f64,
}

type Labels<'a> = &'a [(&'static str, &'a str)];

pub(super) fn sample(metric: &'static Metric, labels: Labels<'_>, value: f64) -> Sample {
    let labels = labels.iter().map(|(name, value)| (*name, text(value))).collect();
    Sample { metric, labels, value }
}

/// Counts above 2^53 lose their last digits, as always in Prometheus.
#[allow(clippy::cast_precision_loss)]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

fn seconds(nanoseconds: u64) -> f64 {
    number(nanoseconds) / 1e9
}

fn text(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(LONGEST_TEXT).collect()
}

/// Samples from a launcher's answer.
pub(super) fn guest(subject: &Subject, told: &StatsResponse) -> Vec<Sample> {
    let mut samples = Vec::new();
    if let Some(ProcessStats { user_ns, system_ns, resident_bytes }) = told.process {
        samples.extend([
            sample(&names::CPU_USAGE, &[], seconds(user_ns.saturating_add(system_ns))),
            sample(&names::CPU_USER, &[], seconds(user_ns)),
            sample(&names::CPU_SYSTEM, &[], seconds(system_ns)),
            sample(&names::MEMORY_RESIDENT, &[], number(resident_bytes)),
        ]);
        samples.extend(subject.memory.map(|bytes| sample(&names::MEMORY_DOMAIN, &[], number(bytes))));
    }
    if let Some(MachineStats { vcpus, blocks, balloon_bytes, memory: told }) = &told.machine {
        virtual_cpus(&mut samples, vcpus);
        for one in once(blocks, |one| one.disk.clone()).take(MOST_DEVICES) {
            samples.extend(disk(one));
        }
        samples.extend(balloon_bytes.map(|bytes| sample(&names::MEMORY_BALLOON, &[], number(bytes))));
        samples.extend(told.iter().flat_map(memory));
    }
    samples.extend(told.dirty_bytes_per_second.map(|rate| sample(&names::DIRTY_RATE, &[], number(rate))));
    samples.extend(told.migration.iter().flat_map(moves));
    if let Some(AgentStats { file_systems, load }) = &told.agent {
        let key = |one: &FileSystemStats| (text(&one.disk), text(&one.mount_point), text(&one.r#type));
        for one in once(file_systems, key).take(MOST_FILE_SYSTEMS) {
            samples.extend(file_system(one));
        }
        if let Some(LoadStats { one_minute, five_minutes, fifteen_minutes }) = load {
            samples.extend([
                sample(&names::LOAD_1, &[], *one_minute),
                sample(&names::LOAD_5, &[], *five_minutes),
                sample(&names::LOAD_15, &[], *fifteen_minutes),
            ]);
        }
    }
    samples
}

fn moves(told: &MigrationStats) -> [Sample; 5] {
    let of = |metric, value| sample(metric, &[], number(value));
    [
        of(&names::MIGRATION_TOTAL, told.total_bytes),
        of(&names::MIGRATION_REMAINING, told.remaining_bytes),
        of(&names::MIGRATION_PROCESSED, told.transferred_bytes),
        of(&names::MIGRATION_DIRTY_RATE, told.written_bytes_per_second),
        of(&names::MIGRATION_RATE, told.sent_bytes_per_second),
    ]
}

/// The items, without those whose key appeared before: two samples with the same labels spoil the whole
/// scrape.
fn once<T, K: Ord>(all: &[T], key: impl Fn(&T) -> K) -> impl Iterator<Item = &T> {
    let mut seen = BTreeSet::new();
    all.iter().filter(move |one| seen.insert(key(one)))
}

fn virtual_cpus(samples: &mut Vec<Sample>, vcpus: &[VcpuStats]) {
    for one in once(vcpus, |one| one.index).take(MOST_DEVICES) {
        let VcpuStats { index, run_ns, delay_ns, wait_ns, processors: _ } = *one;
        let id = index.to_string();
        samples.extend([
            // QEMU has threads only for virtual CPUs that are plugged in.
            sample(&names::VCPU_SECONDS, &[("id", &id), ("state", "running")], seconds(run_ns)),
            sample(&names::VCPU_WAIT, &[("id", &id)], seconds(wait_ns)),
            sample(&names::VCPU_DELAY, &[("id", &id)], seconds(delay_ns)),
        ]);
    }
    if !vcpus.is_empty() {
        let processors = vcpus.iter().map(|one| u64::from(one.processors)).sum();
        samples.push(sample(&names::CPU_AFFINITY, &[], number(processors)));
    }
}

fn disk(one: &BlockStats) -> [Sample; 8] {
    let BlockStats {
        disk,
        read_operations,
        write_operations,
        read_bytes,
        write_bytes,
        read_ns,
        write_ns,
        flush_operations,
        flush_ns,
    } = one;
    let of = |metric, value| sample(metric, &[("drive", disk)], value);
    [
        of(&names::READS, number(*read_operations)),
        of(&names::WRITES, number(*write_operations)),
        of(&names::READ_BYTES, number(*read_bytes)),
        of(&names::WRITE_BYTES, number(*write_bytes)),
        of(&names::READ_SECONDS, seconds(*read_ns)),
        of(&names::WRITE_SECONDS, seconds(*write_ns)),
        of(&names::FLUSHES, number(*flush_operations)),
        of(&names::FLUSH_SECONDS, seconds(*flush_ns)),
    ]
}

fn memory(told: &GuestMemory) -> Vec<Sample> {
    let GuestMemory {
        total_bytes,
        free_bytes,
        available_bytes,
        cached_bytes,
        swap_in_bytes,
        swap_out_bytes,
        major_faults,
        minor_faults,
    } = told;
    let all = [
        (&names::MEMORY_AVAILABLE, total_bytes),
        (&names::MEMORY_UNUSED, free_bytes),
        (&names::MEMORY_USABLE, available_bytes),
        (&names::MEMORY_CACHED, cached_bytes),
        (&names::SWAP_IN, swap_in_bytes),
        (&names::SWAP_OUT, swap_out_bytes),
        (&names::MAJOR_FAULTS, major_faults),
        (&names::MINOR_FAULTS, minor_faults),
    ];
    all.into_iter().filter_map(|(metric, value)| Some(sample(metric, &[], number((*value)?)))).collect()
}

fn file_system(one: &FileSystemStats) -> [Sample; 2] {
    let FileSystemStats { disk, mount_point, r#type, total_bytes, used_bytes } = one;
    let labels = [("disk_name", disk.as_str()), ("mount_point", mount_point), ("file_system_type", r#type)];
    [
        sample(&names::FILE_SYSTEM_CAPACITY, &labels, number(*total_bytes)),
        sample(&names::FILE_SYSTEM_USED, &labels, number(*used_bytes)),
    ]
}

/// Samples from the kernel's counters of the guest's interfaces. What a tap sends is what the guest receives.
pub(super) fn network(subject: &Subject, devices: &BTreeMap<&str, Device>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (interface, tap) in &subject.taps {
        let Some(Device { received: by_guest, sent: to_guest }) = devices.get(tap.as_str()) else { continue };
        let traffic = |kind, direction: &Direction| {
            let labels = [("interface", interface.as_str()), ("type", kind)];
            sample(&names::NETWORK_TRAFFIC, &labels, number(direction.bytes))
        };
        let of = |metric, value| sample(metric, &[("interface", interface)], number(value));
        samples.extend([
            traffic("rx", to_guest),
            traffic("tx", by_guest),
            of(&names::RECEIVE_BYTES, to_guest.bytes),
            of(&names::RECEIVE_PACKETS, to_guest.packets),
            of(&names::RECEIVE_ERRORS, to_guest.errors),
            of(&names::RECEIVE_DROPPED, to_guest.dropped),
            of(&names::TRANSMIT_BYTES, by_guest.bytes),
            of(&names::TRANSMIT_PACKETS, by_guest.packets),
            of(&names::TRANSMIT_ERRORS, by_guest.errors),
            of(&names::TRANSMIT_DROPPED, by_guest.dropped),
        ]);
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::VirtualMachineInstance;
    use serde_json::json;

    fn subject() -> Subject {
        let vmi = json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "domain": {
                    "memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}
                },
                "networks": [{"name": "default", "pod": {}}],
            },
        });
        Subject::of(&serde_json::from_value::<VirtualMachineInstance>(vmi).unwrap())
    }

    fn value(samples: &[Sample], metric: &Metric, label: &str) -> Option<f64> {
        let mut found = samples.iter().filter(|one| {
            one.metric == metric && (label.is_empty() || one.labels.iter().any(|(_, value)| value == label))
        });
        let value = found.next().map(|one| one.value);
        assert_eq!(found.next(), None, "{} {label} is there twice", metric.name);
        value
    }

    #[test]
    fn numbers_have_prometheus_units() {
        let told = StatsResponse {
            process: Some(ProcessStats { user_ns: 1_500_000_000, system_ns: 500_000_000, resident_bytes: 7 }),
            machine: Some(MachineStats {
                vcpus: vec![VcpuStats { index: 1, run_ns: 250_000_000, processors: 2, ..Default::default() }],
                blocks: vec![BlockStats { disk: "root".into(), read_ns: 10_000_000, ..Default::default() }],
                balloon_bytes: Some(64 << 20),
                memory: Some(GuestMemory { free_bytes: Some(5), ..Default::default() }),
            }),
            agent: None,
            dirty_bytes_per_second: Some(4096),
            migration: Some(MigrationStats { remaining_bytes: 3, ..Default::default() }),
        };
        let samples = guest(&subject(), &told);
        assert_eq!(value(&samples, &names::MIGRATION_REMAINING, ""), Some(3.0));
        assert_eq!(value(&samples, &names::DIRTY_RATE, ""), Some(4096.0));
        assert_eq!(value(&samples, &names::CPU_USAGE, ""), Some(2.0));
        assert_eq!(value(&samples, &names::VCPU_SECONDS, "running"), Some(0.25));
        assert_eq!(value(&samples, &names::CPU_AFFINITY, ""), Some(2.0));
        assert_eq!(value(&samples, &names::READ_SECONDS, "root"), Some(0.01));
        assert_eq!(value(&samples, &names::MEMORY_UNUSED, ""), Some(5.0));
        assert_eq!(value(&samples, &names::MEMORY_USABLE, ""), None);
        assert_eq!(value(&samples, &names::MEMORY_DOMAIN, ""), Some(67_108_864.0));
    }

    #[test]
    fn a_guest_cannot_spoil_or_flood_a_scrape() {
        let file_system = |number: usize| FileSystemStats {
            disk: "vda1".into(),
            mount_point: format!("/{}\n{}", "x".repeat(LONGEST_TEXT), number),
            ..Default::default()
        };
        let mut file_systems: Vec<FileSystemStats> = (0..3).map(file_system).collect();
        file_systems
            .extend((0..100).map(|n| FileSystemStats { disk: format!("v{n}"), ..Default::default() }));
        let agent = Some(AgentStats { file_systems, load: None });
        let samples = guest(&subject(), &StatsResponse { agent, ..Default::default() });
        assert_eq!(samples.len(), 2 * MOST_FILE_SYSTEMS);
        let long = samples.iter().filter(|one| one.labels.iter().any(|(_, text)| text.len() > 100)).count();
        assert_eq!(long, 2, "what is the same when it is cut is told once");
        assert!(samples.iter().all(|one| one.labels.iter().all(|(_, text)| !text.contains('\n'))));
    }

    #[test]
    fn bytes_sent_by_the_tap_are_received_by_the_guest() {
        let direction =
            |bytes| Direction { bytes, packets: bytes + 1, errors: bytes + 2, dropped: bytes + 3 };
        let device = Device { received: direction(10), sent: direction(20) };
        let samples = network(&subject(), &BTreeMap::from([("tap0", device), ("eth0", Device::default())]));
        assert_eq!(value(&samples, &names::RECEIVE_BYTES, "default"), Some(20.0));
        assert_eq!(value(&samples, &names::TRANSMIT_DROPPED, "default"), Some(13.0));
        assert_eq!(value(&samples, &names::NETWORK_TRAFFIC, "tx"), Some(10.0));
        assert_eq!(network(&subject(), &BTreeMap::new()), []);
    }
}
