//! The settings of a migration: those of the installation, overlaid with the best matching policy, with every default filled
//! in. Pure.

use barevirt_api::migrations::{MigrationPolicy, MigrationPolicySpec};
use barevirt_api::v1::{
    DowntimeTuningOptions, ExperimentalMigrationOptions, MigrationConfiguration, StallDetectorOptions,
    VmimConfigurationOptions,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Migrations at the same time in the cluster.
const PER_CLUSTER: i64 = 5;
/// Migrations that leave one node at the same time.
const OUTBOUND_PER_NODE: i64 = 2;
/// Taint of a node that guests are to leave.
const DRAIN_TAINT: &str = "kubevirt.io/drain";
/// No limit.
const BANDWIDTH: &str = "0";
/// Seconds for each GiB.
const COMPLETION_TIMEOUT: i64 = 150;
/// Seconds without progress until a migration is given up.
const PROGRESS_TIMEOUT: i64 = 150;
/// Longest pause of the guest at the switch, in milliseconds.
const MAX_DOWNTIME: i64 = 900;
/// Seconds that a migration waits for volumes of utility programs.
const UTILITY_VOLUMES_TIMEOUT: i64 = 150;

type Labels = BTreeMap<String, String>;

/// Settings in force for one migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// All options; those with a default are set.
    pub configuration: VmimConfigurationOptions,
    /// Name of the matching policy, if there is one.
    pub policy: Option<String>,
}

/// How many migrations may run, and the taint that starts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At the same time in the cluster.
    pub per_cluster: usize,
    /// At the same time away from one node.
    pub outbound_per_node: usize,
    /// Key of the taint that makes guests leave a node.
    pub drain_taint: String,
}

impl Limits {
    /// The installation's limits. Values out of range are ignored: admission refuses them.
    #[must_use]
    pub fn of(given: &MigrationConfiguration) -> Self {
        let count = |given: Option<i64>, default: i64| {
            usize::try_from(given.filter(|count| *count > 0).unwrap_or(default)).unwrap_or(usize::MAX)
        };
        let taint = given.node_drain_taint_key.as_deref().filter(|key| !key.is_empty());
        Limits {
            per_cluster: count(given.parallel_migrations_per_cluster, PER_CLUSTER),
            outbound_per_node: count(given.parallel_outbound_migrations_per_node, OUTBOUND_PER_NODE),
            drain_taint: taint.unwrap_or(DRAIN_TAINT).to_owned(),
        }
    }
}

/// The settings for an instance and a namespace with these labels.
#[must_use]
pub fn effective(
    given: &MigrationConfiguration,
    policies: &[MigrationPolicy],
    instance: Option<&Labels>,
    namespace: Option<&Labels>,
) -> Effective {
    let mut configuration = installation(given);
    let policy = best(policies, instance, namespace);
    if let Some(policy) = policy {
        overlay(&mut configuration, &policy.spec);
    }
    // By default it follows the final value of `allowPostCopy`.
    configuration.allow_workload_disruption =
        configuration.allow_workload_disruption.or(configuration.allow_post_copy);
    Effective { configuration, policy: policy.and_then(|policy| policy.metadata.name.clone()) }
}

/// All but `allowWorkloadDisruption`, which may follow a policy.
fn installation(given: &MigrationConfiguration) -> VmimConfigurationOptions {
    let limits = Limits::of(given);
    let MigrationConfiguration {
        allow_auto_converge,
        allow_post_copy,
        allow_workload_disruption,
        bandwidth_per_migration,
        completion_timeout_per_gi_b,
        disable_tls,
        match_se_linux_level_on_migration,
        max_downtime_ms,
        network,
        node_drain_taint_key: _,
        parallel_migrations_per_cluster: _,
        parallel_outbound_migrations_per_node: _,
        progress_timeout,
        unsafe_migration_override,
        utility_volumes_timeout,
    } = given.clone();
    let count = |count: usize| Some(i64::try_from(count).unwrap_or(i64::MAX));
    VmimConfigurationOptions {
        allow_auto_converge: allow_auto_converge.or(Some(false)),
        allow_post_copy: allow_post_copy.or(Some(false)),
        allow_workload_disruption,
        bandwidth_per_migration: bandwidth_per_migration.or_else(|| Some(Quantity(BANDWIDTH.to_owned()))),
        completion_timeout_per_gi_b: completion_timeout_per_gi_b.or(Some(COMPLETION_TIMEOUT)),
        disable_tls: disable_tls.or(Some(false)),
        experimental: None,
        match_se_linux_level_on_migration: match_se_linux_level_on_migration.or(Some(true)),
        max_downtime_ms: max_downtime_ms.or(Some(MAX_DOWNTIME)),
        network: network.filter(|network| !network.is_empty()),
        node_drain_taint_key: Some(limits.drain_taint),
        parallel_migrations_per_cluster: count(limits.per_cluster),
        parallel_outbound_migrations_per_node: count(limits.outbound_per_node),
        progress_timeout: progress_timeout.or(Some(PROGRESS_TIMEOUT)),
        unsafe_migration_override: unsafe_migration_override.or(Some(false)),
        utility_volumes_timeout: utility_volumes_timeout.or(Some(UTILITY_VOLUMES_TIMEOUT)),
    }
}

/// The policy with most matching labels; among equals the one with most labels of the instance, then the first by name.
fn best<'a>(
    policies: &'a [MigrationPolicy],
    instance: Option<&Labels>,
    namespace: Option<&Labels>,
) -> Option<&'a MigrationPolicy> {
    let fits = |wanted: &Labels, there: Option<&Labels>| {
        wanted.iter().all(|(key, value)| there.and_then(|there| there.get(key)) == Some(value))
    };
    let fitting = policies.iter().filter(|policy| {
        let selectors = &policy.spec.selectors;
        policy.metadata.deletion_timestamp.is_none()
            && fits(&selectors.virtual_machine_instance_selector, instance)
            && fits(&selectors.namespace_selector, namespace)
    });
    fitting.min_by_key(|policy| {
        let selectors = &policy.spec.selectors;
        let of_instance = selectors.virtual_machine_instance_selector.len();
        let all = of_instance + selectors.namespace_selector.len();
        (Reverse(all), Reverse(of_instance), policy.metadata.name.clone())
    })
}

/// A given value replaces the former one.
fn set<T: Clone>(into: &mut Option<T>, given: Option<&T>) {
    if let Some(given) = given {
        *into = Some(given.clone());
    }
}

fn overlay(into: &mut VmimConfigurationOptions, policy: &MigrationPolicySpec) {
    let MigrationPolicySpec {
        allow_auto_converge,
        allow_post_copy,
        allow_workload_disruption,
        bandwidth_per_migration,
        completion_timeout_per_gi_b,
        experimental,
        max_downtime_ms,
        selectors: _,
    } = policy;
    set(&mut into.allow_auto_converge, allow_auto_converge.as_ref());
    set(&mut into.allow_post_copy, allow_post_copy.as_ref());
    // A policy that allows one of the two and leaves the other out allows both.
    let disruption = allow_workload_disruption.as_ref().or(allow_post_copy.as_ref());
    set(&mut into.allow_workload_disruption, disruption);
    set(&mut into.bandwidth_per_migration, bandwidth_per_migration.as_ref());
    set(&mut into.completion_timeout_per_gi_b, completion_timeout_per_gi_b.as_ref());
    set(&mut into.max_downtime_ms, max_downtime_ms.as_ref());
    if let Some(given) = experimental {
        trials(into.experimental.get_or_insert_default(), given);
    }
}

fn trials(into: &mut ExperimentalMigrationOptions, given: &ExperimentalMigrationOptions) {
    let ExperimentalMigrationOptions { compression, downtime_tuning, stall_detector } = given;
    set(&mut into.compression, compression.as_ref());
    if let Some(DowntimeTuningOptions { cooldown_seconds, initial_ms, start_after_iteration, steps }) =
        downtime_tuning
    {
        let into = into.downtime_tuning.get_or_insert_default();
        set(&mut into.cooldown_seconds, cooldown_seconds.as_ref());
        set(&mut into.initial_ms, initial_ms.as_ref());
        set(&mut into.start_after_iteration, start_after_iteration.as_ref());
        set(&mut into.steps, steps.as_ref());
    }
    if let Some(given) = stall_detector {
        let StallDetectorOptions {
            completion_timeout_factor,
            ewma_alpha,
            patience_window_decay_factor,
            precopy_possible_factor,
            search_local_minima,
            stall_margin,
            stall_progress_timeout,
            switchover_timeout,
        } = given;
        let into = into.stall_detector.get_or_insert_default();
        set(&mut into.completion_timeout_factor, completion_timeout_factor.as_ref());
        set(&mut into.ewma_alpha, ewma_alpha.as_ref());
        set(&mut into.patience_window_decay_factor, patience_window_decay_factor.as_ref());
        set(&mut into.precopy_possible_factor, precopy_possible_factor.as_ref());
        set(&mut into.search_local_minima, search_local_minima.as_ref());
        set(&mut into.stall_margin, stall_margin.as_ref());
        set(&mut into.stall_progress_timeout, stall_progress_timeout.as_ref());
        set(&mut into.switchover_timeout, switchover_timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn given(value: Value) -> MigrationConfiguration {
        serde_json::from_value(value).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn policy(name: &str, instance: Value, namespace: Value, spec: Value) -> MigrationPolicy {
        let mut spec = spec;
        spec["selectors"] =
            json!({"virtualMachineInstanceSelector": instance, "namespaceSelector": namespace});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn of(configuration: Value, policies: &[MigrationPolicy]) -> Effective {
        let (instance, namespace) = (labels(&[("app", "shop"), ("size", "big")]), labels(&[("team", "a")]));
        effective(&given(configuration), policies, Some(&instance), Some(&namespace))
    }

    #[test]
    fn every_default_is_filled_in() {
        let Effective { configuration, policy } = of(json!({}), &[]);
        assert_eq!(policy, None);
        assert_eq!(
            serde_json::to_value(configuration).unwrap(),
            json!({"allowAutoConverge": false, "allowPostCopy": false, "allowWorkloadDisruption": false,
                "bandwidthPerMigration": "0", "completionTimeoutPerGiB": 150, "disableTLS": false,
                "matchSELinuxLevelOnMigration": true, "maxDowntimeMs": 900,
                "nodeDrainTaintKey": "kubevirt.io/drain", "parallelMigrationsPerCluster": 5,
                "parallelOutboundMigrationsPerNode": 2, "progressTimeout": 150,
                "unsafeMigrationOverride": false, "utilityVolumesTimeout": 150})
        );
        let told = of(json!({"network": "fast", "progressTimeout": 7, "allowPostCopy": true}), &[]);
        let told = serde_json::to_value(told.configuration).unwrap();
        assert_eq!((&told["network"], &told["progressTimeout"]), (&json!("fast"), &json!(7)));
        assert_eq!(told["allowWorkloadDisruption"], true);
    }

    #[test]
    fn limits_out_of_range_get_defaults() {
        let wrong = given(json!({"parallelMigrationsPerCluster": 0, "parallelOutboundMigrationsPerNode": -1,
            "nodeDrainTaintKey": ""}));
        assert_eq!(Limits::of(&wrong), Limits::of(&given(json!({}))));
        let told = given(json!({"parallelMigrationsPerCluster": 9, "parallelOutboundMigrationsPerNode": 3,
            "nodeDrainTaintKey": "out"}));
        let expected = Limits { per_cluster: 9, outbound_per_node: 3, drain_taint: "out".to_owned() };
        assert_eq!(Limits::of(&told), expected);
    }

    #[test]
    fn the_policy_with_most_labels_counts() {
        let none = json!({});
        let one = policy("one", json!({"app": "shop"}), none.clone(), json!({"maxDowntimeMs": 1}));
        let two = policy("two", json!({"app": "shop"}), json!({"team": "a"}), json!({"maxDowntimeMs": 2}));
        let own = policy("own", json!({"app": "shop", "size": "big"}), none.clone(), json!({}));
        let also = policy("also", json!({"app": "shop", "size": "big"}), none.clone(), json!({}));
        let other = policy("other", json!({"app": "bank"}), json!({"team": "a"}), json!({}));
        let all = policy("all", none.clone(), none.clone(), json!({}));
        let chosen = |policies: &[&MigrationPolicy]| {
            let policies: Vec<_> = policies.iter().copied().cloned().collect();
            of(json!({}), &policies).policy
        };
        assert_eq!(chosen(&[&other]), None);
        assert_eq!(chosen(&[&other, &all]).as_deref(), Some("all"));
        assert_eq!(chosen(&[&all, &one]).as_deref(), Some("one"));
        assert_eq!(chosen(&[&two, &one]).as_deref(), Some("two"));
        assert_eq!(chosen(&[&two, &own]).as_deref(), Some("own"));
        assert_eq!(chosen(&[&own, &also]).as_deref(), Some("also"));
        assert_eq!(effective(&given(json!({})), &[one], None, None).policy, None);
    }

    #[test]
    fn a_policy_changes_what_it_names_and_nothing_else() {
        let all = |spec: Value| policy("all", json!({}), json!({}), spec);
        let installation = json!({"allowAutoConverge": true, "bandwidthPerMigration": "64Mi"});
        let told = |spec: Value| {
            let effective = of(installation.clone(), &[all(spec)]);
            serde_json::to_value(effective.configuration).unwrap()
        };
        let changed = told(json!({"bandwidthPerMigration": "1Gi", "allowPostCopy": true,
            "experimental": {"compression": "zstd", "stallDetector": {"stallMargin": 3}}}));
        assert_eq!(changed["bandwidthPerMigration"], "1Gi");
        assert_eq!((&changed["allowAutoConverge"], &changed["allowPostCopy"]), (&json!(true), &json!(true)));
        assert_eq!(changed["allowWorkloadDisruption"], true);
        let trials = json!({"compression": "zstd", "stallDetector": {"stallMargin": 3}});
        assert_eq!(changed["experimental"], trials);
        let calm = told(json!({"allowPostCopy": true, "allowWorkloadDisruption": false}));
        assert_eq!(calm["allowWorkloadDisruption"], false);
    }
}
