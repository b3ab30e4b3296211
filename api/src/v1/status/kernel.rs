//! The kernel that a guest was booted from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Details of the initial RAM disk for direct kernel boot (`-initrd`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitrdInfo {
    /// Deprecated: 32-bit checksum of the initrd file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<i64>,
}

/// Files found in the kernel boot container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelBootStatus {
    /// Facts about the initrd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd_info: Option<InitrdInfo>,
    /// Facts about the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_info: Option<KernelInfo>,
}

/// Details of the kernel image for direct kernel boot (`-kernel`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelInfo {
    /// Deprecated: 32-bit checksum of the kernel file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<i64>,
}
