//! The machine: everything under `spec.domain`.

use super::{Chassis, Clock, Cpu, Devices, Features, Firmware, LaunchSecurity, Memory};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The machine that the guest sees, and the resources that its pod requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainSpec {
    /// Resources of the launcher pod; they also give the guest's memory and CPUs where `memory` and `cpu` do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Machine type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Identity of the machine and what boots it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Features of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    /// Disks, network interfaces and other devices.
    pub devices: Devices,
    /// Describes the enclosure in the guest's SMBIOS tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chassis: Option<Chassis>,
    /// Configures the guest's clock and timers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Sizes the pool for `ioThreadsPolicy` `supplementalPool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<DiskIoThreads>,
    /// How disks get I/O threads: `shared` (one for all), `auto` (up to two per CPU, spread) or
    /// `supplementalPool` (virtio disks use a pool). None when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<String>,
    /// Encrypts the guest's memory against the host: AMD SEV, SEV-SNP or Intel TDX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    /// What a reboot by the guest does: `Reboot` (default) restarts in place, `Terminate` ends the instance
    /// so that a new one is made (`-action reboot=shutdown`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_policy: Option<String>,
}

/// Resources of the launcher pod. Names are those of Kubernetes: `cpu`, `memory` and others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequirements {
    /// What the pod is guaranteed. The memory request excludes what QEMU itself needs; that is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
    /// What the pod may not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// Do not add the memory that QEMU itself needs to the request (the limit still gets it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit_guest_overhead: Option<bool>,
}

impl ResourceRequirements {
    /// The request of this name.
    pub fn request(&self, name: &str) -> Option<&Quantity> {
        self.requests.as_ref().and_then(|requests| requests.get(name))
    }

    /// The limit of this name.
    pub fn limit(&self, name: &str) -> Option<&Quantity> {
        self.limits.as_ref().and_then(|limits| limits.get(name))
    }
}

/// Machine type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// QEMU's machine type: `q35` (default) or a versioned form of it such as `pc-q35-10.0`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// Size of the pool of I/O threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskIoThreads {
    /// Number of I/O threads, at least 1; required by, and only used with, policy `supplementalPool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supplemental_pool_thread_count: Option<i64>,
}
