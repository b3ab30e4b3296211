//! What QEMU's answers mean. Pure. What does not have the expected shape is as if it were not said.

use barevirt_protocol::v1::{BlockStats, GuestMemory};
use serde_json::Value;

/// Where devices with an id of their own are.
const DEVICES: &str = "/machine/peripheral/";
/// What the ids of disks begin with.
const DISK: &str = "disk-";

/// `query-cpus-fast`: index and thread of each virtual CPU.
#[must_use]
pub fn threads(answer: &Value) -> Vec<(u32, u32)> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let one = |cpu: &Value| Some((number(&cpu["cpu-index"])?, number(&cpu["thread-id"])?));
    list(answer).filter_map(one).collect()
}

/// `query-blockstats`: disks of the spec.
#[must_use]
pub fn blocks(answer: &Value) -> Vec<BlockStats> {
    let one = |block: &Value| {
        let device = block["qdev"].as_str()?.strip_prefix(DEVICES)?;
        // virtio-blk's own device is one below.
        let disk = device.split('/').next()?.strip_prefix(DISK)?;
        let count = |name: &str| block["stats"][name].as_u64().unwrap_or_default();
        Some(BlockStats {
            disk: disk.to_owned(),
            read_operations: count("rd_operations"),
            write_operations: count("wr_operations"),
            read_bytes: count("rd_bytes"),
            write_bytes: count("wr_bytes"),
            read_ns: count("rd_total_time_ns"),
            write_ns: count("wr_total_time_ns"),
            flush_operations: count("flush_operations"),
            flush_ns: count("flush_total_time_ns"),
        })
    };
    list(answer).filter_map(one).collect()
}

/// `query-balloon`.
#[must_use]
pub fn balloon(answer: &Value) -> Option<u64> {
    answer["actual"].as_u64()
}

/// The balloon's `guest-stats`. A guest that has told nothing has no time of the last account.
#[must_use]
pub fn memory(answer: &Value) -> Option<GuestMemory> {
    if answer["last-update"].as_u64().unwrap_or_default() == 0 {
        return None;
    }
    let stats = &answer["stats"];
    // What the guest does not tell is minus one, written without a sign.
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

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn disks_have_the_names_of_the_spec() {
        let stats = json!({"rd_operations": 1, "wr_operations": 2, "rd_bytes": 512, "wr_bytes": 1024,
            "rd_total_time_ns": 7, "wr_total_time_ns": 8, "flush_operations": 3, "flush_total_time_ns": 9});
        let answer = json!([
            {"device": "", "qdev": "/machine/peripheral/disk-root-disk/virtio-backend", "stats": stats},
            {"device": "", "qdev": "/machine/peripheral/disk-cd", "stats": {}},
            {"device": "pflash0", "qdev": "/machine/system.flash0", "stats": stats},
            {"device": "", "qdev": "/machine/peripheral/scsi0", "stats": stats},
            7,
        ]);
        let blocks = blocks(&answer);
        assert_eq!(blocks.iter().map(|one| one.disk.as_str()).collect::<Vec<_>>(), ["root-disk", "cd"]);
        let root = &blocks[0];
        assert_eq!((root.read_operations, root.write_operations, root.flush_operations), (1, 2, 3));
        assert_eq!((root.read_bytes, root.write_bytes, root.read_ns, root.write_ns), (512, 1024, 7, 8));
        assert_eq!((root.flush_ns, blocks[1].read_bytes), (9, 0));
    }

    #[test]
    fn memory_that_the_guest_does_not_tell_is_absent() {
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
        let answer =
            json!([{"cpu-index": 0, "thread-id": 12}, {"cpu-index": 1, "thread-id": 13}, {"cpu-index": -1}]);
        assert_eq!(threads(&answer), [(0, 12), (1, 13)]);
        assert_eq!(balloon(&json!({"actual": 7})), Some(7));
    }
}
