//! `instancetype.kubevirt.io`: instance types, which set the size of machines.
//!
//! ```text
//!   VirtualMachine --matcher--> what it names --(caller reads it)--> expand --apply--> preference --> specification
//!                                  |                                    \
//!                                  revision: the copy a machine keeps    causes: conflicts, requirements
//! ```

mod apply;
pub mod expand;
pub mod infer;
pub mod matcher;
pub mod revision;

use crate::v1::{DiskIoThreads, Gpu, HostDevice, Hugepages, LaunchSecurity, Numa, Realtime};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The API group of instance types and preferences.
pub const GROUP: &str = "instancetype.kubevirt.io";
/// The version of this group that is served and stored.
pub const VERSION: &str = "v1beta1";

/// Processors that an instance type gives to its VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuInstancetype {
    /// When true every vCPU is pinned to a host CPU that no other pod uses, from the kubelet's static CPU
    /// manager.
    #[serde(rename = "dedicatedCPUPlacement", default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// Number of vCPUs. The preference's topology decides how they divide into sockets, cores and threads;
    /// without one each is a socket.
    pub guest: i64,
    /// When true QEMU's own threads run on one more dedicated host CPU, away from the vCPUs. Needs
    /// `dedicatedCPUPlacement`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// Upper limit of sockets while the VM runs; sockets above the first number can be plugged later
    /// (`maxcpus=` of `-smp`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sockets: Option<i64>,
    /// CPU model of the guest: `host-passthrough`, `host-model` (default) or a named one such as
    /// `Skylake-Server`. Becomes `-cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// NUMA nodes that the guest sees. Needs dedicated CPUs and hugepages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// Runs the vCPU threads under the FIFO real-time scheduler with guest memory locked (`-overcommit
    /// mem-lock=on`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Realtime>,
}

/// Memory that an instance type gives to its VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryInstancetype {
    /// RAM of the guest at boot, for example `4Gi`. Becomes `-m`.
    pub guest: Quantity,
    /// Backs guest RAM with huge pages of the node (`hugetlb=on` on the memory backend). Excludes
    /// `overcommitPercent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// Ceiling for RAM plugged into a running guest (`maxmem=` of `-m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
    /// How far the pod's memory request stays below guest RAM, in percent from 0 (default) to 100. A full
    /// node may then kill the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit_percent: Option<i32>,
}

/// Size and placement that VMs take over by naming an instance type. A VM that sets one of the same fields
/// itself is refused.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "instancetype.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineInstancetype",
    plural = "virtualmachineinstancetypes",
    doc = "Resources for virtual machines of its namespace that refer to it.",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    shortname = "vminstancetype",
    shortname = "vminstancetypes",
    shortname = "vmf",
    shortname = "vmfs",
    category = "all"
)]
pub struct VirtualMachineInstancetypeSpec {
    /// Annotations put on each VMI made from this instance type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Number, model and pinning of the vCPUs.
    pub cpu: CpuInstancetype,
    /// GPUs passed through to the guest, named by device plugin resource or resource claim. Each becomes a
    /// `vfio-pci` device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Other PCI, mediated or USB devices of the node handed to the guest (`vfio-pci` or `usb-host`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_devices: Vec<HostDevice>,
    /// Size of the thread pool used by the `supplementalPool` policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<DiskIoThreads>,
    /// How disks share I/O threads (`-object iothread`): `shared`, `auto` or `supplementalPool`. Without it
    /// there are none unless a disk asks for its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<String>,
    /// Deprecated: use the preference's `preferredLaunchSecurity`. Encrypts guest memory with SEV, SEV-SNP or
    /// TDX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    /// Guest RAM, its backing and its overcommit.
    pub memory: MemoryInstancetype,
    /// Labels a node needs before a VM of this type may be scheduled there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Scheduler that places the pods; the cluster's default when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
}

/// Size and placement of machines, for all namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "instancetype.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineClusterInstancetype",
    plural = "virtualmachineclusterinstancetypes",
    doc = "Resources for virtual machines of all namespaces that refer to it.",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmclusterinstancetype",
    shortname = "vmclusterinstancetypes",
    shortname = "vmcf",
    shortname = "vmcfs"
)]
pub struct VirtualMachineClusterInstancetypeSpec {
    /// The same as in the namespaced kind.
    #[serde(flatten)]
    pub spec: VirtualMachineInstancetypeSpec,
}
