//! `pool.kubevirt.io`: a number of virtual machines of one template.

use crate::v1::{Condition, VirtualMachineSpec};
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Changes reach VM objects at once but a running guest only at its next restart. It takes no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineOpportunisticUpdateStrategy {}

/// When a pool deletes a VM that does not come up and makes a new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolAutohealingStrategy {
    /// How long a VM may stay unready in a failed state such as `CrashLoopBackOff`, for example `10m`; `5m`
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_failing_to_start_duration: Option<String>,
    /// Failed starts in a row after which a VM is replaced; at least 1, 3 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_up_failure_threshold: Option<i64>,
}

/// Whether names used inside the template get the index of each VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolNameGeneration {
    /// When true VM number 3 uses ConfigMap `name-3` where the template has `name`; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_index_to_config_map_refs: Option<bool>,
    /// When true VM number 3 uses Secret `name-3` where the template has `name`, cloud-init Secrets included;
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_index_to_secret_refs: Option<bool>,
}

/// The pool shrinks only by VMs that others delete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolOpportunisticScaleInStrategy {
    /// What happens to a deleted VM's volumes: `Disabled` (default) drops them, `Offline` keeps them for a later VM
    /// of that index, `Online` is meant to keep memory too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_preservation: Option<String>,
}

/// The pool deletes surplus VMs itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolProactiveScaleInStrategy {
    /// Which VMs are deleted first; random ones when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
    /// What happens to a deleted VM's volumes: `Disabled` (default) drops them, `Offline` keeps them for a later VM
    /// of that index, `Online` is meant to keep memory too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_preservation: Option<String>,
}

/// Changes reach VM objects and then running guests, which are restarted where that is needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolProactiveUpdateStrategy {
    /// Which VMs are updated first; random ones when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
}

/// What happens when a pool has more VMs than wanted. At most one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolScaleInStrategy {
    /// Waits for VMs to be deleted by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opportunistic: Option<VirtualMachinePoolOpportunisticScaleInStrategy>,
    /// Deletes surplus VMs at once. This is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<VirtualMachinePoolProactiveScaleInStrategy>,
    /// Leaves removal wholly to the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<VirtualMachinePoolUnmanagedStrategy>,
}

/// Which VMs of a pool come first when some have to be picked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolSelectionPolicy {
    /// Limits the choice to VMs with certain labels or node selectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selectors: Option<VirtualMachinePoolSelectors>,
    /// Order of the choice: `AscendingOrder` or `DescendingOrder` by index, `Newest` or `Oldest` by creation,
    /// `Random` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_policy: Option<String>,
}

/// Filter for VMs of a pool; a VM has to satisfy every member given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolSelectors {
    /// Compared with the labels in the VM's template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Compared with the `nodeSelector` in the VM's template, not with the node it runs on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selector_requirement_matcher: Vec<NodeSelectorRequirement>,
}

/// Number and shape of the VMs in a pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "pool.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachinePool",
    plural = "virtualmachinepools",
    doc = "A number of virtual machines of one template.",
    namespaced,
    status = "VirtualMachinePoolStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmpool",
    shortname = "vmpools",
    category = "all",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"Desired","description":"Number of desired VirtualMachines","type":"integer","jsonPath":".spec.replicas"}"#,
    printcolumn = r#"{"name":"Current","description":"Number of managed and not final or deleted VirtualMachines","type":"integer","jsonPath":".status.replicas"}"#,
    printcolumn = r#"{"name":"Ready","description":"Number of managed VirtualMachines which are ready to receive traffic","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct VirtualMachinePoolSpec {
    /// Replaces VMs that keep failing to start. Off when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autohealing: Option<VirtualMachinePoolAutohealingStrategy>,
    /// How many VMs may be unready during an update, as a number or a percentage; `100%` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Per-VM names for ConfigMaps and Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_generation: Option<VirtualMachinePoolNameGeneration>,
    /// When true the pool neither scales nor updates its VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// VMs wanted; 1 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How surplus VMs are removed, and whether their volumes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_in_strategy: Option<VirtualMachinePoolScaleInStrategy>,
    /// Labels by which the pool finds its VMs. They must match the template and cannot be changed.
    pub selector: LabelSelector,
    /// How a changed template reaches existing VMs; proactively when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<VirtualMachinePoolUpdateStrategy>,
    /// Labels, annotations and spec of each new VM. Its name is that of the pool with an index, such as
    /// `web-0`.
    pub virtual_machine_template: VirtualMachineTemplateSpec,
}

/// What was last seen of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// `selector` written as one string, for the scale subresource and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// VMs that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// VMs that exist, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// The pool does nothing by itself; the user acts. It takes no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolUnmanagedStrategy {}

/// How VMs follow a change of the template. At most one member is set; `proactive` when none is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachinePoolUpdateStrategy {
    /// Changes the VM objects and leaves running guests until they restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opportunistic: Option<VirtualMachineOpportunisticUpdateStrategy>,
    /// Changes the VM objects and restarts running guests, within `maxUnavailable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proactive: Option<VirtualMachinePoolProactiveUpdateStrategy>,
    /// Leaves existing VMs as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<VirtualMachinePoolUnmanagedStrategy>,
}

/// Pattern from which a pool makes its VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineTemplateSpec {
    /// Labels and annotations for each VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::v1::embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Specification copied into each VM; names of DataVolume templates get the VM's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<VirtualMachineSpec>,
}
