//! Plans for volumes that come and go: single cases, then random worlds.

use super::attachments::Attachments;
use super::*;
use crate::config::Config;
use crate::vmi::claims::Claims;
use crate::vmi::claims::{Filling, Found};
use crate::vmi::consumer::Consumer;
use crate::vmi::plan::plan as whole_plan;
use barevirt_api::names::{APP_FIRST_CONSUMER, APP_HOTPLUG_DISK, APP_LABEL, CREATED_BY_LABEL};
use barevirt_api::settings::Settings;
use barevirt_plan::pod::attachment::Access;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NOW: i64 = 1_800_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// A running instance with these volumes, each on a claim, and with these entries in its status.
fn vmi(volumes: &[(&str, &str)], entries: Value) -> VirtualMachineInstance {
    let mut all = vec![json!({"name": "root", "containerDisk": {"image": "a"}})];
    let mut disks = vec![json!({"name": "root", "disk": {"bus": "virtio"}})];
    for (name, claim) in volumes {
        all.push(json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}}));
        disks.push(json!({"name": name, "disk": {"bus": "scsi"}}));
    }
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "u1", "resourceVersion": "7"},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": disks}}, "volumes": all},
        "status": {"phase": "Running", "activePods": {"p0": "node01"}, "volumeStatus": entries},
    }))
    .unwrap()
}

fn pod_name(volume: &str, claim: &str) -> String {
    attachment::name("u1", volume, claim, Access::Writes, None)
}

fn entry(phase: &str, volume: &str, claim: &str, uid: Option<&str>) -> Value {
    json!({"name": volume, "target": "sda", "phase": phase,
        "persistentVolumeClaimInfo": {"claimName": claim},
        "hotplugVolume": {"attachPodName": pod_name(volume, claim), "attachPodUID": uid}})
}

fn launcher() -> Pod {
    let compute = json!({"name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}});
    serde_json::from_value(json!({
        "metadata": {"name": crate::pod::name("a", "u1"), "namespace": "ns", "uid": "p0",
            "labels": {CREATED_BY_LABEL: "u1"}},
        "spec": {"nodeName": "node01", "containers": [{"name": "compute"}]},
        "status": {"phase": "Running", "containerStatuses": [compute]},
    }))
    .unwrap()
}

fn pod(volume: &str, claim: &str, uid: &str, status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": pod_name(volume, claim), "namespace": "ns", "uid": uid,
            "labels": {APP_LABEL: APP_HOTPLUG_DISK, CREATED_BY_LABEL: "u1"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "l", "uid": "p0", "controller": true}]},
        "status": status,
    }))
    .unwrap()
}

fn serves() -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": "hotplug-disk", "image": "", "imageID": "",
        "ready": true, "restartCount": 0}]})
}

fn claim(name: &str, phase: &str) -> Found {
    let claim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": phase, "capacity": {"storage": "2Gi"}},
    }));
    Found { claim: claim.unwrap(), filling: None }
}

fn observed(vmi: VirtualMachineInstance, claims: Vec<(&str, Found)>, pods: Vec<Pod>) -> Observed {
    let attachments = Attachments {
        claims: claims.into_iter().map(|(volume, found)| (volume.to_owned(), found)).collect(),
        withheld: BTreeMap::new(),
        pods: pods.into_iter().map(|pod| (pod.name_any(), pod)).collect(),
        pauses: BTreeMap::new(),
    };
    Observed {
        vmi,
        pod: Some(launcher()),
        is_created_here: true,
        strays: vec![],
        others: vec![],
        target: crate::vmi::others::Target::Lives,
        is_asked_to_move: false,
        node: None,
        state: None,
        claims: Claims::default(),
        consumer: Consumer::default(),
        reaches: vec![],
        grown: vec![],
        attachments,
        definitions: crate::vmi::networks::Definitions::default(),
        same_addresses: vec![],
        context_id: None,
        config: Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        },
        now: now(),
    }
}

/// The entries that a plan leaves, from its only patch.
fn planned_entries(plan: &Plan) -> Vec<Value> {
    let [Action::Patch(body)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    let entries = &body["status"]["volumeStatus"];
    assert!(entries.is_array() || entries.is_null(), "{body}");
    entries.as_array().cloned().unwrap_or_default()
}

#[test]
fn an_instance_without_such_volumes_has_no_plan() {
    let entries = json!([{"name": "root", "target": "vda"}]);
    assert_eq!(plan(&observed(vmi(&[], entries), vec![], vec![]), &launcher()), Plan::default());
}

#[test]
fn the_entry_comes_first_and_then_the_pod() {
    let root = json!({"name": "root", "target": "vda"});
    let wanted = [("data", "c")];
    let first = plan(
        &observed(vmi(&wanted, json!([root])), vec![("data", claim("c", "Bound"))], vec![]),
        &launcher(),
    );
    let entries = planned_entries(&first);
    assert_eq!(entries[0], root);
    assert_eq!(entries[1]["phase"], "Bound");
    assert_eq!(
        (&entries[1]["reason"], &entries[1]["message"]),
        (&json!("PVCNotReady"), &json!("PVC is in phase Bound"))
    );
    assert_eq!(entries[1]["hotplugVolume"], json!({"attachPodName": pod_name("data", "c")}));
    assert_eq!(entries[1]["persistentVolumeClaimInfo"]["claimName"], "c");
    assert_eq!(entries[1]["target"], "");

    let noted = vmi(&wanted, json!(entries));
    let second = observed(noted.clone(), vec![("data", claim("c", "Bound"))], vec![]);
    let planned = plan(&second, &launcher());
    let [Action::Attach { pod, volume }] = planned.actions.as_slice() else { panic!("{planned:?}") };
    assert_eq!((pod.name_any(), volume.as_str()), (pod_name("data", "c"), "data"));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let args = container.args.clone().unwrap();
    assert_eq!(args, ["--volume", "data", "--size", "1073741824"]);
    assert!(container.volume_devices.is_some());

    let mut paused = second;
    paused.attachments.pauses.insert(pod_name("data", "c"), Duration::from_secs(3));
    let planned = plan(&paused, &launcher());
    assert_eq!((planned.actions.len(), planned.again), (0, Some(Duration::from_secs(3))));
}

#[test]
fn a_device_of_another_guest_gets_no_pod_until_it_is_free() {
    let holder = "PVC c is a device that VMI b writes to";
    let seen = |entries: Value, is_free: bool| {
        let mut seen = observed(vmi(&[("data", "c")], entries), vec![("data", claim("c", "Bound"))], vec![]);
        if !is_free {
            seen.attachments.withheld.insert("data".to_owned(), holder.to_owned());
        }
        seen
    };
    let first = plan_of(&seen(json!([]), false));
    let entries = planned_entries(&first);
    let words = ["phase", "reason", "message"].map(|field| entries[0][field].as_str().unwrap());
    assert_eq!(words, ["Bound", "ClaimInUse", holder]);
    assert_eq!(first.notes, [Note::warning("ClaimInUse", holder)]);
    // It is looked at again, and told once.
    let again = plan_of(&seen(json!(entries), false));
    assert_eq!((again.actions, again.notes), (vec![], vec![]));
    assert!(again.again.is_some());
    // It is reserved by a write of the status before there is a pod.
    let reserved = planned_entries(&plan_of(&seen(json!(entries), true)));
    assert_eq!(reserved[0]["reason"], "PVCNotReady");
    let free = plan_of(&seen(json!(reserved), true));
    assert!(matches!(free.actions.as_slice(), [Action::Attach { .. }]), "{free:?}");
    // Another guest has reserved it in the same moment.
    let lost = planned_entries(&plan_of(&seen(json!(reserved), false)));
    assert_eq!(lost[0]["reason"], "ClaimInUse");
}

#[test]
fn a_claim_that_is_not_there_yet_is_told_in_kubevirts_words() {
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

/// A pod that goes before a volume's pod.
fn binder(volume: &str, claim: &str, status: Value) -> Pod {
    let mut pod = pod(volume, claim, "b1", status);
    pod.metadata.name = Some(consumer::name_beside(&pod_name(volume, claim)));
    pod.labels_mut().insert(APP_LABEL.to_owned(), APP_FIRST_CONSUMER.to_owned());
    pod
}

fn waiting(name: &str, phase: &str, filling: &str) -> Found {
    let filling = Filling { phase: filling.to_owned(), ..Filling::default() };
    Found { filling: Some(filling), ..claim(name, phase) }
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

fn plan_of(observed: &Observed) -> Plan {
    plan(observed, &launcher())
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

#[test]
fn a_volume_that_is_not_wanted_any_more_takes_the_pod_with_it() {
    let left = vmi(&[], json!([entry("Pending", "data", "c", None)]));
    let there = observed(left.clone(), vec![], vec![binder("data", "c", json!({"phase": "Pending"}))]);
    assert!(matches!(plan_of(&there).actions.as_slice(), [Action::Release { grace: 1, .. }]));
    assert_eq!(planned_entries(&plan_of(&observed(left, vec![], vec![]))), Vec::<Value>::new());
}

#[test]
fn a_pod_that_serves_is_offered_under_its_uid() {
    let waiting = vmi(&[("data", "c")], json!([entry("Bound", "data", "c", None)]));
    let bound = || vec![("data", claim("c", "Bound"))];
    let starts = observed(
        waiting.clone(),
        bound(),
        vec![pod(
            "data",
            "c",
            "a1",
            json!({"phase": "Pending", "conditions":
        [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]}),
        )],
    );
    let entries = planned_entries(&plan(&starts, &launcher()));
    assert_eq!(
        (&entries[0]["phase"], &entries[0]["reason"], &entries[0]["message"]),
        (&json!("Bound"), &json!("Unschedulable"), &json!("no room"))
    );

    let offers = plan(&observed(waiting, bound(), vec![pod("data", "c", "a1", serves())]), &launcher());
    let entries = planned_entries(&offers);
    let message = format!("Created hotplug attachment pod {}, for volume data", pod_name("data", "c"));
    assert_eq!(
        (&entries[0]["phase"], &entries[0]["reason"], &entries[0]["message"]),
        (&json!("AttachedToNode"), &json!("SuccessfulCreate"), &json!(message))
    );
    assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], "a1");
    assert_eq!(entries[0]["target"], "sda");
    assert_eq!(offers.notes, [Note::normal("SuccessfulCreate", message)]);
}

#[test]
fn only_the_instances_own_attachment_pods_are_offered() {
    let foreign = |change: &dyn Fn(&mut Pod)| {
        let mut pod = pod("data", "c", "a1", serves());
        change(&mut pod);
        pod
    };
    let owner =
        |pod: &mut Pod,
         field: &dyn Fn(&mut k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference)| {
            field(&mut pod.metadata.owner_references.as_mut().unwrap()[0]);
        };
    for squatter in [
        foreign(&|pod| pod.metadata.labels = None),
        foreign(&|pod| pod.metadata.owner_references = None),
        foreign(&|pod| owner(pod, &|owner| owner.uid = "p9".to_owned())),
        foreign(&|pod| owner(pod, &|owner| owner.controller = None)),
        foreign(&|pod| drop(pod.labels_mut().insert(CREATED_BY_LABEL.to_owned(), "u2".to_owned()))),
    ] {
        let vmi = vmi(&[("data", "c")], json!([entry("Bound", "data", "c", None)]));
        let planned =
            plan(&observed(vmi, vec![("data", claim("c", "Bound"))], vec![squatter.clone()]), &launcher());
        let entries = planned_entries(&planned);
        assert_eq!((&entries[0]["phase"], &entries[0]["reason"]), (&json!("Bound"), &json!("FailedCreate")));
        assert_eq!(entries[0]["hotplugVolume"]["attachPodUID"], Value::Null);
        assert!(planned.again.is_some());
        // Nor is it deleted.
        let left = self::vmi(&[], json!([entry("UnMountedFromPod", "data", "c", None)]));
        assert_eq!(
            planned_entries(&plan(&observed(left, vec![], vec![squatter]), &launcher())),
            Vec::<Value>::new()
        );
    }
}

#[test]
fn the_handlers_volume_status_is_kept() {
    let vmi = vmi(&[("data", "c")], json!([entry("Ready", "data", "c", Some("a1"))]));
    let planned = plan(&observed(vmi, vec![], vec![pod("data", "c", "a1", serves())]), &launcher());
    assert_eq!(planned, Plan::default());
}

#[test]
fn the_handlers_plug_failure_is_not_overwritten() {
    let mut told = entry("AttachedToNode", "data", "c", Some("a1"));
    (told["reason"], told["message"]) = (json!("FailedHotplugSync"), json!("no room on the bus"));
    let vmi = vmi(&[("data", "c")], json!([told]));
    let serving = observed(vmi.clone(), vec![], vec![pod("data", "c", "a1", serves())]);
    assert_eq!(plan(&serving, &launcher()), Plan::default());
    let starting = pod("data", "c", "a1", json!({"phase": "Pending"}));
    assert_eq!(plan(&observed(vmi.clone(), vec![], vec![starting]), &launcher()), Plan::default());
    assert_eq!(refused(&vmi, "data", "exceeded quota").actions, []);
}

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
fn a_disk_is_let_go_of_before_its_pod_goes() {
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
fn a_refusal_is_told_once_and_stays_until_there_is_a_pod() {
    let waiting = vmi(&[("data", "c")], json!([entry("Bound", "data", "c", None)]));
    let plan_of = |vmi: &VirtualMachineInstance, pods: Vec<Pod>| {
        plan(&observed(vmi.clone(), vec![("data", claim("c", "Bound"))], pods), &launcher())
    };
    let waiting = vmi(&[("data", "c")], json!(planned_entries(&plan_of(&waiting, vec![]))));
    let first = refused(&waiting, "data", "Error creating attachment pod: exceeded quota");
    let entries = planned_entries(&first);
    let message = "Error creating attachment pod: exceeded quota";
    assert_eq!((&entries[0]["reason"], &entries[0]["message"]), (&json!("FailedCreate"), &json!(message)));
    assert_eq!(first.notes, [Note::warning("FailedCreate", message)]);
    let told_of = vmi(&[("data", "c")], json!(entries));
    assert_eq!(refused(&told_of, "data", message).actions, []);
    // Retried without a write in between.
    assert!(matches!(plan_of(&told_of, vec![]).actions.as_slice(), [Action::Attach { .. }]));
    let starts =
        planned_entries(&plan_of(&told_of, vec![pod("data", "c", "a1", json!({"phase": "Pending"}))]));
    assert_eq!(starts[0]["reason"], "PVCNotReady");
    let ready = vmi(&[("data", "c")], json!([entry("Ready", "data", "c", Some("a1"))]));
    assert_eq!(refused(&ready, "data", "exceeded quota").actions, []);
}

#[test]
fn an_instance_that_is_not_valid_gets_no_pod() {
    let mut waiting = vmi(&[("data", "c")], json!([entry("Bound", "data", "c", None)]));
    waiting.spec.domain.memory = None;
    let bound = vec![("data", claim("c", "Bound"))];
    let entries = planned_entries(&plan(&observed(waiting, bound, vec![]), &launcher()));
    assert_eq!(entries[0]["reason"], "FailedCreate");
    assert!(entries[0]["message"].as_str().unwrap().contains("spec.domain"), "{}", entries[0]);
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

mod world;
