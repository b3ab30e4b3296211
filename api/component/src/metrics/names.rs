//! Every metric that a component exports. The names are KubeVirt's where KubeVirt has one, and Prometheus'
//! names for processes.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
    /// Distribution of a number.
    Histogram,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in rules and dashboards.
    pub name: &'static str,
    /// Its description.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Gauge }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Counter }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Histogram }
}

/// Of each virt-handler: its version.
pub const INFO: Metric = gauge("kubevirt_info", "Version information.");
/// Of virt-operator: whether guests may run by emulation.
pub const EMULATION: Metric =
    gauge("kubevirt_configuration_emulation_enabled", "Whether guests may be emulated on nodes without KVM.");
/// Of every component: requests to the API server.
pub const REST_CLIENT_REQUESTS: Metric = counter(
    "kubevirt_rest_client_requests_total",
    "Requests to the API server by status code, method, host, resource and verb.",
);
/// Of every component: how long requests to the API server take.
pub const REST_CLIENT_LATENCY: Metric = histogram(
    "kubevirt_rest_client_request_latency_seconds",
    "Time until the API server has begun to answer a request, in seconds, by verb and address.",
);
/// Of virt-api.
pub const VIRT_API_READY: Metric = gauge("kubevirt_virt_api_ready_status", "Whether this virt-api is ready.");
/// Of virt-api: consoles that are open.
pub const CONSOLES: Metric = gauge(
    "kubevirt_console_active_connections",
    "Consoles that are open through this virt-api, by namespace and instance.",
);
/// Of virt-api: displays that are open.
pub const DISPLAYS: Metric = gauge(
    "kubevirt_vnc_active_connections",
    "Displays that are open through this virt-api, by namespace and instance.",
);
/// Of virt-api: slots for USB devices that clients occupy.
pub const USB_CLIENTS: Metric = gauge(
    "kubevirt_usbredir_active_connections",
    "Clients with USB devices for guests through this virt-api, by namespace and instance.",
);
/// Of virt-api: connections to ports of guests.
pub const TUNNELS: Metric = gauge(
    "kubevirt_portforward_active_tunnels",
    "Forwarded connections that are open through this virt-api, by namespace and instance.",
);
/// Of virt-api: the last time that a client opened a console, a display, a port or a slot for a USB device.
pub const LAST_CONNECTION: Metric = gauge(
    "kubevirt_vmi_last_api_connection_timestamp_seconds",
    "When a stream to a guest was last opened through this virt-api, in seconds since 1970.",
);
/// Of virt-api: machines whose creation it has admitted.
pub const VMS_CREATED: Metric = counter(
    "kubevirt_vm_created_by_pod_total",
    "Virtual machines whose creation this virt-api has admitted, by namespace.",
);
/// Of virt-handler: panics of guests' kernels.
pub const GUEST_PANICS: Metric =
    counter("kubevirt_vmi_guest_os_panic_total", "Panics of guest kernels, by instance and type.");
/// Of virt-controller.
pub const VIRT_CONTROLLER_LEADING: Metric =
    gauge("kubevirt_virt_controller_leading_status", "Whether this virt-controller is the leader.");
/// Of virt-controller.
pub const VIRT_CONTROLLER_READY: Metric =
    gauge("kubevirt_virt_controller_ready_status", "Whether this virt-controller can become the leader.");
/// Of virt-handler.
pub const VIRT_HANDLER_READY: Metric =
    gauge("kubevirt_virt_handler_ready_status", "Whether this virt-handler is ready.");
/// Of virt-handler, by `machine_type`.
pub const DEPRECATED_MACHINE_TYPES: Metric = gauge(
    "kubevirt_node_deprecated_machine_types",
    "Machine types that guests of the node can have and that a later QEMU will not have.",
);
/// Of virt-operator.
pub const VIRT_OPERATOR_LEADING: Metric =
    gauge("kubevirt_virt_operator_leading_status", "Whether this virt-operator is the leader.");
/// Of virt-operator.
pub const VIRT_OPERATOR_READY: Metric =
    gauge("kubevirt_virt_operator_ready_status", "Whether this virt-operator can become the leader.");
/// Of the leading virt-controller: one for each machine.
pub const VM_INFO: Metric = gauge("kubevirt_vm_info", "Virtual machines.");
/// Of the leading virt-controller: one for each instance.
pub const VMI_INFO: Metric = gauge("kubevirt_vmi_info", "Virtual machine instances.");

/// Of the leading virt-controller.
pub const VMI_OUTDATED: Metric = gauge(
    "kubevirt_vmi_number_of_outdated",
    "Running instances whose launcher has another version than the installation.",
);

/// Of the leading virt-controller, by instance that an eviction should move but cannot.
pub const VMI_NON_EVICTABLE: Metric = gauge(
    "kubevirt_vmi_non_evictable",
    "Whether an instance should be live-migrated on eviction but cannot be.",
);
/// Of the leading virt-controller, by interface.
pub const VMI_ADDRESSES: Metric =
    gauge("kubevirt_vmi_status_addresses", "Addresses of instances, one sample for each interface.");
/// Of the leading virt-controller, by interface.
pub const VMI_VNIC: Metric = gauge("kubevirt_vmi_vnic_info", "Network interfaces of instances.");
/// Of the leading virt-controller, by instance.
pub const VMI_OVERHEAD: Metric = gauge(
    "kubevirt_vmi_launcher_memory_overhead_bytes",
    "Memory for the launcher and QEMU in addition to the guest's.",
);
/// Of the leading virt-controller, by instance and migration.
pub const VMI_MIGRATION_START: Metric = gauge(
    "kubevirt_vmi_migration_start_time_seconds",
    "When the last migration of an instance began, in seconds since 1970.",
);
/// Of the leading virt-controller, by instance, migration and `status`.
pub const VMI_MIGRATION_END: Metric = gauge(
    "kubevirt_vmi_migration_end_time_seconds",
    "When the last migration of an instance ended, in seconds since 1970.",
);
/// Of the leading virt-controller, by resource and source.
pub const VM_REQUESTS: Metric =
    gauge("kubevirt_vm_resource_requests", "CPU and memory that a virtual machine requests.");
/// Of the leading virt-controller, by resource.
pub const VM_LIMITS: Metric =
    gauge("kubevirt_vm_resource_limits", "Limits of CPU and memory of a virtual machine, if it has any.");
/// Of the leading virt-controller, by machine.
pub const VM_CREATED: Metric = gauge(
    "kubevirt_vm_create_date_timestamp_seconds",
    "When a virtual machine was created, in seconds since 1970.",
);
/// Of the leading virt-controller, by interface.
pub const VM_VNIC: Metric = gauge("kubevirt_vm_vnic_info", "Network interfaces of virtual machines.");
/// Of the leading virt-controller, by volume on a claim.
pub const VM_DISKS: Metric = gauge(
    "kubevirt_vm_disk_allocated_size_bytes",
    "Storage that is requested for a disk of a virtual machine, by its claim or by the machine's template for the claim.",
);
/// Of the leading virt-controller, by machine and `label_KEY`.
pub const VM_LABELS: Metric =
    gauge("kubevirt_vm_labels", "Labels of virtual machines and of their templates.");
/// Of the leading virt-controller, by machine.
pub const VM_STARTING: Metric = gauge(
    "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
    "When the conditions of a machine that is starting last changed, in seconds since 1970; 0 for others.",
);
/// Of the leading virt-controller, by machine.
pub const VM_RUNNING: Metric = gauge(
    "kubevirt_vm_running_status_last_transition_timestamp_seconds",
    "When the conditions of a machine that is running last changed, in seconds since 1970; 0 for others.",
);
/// Of the leading virt-controller, by machine.
pub const VM_MIGRATING: Metric = gauge(
    "kubevirt_vm_migrating_status_last_transition_timestamp_seconds",
    "When the conditions of a machine that is migrating last changed, in seconds since 1970; 0 for others.",
);
/// Of the leading virt-controller, by machine.
pub const VM_NON_RUNNING: Metric = gauge(
    "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
    "When the conditions of a machine that is paused, stopping or stopped last changed, in seconds since 1970; 0 for others.",
);
/// Of the leading virt-controller, by machine.
pub const VM_ERROR: Metric = gauge(
    "kubevirt_vm_error_status_last_transition_timestamp_seconds",
    "When the conditions of a machine with an error last changed, in seconds since 1970; 0 for others.",
);
/// Of the leading virt-controller.
pub const VMIM_UNSET: Metric =
    gauge("kubevirt_vmi_migrations_in_unset_phase", "Migrations that virt-controller has not looked at yet.");
/// Of the leading virt-controller.
pub const VMIM_PENDING: Metric =
    gauge("kubevirt_vmi_migrations_in_pending_phase", "Migrations that wait for their turn.");
/// Of the leading virt-controller.
pub const VMIM_SCHEDULING: Metric =
    gauge("kubevirt_vmi_migrations_in_scheduling_phase", "Migrations whose target pod does not run yet.");
/// Of the leading virt-controller.
pub const VMIM_RUNNING: Metric = gauge(
    "kubevirt_vmi_migrations_in_running_phase",
    "Migrations whose target pod runs: it is being prepared, or the guest is being transferred.",
);
/// Of the leading virt-controller, by migration.
pub const VMIM_SUCCEEDED: Metric = gauge(
    "kubevirt_vmi_migration_succeeded",
    "Migrations that have succeeded and whose objects still exist.",
);
/// Of the leading virt-controller, by migration.
pub const VMIM_FAILED: Metric =
    gauge("kubevirt_vmi_migration_failed", "Migrations that have failed and whose objects still exist.");
/// Of the leading virt-controller, by `phase` and `last_phase`.
pub const PHASE_TIME: Metric =
    histogram("kubevirt_vmi_phase_transition_time_seconds", "Time between phases of instances, in seconds.");
/// Of the leading virt-controller, by `phase`.
pub const PHASE_TIME_FROM_CREATION: Metric = histogram(
    "kubevirt_vmi_phase_transition_time_from_creation_seconds",
    "Time from the creation of an instance to a phase, in seconds.",
);
/// Of the leading virt-controller, by `phase`.
pub const PHASE_TIME_FROM_DELETION: Metric = histogram(
    "kubevirt_vmi_phase_transition_time_from_deletion_seconds",
    "Time from the deletion of an instance to its last phase, in seconds.",
);

/// Of the leading virt-controller, by `phase`.
pub const VMIM_PHASE_TIME: Metric = histogram(
    "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds",
    "Time from the creation of a migration to a phase, in seconds.",
);

/// Of the leading virt-controller, by instance.
pub const VMI_SYNCS: Metric =
    counter("kubevirt_vmi_sync_total", "How often virt-controller has reconciled an instance.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_ADDS: Metric =
    counter("kubevirt_workqueue_adds_total", "How many objects were added to the queue.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_DEPTH: Metric = gauge("kubevirt_workqueue_depth", "Objects that wait in the queue.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_WAIT: Metric =
    histogram("kubevirt_workqueue_queue_duration_seconds", "How long objects wait in the queue.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_WORK: Metric =
    histogram("kubevirt_workqueue_work_duration_seconds", "How long the reconciliation of an object takes.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_RETRIES: Metric =
    counter("kubevirt_workqueue_retries_total", "Retries of failed reconciliations.");
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_UNFINISHED: Metric = gauge(
    "kubevirt_workqueue_unfinished_work_seconds",
    "Duration so far of all reconciliations in progress, summed.",
);
/// Of the leading virt-controller, by `name` of a queue.
pub const QUEUE_LONGEST: Metric = gauge(
    "kubevirt_workqueue_longest_running_processor_seconds",
    "Duration so far of the longest reconciliation in progress.",
);

/// Of virt-handler, by `part`: the program that did not answer.
pub const GUESTS_MISSED: Metric = counter(
    "barevirt_guest_stats_missed_total",
    "Guests that were left out of metrics: their launcher, or QEMU's monitor, did not answer in time.",
);

/// Of every process.
pub const PROCESS_CPU: Metric = counter("process_cpu_seconds_total", "CPU time that the process has used.");
/// Of every process.
pub const PROCESS_OPEN_FDS: Metric = gauge("process_open_fds", "Open file descriptors.");
/// Of every process.
pub const PROCESS_MAX_FDS: Metric = gauge("process_max_fds", "File descriptors that can be open.");
/// Of every process.
pub const PROCESS_RESIDENT: Metric = gauge("process_resident_memory_bytes", "Resident memory.");
/// Of every process.
pub const PROCESS_VIRTUAL: Metric = gauge("process_virtual_memory_bytes", "Virtual memory.");
/// Of every process.
pub const PROCESS_START: Metric =
    gauge("process_start_time_seconds", "When the process was started, in seconds since 1970.");

/// Whether a component exports a metric of this name. Rules may only use such metrics of ours.
pub fn is_exported(name: &str) -> bool {
    // Names of the series of a histogram.
    let whole = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    whole.is_some_and(|whole| EXPORTED.contains(&whole))
        || EXPORTED.contains(&name)
        || super::guest::ALL.iter().any(|metric| metric.name == name)
}

/// The names of all metrics except those of guests.
pub const EXPORTED: &[&str] = &[
    INFO.name,
    EMULATION.name,
    REST_CLIENT_REQUESTS.name,
    REST_CLIENT_LATENCY.name,
    VIRT_API_READY.name,
    CONSOLES.name,
    DISPLAYS.name,
    USB_CLIENTS.name,
    TUNNELS.name,
    LAST_CONNECTION.name,
    VMS_CREATED.name,
    GUEST_PANICS.name,
    VIRT_CONTROLLER_LEADING.name,
    VIRT_CONTROLLER_READY.name,
    VIRT_HANDLER_READY.name,
    DEPRECATED_MACHINE_TYPES.name,
    VIRT_OPERATOR_LEADING.name,
    VIRT_OPERATOR_READY.name,
    VM_INFO.name,
    VMI_INFO.name,
    VMI_OUTDATED.name,
    VMI_NON_EVICTABLE.name,
    VMI_ADDRESSES.name,
    VMI_VNIC.name,
    VMI_OVERHEAD.name,
    VMI_MIGRATION_START.name,
    VMI_MIGRATION_END.name,
    VM_REQUESTS.name,
    VM_LIMITS.name,
    VM_CREATED.name,
    VM_VNIC.name,
    VM_DISKS.name,
    VM_LABELS.name,
    VM_STARTING.name,
    VM_RUNNING.name,
    VM_MIGRATING.name,
    VM_NON_RUNNING.name,
    VM_ERROR.name,
    VMIM_UNSET.name,
    VMIM_PENDING.name,
    VMIM_SCHEDULING.name,
    VMIM_RUNNING.name,
    VMIM_SUCCEEDED.name,
    VMIM_FAILED.name,
    PHASE_TIME.name,
    PHASE_TIME_FROM_CREATION.name,
    PHASE_TIME_FROM_DELETION.name,
    VMIM_PHASE_TIME.name,
    VMI_SYNCS.name,
    QUEUE_ADDS.name,
    QUEUE_DEPTH.name,
    QUEUE_WAIT.name,
    QUEUE_WORK.name,
    QUEUE_RETRIES.name,
    QUEUE_UNFINISHED.name,
    QUEUE_LONGEST.name,
    GUESTS_MISSED.name,
    PROCESS_CPU.name,
    PROCESS_OPEN_FDS.name,
    PROCESS_MAX_FDS.name,
    PROCESS_RESIDENT.name,
    PROCESS_VIRTUAL.name,
    PROCESS_START.name,
];
