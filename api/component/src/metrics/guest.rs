//! Metrics that virt-handler exports for each guest on its node. Names, labels and units are KubeVirt's.

use super::names::{Kind, Metric};

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Gauge }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Counter }
}

/// Defines constants, and a list of all of them.
macro_rules! metrics {
    ($($(#[$doc:meta])* $constant:ident = $kind:ident($name:literal, $help:literal);)*) => {
        $($(#[$doc])* pub const $constant: Metric = $kind(concat!("kubevirt_vmi_", $name), $help);)*

        /// All metrics of guests.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    /// Of the whole QEMU process.
    CPU_USAGE = counter("cpu_usage_seconds_total", "CPU time of QEMU, guest included.");
    /// Of the whole QEMU process.
    CPU_USER = counter("cpu_user_usage_seconds_total", "CPU time of QEMU in user mode, guest included.");
    /// Of the whole QEMU process.
    CPU_SYSTEM = counter("cpu_system_usage_seconds_total", "CPU time of QEMU in the node's kernel.");
    /// By `id` and `state`.
    VCPU_SECONDS = counter("vcpu_seconds_total", "CPU time of the thread of a virtual CPU.");
    /// By `id`.
    VCPU_WAIT = counter("vcpu_wait_seconds_total", "Time in which the thread of a virtual CPU waited for storage of the node.");
    /// By `id`.
    VCPU_DELAY = counter("vcpu_delay_seconds_total", "Time in which the thread of a virtual CPU was ready and the node ran something else.");
    /// Summed over virtual CPUs.
    CPU_AFFINITY = gauge("node_cpu_affinity", "CPUs of the node on which virtual CPUs may run, summed over virtual CPUs.");
    /// From the guest agent.
    LOAD_1 = gauge("guest_load_1m", "Load average of the guest over 1 minute, from the guest agent.");
    /// From the guest agent.
    LOAD_5 = gauge("guest_load_5m", "Load average of the guest over 5 minutes, from the guest agent.");
    /// From the guest agent.
    LOAD_15 = gauge("guest_load_15m", "Load average of the guest over 15 minutes, from the guest agent.");
    /// From the specification.
    MEMORY_DOMAIN = gauge("memory_domain_bytes", "Memory of the guest.");
    /// Of the whole QEMU process.
    MEMORY_RESIDENT = gauge("memory_resident_bytes", "Resident memory of QEMU, guest included.");
    /// Sampled.
    DIRTY_RATE = gauge("dirty_rate_bytes_per_second", "Memory that the guest writes per second, estimated from a sample of its pages.");
    /// While the guest moves to another node.
    MIGRATION_TOTAL = gauge("migration_data_bytes_total", "Total memory of a guest that is migrating.");
    /// While the guest moves to another node.
    MIGRATION_REMAINING = gauge("migration_data_remaining_bytes", "Memory that remains to be sent in a migration.");
    /// While the guest moves to another node.
    MIGRATION_PROCESSED = gauge("migration_data_processed_bytes", "Memory that was sent in a migration, including pages that were sent again.");
    /// While the guest moves to another node.
    MIGRATION_DIRTY_RATE = gauge("migration_dirty_memory_rate_bytes", "Memory that the guest writes per second during a migration.");
    /// While the guest moves to another node.
    MIGRATION_RATE = gauge("migration_memory_transfer_rate_bytes", "Memory that is sent per second in a migration.");
    /// From the balloon.
    MEMORY_BALLOON = gauge("memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest.");
    /// From the guest's balloon driver.
    MEMORY_AVAILABLE = gauge("memory_available_bytes", "Memory that the guest's operating system manages, as reported by the guest.");
    /// From the guest's balloon driver.
    MEMORY_UNUSED = gauge("memory_unused_bytes", "Memory that the guest does not use, not even for caches, as reported by the guest.");
    /// From the guest's balloon driver.
    MEMORY_USABLE = gauge("memory_usable_bytes", "Memory that the guest could free without swapping, as reported by the guest.");
    /// From the guest's balloon driver.
    MEMORY_CACHED = gauge("memory_cached_bytes", "Memory that the guest uses to cache its disks, as reported by the guest.");
    /// From the guest's balloon driver.
    SWAP_IN = gauge("memory_swap_in_traffic_bytes", "Bytes that the guest has read from its swap space, as reported by the guest.");
    /// From the guest's balloon driver.
    SWAP_OUT = gauge("memory_swap_out_traffic_bytes", "Bytes that the guest has written to its swap space, as reported by the guest.");
    /// From the guest's balloon driver.
    MAJOR_FAULTS = counter("memory_pgmajfault_total", "Page faults in the guest that required a disk read, as reported by the guest.");
    /// From the guest's balloon driver.
    MINOR_FAULTS = counter("memory_pgminfault_total", "Page faults in the guest without a disk read, as reported by the guest.");
    /// By `interface` and `type`.
    NETWORK_TRAFFIC = counter("network_traffic_bytes_total", "Bytes to the guest (rx) and from it (tx); kept for old dashboards.");
    /// By `interface`.
    RECEIVE_BYTES = counter("network_receive_bytes_total", "Bytes sent to the guest.");
    /// By `interface`.
    RECEIVE_PACKETS = counter("network_receive_packets_total", "Packets sent to the guest.");
    /// By `interface`.
    RECEIVE_ERRORS = counter("network_receive_errors_total", "Packets to the guest that failed.");
    /// By `interface`.
    RECEIVE_DROPPED = counter("network_receive_packets_dropped_total", "Packets to the guest that were dropped, usually because it did not accept them.");
    /// By `interface`.
    TRANSMIT_BYTES = counter("network_transmit_bytes_total", "Bytes that the guest has sent.");
    /// By `interface`.
    TRANSMIT_PACKETS = counter("network_transmit_packets_total", "Packets that the guest has sent.");
    /// By `interface`.
    TRANSMIT_ERRORS = counter("network_transmit_errors_total", "Packets from the guest that failed.");
    /// By `interface`.
    TRANSMIT_DROPPED = counter("network_transmit_packets_dropped_total", "Packets from the guest that were dropped.");
    /// By `drive`.
    READS = counter("storage_iops_read_total", "Reads of a disk.");
    /// By `drive`.
    WRITES = counter("storage_iops_write_total", "Writes to a disk.");
    /// By `drive`.
    READ_BYTES = counter("storage_read_traffic_bytes_total", "Bytes read from a disk.");
    /// By `drive`.
    WRITE_BYTES = counter("storage_write_traffic_bytes_total", "Bytes written to a disk.");
    /// By `drive`.
    READ_SECONDS = counter("storage_read_times_seconds_total", "Time that reads of a disk took.");
    /// By `drive`.
    WRITE_SECONDS = counter("storage_write_times_seconds_total", "Time that writes to a disk took.");
    /// By `drive`.
    FLUSHES = counter("storage_flush_requests_total", "Flushes of a disk's cache.");
    /// By `drive`.
    FLUSH_SECONDS = counter("storage_flush_times_seconds_total", "Time that flushes of a disk's cache took.");
    /// By `disk_name`, `mount_point` and `file_system_type`; from the guest agent.
    FILE_SYSTEM_CAPACITY = gauge("filesystem_capacity_bytes", "Size of a file system in the guest, from the guest agent.");
    /// By `disk_name`, `mount_point` and `file_system_type`; from the guest agent.
    FILE_SYSTEM_USED = gauge("filesystem_used_bytes", "Used space of a file system in the guest, from the guest agent.");
}
