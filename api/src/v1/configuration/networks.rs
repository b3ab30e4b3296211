//! Networks of guests.

use super::ResourceRequirementsWithoutClaims;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How an interface of the plugin gets through live migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceBindingMigration {
    /// `link-refresh`: take the guest's link down and up again on the target, so that it renews its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A named way to connect guest interfaces to pod networks, in addition to the built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceBindingPlugin {
    /// CPU and memory to add to the launcher's main container for machines that use the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_resource_overhead: Option<ResourceRequirementsWithoutClaims>,
    /// How QEMU is attached: `tap` (the plugin makes the tap device) or `managedTap` (it is made by the node
    /// agent). When not given, the sidecar arranges it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_attachment_type: Option<String>,
    /// Data handed to the sidecar: `device-info`, the device details that Multus noted on the pod. Nothing
    /// when not given.
    #[serde(rename = "downwardAPI", default, skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<String>,
    /// Marks the plugin as safe for live migration and says how. When not given, its users do not migrate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<InterfaceBindingMigration>,
    /// NetworkAttachmentDefinition to add to the pod, `name` or `namespace/name`; the namespace is the
    /// machine's when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_attachment_definition: Option<String>,
    /// Image of a container to run in the launcher pod that adapts the machine's definition. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_image: Option<String>,
}

/// Defaults for guest networking, and the binding plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfiguration {
    /// Network binding plugins by the name that interfaces use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binding: BTreeMap<String, InterfaceBindingPlugin>,
    /// Binding of the interface given to machines that list none: `bridge` (default) or `masquerade`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_network_interface: Option<String>,
    /// Whether interfaces on the pod network may use the `bridge` binding, which takes the pod's address
    /// over; default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_bridge_interface_on_pod_network: Option<bool>,
    /// Deprecated: slirp interfaces were removed. Has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_slirp_interface: Option<bool>,
}
