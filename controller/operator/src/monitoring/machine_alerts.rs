//! Alerts about single machines and their guests: the installation is healthy.
//!
//! Names and thresholds are KubeVirt's. The label `vm` names the machine, and `namespace` its namespace.

use super::alert::{Alert, Severity};
use serde_json::Value;

/// File systems whose use says nothing about free space: images that are always full, and those of the kernel.
const FULL_BY_NATURE: &str = "CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|\
     debugfs|tracefs|configfs|binfmt_misc|bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|\
     fuse\\\\..*|fusectl";

/// The metric of an instance that runs: one line for each.
const RUNNING: &str = "topk by(name, namespace) (1, kubevirt_vmi_info{phase='running'})";

/// The rules.
pub(super) fn rules() -> Vec<Value> {
    let all =
        [stays(), moves(), outdated(), stuck(), stuck_on_node(), memory_pressure(), memory_low(), panics()];
    all.into_iter().chain(queues()).chain(file_systems()).map(Alert::rule).collect()
}

fn warning(name: &'static str, minutes: u32, summary: &str, expression: String) -> Alert {
    Alert {
        name,
        severity: Severity::Warning,
        impact: "none",
        minutes,
        summary: summary.to_owned(),
        expression,
    }
}

/// Adds the label `vm`, with the text of another label.
fn named(expression: &str, label: &str) -> String {
    format!("label_replace({expression}, 'vm', '$1', '{label}', '(.+)')")
}

fn stays() -> Alert {
    warning(
        "VMCannotBeEvicted",
        1,
        "The eviction strategy of instance {{ $labels.name }} on node {{ $labels.node }} is live migration, and it cannot be migrated.",
        named(
            &format!("kubevirt_vmi_non_evictable * on(name, namespace) group_left() {RUNNING} == 1"),
            "name",
        ),
    )
}

fn moves() -> Alert {
    warning(
        "KubeVirtVMIExcessiveMigrations",
        0,
        "Instance {{ $labels.vmi }} was migrated at least 12 times in a day.",
        named(
            "sum by (vmi, namespace) (topk by (vmi, namespace, vmim) (1, \
             max_over_time(kubevirt_vmi_migration_succeeded[1d]))) >= 12",
            "vmi",
        ),
    )
}

fn outdated() -> Alert {
    warning(
        "OutdatedVirtualMachineInstanceWorkloads",
        24 * 60,
        "Instances have been running with a launcher of a former version for a day.",
        "kubevirt_vmi_number_of_outdated{namespace!=''} != 0".to_owned(),
    )
}

fn stuck() -> Alert {
    warning(
        "VirtualMachineStuckInUnhealthyState",
        10,
        "Machine {{ $labels.name }} has been {{ $labels.status }} for 10 minutes and has no instance.",
        named(
            "sum by (name, namespace, status) (kubevirt_vm_info{status='provisioning'} == 1 \
             or kubevirt_vm_info{status='starting'} == 1 or kubevirt_vm_info{status='terminating'} == 1 \
             or kubevirt_vm_info{status_group='error'} == 1) unless on(name, namespace) kubevirt_vmi_info",
            "name",
        ),
    )
}

fn stuck_on_node() -> Alert {
    let instance = "kubevirt_vmi_info{phase=~'scheduled|running'}";
    warning(
        "VirtualMachineStuckOnNode",
        5,
        "Machine {{ $labels.name }} on node {{ $labels.node }} has been {{ $labels.status }} for 5 minutes.",
        named(
            &format!(
                "sum by (name, namespace, status, node) ((kubevirt_vm_info{{status='starting'}} == 1 \
                 or kubevirt_vm_info{{status='stopping'}} == 1 or kubevirt_vm_info{{status='terminating'}} == 1 \
                 or (kubevirt_vm_info{{status_group='error'}} == 1 and on(name, namespace) {instance})) \
                 * on(name, namespace) group_left(node) topk by(name, namespace) (1, {instance}))"
            ),
            "name",
        ),
    )
}

fn memory_pressure() -> Alert {
    warning(
        "KubeVirtVMGuestMemoryPressure",
        5,
        "The guest of instance {{ $labels.name }} has little usable memory, and reads pages back from its disks.",
        named(
            "(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.05 and (vmi:kubevirt_vmi_pgmajfaults:rate5m > 5 \
             or vmi:kubevirt_vmi_swap_traffic_bytes:rate5m > 1048576) \
             and vmi:kubevirt_vmi_memory_available_bytes:sum > 0)",
            "name",
        ),
    )
}

fn memory_low() -> Alert {
    let expression = named(
        "(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.03 and vmi:kubevirt_vmi_swap_traffic_bytes:rate30m < 2048 \
         and vmi:kubevirt_vmi_pgmajfaults:rate30m < 1 and vmi:kubevirt_vmi_memory_available_bytes:sum > 0)",
        "name",
    );
    let summary = "The guest of instance {{ $labels.name }} has had less than 3% usable memory for 30 minutes, and does not swap.";
    Alert {
        severity: Severity::Info,
        ..warning("KubeVirtVMGuestMemoryAvailableLow", 30, summary, expression)
    }
}

fn panics() -> Alert {
    let expression =
        named("sum by (namespace, name) (increase(kubevirt_vmi_guest_os_panic_total[24h])) > 5", "name");
    let summary = "The guest of instance {{ $labels.name }} panicked more than 5 times in a day.";
    Alert { severity: Severity::Critical, ..warning("VMNonRecoverableOSPanic", 1, summary, expression) }
}

fn queues() -> impl Iterator<Item = Alert> {
    let levels = [
        ("GuestVCPUQueueHighWarning", Severity::Warning, 10),
        ("GuestVCPUQueueHighCritical", Severity::Critical, 20),
    ];
    levels.into_iter().map(|(name, severity, most)| {
        let summary = format!(
            "In the guest of instance {{{{ $labels.name }}}} more than {most} tasks wait for a virtual CPU."
        );
        let expression =
            named(&format!("vmi:kubevirt_vmi_guest_queue_length:sum{{namespace!=''}} > {most}"), "name");
        Alert { severity, ..warning(name, 0, &summary, expression) }
    })
}

/// One alert with two severities.
fn file_systems() -> impl Iterator<Item = Alert> {
    let of = format!("namespace!='', file_system_type!~'{FULL_BY_NATURE}', mount_point!='System Reserved'");
    let used = format!(
        "(kubevirt_vmi_filesystem_used_bytes{{{of}}} / kubevirt_vmi_filesystem_capacity_bytes{{{of}}}) * 100"
    );
    let levels = [(Severity::Warning, 10, ">= 85 < 95"), (Severity::Critical, 0, ">= 95")];
    levels.into_iter().map(move |(severity, minutes, limit)| {
        let summary = "File system {{ $labels.mount_point }} in the guest of instance {{ $labels.name }} is {{ printf \"%.0f\" $value }}% full.";
        let expression = named(&format!("{used} {limit}"), "name");
        Alert { severity, ..warning("GuestFilesystemAlmostOutOfSpace", minutes, summary, expression) }
    })
}
