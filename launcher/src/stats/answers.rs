//! Converts QEMU's answers. Pure.

use barevirt_protocol::v1::{BlockStats, GuestMemory};
use barevirt_qmp::qapi::qmp;
use serde_json::Value;

/// Path of devices with an id in QEMU's object tree.
const DEVICES: &str = "/machine/peripheral/";
/// Prefix of the ids of disks.
const DISK: &str = "disk-";

/// `query-cpus-fast`: index and thread of each virtual CPU.
#[must_use]
pub fn threads(answer: &[qmp::CpuInfoFast]) -> Vec<(u32, u32)> {
    let one = |cpu: &qmp::CpuInfoFastBase| {
        Some((u32::try_from(cpu.cpu_index).ok()?, u32::try_from(cpu.thread_id).ok()?))
    };
    answer.iter().filter_map(cpu).filter_map(one).collect()
}

/// The fields that CPUs of all supported architectures have.
#[must_use]
pub fn cpu(answer: &qmp::CpuInfoFast) -> Option<&qmp::CpuInfoFastBase> {
    match answer {
        qmp::CpuInfoFast::x86_64(base) | qmp::CpuInfoFast::i386(base) | qmp::CpuInfoFast::aarch64(base) => {
            Some(base)
        }
        _ => None,
    }
}

/// `query-blockstats`: disks of the spec.
#[must_use]
pub fn blocks(answer: &[qmp::BlockStats]) -> Vec<BlockStats> {
    let one = |block: &qmp::BlockStats| {
        let device = block.qdev.as_ref()?.strip_prefix(DEVICES)?;
        // The device of virtio-blk itself is one level below.
        let disk = device.split('/').next()?.strip_prefix(DISK)?;
        let count = |count: i64| u64::try_from(count).unwrap_or_default();
        let stats = &block.stats;
        Some(BlockStats {
            disk: disk.to_owned(),
            read_operations: count(stats.rd_operations),
            write_operations: count(stats.wr_operations),
            read_bytes: count(stats.rd_bytes),
            write_bytes: count(stats.wr_bytes),
            read_ns: count(stats.rd_total_time_ns),
            write_ns: count(stats.wr_total_time_ns),
            flush_operations: count(stats.flush_operations),
            flush_ns: count(stats.flush_total_time_ns),
        })
    };
    answer.iter().filter_map(one).collect()
}

/// The balloon's `guest-stats`. Before the guest's first report there is no time of the last report.
#[must_use]
pub fn memory(answer: &Value) -> Option<GuestMemory> {
    if answer["last-update"].as_u64().unwrap_or_default() == 0 {
        return None;
    }
    let stats = &answer["stats"];
    // A value that the guest does not report is minus one, written as an unsigned number.
    let told = |name: &str| stats[name].as_u64().filter(|value| *value != u64::MAX);
    Some(GuestMemory {
        total_bytes: told("stat-total-memory"),
        free_bytes: told("stat-free-memory"),
        available_bytes: told("stat-available-memory"),
        cached_bytes: told("stat-disk-caches"),
        swap_in_bytes: told("stat-swap-in"),
        swap_out_bytes: told("stat-swap-out"),
        major_faults: told("stat-major-faults"),
        minor_faults: told("stat-minor-faults"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    /// Decodes a list like the client does.
    fn list<T: DeserializeOwned>(answer: Value) -> Vec<T> {
        let entries: Vec<Value> = serde_json::from_value(answer).unwrap();
        entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect()
    }

    /// A complete set of QEMU's counts for a disk, with these values.
    fn counted(counts: Value) -> Value {
        let mut all = json!({"account_failed": true, "account_invalid": true, "timed_stats": []});
        for what in ["rd", "wr", "unmap", "zone_append"] {
            for count in ["bytes", "merged", "operations", "total_time_ns"] {
                all[format!("{what}_{count}")] = json!(0);
            }
        }
        for what in ["rd", "wr", "unmap", "zone_append", "flush"] {
            for outcome in ["failed", "invalid"] {
                all[format!("{outcome}_{what}_operations")] = json!(0);
            }
        }
        for count in ["flush_operations", "flush_total_time_ns", "wr_highest_offset"] {
            all[count] = json!(0);
        }
        all.as_object_mut().unwrap().extend(counts.as_object().unwrap().clone());
        all
    }

    #[test]
    fn disks_have_the_names_of_the_spec() {
        let stats =
            counted(json!({"rd_operations": 1, "wr_operations": 2, "rd_bytes": 512, "wr_bytes": 1024,
            "rd_total_time_ns": 7, "wr_total_time_ns": 8, "flush_operations": 3, "flush_total_time_ns": 9}));
        let answer = json!([
            {"device": "", "qdev": "/machine/peripheral/disk-root-disk/virtio-backend", "stats": stats},
            {"device": "", "qdev": "/machine/peripheral/disk-cd", "stats": counted(json!({}))},
            {"device": "pflash0", "qdev": "/machine/system.flash0", "stats": stats},
            {"device": "", "qdev": "/machine/peripheral/scsi0", "stats": stats},
            7,
        ]);
        let blocks = blocks(&list(answer));
        assert_eq!(blocks.iter().map(|one| one.disk.as_str()).collect::<Vec<_>>(), ["root-disk", "cd"]);
        let root = &blocks[0];
        assert_eq!((root.read_operations, root.write_operations, root.flush_operations), (1, 2, 3));
        assert_eq!((root.read_bytes, root.write_bytes, root.read_ns, root.write_ns), (512, 1024, 7, 8));
        assert_eq!((root.flush_ns, blocks[1].read_bytes), (9, 0));
    }

    #[test]
    fn memory_that_the_guest_does_not_report_is_absent() {
        assert_eq!(memory(&json!({"last-update": 0, "stats": {"stat-free-memory": 5}})), None);
        assert_eq!(memory(&json!(null)), None);
        let told = memory(&json!({"last-update": 1_700_000_000, "stats": {
            "stat-free-memory": 5, "stat-total-memory": 9, "stat-swap-in": u64::MAX}}))
        .unwrap();
        assert_eq!((told.free_bytes, told.total_bytes, told.swap_in_bytes), (Some(5), Some(9), None));
        assert_eq!(told.available_bytes, None);
    }

    #[test]
    fn virtual_cpus_have_threads() {
        let answer = json!([{"target": "x86_64", "qom-path": "/a", "cpu-index": 0, "thread-id": 12},
            {"target": "x86_64", "qom-path": "/b", "cpu-index": 1, "thread-id": 13},
            {"target": "x86_64", "qom-path": "/c", "cpu-index": -1, "thread-id": 14},
            {"target": "brand-new", "qom-path": "/d", "cpu-index": 3, "thread-id": 15}]);
        assert_eq!(threads(&list(answer)), [(0, 12), (1, 13)]);
    }
}
