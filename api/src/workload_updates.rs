//! How instances are updated whose launcher is of a former version.

use crate::duration;
use crate::v1::KubeVirtSpec;
use std::time::Duration;

/// Method: move the instance to a new launcher.
pub const LIVE_MIGRATE: &str = "LiveMigrate";
/// Method: evict the pod, so that the machine is started again.
pub const EVICT: &str = "Evict";

const BATCH_SIZE: usize = 10;
const BATCH_INTERVAL: Duration = Duration::from_secs(60);

/// `workloadUpdateStrategy`, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadUpdates {
    /// Whether pods of outdated instances are evicted.
    pub evict: bool,
    /// Instances in one batch.
    pub batch_size: usize,
    /// Time between two batches.
    pub batch_interval: Duration,
}

impl WorkloadUpdates {
    /// The settings from the `KubeVirt` object. A value out of range counts as not given, because running
    /// components read this and cannot refuse it.
    pub fn of(spec: &KubeVirtSpec) -> Self {
        let strategy = spec.workload_update_strategy.clone().unwrap_or_default();
        let size = strategy.batch_eviction_size.and_then(|size| usize::try_from(size).ok());
        let interval = strategy.batch_eviction_interval.as_deref().and_then(duration::parse);
        WorkloadUpdates {
            evict: strategy.workload_update_methods.iter().any(|method| method == EVICT),
            batch_size: size.unwrap_or(BATCH_SIZE),
            batch_interval: interval.unwrap_or(BATCH_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_is_evicted_unless_it_is_asked_for() {
        let of = |strategy: serde_json::Value| {
            let spec = serde_json::from_value(json!({"workloadUpdateStrategy": strategy})).unwrap();
            let WorkloadUpdates { evict, batch_size, batch_interval } = WorkloadUpdates::of(&spec);
            (evict, batch_size, batch_interval.as_secs())
        };
        assert_eq!(of(json!(null)), (false, 10, 60));
        assert_eq!(of(json!({"workloadUpdateMethods": []})), (false, 10, 60));
        let both = json!({
            "workloadUpdateMethods": ["LiveMigrate", "Evict"], "batchEvictionSize": 3, "batchEvictionInterval": "1h",
        });
        assert_eq!(of(both), (true, 3, 3600));
        let odd = json!({
            "workloadUpdateMethods": ["Evict"], "batchEvictionSize": -1, "batchEvictionInterval": "soon",
        });
        assert_eq!(of(odd), (true, 10, 60));
    }
}
