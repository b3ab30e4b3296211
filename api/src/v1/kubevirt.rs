//! `KubeVirt`: configuration of the installation.

use super::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of the installation.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "KubeVirt",
    plural = "kubevirts",
    doc = "Configuration of the installation; there is one, named kubevirt, in the namespace of the components.",
    namespaced,
    status = "KubeVirtStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "kv",
    shortname = "kvs",
    category = "all",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#
)]
pub struct KubeVirtSpec {
    /// Settings of virtual machines and of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<KubeVirtConfiguration>,
}

impl KubeVirtSpec {
    /// The developer configuration, defaults where nothing is given.
    pub fn developer(&self) -> DeveloperConfiguration {
        self.configuration
            .as_ref()
            .and_then(|configuration| configuration.developer_configuration.clone())
            .unwrap_or_default()
    }
}

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
}

/// What is known about the installation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtStatus {
    /// `Deploying`, `Deployed`, `Deleting` or `Deleted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version that runs.
    #[serde(rename = "observedKubeVirtVersion", default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_version: Option<String>,
    /// Architecture of instances that do not name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_architecture: Option<String>,
}
