//! Networks that interfaces are connected to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network for the interface of the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name of the network and of its interface.
    pub name: String,
    /// The cluster's pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNetwork>,
    /// Connects to a network that Multus attaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multus: Option<MultusNetwork>,
    /// Takes the network device from a DRA claim, such as an SR-IOV function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim: Option<ClaimRequest>,
}

/// The cluster's pod network; it has no settings here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodNetwork {
    /// IPv6 range between guest and pod with the masquerade binding; `fd10:0:2::/120` when not given.
    #[serde(rename = "vmIPv6NetworkCIDR", default, skip_serializing_if = "Option::is_none")]
    pub vm_ipv6_network_cidr: Option<String>,
    /// IPv4 range between guest and pod with the masquerade binding; `10.0.2.0/24` when not given.
    #[serde(rename = "vmNetworkCIDR", default, skip_serializing_if = "Option::is_none")]
    pub vm_network_cidr: Option<String>,
}

/// Picks one device out of a dynamic resource allocation (DRA) claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// Entry of `spec.resourceClaims` in the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Request inside that claim, from its `spec.devices.requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_name: Option<String>,
}

/// Secondary network, attached to the pod by Multus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MultusNetwork {
    /// Use this as the first network of the pod, in place of the cluster default. False when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
    /// NetworkAttachmentDefinition to use, `name` or `namespace/name`; the namespace of the VMI when left
    /// out.
    pub network_name: String,
}
