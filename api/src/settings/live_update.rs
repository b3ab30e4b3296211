//! Which changes take effect in a running guest, and how far it may grow.

use crate::quantity;
use crate::v1::KubeVirtConfiguration;

/// Limits of growth for guests that set no maximum themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveUpdate {
    /// Multiple of the first sockets and memory.
    pub ratio: u32,
    /// Most sockets, instead of the ratio.
    pub max_sockets: Option<u32>,
    /// Most memory in bytes, instead of the ratio.
    pub max_guest: Option<u64>,
}

/// KubeVirt's ratio.
const RATIO: u32 = 4;

impl Default for LiveUpdate {
    fn default() -> Self {
        LiveUpdate { ratio: RATIO, max_sockets: None, max_guest: None }
    }
}

impl LiveUpdate {
    /// `None` if changes wait for the next start. As in KubeVirt, they take effect at once if no strategy is
    /// given.
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Option<Self> {
        if configuration.vm_rollout_strategy.as_deref() == Some("Stage") {
            return None;
        }
        let given = configuration.live_update_configuration.clone().unwrap_or_default();
        let count = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok()).filter(|n| *n > 0);
        Some(LiveUpdate {
            ratio: count(given.max_hotplug_ratio).unwrap_or(RATIO),
            max_sockets: count(given.max_cpu_sockets),
            max_guest: given.max_guest.and_then(|max| quantity::bytes(&max).ok()).filter(|bytes| *bytes > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(value: Value) -> Option<LiveUpdate> {
        LiveUpdate::of_configuration(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn guests_are_updated_unless_it_is_switched_off() {
        assert_eq!(of(json!({})), Some(LiveUpdate::default()));
        assert_eq!(of(json!({"vmRolloutStrategy": "LiveUpdate"})), Some(LiveUpdate::default()));
        assert_eq!(of(json!({"vmRolloutStrategy": "Stage"})), None);
    }

    #[test]
    fn limits_are_read_and_what_is_out_of_range_counts_as_not_given() {
        let given = json!({"maxHotplugRatio": 2, "maxCpuSockets": 3, "maxGuest": "8Gi"});
        let read = LiveUpdate { ratio: 2, max_sockets: Some(3), max_guest: Some(8 << 30) };
        assert_eq!(of(json!({"liveUpdateConfiguration": given})), Some(read));
        let wrong = json!({"maxHotplugRatio": 0, "maxCpuSockets": -1, "maxGuest": "x"});
        assert_eq!(of(json!({"liveUpdateConfiguration": wrong})), Some(LiveUpdate::default()));
    }
}
