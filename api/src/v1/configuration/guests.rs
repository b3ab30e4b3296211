//! Settings that apply to all guests, and services of the nodes for them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Support for SCSI persistent reservations by guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentReservationConfiguration {
    /// True runs a `qemu-pr-helper` on every node, which carries reservations out for the guests; default
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
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
