//! The target's pod runs: what has to be there before the instance is handed over, and what is handed over.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[test]
fn a_pod_with_other_claims_than_its_instance_gets_no_guest() {
    let on = json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "new"}}]}});
    let with = |claim: &str| {
        let mut pod = runs();
        let volume = json!([{"name": "disk-data", "persistentVolumeClaim": {"claimName": claim}}]);
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volume).unwrap();
        plan(&observed(migration(in_phase("Scheduling")), Some(vmi(on.clone())), Some(pod)))
    };
    let hands_over = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::Vmi(_)));
    assert!(hands_over(&with("new")));
    let other = with("old");
    assert!(
        !hands_over(&other) && other.actions.iter().any(|action| matches!(action, Action::Delete { .. }))
    );
    assert_eq!(status(&other)["phase"], "Failed");
}

#[test]
fn a_pod_that_runs_is_handed_over_in_one_patch() {
    let former = json!({"status": {"migrationState": {"migrationUid": "m0", "completed": true, "failed": true,
        "sourcePod": "s", "endTimestamp": text(NOW - 99), "failureReason": "x"}}});
    let mut pod = runs();
    pod.metadata.annotations =
        Some([("kubevirt.io/memory-overhead-bytes".to_owned(), "104857600".to_owned())].into());
    let plan = plan(&observed(migration(in_phase("Scheduling")), Some(vmi(former)), Some(pod)));
    let body = of_vmi(&plan);
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert_eq!(body["metadata"]["labels"], json!({"kubevirt.io/migrationTargetNodeName": "b"}));
    assert_eq!(body["status"]["activePods"], json!({"t1": "b"}));
    let state = &body["status"]["migrationState"];
    for (field, value) in [
        ("migrationUid", "m1"),
        ("sourceNode", "a"),
        ("targetNode", "b"),
        ("targetPod", &target_name("web", "m1")),
        ("targetMemoryOverhead", "100Mi"),
    ] {
        assert_eq!(state[field], value);
    }
    // The former record is replaced completely.
    for gone in ["completed", "failed", "endTimestamp", "failureReason"] {
        assert_eq!(state.get(gone), Some(&Value::Null), "{gone}");
    }
    assert_eq!(state["migrationConfiguration"]["completionTimeoutPerGiB"], 150);
    assert_eq!(state["sourceState"], json!({"pod": "s", "node": "a", "migrationUID": "m1"}));
    assert_eq!(state["targetState"]["migrationUID"], "m1");
    assert!(matches!(plan.actions[..], [Action::Vmi(_)]), "the phase follows from the instance's record");
}

#[test]
fn a_pod_that_runs_waits_for_cards_that_come_or_leave_but_not_for_long() {
    let hands_over = |state: Option<&str>, told: &str, seconds: i64| {
        let networks = json!([{"name": "red", "multus": {"networkName": "red"}}]);
        let vmi = vmi(json!({
            "spec": {"networks": networks, "domain": {"devices": {
                "interfaces": [{"name": "red", "bridge": {}, "state": state}],
            }}},
            "status": {"interfaces": [{"name": "red", "infoSource": told}]},
        }));
        let mut pod = runs();
        let started = json!({"startedAt": text(NOW - seconds)});
        let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
        statuses[0].state = serde_json::from_value(json!({"running": started})).unwrap();
        let plan = plan(&observed(migration(in_phase("Scheduling")), Some(vmi), Some(pod)));
        let hands_over = plan.actions.iter().any(|action| matches!(action, Action::Vmi(_)));
        assert_eq!(hands_over, plan.again.is_none(), "{plan:?}");
        hands_over
    };
    for (state, told, is_there) in [
        (None, "multus-status", false),
        (None, "domain, multus-status", true),
        (Some("absent"), "domain, multus-status", false),
        (Some("absent"), "multus-status", true),
        // It comes with the target's pod.
        (None, "guest-agent", true),
    ] {
        assert_eq!(hands_over(state, told, 1), is_there, "{state:?} {told}");
        assert!(hands_over(state, told, 15));
    }
}

#[test]
fn the_record_names_the_claims_with_what_the_machine_keeps() {
    let kept = json!({"name": "persistent-state-for-this-vm", "target": "",
        "persistentVolumeClaimInfo": {"claimName": "kept"}});
    let instance = vmi(json!({"status": {"volumeStatus": [kept]}}));
    let mut pod = runs();
    barevirt_plan::pod::state::add(&mut pod, "there");
    let plan = plan(&observed(migration(in_phase("Scheduling")), Some(instance), Some(pod)));
    let state = &of_vmi(&plan)["status"]["migrationState"];
    assert_eq!(
        (&state["sourcePersistentStatePVCName"], &state["targetPersistentStatePVCName"]),
        (&json!("kept"), &json!("there"))
    );
}

#[test]
fn state_on_a_claim_of_one_node_gets_a_claim_at_the_target() {
    let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": {"name": "there"}})).unwrap();
    let mut asks = its_turn(observed(migration(in_phase("Pending")), Some(vmi(json!({}))), None));
    asks.turn = now(TargetPod::Pod(Box::new(target(Value::Null)), Some(Box::new(claim))));
    // Without the claim, the scheduler would not place the pod.
    assert!(matches!(
        plan(&asks).actions[..],
        [Action::Status(_), Action::CreateClaim(_), Action::Create(_)]
    ));
    let names = json!({"sourcePersistentStatePVCName": "here", "targetPersistentStatePVCName": "there"});
    let ended = |change: Value| {
        let state = record(with(names.clone(), change));
        plan(&observed(migration(in_phase("Running")), Some(vmi(state)), Some(runs())))
    };
    let moved = crate::vmi::kept::Moved { from: "here".to_owned(), to: "there".to_owned() };
    let succeeded = ended(json!({"completed": true, "endTimestamp": text(NOW)}));
    assert!(
        matches!(&succeeded.actions[..], [Action::SettleState(claims), Action::Status(_)] if *claims == moved),
        "{succeeded:?}"
    );
    let failed = ended(json!({"completed": true, "failed": true, "endTimestamp": text(NOW)}));
    assert!(matches!(&failed.actions[..], [Action::Status(_)]), "{failed:?}");
    // The claim of a failed migration is deleted, unless the instance keeps nothing.
    let keeps = json!({"spec": {"domain": {"devices": {"tpm": {"persistent": true}}}}});
    let ended = |phase: &str, vmi| {
        let plan = plan(&observed(migration(in_phase(phase)), vmi, None));
        plan.actions.contains(&Action::DiscardState)
    };
    assert!(ended("Failed", Some(vmi(keeps.clone()))) && ended("Failed", None));
    assert!(!ended("Failed", Some(vmi(json!({})))) && !ended("Succeeded", Some(vmi(keeps))));
}

#[test]
fn disks_that_came_while_the_guest_ran_are_there_before_it_is_handed_over() {
    let handed = |disks: TargetDisks, now: i64| {
        let phase = in_phase("Scheduling");
        let mut observed = observed(migration(phase), Some(vmi(json!({}))), Some(runs()));
        (observed.target_disks, observed.now) = (disks, at(now));
        plan(&observed)
    };
    let pods = |plan: &Plan| plan.actions.iter().filter(|one| matches!(one, Action::Attach { .. })).count();
    let waits = handed(TargetDisks::Waits(vec![(Box::new(target(Value::Null)), "data".to_owned())]), NOW);
    assert_eq!((pods(&waits), waits.again), (1, Some(Duration::from_millis(500))));
    let unsettled = handed(TargetDisks::Unsettled, NOW);
    assert!(pods(&unsettled) == 0 && unsettled.again.is_some());
    let being_filled = handed(TargetDisks::BeingFilled, NOW);
    assert_eq!((pods(&being_filled), being_filled.again), (0, Some(Duration::from_secs(2))));
    assert!(!deletes(&being_filled));
    // A device that another guest has is waited for only for a moment.
    for (seconds, fails) in [(0, false), (29, false), (30, true)] {
        let mut pod = runs();
        let status = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
        let running = status[0].state.as_mut().unwrap().running.as_mut().unwrap();
        running.started_at = Some(Time(at(NOW - seconds)));
        let mut observed = observed(migration(in_phase("Scheduling")), Some(vmi(json!({}))), Some(pod));
        (observed.target_disks, observed.now) =
            (TargetDisks::Withheld("VMI b writes to it".to_owned()), at(NOW));
        let plan = plan(&observed);
        assert_eq!((deletes(&plan), plan.again.is_some()), (fails, !fails), "{seconds}");
        assert_eq!(format!("{plan:?}").contains("VMI b writes to it"), fails, "{seconds}");
    }
    let state = &of_vmi(&handed(TargetDisks::Ready(vec!["p1".to_owned(), "p2".to_owned()]), NOW))["status"]["migrationState"];
    assert_eq!(
        (&state["targetAttachmentPodUID"], &state["targetState"]["attachmentPodUID"]),
        (&json!("p1,p2"), &json!("p1,p2"))
    );
    for failed in
        [handed(TargetDisks::Failed("why".to_owned()), NOW), handed(TargetDisks::Unsettled, NOW + 900)]
    {
        assert!(deletes(&failed) && status(&failed)["phase"] == "Failed", "{failed:?}");
    }
}

#[test]
fn a_migration_of_an_instance_that_gives_way_fails_without_waiting() {
    let told = json!([{"type": "LiveMigratable", "status": "True"},
        {"type": "VolumesChange", "status": "True", "reason": "ClaimInUse", "message": "a volume of VMI b moves to PVC new, too"}]);
    let yields = json!({"status": {"conditions": told, "migratedVolumes": [{"volumeName": "data"}]}});
    let before = plan(&its_turn(observed(migration(in_phase("Pending")), Some(vmi(yields.clone())), None)));
    assert_eq!(
        (status(&before)["phase"].clone(), before.actions.len()),
        (json!("Failed"), 1),
        "it makes no pod"
    );
    assert!(
        messages(&before)[0].contains("Reason: ClaimInUse, Message: a volume of VMI b moves"),
        "{before:?}"
    );
    // Its pod runs since this second; another instance would get some time.
    let mut pod = runs();
    let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    statuses[0].state = serde_json::from_value(json!({"running": {"startedAt": text(NOW)}})).unwrap();
    let mut with_pod = observed(migration(in_phase("Scheduling")), Some(vmi(yields)), Some(pod));
    with_pod.target_disks = TargetDisks::Withheld("why".to_owned());
    let after = plan(&with_pod);
    assert!(deletes(&after) && status(&after)["phase"] == "Failed", "{after:?}");
}
