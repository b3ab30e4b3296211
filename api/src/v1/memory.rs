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
