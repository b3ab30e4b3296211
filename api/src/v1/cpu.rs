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
