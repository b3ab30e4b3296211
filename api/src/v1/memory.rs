//! Guest memory.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much memory the guest sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Memory the guest sees at boot, in bytes. Without it the memory request or limit decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Quantity>,
    /// Takes guest memory from preallocated huge pages of the node (`-object
    /// memory-backend-memfd,hugetlb=on`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    /// Bytes up to which memory can be plugged in while running; `guest` is the start. Becomes `-m maxmem=`
    /// and a virtio-mem device of the difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
    /// Adjusts the memory the pod gets beyond the guest's, and its locking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_overhead: Option<ReservedOverhead>,
}

/// Guest memory as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStatus {
    /// What the guest booted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_at_boot: Option<Quantity>,
    /// What the guest has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_current: Option<Quantity>,
    /// What the guest was last asked to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_requested: Option<Quantity>,
    /// What the launcher pod has beyond the guest's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_overhead: Option<Quantity>,
}

/// Huge pages of the host as the guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Size of a page, a quantity the node offers: `2Mi` or `1Gi` on x86 (`hugetlbsize=` of the memory
    /// backend).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
}

/// Extra memory for QEMU and whether it must be locked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservedOverhead {
    /// Bytes added to the computed overhead of the pod; none when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_overhead: Option<Quantity>,
    /// `Required` raises the limit of locked memory to the guest's memory and overhead, for devices with DMA;
    /// `NotRequired` (default) leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_lock: Option<String>,
}
