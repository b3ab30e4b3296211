//! Migrations of guests.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defaults for live migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationConfiguration {
    /// Slow the guest's CPUs down while it dirties memory faster than can be sent, QEMU's `auto-converge`;
    /// default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// At the completion timeout, run the guest on the target and fetch the rest of its memory on demand,
    /// QEMU's `postcopy-ram`. A broken connection then loses it. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// At the completion timeout, switch to post-copy where allowed, else pause the guest, rather than give
    /// up. When not given, as `allowPostCopy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Bytes per second that one migration may send, QEMU's `max-bandwidth`; 0 (default) is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds a migration may take for each GiB of memory and copied disk; 150 when not given. Then it ends
    /// or forces its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    /// True sends the guest's memory over the network unencrypted; default false.
    #[serde(rename = "disableTLS", default, skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    /// True, or not given: the target pod gets the SELinux level of the source pod. False: the container
    /// runtime picks a new one.
    #[serde(rename = "matchSELinuxLevelOnMigration", default, skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
    /// Milliseconds the guest may be paused at the switch to the target, QEMU's `downtime-limit`; 1 to
    /// 2000000, 900 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<i64>,
    /// NetworkAttachmentDefinition whose network carries migrations, in the namespace of the components. When
    /// not given, the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Deprecated: drain nodes by eviction. Key of a taint that makes machines leave a node;
    /// `kubevirt.io/drain` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    /// Migrations that may run at the same time in the cluster; 5 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<i64>,
    /// Migrations that may leave one node at the same time; 2 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<i64>,
    /// Seconds without progress after which a migration is cancelled; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// True migrates even if a disk's cache mode or storage makes data loss possible; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    /// Seconds a pending migration waits for utility volumes to go before it fails; 150 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
}
