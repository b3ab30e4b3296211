//! `VirtualMachineInstanceReplicaSet`: a number of instances of one template.

use super::{Condition, VirtualMachineInstanceTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many equal instances to keep running, and their template.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceReplicaSet",
    plural = "virtualmachineinstancereplicasets",
    doc = "A number of instances of one template, replaced when they end.",
    namespaced,
    status = "VirtualMachineInstanceReplicaSetStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmirs",
    shortname = "vmirss",
    category = "all",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"Desired","description":"Number of desired VirtualMachineInstances","type":"integer","jsonPath":".spec.replicas"}"#,
    printcolumn = r#"{"name":"Current","description":"Number of managed and not final or deleted VirtualMachineInstances","type":"integer","jsonPath":".status.replicas"}"#,
    printcolumn = r#"{"name":"Ready","description":"Number of managed VirtualMachineInstances which are ready to receive traffic","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct VirtualMachineInstanceReplicaSetSpec {
    /// Stop creating and deleting instances until set to false again; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Number of instances to keep; 1 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Labels by which the set recognizes its instances. The template's labels must match.
    pub selector: LabelSelector,
    /// Labels, annotations and specification of each new instance.
    pub template: VirtualMachineInstanceTemplateSpec,
}

/// Instances counted by the replica set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceReplicaSetStatus {
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The selector as a string, read by the horizontal autoscaler through the `scale` subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// Instances whose `Ready` condition is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Instances that exist and have not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}
