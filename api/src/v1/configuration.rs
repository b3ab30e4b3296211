//! Settings of the installation: `spec.configuration` of the `KubeVirt` object.

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
    /// CPU models not to offer as node labels; the names are the keys, the values are not looked at. Replaces
    /// the built-in list when given.
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
    /// Feature gates that are switched on. No feature here is behind a gate yet, so none has an effect.
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

/// Which machines record changed disk blocks. One match, by namespace or by machine, is enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedBlockTrackingSelectors {
    /// Labels of namespaces; every machine in them is tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_label_selector: Option<LabelSelector>,
    /// Labels of single machines to track.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_label_selector: Option<LabelSelector>,
}

/// Whether the ready-made set of instance types and preferences is installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommonInstancetypesDeployment {
    /// False leaves the ready-made instance types and preferences out; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Cluster settings for guests with encrypted memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfidentialComputeConfiguration {
    /// Settings for Intel TDX guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdx: Option<TdxConfiguration>,
}

/// The seccomp profile to use; a file on the node wins over the runtime's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomProfile {
    /// Path of a profile file, relative to the kubelet's seccomp directory on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub localhost_profile: Option<String>,
    /// True takes the profile that the container runtime ships (`RuntimeDefault`); default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_default_profile: Option<bool>,
}

/// Has no fields; its presence is the setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisableFreePageReporting {}

/// Has no fields; its presence is the setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisableSerialConsoleLog {}

/// Bounds for `qemu-img info` on disk images that come from users.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskVerification {
    /// Address space in bytes that `qemu-img` may use while it inspects an image; 2000Mi when not configured.
    pub memory_limit: Quantity,
}

/// Hypervisor of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HypervisorConfiguration {
    /// `kvm` (default) or `hyperv-direct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
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

/// How an interface of the plugin gets through live migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceBindingMigration {
    /// `link-refresh`: take the guest's link down and up again on the target, so that it renews its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A named way to connect guest interfaces to pod networks, beside the built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceBindingPlugin {
    /// CPU and memory to add to the launcher's main container for machines that use the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_resource_overhead: Option<ResourceRequirementsWithoutClaims>,
    /// How QEMU is attached: `tap` (the plugin makes the tap device) or `managedTap` (it is made by the node
    /// agent). When not given, the sidecar arranges it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_attachment_type: Option<String>,
    /// Data handed to the sidecar: `device-info`, the device details that Multus noted on the pod. Nothing
    /// when not given.
    #[serde(rename = "downwardAPI", default, skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<String>,
    /// Marks the plugin as safe for live migration and says how. When not given, its users do not migrate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<InterfaceBindingMigration>,
    /// NetworkAttachmentDefinition to add to the pod, `name` or `namespace/name`; the namespace is the
    /// machine's when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_attachment_definition: Option<String>,
    /// Image of a container to run in the launcher pod that adapts the machine's definition. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_image: Option<String>,
}

/// Merging of identical memory pages on the nodes (KSM).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KsmConfiguration {
    /// Nodes on which KSM may be turned on under memory pressure. An empty selector takes all nodes, a
    /// missing one takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
}

/// Limits for CPU and memory added to running machines, for those that set none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveUpdateConfiguration {
    /// Most CPU sockets, `maxcpus` of QEMU's `-smp`. When not given, the sockets times `maxHotplugRatio`;
    /// never below the sockets asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cpu_sockets: Option<i64>,
    /// Most guest memory in bytes, reserved for hotplug. When not given, the guest's memory times
    /// `maxHotplugRatio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
    /// How many times its initial sockets and memory a machine may grow to, where no fixed maximum is set; 4
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hotplug_ratio: Option<i64>,
}

/// Log level per component: 0 says least, 9 most; 2 when not given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogVerbosity {
    /// Log level for the components on a node, by node name; wins over the component's own. 0 counts as not
    /// given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_verbosity: BTreeMap<String, i32>,
    /// Level of virt-api; 2 when not given.
    #[serde(rename = "virtAPI", default, skip_serializing_if = "Option::is_none")]
    pub virt_api: Option<i32>,
    /// Level of virt-controller; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_controller: Option<i32>,
    /// Level of virt-handler; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_handler: Option<i32>,
    /// Level of virt-launcher; 2 when not given. Applies to machines started afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_launcher: Option<i32>,
    /// Level of virt-operator; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_operator: Option<i32>,
    /// Level of the controller for migration between clusters; 0 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_synchronization_controller: Option<i32>,
}

/// Mediated devices (such as vGPUs) to create on the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediatedDevicesConfiguration {
    /// False leaves creating and removing mediated devices to somebody else; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Types to create on nodes without an entry of their own, as named in sysfs, for example `nvidia-222`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_device_types: Vec<String>,
    /// Deprecated: use `mediatedDeviceTypes`. Read only where that is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices_types: Vec<String>,
    /// Types for chosen nodes, instead of the general ones. A node that several entries match gets the types
    /// of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_mediated_device_types: Vec<NodeMediatedDeviceTypesConfig>,
}

/// A type of mediated device that guests may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediatedHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Name of the type as sysfs shows it, for example `GRID T4-1Q`. Spaces do not matter.
    pub mdev_name_selector: String,
    /// Resource that pods request for one device, for example `nvidia.com/GRID_T4-1Q`.
    pub resource_name: String,
}

/// Defaults for live migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationConfiguration {
    /// Slow the guest's CPUs down while it dirties memory faster than can be sent, QEMU's `auto-converge`;
    /// default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// At the completion timeout, run the guest on the target and fetch the rest of its memory on demand,
    /// QEMU's `postcopy-ram`. A broken connection then loses it. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// At the completion timeout, switch to post-copy where allowed, else pause the guest, rather than give
    /// up. When not given, as `allowPostCopy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Bytes per second that one migration may send, QEMU's `max-bandwidth`; 0 (default) is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds a migration may take for each GiB of memory and copied disk; 150 when not given. Then it ends
    /// or forces its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// True sends the guest's memory over the network unencrypted; default false.
    #[serde(rename = "disableTLS", default, skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    /// True, or not given: the target pod gets the SELinux level of the source pod. False: the container
    /// runtime picks a new one.
    #[serde(rename = "matchSELinuxLevelOnMigration", default, skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
    /// Milliseconds the guest may stand still at the switch to the target, QEMU's `downtime-limit`; 1 to
    /// 2000000, 900 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<i64>,
    /// NetworkAttachmentDefinition whose network carries migrations, in the namespace of the components. When
    /// not given, the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Deprecated: drain nodes by eviction. Key of a taint that makes machines leave a node;
    /// `kubevirt.io/drain` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    /// Migrations that may run at the same time in the cluster; 5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<i64>,
    /// Migrations that may leave one node at the same time; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<i64>,
    /// Seconds without progress after which a migration is cancelled; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// True migrates even if a disk's cache mode or storage makes data loss possible; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    /// Seconds a pending migration waits for utility volumes to go before it fails; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
}

/// Defaults for guest networking, and the binding plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfiguration {
    /// Network binding plugins by the name that interfaces use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binding: BTreeMap<String, InterfaceBindingPlugin>,
    /// Binding of the interface given to machines that list none: `bridge` (default) or `masquerade`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_network_interface: Option<String>,
    /// Whether interfaces on the pod network may use the `bridge` binding, which takes the pod's address
    /// over; default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_bridge_interface_on_pod_network: Option<bool>,
    /// Deprecated: slirp interfaces were removed. Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_slirp_interface: Option<bool>,
}

/// Mediated devices to create on certain nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMediatedDeviceTypesConfig {
    /// Types to create there, as named in sysfs, for example `nvidia-222`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_device_types: Vec<String>,
    /// Deprecated: use `mediatedDeviceTypes`. Read only where that is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices_types: Vec<String>,
    /// Labels a node must have, all of them, for the entry to count.
    pub node_selector: BTreeMap<String, String>,
}

/// A kind of PCI device that guests may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PciHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Vendor and device number in hexadecimal, `vendor:device`, for example `10DE:1EB8`.
    pub pci_vendor_selector: String,
    /// Resource that pods request for one device, for example `nvidia.com/TU104GL_Tesla_T4`.
    pub resource_name: String,
}

/// Devices of the nodes that may be passed to guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermittedHostDevices {
    /// Mediated devices, such as vGPUs; QEMU's `vfio-pci` with a `sysfsdev`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices: Vec<MediatedHostDevice>,
    /// Whole PCI devices or functions; QEMU's `vfio-pci`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci_host_devices: Vec<PciHostDevice>,
    /// USB devices; QEMU's `usb-host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usb: Vec<UsbHostDevice>,
}

/// Support for SCSI persistent reservations by guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentReservationConfiguration {
    /// True runs a `qemu-pr-helper` on every node, which carries reservations out for the guests; default
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// How a component talks to the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestClientConfiguration {
    /// Limits how many requests the component sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// Kind of request limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimiter {
    /// A steady rate with room for bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket_rate_limiter: Option<TokenBucketRateLimiter>,
}

/// Settings of a component that change without a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReloadableComponentConfiguration {
    /// How the component talks to the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_client: Option<RestClientConfiguration>,
}

/// CPU, memory and other resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequirementsWithoutClaims {
    /// What the container can use at most, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// What the container is guaranteed, by resource name; not above the limits. As the limits where only
    /// those are given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// System information for SMBIOS, the options of QEMU's `-smbios type=1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SmBiosConfiguration {
    /// Product family, `family=`; `KubeVirt` when nothing is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Maker of the system, `manufacturer=`; `KubeVirt` when nothing is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// Model name, `product=`; `None` when nothing is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Order number of the model, `sku=`. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<String>,
    /// Version of the model, `version=`. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// System call filters of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeccompConfiguration {
    /// Filter for launcher pods. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_profile: Option<VirtualMachineInstanceProfile>,
}

/// Resources of one kind of helper container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SupportContainerResources {
    /// Requests and limits for CPU and memory. Values left out stay as built in.
    pub resources: ResourceRequirementsWithoutClaims,
    /// Kind of container: `hotplug-disk`, `container-disk`, `virtiofs`, `sidecar`, `vmexport` or
    /// `guest-console-log`.
    pub type_: String,
}

/// How TDX guests prove what they run, through the Quote Generation Service (QGS) of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TdxAttestationConfiguration {
    /// True keeps TDX guests off nodes where the service's socket is missing; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced: Option<bool>,
    /// UNIX socket of the service on the node; `/var/run/tdx-qgs/qgs.socket` when not given. QEMU's
    /// `quote-generation-socket` of `tdx-guest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qgs_socket_path: Option<String>,
}

/// Settings for Intel TDX guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TdxConfiguration {
    /// Access of guests to the node's quote service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<TdxAttestationConfiguration>,
}

/// What the TLS servers of the components accept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfiguration {
    /// Cipher suites to accept, by IANA name, for TLS up to 1.2. When not given, Go's choice; TLS 1.3 has its
    /// own fixed set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<String>,
    /// Lowest version to accept: `VersionTLS10`, `VersionTLS11`, `VersionTLS12` (default) or `VersionTLS13`.
    #[serde(rename = "minTLSVersion", default, skip_serializing_if = "Option::is_none")]
    pub min_tls_version: Option<String>,
}

/// A steady request rate with room for bursts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenBucketRateLimiter {
    /// Requests that may be sent at once after a quiet time. 0 means the component's default.
    pub burst: i32,
    /// Requests per second in the long run. 0 means the component's default.
    pub qps: f64,
}

/// A set of USB devices that guests may use together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Resource that pods request for the set, for example `kubevirt.io/storage`.
    pub resource_name: String,
    /// The devices of the set; a guest gets one for each entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<UsbSelector>,
}

/// Numbers of a USB device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbSelector {
    /// Product number, four hexadecimal digits, for example `7777`.
    pub product: String,
    /// Vendor number, four hexadecimal digits, for example `46f4`.
    pub vendor: String,
}

/// Whether the machine template components are installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtTemplateDeployment {
    /// False leaves the template components out. True when not given and the feature gate `Template` is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Choice of a seccomp profile for launcher pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceProfile {
    /// The profile to use. When not given, the pods get none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_profile: Option<CustomProfile>,
}

/// Things to turn off for all machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineOptions {
    /// When present, guests do not return freed memory: `free-page-reporting=off` on the balloon. It is off
    /// anyway with dedicated CPUs, huge pages or realtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_free_page_reporting: Option<DisableFreePageReporting>,
    /// When present, the serial console is not copied to the pod's logs (container `guest-console-log`). A
    /// machine can choose for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_serial_console_log: Option<DisableSerialConsoleLog>,
}
