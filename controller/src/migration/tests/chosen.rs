//! Settings: recorded before the pod is made, and read again for the hand-over.

use super::*;
use crate::migration::settings::{record, recorded};

fn slow() -> Effective {
    let mut slow = settings();
    slow.policy = Some("slow".to_owned());
    slow.configuration.allow_post_copy = Some(true);
    slow
}

/// The plan of a migration that may make its pod with these settings.
fn begins(migration: VirtualMachineInstanceMigration, chosen: Effective) -> Plan {
    let mut observed = observed(migration, Some(vmi(json!({}))), None);
    let target_pod = TargetPod::Pod(Box::new(target(Value::Null)), None);
    observed.turn = Turn::Now(target_pod, Box::new(chosen));
    plan(&observed)
}

/// A migration with that status.
fn stored(status: &Value) -> VirtualMachineInstanceMigration {
    migration(json!({ "status": status }))
}

#[test]
fn settings_are_recorded_before_the_pod_is_made() {
    let first = begins(migration(json!({})), slow());
    assert!(matches!(first.actions[..], [Action::Status(_), Action::Create(_)]), "{first:?}");
    let told = status(&first);
    assert_eq!(told["migrationState"]["migrationPolicyName"], "slow");
    assert_eq!(told["migrationState"]["migrationConfiguration"]["allowPostCopy"], true);
    assert_eq!(recorded(&stored(&told)), Some(slow()));
    // The pod was not made. The next attempt writes nothing, unless the settings have changed meanwhile.
    let again = begins(stored(&told), slow());
    assert!(matches!(again.actions[..], [Action::Create(_)]), "{again:?}");
    let changed = begins(stored(&told), settings());
    let told = status(&changed);
    assert_eq!(told["migrationState"]["migrationConfiguration"], json!({"allowPostCopy": false}));
    assert_eq!(told["migrationState"].get("migrationPolicyName"), Some(&Value::Null));
}

#[test]
fn the_guest_is_handed_over_with_the_recorded_settings() {
    let mut migration = migration(in_phase("Scheduling"));
    assert_eq!(recorded(&migration), None);
    record(migration.status.as_mut().unwrap(), &slow());
    let mut observed = observed(migration, Some(vmi(json!({}))), Some(runs()));
    observed.effective = recorded(&observed.migration);
    let state = &of_vmi(&plan(&observed))["status"]["migrationState"];
    assert_eq!(state["migrationPolicyName"], "slow");
    // Every value is the recorded one.
    let recorded = serde_json::to_value(slow().configuration).unwrap();
    assert_eq!(state["migrationConfiguration"], recorded);
}
