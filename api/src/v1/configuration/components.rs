//! How the components of the installation run: logs, certificates, rates, resources.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Log level per component: 0 says least, 9 most; 2 when not given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogVerbosity {
    /// Log level for the components on a node, by node name; wins over the component's own. 0 counts as not
    /// given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_verbosity: BTreeMap<String, i32>,
    /// Level of virt-api; 2 when not given.
    #[serde(rename = "virtAPI", default, skip_serializing_if = "Option::is_none")]
    pub virt_api: Option<i32>,
    /// Level of virt-controller; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_controller: Option<i32>,
    /// Level of virt-handler; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_handler: Option<i32>,
    /// Level of virt-launcher; 2 when not given. Applies to machines started afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_launcher: Option<i32>,
    /// Level of virt-operator; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_operator: Option<i32>,
    /// Level of the controller for migration between clusters; 0 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_synchronization_controller: Option<i32>,
}

/// How a component talks to the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestClientConfiguration {
    /// Limits how many requests the component sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// Kind of request limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimiter {
    /// A steady rate with room for bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket_rate_limiter: Option<TokenBucketRateLimiter>,
}

/// Settings of a component that change without a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReloadableComponentConfiguration {
    /// How the component talks to the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_client: Option<RestClientConfiguration>,
}

/// CPU, memory and other resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequirementsWithoutClaims {
    /// What the container can use at most, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// What the container is guaranteed, by resource name; not above the limits. As the limits where only
    /// those are given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Resources of one kind of helper container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SupportContainerResources {
    /// Requests and limits for CPU and memory. Values left out stay as built in.
    pub resources: ResourceRequirementsWithoutClaims,
    /// Kind of container: `hotplug-disk`, `container-disk`, `virtiofs`, `sidecar`, `vmexport` or
    /// `guest-console-log`.
    pub type_: String,
}

/// What the TLS servers of the components accept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfiguration {
    /// Cipher suites to accept, by IANA name, for TLS up to 1.2. When not given, Go's choice; TLS 1.3 has its
    /// own fixed set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<String>,
    /// Lowest version to accept: `VersionTLS10`, `VersionTLS11`, `VersionTLS12` (default) or `VersionTLS13`.
    #[serde(rename = "minTLSVersion", default, skip_serializing_if = "Option::is_none")]
    pub min_tls_version: Option<String>,
}

/// A steady request rate with room for bursts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenBucketRateLimiter {
    /// Requests that may be sent at once after a quiet time. 0 means the component's default.
    pub burst: i32,
    /// Requests per second in the long run. 0 means the component's default.
    pub qps: f64,
}
