//! Plans for hotpluggable volumes: single cases, then random worlds.

use super::attachments::Attachments;
use super::*;
use crate::config::Config;
use crate::vmi::claims::Claims;
use crate::vmi::claims::{Filling, Found};
use crate::vmi::consumer::Consumer;
use crate::vmi::plan::plan as whole_plan;
use barevirt_api::names::{
    APP_FIRST_CONSUMER, APP_HOTPLUG_DISK, APP_LABEL, CREATED_BY_LABEL, DISKS_OF_LABEL,
};
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
            "labels": {APP_LABEL: APP_HOTPLUG_DISK, DISKS_OF_LABEL: "u1"},
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
        goes_first: None,
        definitions: crate::vmi::networks::definitions::Definitions::default(),
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

fn plan_of(observed: &Observed) -> Plan {
    plan(observed, &launcher())
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
    assert_eq!(entries[1], root);
    assert_eq!(entries[0]["phase"], "Bound");
    assert_eq!(
        (&entries[0]["reason"], &entries[0]["message"]),
        (&json!("PVCNotReady"), &json!("PVC is in phase Bound"))
    );
    assert_eq!(entries[0]["hotplugVolume"], json!({"attachPodName": pod_name("data", "c")}));
    assert_eq!(entries[0]["persistentVolumeClaimInfo"]["claimName"], "c");
    assert_eq!(entries[0]["target"], "");

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
    // It is looked at again, and reported once.
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
        foreign(&|pod| drop(pod.labels_mut().insert(DISKS_OF_LABEL.to_owned(), "u2".to_owned()))),
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
fn a_pod_that_a_former_version_made_still_offers_its_disk() {
    let mut former = pod("data", "c", "a1", serves());
    former.labels_mut().remove(DISKS_OF_LABEL);
    former.labels_mut().insert(CREATED_BY_LABEL.to_owned(), "u1".to_owned());
    let vmi = vmi(&[("data", "c")], json!([entry("Bound", "data", "c", None)]));
    let planned = plan(&observed(vmi, vec![("data", claim("c", "Bound"))], vec![former]), &launcher());
    assert_eq!(planned_entries(&planned)[0]["phase"], "AttachedToNode");
}

#[test]
fn a_launcher_with_the_label_of_anothers_disks_is_still_its_own_instances() {
    let mut pod = launcher();
    pod.labels_mut().insert(DISKS_OF_LABEL.to_owned(), "u2".to_owned());
    assert_eq!(status::made_for(&pod), Some("u1"));
    pod.labels_mut().remove(CREATED_BY_LABEL);
    assert_eq!(status::made_for(&pod), Some("u2"));
}

#[test]
fn pods_with_disks_are_looked_for_where_there_may_be_some() {
    assert!(!volumes::has_any(&vmi(&[], json!([]))));
    assert!(volumes::has_any(&vmi(&[("data", "c")], json!([]))));
    assert!(volumes::has_any(&vmi(&[], json!([entry("UnMountedFromPod", "data", "c", Some("a1"))]))));
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
fn a_refusal_causes_one_event_and_stays_in_the_status_until_there_is_a_pod() {
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

mod claims;
mod leaving;
mod world;
