//! Settings of the installation: `spec.configuration` of the `KubeVirt` object.

mod components;
mod guests;
mod host_devices;
mod migrations;
mod networks;

pub use components::{
    LogVerbosity, RateLimiter, ReloadableComponentConfiguration, ResourceRequirementsWithoutClaims,
    RestClientConfiguration, SupportContainerResources, TlsConfiguration, TokenBucketRateLimiter,
};
pub use guests::{
    ChangedBlockTrackingSelectors, ConfidentialComputeConfiguration, CustomProfile, DisableFreePageReporting,
    DisableSerialConsoleLog, DiskVerification, HypervisorConfiguration, KsmConfiguration,
    LiveUpdateConfiguration, PersistentReservationConfiguration, SeccompConfiguration, SmBiosConfiguration,
    TdxAttestationConfiguration, TdxConfiguration, VirtualMachineInstanceProfile, VirtualMachineOptions,
};
pub use host_devices::{
    MediatedDevicesConfiguration, MediatedHostDevice, NodeMediatedDeviceTypesConfig, PciHostDevice,
    PermittedHostDevices, UsbHostDevice, UsbSelector,
};
pub use migrations::MigrationConfiguration;
pub use networks::{InterfaceBindingMigration, InterfaceBindingPlugin, NetworkConfiguration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of virtual machines and of the components.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtConfiguration {
    /// Settings for development and sizing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub developer_configuration: Option<DeveloperConfiguration>,
    /// Pull policy for launcher images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Factor, a decimal number as text, on the memory reckoned for QEMU and its helpers; `1` when not given.
    /// More makes pods larger and kills by the kernel rarer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_guest_memory_overhead_ratio: Option<String>,
    /// Client settings of virt-api. Default 200 requests per second, burst 400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_configuration: Option<ReloadableComponentConfiguration>,
    /// Machine types and firmware per CPU architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture_configuration: Option<ArchConfiguration>,
    /// Namespaces whose launcher pods get a CPU limit of one CPU per vCPU. Machines with dedicated CPUs are
    /// left alone.
    #[serde(rename = "autoCPULimitNamespaceLabelSelector", default, skip_serializing_if = "Option::is_none")]
    pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
    /// Machines whose disks record changed blocks, which backups need: a dirty bitmap in a QCOW2 overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
    /// Installation of the ready-made instance types and preferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub common_instancetypes_deployment: Option<CommonInstancetypesDeployment>,
    /// Settings for guests with encrypted memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidential_compute: Option<ConfidentialComputeConfiguration>,
    /// Client settings of virt-controller. Default 200 requests per second, burst 400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_configuration: Option<ReloadableComponentConfiguration>,
    /// CPU model of machines that name none, QEMU's `-cpu`; `host-model` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// CPU request of machines that give none and have no dedicated CPUs. At the default of 100m the request
    /// follows the number of vCPUs instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<Quantity>,
    /// RuntimeClass of the launcher pods. When not given, the cluster's usual runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_runtime_class: Option<String>,
    /// Deprecated: use `architectureConfiguration`. Allowed machine types for all architectures; wins over
    /// the newer field when given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emulated_machines: Vec<String>,
    /// For machines that set none, at a node drain: `None` (default, shut down), `LiveMigrate`,
    /// `LiveMigrateIfPossible` or `External` (someone else acts on it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    /// Client settings of virt-handler. Default 50 requests per second, burst 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_configuration: Option<ReloadableComponentConfiguration>,
    /// Hypervisor to use, at most one entry; `kvm` when not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hypervisors: Vec<HypervisorConfiguration>,
    /// How machines keep their instance type and preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeConfiguration>,
    /// On which nodes the kernel may merge identical memory pages. Not touched when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ksm_configuration: Option<KsmConfiguration>,
    /// Limits for CPU and memory added to running machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_update_configuration: Option<LiveUpdateConfiguration>,
    /// Deprecated: use `architectureConfiguration`. Default machine type for all architectures; wins over the
    /// newer field when given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Mediated devices (such as vGPUs) to create on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mediated_devices_configuration: Option<MediatedDevicesConfiguration>,
    /// Seconds between readings of guest memory statistics, `guest-stats-polling-interval` of the balloon
    /// device; 10 when not given, 0 turns them off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_balloon_stats_period: Option<i64>,
    /// Defaults for live migration; a MigrationPolicy can change some of them for chosen machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations: Option<MigrationConfiguration>,
    /// Deprecated: use `obsoleteCPUModels`. Has no effect.
    #[serde(rename = "minCPUModel", default, skip_serializing_if = "Option::is_none")]
    pub min_cpu_model: Option<String>,
    /// Defaults for guest networking, and the binding plugins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfiguration>,
    /// CPU models not to offer as node labels; the names are the keys, the values are ignored. Replaces the
    /// built-in list when given.
    #[serde(rename = "obsoleteCPUModels", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub obsolete_cpu_models: BTreeMap<String, bool>,
    /// Deprecated: use `architectureConfiguration`. UEFI firmware directory for all architectures; wins over
    /// the newer field when given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovmf_path: Option<String>,
    /// Devices of the nodes that may be passed to guests. Nothing when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
    /// Support for SCSI persistent reservations by guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_reservation_configuration: Option<PersistentReservationConfiguration>,
    /// `AggregateToDefault` (default): users with the roles admin, edit and view get the matching rights on
    /// machines. `Manual`: rights must be granted one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_aggregation_strategy: Option<String>,
    /// System call filter of the launcher pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_configuration: Option<SeccompConfiguration>,
    /// SELinux type of the launcher's main container. When not given, the container runtime chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_launcher_type: Option<String>,
    /// System information that guests read from SMBIOS, QEMU's `-smbios type=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smbios: Option<SmBiosConfiguration>,
    /// CPU and memory of helper containers, one entry per kind. Kinds not listed keep built-in values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub support_container_resources: Vec<SupportContainerResources>,
    /// Deprecated: guest agents are judged by the commands they offer, not by version. Has no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supported_guest_agent_versions: Vec<String>,
    /// Lowest TLS version and ciphers of the servers of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_configuration: Option<TlsConfiguration>,
    /// Installation of the machine template components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_template_deployment: Option<VirtTemplateDeployment>,
    /// Number of machines a node offers room for, as devices of the kinds kvm, tun and vhost-net; 1000 when
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instances_per_node: Option<i32>,
    /// Things to turn off for all machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_options: Option<VirtualMachineOptions>,
    /// When changes to a machine's template take effect: `LiveUpdate` (default, at once where possible) or
    /// `Stage` (at the next restart).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_rollout_strategy: Option<String>,
    /// Storage class of the volumes that keep TPM and UEFI state. When not given, the cluster's default
    /// class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_state_storage_class: Option<String>,
    /// Client settings of the admission webhooks. Default 200 requests per second, burst 400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_configuration: Option<ReloadableComponentConfiguration>,
}

/// Settings for development and sizing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeveloperConfiguration {
    /// Run guests by emulation where there is no KVM. Launcher pods then do not ask for /dev/kvm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_emulation: Option<bool>,
    /// Guest memory as a percentage of the memory request; 100 when not given, at least 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_overcommit: Option<i32>,
    /// Virtual CPUs for each requested CPU; 10 when not given.
    #[serde(rename = "cpuAllocationRatio", default, skip_serializing_if = "Option::is_none")]
    pub cpu_allocation_ratio: Option<i32>,
    /// Feature gates to turn on, by KubeVirt's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
    /// True lets the Go CPU and memory profiles of the components be started, stopped and dumped through the
    /// API; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_profiler: Option<bool>,
    /// Feature gates to turn off although they are on by default. None may be in `featureGates` too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_feature_gates: Vec<String>,
    /// Bounds for the inspection of disk images before they are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_verification: Option<DiskVerification>,
    /// Log levels of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_verbosity: Option<LogVerbosity>,
    /// TSC frequency in Hz that guests with a fixed TSC are given. When not given, the lowest one found among
    /// the nodes.
    #[serde(rename = "minimumClusterTSCFrequency", default, skip_serializing_if = "Option::is_none")]
    pub minimum_cluster_tsc_frequency: Option<i64>,
    /// Bytes of a file system volume kept free when a disk image is made on it; 131072 when not given.
    #[serde(rename = "minimumReservePVCBytes", default, skip_serializing_if = "Option::is_none")]
    pub minimum_reserve_pvc_bytes: Option<i64>,
    /// Node labels that every launcher pod requires, added to those of the instance. Default none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selectors: BTreeMap<String, String>,
    /// Percentage, 0 to 100, by which the space on a volume may fall short of the requested disk size; 10
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc_tolerate_less_space_up_to_percent: Option<i32>,
}

/// Machine and firmware settings per CPU architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchConfiguration {
    /// Settings for x86-64 guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amd64: Option<ArchSpecificConfiguration>,
    /// Settings for AArch64 guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm64: Option<ArchSpecificConfiguration>,
    /// Architecture of machines that name none: `amd64`, `arm64` or `s390x`. When not given, the one the
    /// operator runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_architecture: Option<String>,
    /// Deprecated: POWER guests are no longer supported. Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ppc64le: Option<ArchSpecificConfiguration>,
    /// Settings for IBM Z guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s390x: Option<ArchSpecificConfiguration>,
}

/// Settings for the guests of one architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchSpecificConfiguration {
    /// Machine types that guests may ask for, as glob patterns. Default on amd64 `q35*` and `pc-q35*`, on
    /// arm64 `virt*`, on s390x `s390-ccw-virtio*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emulated_machines: Vec<String>,
    /// Machine type of guests that name none, QEMU's `-machine`. Default `q35` on amd64, `virt` on arm64,
    /// `s390-ccw-virtio` on s390x.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Directory of the UEFI firmware images. Default `/usr/share/edk2/ovmf` on amd64, `/usr/share/AAVMF` on
    /// arm64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovmf_path: Option<String>,
}

/// Whether the ready-made set of instance types and preferences is installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommonInstancetypesDeployment {
    /// False leaves the ready-made instance types and preferences out; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// How machines keep their instance type and preference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstancetypeConfiguration {
    /// `reference` (default): pin a copy in a ControllerRevision. `expand`: write the values into the machine
    /// unless it is pinned already. `expandAll`: also into pinned ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_policy: Option<String>,
}

/// Whether the machine template components are installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtTemplateDeployment {
    /// False leaves the template components out. True when not given and the feature gate `Template` is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}
