//! `VirtualMachine`: a machine that can be started and stopped.

use super::{Condition, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When the machine runs, and what runs then. Exactly one of `running` and `runStrategy` is given.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    plural = "virtualmachines",
    doc = "A virtual machine that can be started and stopped; each run is a VirtualMachineInstance of the same name.",
    namespaced,
    status = "VirtualMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vm",
    shortname = "vms",
    category = "all",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Status","description":"Human Readable Status","type":"string","jsonPath":".status.printableStatus"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#
)]
pub struct VirtualMachineSpec {
    /// The older form of `runStrategy`: true means `Always`, false means `Halted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// `Always`: runs, and is started again whenever it ended. `Halted`: does not run. `Manual`: only the start, stop and
    /// restart commands decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    /// What runs.
    pub template: VirtualMachineInstanceTemplateSpec,
}

impl VirtualMachineSpec {
    /// The run strategy that `running` or `runStrategy` stands for; none where neither is given.
    pub fn effective_run_strategy(&self) -> Option<&str> {
        match (&self.run_strategy, self.running) {
            (Some(strategy), _) => Some(strategy),
            (None, Some(true)) => Some(crate::names::RUN_STRATEGY_ALWAYS),
            (None, Some(false)) => Some(crate::names::RUN_STRATEGY_HALTED),
            (None, None) => None,
        }
    }
}

/// What runs: metadata and specification of the instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceTemplateSpec {
    /// Labels and annotations for the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Specification of the instance.
    #[serde(default)]
    pub spec: VirtualMachineInstanceSpec,
}

/// Metadata inside a template is kept as it is, unknown fields too, as KubeVirt does.
fn embedded_metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// What is known about the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// Whether its instance exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
    /// Whether its instance runs and is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// One word for people, such as `Running` or `Stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Commands that the controller has not carried out yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Failed starts in a row, for the back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// Generation that the running instance was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The run strategy last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
}

/// A command for the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// `Start` or `Stop`.
    pub action: String,
    /// Details of the command.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Instance that a stop is meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Failed starts in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailure {
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive_fail_count: Option<i32>,
    /// The instance that failed last.
    #[serde(rename = "lastFailedVMIUID", default, skip_serializing_if = "Option::is_none")]
    pub last_failed_vmi_uid: Option<String>,
    /// When the next start is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_timestamp: Option<Time>,
}
