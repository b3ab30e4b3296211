//! Every metric that a component exports. The names are KubeVirt's where KubeVirt has one, and Prometheus' for processes.

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, as rules and dashboards know it.
    pub name: &'static str,
    /// What it tells.
    pub help: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Gauge }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: Kind::Counter }
}

/// Of each virt-handler: its version.
pub const INFO: Metric = gauge("kubevirt_info", "Version information.");
/// Of virt-operator: whether guests may run by emulation.
pub const EMULATION: Metric = gauge(
    "kubevirt_configuration_emulation_enabled",
    "Whether guests may run by emulation where there is no KVM.",
);
/// Of every component: requests to the API server.
pub const REST_CLIENT_REQUESTS: Metric = counter(
    "kubevirt_rest_client_requests_total",
    "Requests to the API server by status code, method, host, resource and verb.",
);
/// Of virt-api.
pub const VIRT_API_READY: Metric =
    gauge("kubevirt_virt_api_ready_status", "Whether this virt-api can answer.");
/// Of virt-controller.
pub const VIRT_CONTROLLER_LEADING: Metric =
    gauge("kubevirt_virt_controller_leading_status", "Whether this virt-controller leads.");
/// Of virt-controller.
pub const VIRT_CONTROLLER_READY: Metric =
    gauge("kubevirt_virt_controller_ready_status", "Whether this virt-controller could lead.");
/// Of virt-handler.
pub const VIRT_HANDLER_READY: Metric =
    gauge("kubevirt_virt_handler_ready_status", "Whether this virt-handler can answer.");
/// Of virt-operator.
pub const VIRT_OPERATOR_LEADING: Metric =
    gauge("kubevirt_virt_operator_leading_status", "Whether this virt-operator leads.");
/// Of virt-operator.
pub const VIRT_OPERATOR_READY: Metric =
    gauge("kubevirt_virt_operator_ready_status", "Whether this virt-operator could lead.");
/// Of the leading virt-controller: one for each machine.
pub const VM_INFO: Metric = gauge("kubevirt_vm_info", "Virtual machines.");
/// Of the leading virt-controller: one for each instance.
pub const VMI_INFO: Metric = gauge("kubevirt_vmi_info", "Virtual machine instances.");

/// Of the leading virt-controller.
pub const VMI_OUTDATED: Metric = gauge(
    "kubevirt_vmi_number_of_outdated",
    "Running instances whose launcher is of another version than the installation.",
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

/// The names of all of them: rules may use these and no others of ours.
pub const EXPORTED: &[&str] = &[
    INFO.name,
    EMULATION.name,
    REST_CLIENT_REQUESTS.name,
    VIRT_API_READY.name,
    VIRT_CONTROLLER_LEADING.name,
    VIRT_CONTROLLER_READY.name,
    VIRT_HANDLER_READY.name,
    VIRT_OPERATOR_LEADING.name,
    VIRT_OPERATOR_READY.name,
    VM_INFO.name,
    VMI_INFO.name,
    VMI_OUTDATED.name,
    PROCESS_CPU.name,
    PROCESS_OPEN_FDS.name,
    PROCESS_MAX_FDS.name,
    PROCESS_RESIDENT.name,
    PROCESS_VIRTUAL.name,
    PROCESS_START.name,
];
