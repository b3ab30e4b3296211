//! Virtual CPUs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number, arrangement and model of the virtual CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// Sockets at boot. Without any of sockets, cores and threads the CPU limit or request decides, else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Cores in each socket; 1 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Threads in each core; 1 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Upper bound for sockets; not below `sockets`. The guest sees the room from the start (QEMU's maxcpus).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sockets: Option<u32>,
    /// CPU model: `host-model` (default), `host-passthrough`, or a model name of QEMU. Emulation has only its own model
    /// for the first two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Gives each vCPU a host CPU of its own and pins its thread there. The node needs the kubelet's static
    /// CPU manager; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// CPU flags to add to the model, to require or to take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<CpuFeature>,
    /// Reserves one more host CPU for QEMU's threads other than vCPUs. Needs `dedicatedCpuPlacement`; false
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// Configures the NUMA nodes the guest sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// Runs vCPUs under the FIFO scheduler with memory locked, for low latency. Needs `dedicatedCpuPlacement`
    /// and `numa.guestMappingPassthrough`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Realtime>,
}

/// The arrangement a guest was started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuTopology {
    /// Sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Cores in each socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Threads in each core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// One CPU flag and what is asked of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuFeature {
    /// Flag as the CPU model calls it, such as `vmx` or `pcid`.
    pub name: String,
    /// `require` (default) and `forbid` also restrict the node to hosts with or without the flag; `force`
    /// sets it anyway, `optional` if the host has it, `disable` clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// NUMA topology of the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Numa {
    /// Mirrors in the guest the host NUMA nodes of its dedicated CPUs, with memory bound alike (`-numa
    /// node`). Needs dedicated CPUs and huge pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_mapping_passthrough: Option<NumaGuestMappingPassthrough>,
}

/// Presence turns the mapping on; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NumaGuestMappingPassthrough {}

/// Tuning for latency-critical guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Realtime {
    /// vCPUs that get real-time scheduling, as ranges, numbers and `^` exclusions, such as `0-3,^1`; all when
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
}
