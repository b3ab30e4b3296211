//! `migrations.kubevirt.io`: settings of migrations by selector.

use crate::v1::ExperimentalMigrationOptions;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which machines the policy is for and what it changes. Fields not given stay as the cluster has them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "migrations.kubevirt.io",
    version = "v1alpha1",
    kind = "MigrationPolicy",
    plural = "migrationpolicies",
    doc = "Settings of the migrations of the instances that it selects.",
    status = "MigrationPolicyStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct MigrationPolicySpec {
    /// Slow the guest's CPUs down while it dirties memory faster than can be sent, QEMU's `auto-converge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// At the completion timeout, run the guest on the target and fetch the rest of its memory on demand,
    /// QEMU's `postcopy-ram`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// At the completion timeout, switch to post-copy where allowed, else pause the guest, rather than give
    /// up. When not given, as `allowPostCopy` if the policy has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Bytes per second that one migration may send, QEMU's `max-bandwidth`; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds a migration may take for each GiB of memory and copied disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// Trial settings for stall detection, downtime and compression. Alpha: they may go away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experimental: Option<ExperimentalMigrationOptions>,
    /// Milliseconds the guest may be paused at the switch to the target, 1 to 2000000; QEMU's
    /// `downtime-limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<i64>,
    /// Labels that choose the machines. Of several fitting policies the one with most matching labels counts.
    pub selectors: Selectors,
}

/// Has no fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPolicyStatus {}

/// Labels that choose machines. Both kinds must fit where both are given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selectors {
    /// Labels that the machine's namespace must have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_selector: BTreeMap<String, String>,
    /// Labels that the machine's instance must have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub virtual_machine_instance_selector: BTreeMap<String, String>,
}
