//! What the status says about a migration that has used half of its time. Pure.

use barevirt_api::names::{CONDITION_MIGRATION_SLOW, REASON_BANDWIDTH, REASON_DIRTY_RATE, REASON_DOWNTIME};
use barevirt_api::v1::{Condition, merge_condition};
use barevirt_protocol::v1::{MigrationBottleneck, MigrationState as Stage, MigrationStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Sets the condition from the time on at which the launcher says what limits the migration, and removes it when the
/// migration has ended.
pub fn set_condition(conditions: &mut Vec<Condition>, told: Option<&MigrationStatus>, now: &Time) {
    let under_way =
        told.filter(|told| matches!(told.state(), Stage::Sending | Stage::Switching | Stage::Sent));
    let Some(slow) = under_way.and_then(|told| told.slow.as_ref()) else {
        Condition::remove(conditions, CONDITION_MIGRATION_SLOW);
        return;
    };
    let reason = match slow.bottleneck() {
        MigrationBottleneck::Bandwidth => REASON_BANDWIDTH,
        MigrationBottleneck::DirtyRate => REASON_DIRTY_RATE,
        MigrationBottleneck::Downtime => REASON_DOWNTIME,
        // A later launcher knows more of them. Its text says which one it is.
        MigrationBottleneck::Unspecified => "",
    };
    let condition = Condition::new(CONDITION_MIGRATION_SLOW, true, reason, slow.text.as_str());
    merge_condition(conditions, condition, now);
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::v1::MigrationSlow;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn told(bottleneck: i32, stage: Stage) -> MigrationStatus {
        let slow = MigrationSlow { bottleneck, text: "limited".to_owned() };
        MigrationStatus { state: stage.into(), slow: Some(slow), ..MigrationStatus::default() }
    }

    #[test]
    fn what_limits_a_migration_is_a_condition_until_it_ends() {
        let mut conditions = Vec::new();
        let limited = MigrationBottleneck::DirtyRate.into();
        set_condition(&mut conditions, Some(&told(limited, Stage::Sending)), &at(1));
        let first = conditions.clone();
        assert_eq!((first[0].type_.as_str(), first[0].is_true()), ("MigrationSlow", true));
        assert_eq!(
            (first[0].reason.as_deref(), first[0].message.as_deref()),
            (Some("DirtyRate"), Some("limited"))
        );
        // Nothing is written again while it goes on.
        for stage in [Stage::Sending, Stage::Switching, Stage::Sent] {
            set_condition(&mut conditions, Some(&told(limited, stage)), &at(9));
            assert_eq!(conditions, first, "{stage:?}");
        }
        let fast = MigrationStatus { slow: None, ..told(limited, Stage::Sending) };
        for last in [Some(&told(limited, Stage::Over)), Some(&fast), None] {
            let mut conditions = first.clone();
            set_condition(&mut conditions, last, &at(9));
            assert!(conditions.is_empty(), "{last:?}");
        }
    }

    #[test]
    fn each_bottleneck_is_a_reason() {
        for (bottleneck, reason) in [
            (MigrationBottleneck::Bandwidth.into(), Some("Bandwidth")),
            (MigrationBottleneck::Downtime.into(), Some("Downtime")),
            (99, None),
        ] {
            let mut conditions = Vec::new();
            set_condition(&mut conditions, Some(&told(bottleneck, Stage::Sending)), &at(1));
            assert_eq!(conditions[0].reason.as_deref(), reason);
        }
    }
}
