//! Claims that are not there yet, or wait to be filled or bound.

use super::*;

#[test]
fn a_missing_claim_is_reported_with_kubevirts_reason() {
    let going = serde_json::from_value(
        json!({"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Bound"}}),
    )
    .unwrap();
    let filled = |phase: &str, filling: &str| Found {
        filling: Some(Filling { phase: filling.to_owned(), ..Filling::default() }),
        claim: (!phase.is_empty()).then(|| claim("c", phase).claim.unwrap()),
    };
    let filling = "DataVolume ns/c is not ready: ImportInProgress";
    for (found, phase, reason, message, is_usable) in [
        (Found::default(), "Pending", "FailedPvcNotFound", "PVC c not found", false),
        (claim("c", "Pending"), "Pending", "PVCNotReady", "PVC is in phase ClaimPending", true),
        (claim("c", ""), "Pending", "PVCNotReady", "PVC is in phase ClaimPending", true),
        (claim("c", "Lost"), "Pending", "PVCNotReady", "PVC is in phase Lost", false),
        (claim("c", "Bound"), "Bound", "PVCNotReady", "PVC is in phase Bound", true),
        (filled("Bound", "Succeeded"), "Bound", "PVCNotReady", "PVC is in phase Bound", true),
        (filled("Bound", "ImportInProgress"), "Bound", "DataVolumeNotReady", filling, false),
        (filled("", "ImportInProgress"), "Pending", "DataVolumeNotReady", filling, false),
        (
            Found { claim: going, filling: None },
            "Bound",
            "FailedPvcNotFound",
            "PVC ns/c is being deleted",
            false,
        ),
    ] {
        let wanted = [("data", "c")];
        let first =
            plan(&observed(vmi(&wanted, json!([])), vec![("data", found.clone())], vec![]), &launcher());
        let entries = planned_entries(&first);
        let found_words =
            ["phase", "reason", "message"].map(|field| entries[0][field].as_str().unwrap().to_owned());
        assert_eq!(found_words, [phase, reason, message]);
        let second =
            plan(&observed(vmi(&wanted, json!(entries)), vec![("data", found)], vec![]), &launcher());
        assert_eq!(second.actions.len(), usize::from(is_usable), "{message}: {second:?}");
        assert_eq!(second.again.is_some(), !is_usable, "{message}");
    }
}

#[test]
fn a_claim_that_waits_for_a_pod_gets_one_before_that_with_the_disk() {
    let waits = || vec![("data", waiting("c", "Pending", "WaitForFirstConsumer"))];
    let first = plan(&observed(vmi(&[("data", "c")], json!([])), waits(), vec![]), &launcher());
    let entries = planned_entries(&first);
    let words = ["phase", "reason", "message"].map(|field| entries[0][field].as_str().unwrap());
    assert_eq!(words, ["Pending", "PVCNotReady", "PVC is in phase ClaimPending"]);
    let vmi = vmi(&[("data", "c")], json!(entries));

    let second = plan(&observed(vmi.clone(), waits(), vec![]), &launcher());
    let [Action::Provision { pod: made, volume }] = second.actions.as_slice() else { panic!("{second:?}") };
    let name = consumer::name_beside(&pod_name("data", "c"));
    assert_eq!((made.name_any(), volume.as_deref()), (name.clone(), Some("data")));
    assert!(second.again.is_some());
    let mut paused = observed(vmi.clone(), waits(), vec![]);
    paused.attachments.pauses.insert(name.clone(), Duration::from_secs(3));
    let planned = plan(&paused, &launcher());
    assert_eq!((planned.actions.len(), planned.again), (0, Some(Duration::from_secs(3))));

    let after = |found: Found, status: Value| {
        let observed = observed(vmi.clone(), vec![("data", found)], vec![binder("data", "c", status)]);
        plan(&observed, &launcher())
    };
    let waits = || waiting("c", "Pending", "WaitForFirstConsumer");
    let kept = after(waits(), json!({"phase": "Pending"}));
    assert_eq!((kept.actions.len(), kept.again.is_some()), (0, true));
    let unplaced = json!({"phase": "Pending", "conditions":
        [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]});
    let entries = planned_entries(&after(waits(), unplaced));
    let words = ["phase", "reason", "message"].map(|field| entries[0][field].as_str().unwrap());
    assert_eq!(words, ["Pending", "Unschedulable", "no room"]);

    // It is deleted when it has ended, and when nothing waits for it any more; the pod with the disk comes after it.
    let gone = |grace| Action::Release { name: name.clone(), uid: "b1".to_owned(), grace };
    assert_eq!(after(waits(), json!({"phase": "Failed"})).actions, [gone(0)]);
    for (phase, grace) in [("Running", 1), ("Succeeded", 0)] {
        let plan = after(waiting("c", "Bound", "Succeeded"), json!({ "phase": phase }));
        let [Action::Patch(_)] = plan.actions.as_slice() else { panic!("{plan:?}") };
        let bound = self::vmi(&[("data", "c")], json!(planned_entries(&plan)));
        let found = vec![("data", waiting("c", "Bound", "Succeeded"))];
        let there =
            observed(bound.clone(), found.clone(), vec![binder("data", "c", json!({"phase": phase}))]);
        assert_eq!(plan_of(&there).actions, [gone(grace)]);
        let plan = plan_of(&observed(bound, found, vec![]));
        assert!(matches!(plan.actions.as_slice(), [Action::Attach { .. }]), "{plan:?}");
    }
}

#[test]
fn a_claim_that_is_bound_when_it_is_filled_waits_for_the_pod_with_the_disk() {
    let found = || vec![("data", waiting("c", "Pending", "PendingPopulation"))];
    let first = plan_of(&observed(vmi(&[("data", "c")], json!([])), found(), vec![]));
    let entries = planned_entries(&first);
    assert_eq!(
        (&entries[0]["phase"], &entries[0]["message"]),
        (&json!("Pending"), &json!("PVC is in phase ClaimPending"))
    );
    let second = plan_of(&observed(vmi(&[("data", "c")], json!(entries)), found(), vec![]));
    assert!(matches!(second.actions.as_slice(), [Action::Attach { .. }]), "{second:?}");
}
