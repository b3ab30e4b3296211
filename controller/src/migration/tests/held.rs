//! Migrations whose target pod cannot be made now.

use super::*;
use crate::migrations::row::{HELD, is_held};
use barevirt_api::names::REASON_FAILED_CREATE;
use barevirt_component::notes::Note;

const MISSING: &str = "failed to locate network attachment definition shop/blue";

/// The plan of a migration with that status, so many seconds after the first one.
fn later(stored: &Value, change: Value, seconds: i64, turn: Turn) -> Plan {
    let migration = migration(with(json!({ "status": stored }), change));
    let mut observed = observed(migration, Some(vmi(json!({}))), None);
    observed.turn = turn;
    observed.now = at(NOW + seconds);
    plan(&observed)
}

fn lacks(message: &str) -> Turn {
    now(TargetPod::Waits(message.to_owned()))
}

fn fills() -> Turn {
    now(TargetPod::Fills("DataVolume ns/new is not ready: ImportInProgress".to_owned()))
}

fn reason(status: &Value) -> &Value {
    &status["conditions"][0]["reason"]
}

/// What is stored after that plan.
fn stored(before: &Value, plan: &Plan) -> Value {
    with(before.clone(), status(plan))
}

#[test]
fn what_its_target_pod_lacks_is_told_once() {
    let first = later(&json!({}), json!({}), 0, lacks(MISSING));
    let told = status(&first);
    let condition = json!({"type": HELD, "status": "True", "reason": "FailedCreate", "message": MISSING,
        "lastTransitionTime": text(NOW)});
    assert_eq!((&told["phase"], &told["conditions"]), (&json!("Pending"), &json!([condition])));
    assert_eq!(first.notes, [(About::Vmi, Note::warning(REASON_FAILED_CREATE, MISSING))]);
    assert_eq!(first.again, Some(Duration::from_secs(5)));
    assert!(is_held(&migration(json!({ "status": told }))));
    let again = later(&told, json!({}), 200, lacks(MISSING));
    assert_eq!((again.actions.len(), again.notes.len()), (0, 0), "{again:?}");
    assert_eq!(again.again, Some(Duration::from_secs(20)));
    // Something else is missing: the time goes on.
    let other = later(&told, json!({}), 300, lacks("other"));
    let changed = &status(&other)["conditions"][0];
    assert_eq!((&changed["message"], &changed["lastTransitionTime"]), (&json!("other"), &json!(text(NOW))));
    assert_eq!(messages(&other), ["other"]);
}

#[test]
fn it_fails_with_the_reason_when_it_has_lacked_something_for_too_long() {
    let told = status(&later(&json!({}), json!({}), 0, lacks(MISSING)));
    let fails = |seconds: i64, change: Value| {
        let plan = later(&told, change, seconds, lacks(MISSING));
        let failed = !plan.actions.is_empty() && status(&plan)["phase"] == "Failed";
        assert_eq!(failed, messages(&plan).iter().any(|text| text.ends_with(MISSING)), "{plan:?}");
        failed
    };
    assert!(!fails(899, json!({})) && fails(900, json!({})));
    let annotations = json!({"metadata": {"annotations": {
        "kubevirt.io/migrationPendingPodTimeoutSeconds": "60"}}});
    assert!(!fails(59, annotations.clone()) && fails(60, annotations));
}

#[test]
fn a_claim_may_be_filled_for_as_long_as_it_takes() {
    let first = later(&json!({}), json!({}), 0, fills());
    let told = status(&first);
    assert_eq!((reason(&told), first.notes.len()), (&json!("DataVolumeNotReady"), 0));
    let long = later(&told, json!({}), 90_000, fills());
    assert_eq!((long.actions.len(), long.again), (0, Some(Duration::from_secs(30))));
    // Only from now on something is missing.
    let lacking = later(&told, json!({}), 90_000, lacks(MISSING));
    let told = stored(&told, &lacking);
    let condition = &told["conditions"][0];
    assert_eq!(condition["lastTransitionTime"], text(NOW + 90_000));
    assert_eq!((reason(&told), &told["phase"]), (&json!("FailedCreate"), &json!("Pending")));
}

#[test]
fn it_is_in_the_queue_again_once_its_pod_can_be_made() {
    let told = status(&later(&json!({}), json!({}), 0, lacks(MISSING)));
    let free = stored(&told, &later(&told, json!({}), 10, Turn::Waits));
    assert!(!is_held(&migration(json!({ "status": free }))), "{free}");
    // So it is where an obstacle comes first.
    let backup = json!({"status": {"changedBlockTracking": {"state": "Enabled", "backupStatus": {"backupName": "b"}}}});
    let waits = plan(&observed(migration(json!({ "status": told })), Some(vmi(backup)), None));
    let waits = status(&waits);
    assert_eq!(waits["conditions"].as_array().map(Vec::len), Some(1), "{waits}");
    assert_eq!(waits["conditions"][0]["type"], "migrationBlockedByBackup");
}
