//! `VirtualMachineInstance`: one run of a virtual machine.

use super::{
    AccessCredential, DomainSpec, Network, Probe, UtilityVolume, VirtualMachineInstanceStatus, Volume,
};
use k8s_openapi::api::core::v1::{Affinity, PodDNSConfig, Toleration, TopologySpreadConstraint};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Specification of the instance.
///
/// The kind has no status subresource: the status is written to the object itself, and admission keeps users
/// from changing it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    plural = "virtualmachineinstances",
    doc = "One run of a virtual machine, from its start to its end.",
    namespaced,
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmi",
    shortname = "vmis",
    category = "all",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"IP","type":"string","jsonPath":".status.interfaces[0].ipAddress"}"#,
    printcolumn = r#"{"name":"NodeName","type":"string","jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Live-Migratable","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type=='LiveMigratable')].status"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type=='Paused')].status"}"#
)]
pub struct VirtualMachineInstanceSpec {
    /// The machine that the guest sees.
    pub domain: DomainSpec,
    /// Contents of the disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Networks that the interfaces are connected to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// Seconds the guest has to shut down after the power button; 30 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// The guest's host name, given to it by DHCP and cloud-init; the instance's name when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Subdomain of the pod's name in cluster DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity of the launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Tolerations of the launcher pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How launcher pods are spread over nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Scheduler of the launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Priority class of the launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// DNS policy of the launcher pod, which the guest's name servers follow; `ClusterFirst` when not given.
    #[serde(rename = "dnsPolicy", default, skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<String>,
    /// DNS settings of the launcher pod, which the guest's follow.
    #[serde(rename = "dnsConfig", default, skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// What happens when the launcher pod is evicted: `None`, `LiveMigrate`, `LiveMigrateIfPossible` or `External`. The
    /// installation's strategy when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    /// Processor architecture of the guest: `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// SSH keys and passwords to put into the guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_credentials: Vec<AccessCredential>,
    /// Check that ends the VMI when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// Check that decides whether Services send traffic to the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// DRA claims whose devices the VMI can use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<VirtualMachineInstanceResourceClaim>,
    /// ServiceAccount the virt-launcher pod runs under; `default` when not given. The guest gets no token
    /// from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// `Paused` starts with the virtual CPUs halted (`-S`) and is refused with a liveness probe. When not
    /// given the guest runs at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_strategy: Option<String>,
    /// Claims mounted into the pod for backups and dumps, not shown to the guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub utility_volumes: Vec<UtilityVolume>,
}

/// DRA claim the VMI uses, from which GPUs, host devices or networks are taken. Set exactly one of the two
/// sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceResourceClaim {
    /// Unique in the VMI and a DNS label; devices and networks refer to it.
    pub name: String,
    /// Existing ResourceClaim in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    /// ResourceClaimTemplate from which a claim is made for each pod and deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}
