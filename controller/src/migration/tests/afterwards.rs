//! After the hand-over: phases, cancellation and time limits follow the instance's record.

use super::*;

#[test]
fn afterwards_the_source_is_asked_unless_it_cannot_have_begun() {
    let cancel = |change: Value| {
        plan(&observed(migration(canceled("PreparingTarget")), Some(vmi(record(change))), Some(runs())))
    };
    let alone = cancel(json!({}));
    let state = &of_vmi(&alone)["status"]["migrationState"];
    assert_eq!((&state["abortRequested"], &state["abortStatus"]), (&json!(true), &json!("Succeeded")));
    assert_eq!((&state["completed"], &state["failed"]), (&json!(true), &json!(true)));
    assert!(state["endTimestamp"].is_string());
    let asked = cancel(json!({"targetNodeAddress": "10.0.0.9"}));
    assert_eq!(of_vmi(&asked)["status"]["migrationState"], json!({"abortRequested": true}));
    assert_eq!(status(&asked)["conditions"][0]["type"], "migrationAbortRequested");
    let asked_before = cancel(json!({"targetNodeAddress": "10.0.0.9", "abortRequested": true}));
    assert!(matches!(asked_before.actions[..], [Action::Status(_)]), "{asked_before:?}");
}

#[test]
fn phases_follow_the_record() {
    let follow = |from: &str, change: Value, due: u64| {
        let mut observed = observed(migration(in_phase(from)), Some(vmi(record(change))), Some(runs()));
        observed.phase_due = Duration::from_secs(due);
        plan(&observed)
    };
    let address = json!({"targetNodeAddress": "10.0.0.9"});
    assert_eq!(follow("PreparingTarget", address.clone(), 0).again, Some(Duration::from_secs(1)));
    assert!(follow("PreparingTarget", address.clone(), 0).actions.is_empty());
    assert_eq!(status(&follow("PreparingTarget", address.clone(), 1))["phase"], "TargetReady");
    let started = with(address, json!({"startTimestamp": text(NOW)}));
    let running = status(&follow("PreparingTarget", started.clone(), 0));
    assert_eq!(running["phase"], "Running");
    assert!(phases(&running).contains(&"TargetReady"));
    assert_eq!(running["migrationState"]["startTimestamp"], text(NOW));
    // The phase follows the hand-over, and only where it lasts.
    assert!(follow("Scheduling", json!({}), 0).actions.is_empty());
    assert_eq!(status(&follow("Scheduling", json!({}), 1))["phase"], "PreparingTarget");
    let at_once = status(&follow("Scheduling", started.clone(), 0));
    assert_eq!(at_once["phase"], "Running");
    assert!(phases(&at_once).contains(&"PreparingTarget"));
    let ended = with(started, json!({"completed": true, "endTimestamp": text(NOW)}));
    assert_eq!(status(&follow("Running", ended.clone(), 0))["phase"], "Succeeded");
    let failed = with(ended.clone(), json!({"failed": true}));
    assert_eq!(status(&follow("Running", failed, 0))["phase"], "Failed");
    // Without an end time it has not ended.
    let half = with(ended, json!({"endTimestamp": null}));
    assert!(follow("Running", half, 0).actions.is_empty());
}

#[test]
fn a_running_migration_has_the_instances_conditions_about_it() {
    let condition = |type_: &str, message: &str| json!({"type": type_, "status": "True", "message": message, "lastTransitionTime": text(NOW)});
    let slow = condition("MigrationSlow", "limited");
    let recovery = |message: &str| condition("PostCopyRecovery", message);
    let follow = |own: Value, of_instance: Value, change: Value| {
        let running = with(in_phase("Running"), json!({"status": {"conditions": own}}));
        let state = record(with(json!({"startTimestamp": text(NOW)}), change));
        let vmi = vmi(with(state, json!({"status": {"conditions": of_instance}})));
        plan(&observed(migration(running), Some(vmi), Some(runs())))
    };
    let (none, ready) = (json!({}), json!({"type": "Ready", "status": "True"}));
    // Without any there is nothing to write.
    assert!(follow(json!([]), json!([ready]), none.clone()).actions.is_empty());
    let told = status(&follow(json!([]), json!([ready, slow]), none.clone()));
    assert_eq!(told, json!({"conditions": [slow]}));
    assert!(follow(json!([slow]), json!([ready, slow]), none.clone()).actions.is_empty());
    // What changes stays in its place.
    let (first, second) = (recovery("attempt 1"), recovery("attempt 2"));
    let changed = status(&follow(json!([first, slow]), json!([slow, second]), none.clone()));
    assert_eq!(changed, json!({"conditions": [second, slow]}));
    let gone = status(&follow(json!([slow]), json!([ready]), none));
    assert_eq!(gone.get("conditions"), Some(&Value::Null));
    let ended = json!({"completed": true, "endTimestamp": text(NOW)});
    let ended = status(&follow(json!([slow]), json!([slow]), ended));
    assert_eq!((&ended["phase"], ended.get("conditions")), (&json!("Succeeded"), Some(&Value::Null)));
}

#[test]
fn cancelling_a_completed_migration_changes_nothing() {
    let done = record(json!({"completed": true, "endTimestamp": text(NOW)}));
    let plan = plan(&observed(migration(canceled("Running")), Some(vmi(done)), Some(runs())));
    assert_eq!(status(&plan)["phase"], "Succeeded");
    assert!(!plan.actions.iter().any(|action| matches!(action, Action::Delete { .. })));
}

#[test]
fn a_record_that_is_gone_or_anothers_ends_it() {
    let cleared = plan(&observed(migration(in_phase("Running")), Some(vmi(json!({}))), Some(runs())));
    assert!(messages(&cleared)[0].contains("was cleared") && deletes(&cleared));
    let taken = record(json!({"migrationUid": "m2"}));
    let taken = plan(&observed(migration(in_phase("Running")), Some(vmi(taken)), None));
    assert!(messages(&taken)[0].contains("taken over"));
}

#[test]
fn a_target_without_preparation_times_out() {
    let since = json!({"status": {"phase": "PreparingTarget", "phaseTransitionTimestamps": [
        {"phase": "PreparingTarget", "phaseTransitionTimestamp": text(NOW - 300)}]}});
    let late = plan(&observed(migration(since.clone()), Some(vmi(record(json!({})))), Some(runs())));
    let state = &of_vmi(&late)["status"]["migrationState"];
    assert_eq!((&state["failed"], &state["completed"]), (&json!(true), &json!(true)));
    // Once it has the address, the source may have begun.
    let address = record(json!({"targetNodeAddress": "10.0.0.9"}));
    let waits = plan(&observed(migration(since), Some(vmi(address)), Some(runs())));
    assert!(waits.actions.iter().all(|action| !matches!(action, Action::Vmi(_))));
}

#[test]
fn a_source_that_does_not_begin_is_asked_to_give_up() {
    let ready = |since: i64, deleted: Option<String>, change: Value| {
        let ready = json!({"metadata": {"deletionTimestamp": deleted}, "status": {"phase": "TargetReady",
            "phaseTransitionTimestamps": [{"phase": "TargetReady", "phaseTransitionTimestamp": text(NOW - since)}]}});
        let state = with(json!({"targetNodeAddress": "10.0.0.9"}), change);
        plan(&observed(migration(ready), Some(vmi(record(state))), Some(runs())))
    };
    let state = |plan: &Plan| of_vmi(plan)["status"]["migrationState"].clone();
    let waits = ready(299, None, json!({}));
    assert!(waits.actions.is_empty(), "{waits:?}");
    assert_eq!(waits.again, Some(Duration::from_secs(1)));
    let reason = "the source node did not begin within 300 s";
    let late = ready(300, None, json!({}));
    assert_eq!(state(&late), json!({"abortRequested": true, "failureReason": reason}));
    // A user has cancelled it, it was asked before, or it has begun.
    assert_eq!(state(&ready(300, Some(text(NOW)), json!({}))), json!({"abortRequested": true}));
    for change in [json!({"abortRequested": true}), json!({"startTimestamp": text(NOW)})] {
        let plan = ready(300, None, change);
        assert!(plan.actions.iter().all(|action| !matches!(action, Action::Vmi(_))), "{plan:?}");
    }
}
