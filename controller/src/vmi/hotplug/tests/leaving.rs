//! Disks that lose their pod, leave the guest, or end with it.

use super::*;

#[test]
fn a_guest_keeps_its_disk_when_the_pod_is_lost_and_another_one_is_made() {
    let ready = vmi(&[("data", "c")], json!([entry("Ready", "data", "c", Some("a1"))]));
    let bound = || vec![("data", claim("c", "Bound"))];
    let failed = pod("data", "c", "a1", json!({"phase": "Failed", "reason": "Evicted"}));
    let with_info = {
        let patched = plan(&observed(ready.clone(), bound(), vec![failed.clone()]), &launcher());
        let entries = planned_entries(&patched);
        assert_eq!((&entries[0]["phase"], &entries[0]["target"]), (&json!("Ready"), &json!("sda")));
        assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], "a1");
        vmi(&[("data", "c")], json!(entries))
    };
    let over = plan(&observed(with_info.clone(), bound(), vec![failed]), &launcher());
    let name = pod_name("data", "c");
    assert_eq!(over.actions, [Action::Detach { name, uid: "a1".to_owned(), wanted: true }]);
    let gone = plan(&observed(with_info.clone(), bound(), vec![]), &launcher());
    assert!(matches!(gone.actions.as_slice(), [Action::Attach { .. }]), "{gone:?}");
    let next = plan(&observed(with_info, bound(), vec![pod("data", "c", "a2", serves())]), &launcher());
    let entries = planned_entries(&next);
    assert_eq!(entries[0]["phase"], "Ready");
    assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], "a2");
    assert_eq!(next.notes, []);
}

#[test]
fn an_offered_volume_stays_offered_without_its_pod() {
    let offered = vmi(&[("data", "c")], json!([entry("AttachedToNode", "data", "c", Some("a1"))]));
    let mut dying = pod("data", "c", "a1", serves());
    dying.metadata.deletion_timestamp = Some(Time(now()));
    for pods in [vec![], vec![dying], vec![pod("data", "c", "a2", json!({"phase": "Pending"}))]] {
        let bound = vec![("data", claim("c", "Bound"))];
        let entries = planned_entries(&plan(&observed(offered.clone(), bound, pods), &launcher()));
        assert_eq!(
            (&entries[0]["phase"], &entries[0]["reason"]),
            (&json!("AttachedToNode"), &json!("MissingAttachmentPod"))
        );
        assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], "a1");
    }
}

#[test]
fn a_disk_is_released_before_its_pod_is_deleted() {
    let serving = || vec![pod("data", "c", "a1", serves())];
    for phase in ["AttachedToNode", "Ready"] {
        let vmi = vmi(&[], json!([entry(phase, "data", "c", Some("a1"))]));
        let entries = planned_entries(&plan(&observed(vmi, vec![], serving()), &launcher()));
        assert_eq!((&entries[0]["phase"], &entries[0]["target"]), (&json!("Detaching"), &json!("sda")));
        assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], "a1");
    }
    let leaving = vmi(&[], json!([entry("Detaching", "data", "c", Some("a1"))]));
    for pods in [serving(), vec![]] {
        assert_eq!(plan(&observed(leaving.clone(), vec![], pods), &launcher()), Plan::default());
    }
    for phase in ["Pending", "Bound", "UnMountedFromPod"] {
        let vmi = vmi(&[], json!([entry(phase, "data", "c", Some("a1"))]));
        let with = plan(&observed(vmi.clone(), vec![], serving()), &launcher());
        let name = pod_name("data", "c");
        assert_eq!(with.actions, [Action::Detach { name, uid: "a1".to_owned(), wanted: false }]);
        assert_eq!(planned_entries(&plan(&observed(vmi, vec![], vec![]), &launcher())), Vec::<Value>::new());
    }
}

#[test]
fn a_volume_on_another_claim_waits_until_the_former_one_has_gone() {
    let on_other = |phase: &str| vmi(&[("data", "d")], json!([entry(phase, "data", "c", Some("a1"))]));
    let other = || vec![("data", claim("d", "Bound"))];
    let entries = planned_entries(&plan(
        &observed(on_other("Ready"), other(), vec![pod("data", "c", "a1", serves())]),
        &launcher(),
    ));
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["phase"], "Detaching");
    assert_eq!(entries[0]["persistentVolumeClaimInfo"]["claimName"], "c");
    let leaving = observed(on_other("Detaching"), other(), vec![pod("data", "c", "a1", serves())]);
    assert_eq!(plan(&leaving, &launcher()), Plan::default());
    let left = observed(on_other("UnMountedFromPod"), other(), vec![pod("data", "c", "a1", serves())]);
    assert!(matches!(plan(&left, &launcher()).actions.as_slice(), [Action::Detach { .. }]));
    let entries =
        planned_entries(&plan(&observed(on_other("UnMountedFromPod"), other(), vec![]), &launcher()));
    assert_eq!(entries[0]["hotplugVolume"], json!({"attachPodName": pod_name("data", "d")}));
    assert_eq!((&entries[0]["phase"], &entries[0]["target"]), (&json!("Bound"), &json!("")));
}

#[test]
fn a_volume_that_is_wanted_again_while_it_leaves_is_offered_again() {
    let back = |phase: &str, pods: Vec<Pod>| {
        let vmi = vmi(&[("data", "c")], json!([entry(phase, "data", "c", Some("a1"))]));
        plan(&observed(vmi, vec![("data", claim("c", "Bound"))], pods), &launcher())
    };
    let entries = planned_entries(&back("Detaching", vec![pod("data", "c", "a1", serves())]));
    assert_eq!(entries[0]["phase"], "AttachedToNode");
    // The launcher has released it: from the beginning.
    let left = back("UnMountedFromPod", vec![pod("data", "c", "a1", serves())]);
    assert!(matches!(left.actions.as_slice(), [Action::Detach { wanted: true, .. }]), "{left:?}");
    assert_eq!(planned_entries(&back("UnMountedFromPod", vec![]))[0]["phase"], "Bound");
}

#[test]
fn an_ended_instance_gives_its_pods_back_once_its_launcher_ended() {
    let mut vmi = vmi(&[("data", "c")], json!([entry("Ready", "data", "c", Some("a1"))]));
    vmi.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let mut observed = observed(vmi, vec![], vec![pod("data", "c", "a1", serves())]);
    assert!(!whole_plan(&observed).actions.iter().any(|action| matches!(action, Action::Detach { .. })));
    let ended = json!({"phase": "Succeeded", "containerStatuses": [{"name": "compute", "image": "", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]});
    observed.pod.as_mut().unwrap().status = serde_json::from_value(ended).unwrap();
    assert!(matches!(whole_plan(&observed).actions.as_slice(), [Action::Detach { .. }]));
    observed.pod = None;
    assert!(matches!(whole_plan(&observed).actions.as_slice(), [Action::Detach { .. }]));
    observed.attachments.pods.clear();
    assert_eq!(whole_plan(&observed), Plan::default());
}

#[test]
fn a_deleted_instance_loses_its_launcher_first_and_keeps_its_finalizer_to_the_end() {
    let mut vmi = vmi(&[("data", "c")], json!([entry("Ready", "data", "c", Some("a1"))]));
    vmi.metadata.deletion_timestamp = Some(Time(now()));
    vmi.metadata.finalizers = Some(vec![barevirt_api::names::VMI_FINALIZER.to_owned()]);
    let mut observed = observed(vmi, vec![], vec![]);
    observed.strays = vec![crate::vmi::tests::other(pod("data", "c", "a1", serves()))];
    assert!(
        matches!(whole_plan(&observed).actions.as_slice(), [Action::DeletePod { uid, .. }] if uid == "p0")
    );
    observed.pod = None;
    let planned = whole_plan(&observed);
    assert!(matches!(planned.actions.as_slice(), [Action::Detach { uid, .. }] if uid == "a1"), "{planned:?}");
    observed.strays[0].pod.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(whole_plan(&observed).actions, []);
    observed.strays.clear();
    assert!(matches!(whole_plan(&observed).actions.as_slice(), [Action::Patch(_)]));
}

#[test]
fn a_guest_that_has_moved_keeps_its_disks_and_its_entries_name_the_pods_there() {
    let moved = |phase: &str, volumes: &[(&str, &str)]| {
        let mut vmi = vmi(volumes, json!([entry(phase, "data", "c", Some("a1"))]));
        let source = crate::pod::name("a", "u1");
        let state = json!({"migrationUid": "m1", "sourcePod": source, "targetPod": "virt-launcher-a-there",
            "completed": true, "endTimestamp": "2026-01-01T00:00:00Z"});
        vmi.status.as_mut().unwrap().migration_state = serde_json::from_value(state).unwrap();
        vmi
    };
    let there = attachment::name("u1", "data", "c", Access::Writes, Some("virt-launcher-a-there"));
    let mut launcher = launcher();
    launcher.metadata.name = Some("virt-launcher-a-there".to_owned());
    launcher.metadata.uid = Some("t0".to_owned());
    let offers = || {
        let mut pod = pod("data", "c", "a2", serves());
        pod.metadata.name = Some(there.clone());
        let owner = pod.metadata.owner_references.as_mut().unwrap().first_mut().unwrap();
        (owner.uid, owner.name) = ("t0".to_owned(), "virt-launcher-a-there".to_owned());
        pod
    };
    let bound = || vec![("data", claim("c", "Bound"))];
    let vmi = moved("Ready", &[("data", "c")]);
    let entries = planned_entries(&plan(&observed(vmi.clone(), bound(), vec![offers()]), &launcher));
    assert_eq!((&entries[0]["phase"], &entries[0]["target"]), (&json!("Ready"), &json!("sda")));
    assert_eq!(entries[0]["hotplugVolume"], json!({"attachPodName": there, "attachPodUID": "a2"}));
    // Without its pod the guest keeps the disk, and gets another pod.
    let entries = planned_entries(&plan(&observed(vmi, bound(), vec![]), &launcher));
    assert_eq!(
        (&entries[0]["phase"], &entries[0]["hotplugVolume"]["attachPodName"]),
        (&json!("Ready"), &json!(there))
    );
    // It is not wanted any more: the pod on the new node is deleted.
    let left = observed(moved("UnMountedFromPod", &[]), vec![], vec![offers()]);
    let planned = plan(&left, &launcher);
    let Some(Action::Patch(_)) = planned.actions.first() else { panic!("{planned:?}") };
    let mut vmi = left.vmi.clone();
    vmi.status.as_mut().unwrap().volume_status =
        serde_json::from_value(json!(planned_entries(&planned))).unwrap();
    let planned = plan(&observed(vmi, vec![], vec![offers()]), &launcher);
    assert_eq!(
        planned.actions,
        [Action::Detach { name: there.clone(), uid: "a2".to_owned(), wanted: false }]
    );
}
