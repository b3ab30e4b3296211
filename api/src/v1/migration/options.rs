//! Settings of a migration.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stepwise raising of the allowed downtime while memory copying fails to converge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DowntimeTuningOptions {
    /// Seconds that must pass between two raises; 10 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_seconds: Option<i32>,
    /// Allowed downtime at the start, in milliseconds; 150 when not given, and never above `maxDowntimeMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_ms: Option<i64>,
    /// Passes over the memory to wait for before the first raise; 3 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after_iteration: Option<i64>,
    /// Number of equal raises between `initialMs` and `maxDowntimeMs`; 7 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<i32>,
}

/// Experimental migration settings, which may change or be removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentalMigrationOptions {
    /// Compression of memory that is sent over several connections: `none` (default) or `zstd` (QEMU:
    /// `multifd-compression`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Raises `downtime-limit` in steps during a migration. Off when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_tuning: Option<DowntimeTuningOptions>,
    /// Watches for migrations that stop converging and acts on them. Off when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_detector: Option<StallDetectorOptions>,
}

/// Thresholds for deciding that a migration has stopped converging, and for what follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StallDetectorOptions {
    /// Multiple of the completion timeout within which a forced switchover must be able to end; 2 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_factor: Option<Quantity>,
    /// Weight of the newest sample in the running bandwidth average, above 0 and up to 1; 0.4 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ewma_alpha: Option<Quantity>,
    /// Shrinks the waiting time after each loosening of the best remaining-bytes mark; 0.5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_window_decay_factor: Option<Quantity>,
    /// How many times `maxDowntimeMs` the estimated downtime may be for a switchover to be tried, not
    /// aborted; 1.5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precopy_possible_factor: Option<Quantity>,
    /// Act only near a low point of the remaining bytes, not at once on a stall; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_local_minima: Option<bool>,
    /// Percentage, 0 to 100, by which remaining bytes must beat the earlier minimum to count as progress; 4
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_margin: Option<i64>,
    /// Length in seconds of the window in which progress is looked for; 40 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_progress_timeout: Option<i64>,
    /// Seconds a triggered switchover may take before the migration is aborted; 60 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover_timeout: Option<i64>,
}

/// Settings in force for one migration: the cluster's, overlaid with the matching policy's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmimConfigurationOptions {
    /// Slow the guest's vCPUs down until its memory can be copied (QEMU: `auto-converge`); false when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// On completion timeout, run the guest on the target and fetch memory on demand (QEMU: `postcopy-ram`);
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// On completion timeout, pause the guest or go to post-copy instead of cancelling. Follows
    /// `allowPostCopy` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Bytes per second a migration may send (QEMU: `max-bandwidth`); `0` (default) sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds a migration may take per GiB of data to copy; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// Send the migration stream between nodes unencrypted; false when not given.
    #[serde(rename = "disableTLS", default, skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    /// Settings on trial: compression, downtime tuning, stall detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experimental: Option<ExperimentalMigrationOptions>,
    /// Give the target pod the source pod's SELinux level; true when not given. With false the runtime picks
    /// one.
    #[serde(rename = "matchSELinuxLevelOnMigration", default, skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
    /// Longest pause at switchover in milliseconds, 1 to 2000000 (QEMU: `downtime-limit`); 900 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<i64>,
    /// NetworkAttachmentDefinition whose network carries migrations; the pod network when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Taint that marks a node to be emptied by migrations; `kubevirt.io/drain` when not given. Eviction is
    /// the preferred way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    /// Migrations that may run at once in the cluster; 5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<i64>,
    /// Migrations that may leave one node at once; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<i64>,
    /// Seconds without progress after which a migration is cancelled; 150 when not given, `0` never cancels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// Migrate even if a check finds a danger to the guest, such as a host cache on shared disks; false when
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    /// Seconds a pending migration waits for utility volumes to be detached before it fails; 150 when not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
}
