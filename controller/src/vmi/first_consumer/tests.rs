//! Steps for claims and their pod: single cases, then random worlds.

use super::super::claims::{Filling, Found};
use super::super::tests::{deleting, observed, other, patch_of, running, vmi as instance};
use super::*;
use crate::vmi::plan::plan as whole_plan;
use barevirt_api::names::{APP_FIRST_CONSUMER, APP_LABEL};
use barevirt_plan::pod::first_consumer;
use serde_json::Value;

mod world;

/// An instance that has not started, with these conditions and a disk on each claim.
fn vmi_with(conditions: &Value) -> VirtualMachineInstance {
    let mut vmi = instance(json!({"phase": "Pending", "conditions": conditions}));
    let names = ["c0", "c1"];
    let volumes = names.map(|name| json!({"name": name, "dataVolume": {"name": name}}));
    let disks = names.map(|name| json!({"name": name, "disk": {}}));
    vmi.spec.volumes = serde_json::from_value(json!(volumes)).unwrap();
    vmi.spec.domain.devices.disks = serde_json::from_value(json!(disks)).unwrap();
    vmi
}

fn vmi() -> VirtualMachineInstance {
    vmi_with(&json!([]))
}

/// Claims by the phases of their DataVolumes and their own.
fn claims(all: &[(&str, &str)]) -> Claims {
    let each = all.iter().enumerate().map(|(number, (filling, phase))| {
        let name = format!("c{number}");
        let claim = (!phase.is_empty())
            .then(|| json!({"metadata": {"name": name}, "status": {"phase": phase}}))
            .map(|claim| serde_json::from_value(claim).unwrap());
        let filling = Filling { phase: (*filling).to_owned(), ..Filling::default() };
        (name, Found { claim, filling: (!filling.phase.is_empty()).then_some(filling) })
    });
    Claims::of(each)
}

fn consumer(phase: &str) -> Consumer {
    let pod = json!({"metadata": {"name": "x", "uid": "p1",
        "labels": {APP_LABEL: APP_FIRST_CONSUMER, CREATED_BY_LABEL: "u1"}}, "status": {"phase": phase}});
    Consumer { pod: serde_json::from_value(pod).unwrap(), pause: Duration::ZERO }
}

/// The steps without a pod, with one that waits for its node, with one that runs, and with one that has ended.
fn steps(all: &[(&str, &str)]) -> [&'static str; 4] {
    let consumers = [Consumer::default(), consumer("Pending"), consumer("Running"), consumer("Succeeded")];
    consumers.map(|consumer| match step(&vmi(), &claims(all), &consumer) {
        Step::Nothing => "",
        Step::Make => "make",
        Step::Keep(_) => "keep",
        Step::Remove(_) => "remove",
        other => panic!("{other:?}"),
    })
}

#[test]
fn it_is_there_while_a_claim_waits_for_it() {
    let waits = ("WaitForFirstConsumer", "Pending");
    let (made, idle) = (["make", "keep", "keep", "remove"], ["", "remove", "remove", "remove"]);
    for (all, expected) in [
        (&[][..], idle),
        (&[("", "Bound")], idle),
        (&[("", "Pending")], idle),
        (&[("", "")], idle),
        (&[waits], made),
        (&[waits, waits], made),
        (&[waits, ("Succeeded", "Bound")], made),
        (&[waits, ("", "Pending")], made),
        // It waits for the launcher; but if another pod goes first anyway, for that one.
        (&[("PendingPopulation", "Pending")], idle),
        (&[waits, ("PendingPopulation", "Pending")], made),
        // It was placed.
        (&[("WaitForFirstConsumer", "Bound")], idle),
        (&[("PVCBound", "Bound")], idle),
        (&[("ImportScheduled", "Bound")], idle),
        (&[("ImportInProgress", "Bound")], idle),
        (&[("Succeeded", "Bound")], idle),
        (&[("Failed", "Bound")], idle),
        // Another claim delays the instance.
        (&[("WaitForFirstConsumer", "")], idle),
        (&[waits, ("", "")], ["", "keep", "keep", "remove"]),
        (&[waits, ("ImportInProgress", "Bound")], ["", "keep", "keep", "remove"]),
        (&[waits, ("Failed", "Bound")], ["", "keep", "keep", "remove"]),
        // A claim of the same pod is bound only when it is filled.
        (&[("ImportInProgress", "Bound"), ("ImportInProgress", "Pending")], ["", "keep", "keep", "remove"]),
        (&[("Succeeded", "Bound"), ("PendingPopulation", "Pending")], idle),
    ] {
        assert_eq!(steps(all), expected, "{all:?}");
    }
}

#[test]
fn the_next_one_comes_after_a_pause() {
    let waits = claims(&[("WaitForFirstConsumer", "Pending")]);
    let pause = Duration::from_secs(3);
    let paused = Consumer { pod: None, pause };
    assert_eq!(step(&vmi(), &waits, &paused), Step::Pause(pause));
    assert_eq!(step(&vmi(), &claims(&[]), &paused), Step::Nothing);
}

#[test]
fn a_terminating_consumer_pod_is_waited_for() {
    let mut going = consumer("Running");
    let metadata = &mut going.pod.as_mut().unwrap().metadata;
    metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    for all in [claims(&[]), claims(&[("WaitForFirstConsumer", "Pending")])] {
        assert_eq!(step(&vmi(), &all, &going), Step::Leaving);
    }
    assert_eq!(release(going.pod.as_ref().unwrap()), None);
}

#[test]
fn a_foreign_pod_with_the_consumers_name_is_not_touched() {
    for label in [CREATED_BY_LABEL, APP_LABEL] {
        let mut foreign = consumer("Running");
        foreign.pod.as_mut().unwrap().labels_mut().remove(label);
        let waits = claims(&[("WaitForFirstConsumer", "Pending")]);
        assert!(matches!(step(&vmi(), &waits, &foreign), Step::Foreign(_)), "{label}");
        assert_eq!(step(&vmi(), &claims(&[]), &foreign), Step::Nothing, "{label}");
    }
}

#[test]
fn an_ended_consumer_pod_is_deleted_at_once() {
    let grace = |phase: Value| {
        let pod = consumer(phase.as_str().unwrap()).pod.unwrap();
        match release(&pod) {
            Some(Action::Release { name, uid, grace }) => (name, uid, grace),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(grace(json!("Succeeded")), ("x".to_owned(), "p1".to_owned(), 0));
    assert_eq!(grace(json!("Pending")).2, 1);
}

/// The whole plan for an instance with these claims.
fn planned(vmi: VirtualMachineInstance, all: &[(&str, &str)], consumer: Consumer) -> Plan {
    let mut observed = observed(vmi, None);
    (observed.claims, observed.consumer) = (claims(all), consumer);
    whole_plan(&observed)
}

/// The instance after the patch of a plan.
fn patched(vmi: &VirtualMachineInstance, body: &Value) -> VirtualMachineInstance {
    let mut value = serde_json::to_value(vmi).unwrap();
    crate::merge::apply(&mut value, body);
    serde_json::from_value(value).unwrap()
}

fn conditions(vmi: &VirtualMachineInstance) -> Vec<(String, String)> {
    let conditions = vmi.status.iter().flat_map(|status| &status.conditions);
    conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
}

fn owned_pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(type_, status)| ((*type_).to_owned(), (*status).to_owned())).collect()
}

const WAITS: (&str, &str) = ("WaitForFirstConsumer", "Pending");
const FILLED: (&str, &str) = ("Succeeded", "Bound");

#[test]
fn the_condition_comes_first_and_then_the_pod_with_all_claims() {
    let first = planned(vmi(), &[WAITS, FILLED], Consumer::default());
    assert_eq!((first.notes.len(), first.again.is_some()), (0, true));
    let noted = patched(&vmi(), patch_of(&first));
    assert_eq!(noted.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(conditions(&noted), owned_pairs(&[("Provisioning", "True"), ("DataVolumesReady", "Unknown")]));

    let second = planned(noted.clone(), &[WAITS, FILLED], Consumer::default());
    let [Action::Provision { pod, volume: None }] = second.actions.as_slice() else { panic!("{second:?}") };
    assert_eq!(pod.name_any(), first_consumer::name("a", "u1"));
    let volumes = serde_json::to_value(&pod.spec.as_ref().unwrap().volumes).unwrap();
    let claims: Vec<&Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| &volume["persistentVolumeClaim"]["claimName"])
        .collect();
    assert_eq!(claims, ["c0", "c1"]);

    let kept = planned(noted, &[WAITS, FILLED], consumer("Pending"));
    assert_eq!((kept.actions.len(), kept.again.is_some()), (0, true));
}

#[test]
fn an_unschedulable_pod_is_reported_until_it_is_scheduled() {
    let mut waiting = consumer("Pending");
    let refused = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
    waiting.pod.as_mut().unwrap().status = serde_json::from_value(refused).unwrap();
    let noted = json!([{"type": "Provisioning", "status": "True"}, {"type": "DataVolumesReady", "status": "Unknown",
        "reason": "NotAllDVsReady", "message": "Not all of the VMI's DVs are ready"}]);
    let first = planned(vmi_with(&noted), &[WAITS], waiting.clone());
    let unschedulable = patched(&vmi_with(&noted), patch_of(&first));
    let condition = &unschedulable.status.as_ref().unwrap().conditions[2];
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("PodScheduled", "False"));
    assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
    // Reported once.
    assert!(planned(unschedulable.clone(), &[WAITS], waiting).actions.is_empty());
    let placed = planned(unschedulable.clone(), &[WAITS], consumer("Pending"));
    let expected = owned_pairs(&[("Provisioning", "True"), ("DataVolumesReady", "Unknown")]);
    assert_eq!(conditions(&patched(&unschedulable, patch_of(&placed))), expected);
}

#[test]
fn no_node_is_chosen_while_a_claim_does_not_exist() {
    let told = planned(vmi(), &[("", "")], Consumer::default());
    let missing = patched(&vmi(), patch_of(&told));
    assert_eq!(conditions(&missing), owned_pairs(&[("Synchronized", "False"), ("PodScheduled", "False")]));
    let status = missing.status.as_ref().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let [synchronized, scheduled] = &status.conditions[..] else { panic!() };
    assert_eq!(synchronized.reason.as_deref(), Some("FailedPvcNotFound"));
    assert_eq!(scheduled.reason.as_deref(), Some("Unschedulable"));
    let message = "PVC ns/c0 does not exist, waiting for it to appear";
    assert_eq!(scheduled.message.as_deref(), Some(message));
    // The event is that of the first condition.
    assert_eq!(told.notes, [barevirt_component::notes::Note::warning("FailedPvcNotFound", message)]);
    // It may be bound by another pod meanwhile.
    let waits = patched(&missing, patch_of(&planned(missing.clone(), &[WAITS], Consumer::default())));
    assert!(!conditions(&waits).contains(&("PodScheduled".to_owned(), "False".to_owned())), "{waits:?}");
}

#[test]
fn the_pod_is_deleted_once_the_claims_are_bound_and_the_launcher_created_once_they_are_filled() {
    let bound = [("ImportScheduled", "Bound"), FILLED];
    let noted = patched(&vmi(), patch_of(&planned(vmi(), &[WAITS, FILLED], Consumer::default())));
    let plan = planned(noted.clone(), &bound, consumer("Running"));
    let [Action::Patch(body), Action::Release { grace: 1, .. }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    let filling = patched(&noted, body);
    let expected = [("Provisioning", "True"), ("DataVolumesReady", "Unknown"), ("Synchronized", "False")];
    assert_eq!(conditions(&filling), owned_pairs(&expected));
    assert!(planned(filling.clone(), &bound, Consumer::default()).actions.is_empty());

    // A claim may be for a single pod.
    let left = planned(filling.clone(), &[FILLED, FILLED], consumer("Succeeded"));
    assert!(matches!(left.actions.as_slice(), [Action::Release { grace: 0, .. }]), "{left:?}");
    let plan = planned(filling, &[FILLED, FILLED], Consumer::default());
    assert!(matches!(plan.actions.as_slice(), [Action::CreatePod(_)]), "{plan:?}");
}

#[test]
fn conditions_of_the_consumer_pod_end_with_the_launcher() {
    let noted =
        json!([{"type": "Provisioning", "status": "True"}, {"type": "Synchronized", "status": "False"}]);
    let mut observed = observed(vmi_with(&noted), Some(running()));
    let filling = Filling { phase: "Succeeded".to_owned(), ready: "True".to_owned(), error: None };
    let found = Found { claim: None, filling: Some(filling) };
    observed.claims = Claims::of([("c0".to_owned(), found)]);
    let running = patched(&observed.vmi, patch_of(&whole_plan(&observed)));
    assert_eq!(running.status.as_ref().unwrap().phase.as_deref(), Some("Scheduled"));
    assert_eq!(conditions(&running), owned_pairs(&[("DataVolumesReady", "True"), ("Ready", "False")]));
}

#[test]
fn a_consumers_refusal_is_shown_until_its_pod_exists() {
    let noted = patched(&vmi(), patch_of(&planned(vmi(), &[WAITS], Consumer::default())));
    let told_of =
        crate::vmi::status::refused(&noted, "FailedCreate", "exceeded quota", observed(vmi(), None).now);
    let refused = patched(&noted, patch_of(&told_of));
    let paused = Consumer { pod: None, pause: Duration::from_secs(3) };
    let waits = planned(refused.clone(), &[WAITS], paused);
    assert_eq!((waits.actions.len(), waits.again), (0, Some(Duration::from_secs(3))));
    let there = patched(&refused, patch_of(&planned(refused.clone(), &[WAITS], consumer("Pending"))));
    assert_eq!(conditions(&there), owned_pairs(&[("Provisioning", "True"), ("DataVolumesReady", "Unknown")]));
}

#[test]
fn the_pod_is_deleted_with_its_instance() {
    let mut going = observed(deleting(vmi()), None);
    going.strays = vec![other(consumer("Pending").pod.unwrap())];
    let plan = whole_plan(&going);
    assert!(matches!(plan.actions.as_slice(), [Action::Release { grace: 1, .. }]), "{plan:?}");
    let metadata = &mut going.strays[0].pod.metadata;
    metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    // The finalizer stays while the pod exists.
    assert_eq!(whole_plan(&going).actions, []);

    let mut ended = observed(instance(json!({"phase": "Failed"})), None);
    ended.consumer = consumer("Running");
    assert!(matches!(whole_plan(&ended).actions.as_slice(), [Action::Release { .. }]));
}

#[test]
fn an_instance_fails_with_what_fills_its_claim() {
    let failed = planned(vmi(), &[WAITS, ("Failed", "Bound")], consumer("Pending"));
    let status = &patch_of(&failed)["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("FailedDataVolumeImport")));
    let message = "DataVolume ns/c1 is not ready: Failed";
    assert_eq!(failed.notes, [barevirt_component::notes::Note::warning("FailedDataVolumeImport", message)]);
}

#[test]
fn a_claim_that_is_being_filled_causes_no_warning() {
    let waits = planned(vmi(), &[WAITS, ("ImportInProgress", "Bound")], consumer("Pending"));
    let message = "DataVolume ns/c1 is not ready: ImportInProgress";
    assert_eq!(waits.notes, [barevirt_component::notes::Note::normal("DataVolumeNotReady", message)]);
}
