//! `VirtualMachineInstancePreset`, deprecated.

use super::DomainSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Deprecated: use instance types and preferences. Domain settings merged into new instances with matching
/// labels.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstancePreset",
    plural = "virtualmachineinstancepresets",
    doc = "Deprecated: domain settings for every new instance whose labels match.",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmipreset",
    shortname = "vmipresets",
    category = "all"
)]
pub struct VirtualMachineInstancePresetSpec {
    /// Settings merged into matching instances; a value the instance sets itself wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainSpec>,
    /// Labels an instance must have for the preset to apply.
    pub selector: LabelSelector,
}
