//! Steps and statuses of machines: single cases, then random worlds.

use super::instancetype::References;
use super::plan::{Observed, Step, plan};
use super::status::{Outcome, compute};
use super::{DataVolumes, Drift, Work};
use barevirt_api::names::VM_FINALIZER;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineStatus};
use barevirt_plan::data_volumes::Told;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn vm(strategy: &str, status: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "m1", "generation": 2, "resourceVersion": "5",
            "finalizers": [VM_FINALIZER]},
        "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"devices": {}}}}},
        "status": status,
    }))
    .unwrap()
}

fn vmi(uid: &str, phase: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": uid, "annotations": {"kubevirt.io/vm-generation": "2"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "a",
                "uid": "m1", "controller": true}]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase, "phaseTransitionTimestamps": [{"phase": phase}]},
    }))
    .unwrap()
}

fn ran(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
    vmi.status.as_mut().unwrap().phase_transition_timestamps =
        serde_json::from_value(json!([{"phase": "Running"}])).unwrap();
    vmi
}

fn deleting(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
    vmi.metadata.deletion_timestamp = Some(Time(at(NOW)));
    vmi
}

fn step(vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>) -> Step {
    plan(&Observed {
        vm: vm.clone(),
        vmi,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW),
    })
}

fn stop(uid: &str) -> Step {
    Step::Stop(uid.to_owned())
}

fn report(vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>) -> VirtualMachineStatus {
    let observed = Observed {
        vm: vm.clone(),
        vmi: vmi.clone(),
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW),
    };
    compute(&observed, vmi.as_ref(), &Outcome::Quiet)
}

fn printable(vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>) -> String {
    report(vm, vmi).printable_status.unwrap()
}

fn with_condition(mut vmi: VirtualMachineInstance, type_: &str, reason: &str) -> VirtualMachineInstance {
    let condition = json!({"type": type_, "status": "False", "reason": reason});
    vmi.status.as_mut().unwrap().conditions.push(serde_json::from_value(condition).unwrap());
    vmi
}

#[test]
fn an_ending_instance_leaves_its_pci_addresses_for_the_next() {
    let name = "barevirt.dev/pci-layout".to_owned();
    let mut machine = vm("Always", json!({}));
    let mut instance = vmi("i1", "Running");
    instance.metadata.annotations.get_or_insert_default().insert(name.clone(), "L".to_owned());
    assert_eq!(step(&machine, Some(instance.clone())), Step::Rest);
    let ending = deleting(instance);
    assert_eq!(step(&machine, Some(ending.clone())), Step::Remember(name.clone(), "L".to_owned()));
    machine.metadata.annotations.get_or_insert_default().insert(name.clone(), "L".to_owned());
    assert_eq!(step(&machine, Some(ending)), Step::Rest);
    let Step::Start(next) = step(&machine, None) else { panic!("no start") };
    assert_eq!(next.metadata.annotations.unwrap().get(&name).map(String::as_str), Some("L"));
}

#[test]
fn strategies_start_and_stop() {
    let none = json!({});
    assert!(matches!(step(&vm("Always", none.clone()), None), Step::Start(_)));
    assert!(matches!(step(&vm("Once", none.clone()), None), Step::Start(_)));
    assert!(matches!(step(&vm("RerunOnFailure", none.clone()), None), Step::Start(_)));
    assert_eq!(step(&vm("Halted", none.clone()), None), Step::Rest);
    assert_eq!(step(&vm("Manual", none.clone()), None), Step::Rest);

    let running = || Some(ran(vmi("i1", "Running")));
    assert_eq!(step(&vm("Always", none.clone()), running()), Step::Rest);
    assert_eq!(step(&vm("Manual", none.clone()), running()), Step::Rest);
    assert_eq!(step(&vm("Halted", none.clone()), running()), stop("i1"));

    let ended = || Some(ran(vmi("i1", "Succeeded")));
    assert_eq!(step(&vm("Always", none.clone()), ended()), stop("i1"));
    assert_eq!(step(&vm("Manual", none.clone()), ended()), Step::Rest);
    assert_eq!(step(&vm("Once", none.clone()), ended()), Step::Rest);
    assert_eq!(step(&vm("Always", none), Some(deleting(ran(vmi("i1", "Running"))))), Step::Rest);
}

#[test]
fn a_receiver_waits_until_it_is_to_run_here() {
    let machine = vm("WaitAsReceiver", json!({}));
    let Step::Start(mut waiting) = step(&machine, None) else { panic!("no start") };
    let annotation = "kubevirt.io/create-migration-target".to_owned();
    assert_eq!(waiting.metadata.annotations.as_ref().unwrap().get(&annotation).unwrap(), "true");
    waiting.metadata.uid = Some("i1".to_owned());
    waiting.status = vmi("i1", "WaitingForSync").status;
    let waiting = *waiting;
    assert_eq!(step(&machine, Some(waiting.clone())), Step::Rest);
    assert_eq!(printable(&machine, Some(waiting.clone())), "WaitingForReceiver");
    assert_eq!(step(&machine, Some(ran(vmi("i1", "Succeeded")))), stop("i1"));
    let why = "Found non receiver VMI while VM is receiver".to_owned();
    assert_eq!(step(&machine, Some(vmi("i1", "Running"))), Step::Blocked(why));
    for strategy in ["Always", "RerunOnFailure", "Manual", "Once", "Halted"] {
        assert_eq!(step(&vm(strategy, json!({})), Some(waiting.clone())), stop("i1"), "{strategy}");
    }
    // The next one would wait just the same.
    let mut machine = vm("Always", json!({}));
    machine.spec.template.metadata.get_or_insert_default().annotations =
        Some([(annotation, "true".to_owned())].into());
    assert_eq!(step(&machine, Some(waiting)), Step::Rest);
}

#[test]
fn running_is_the_older_word() {
    let mut machine = vm("Always", json!({}));
    machine.spec.run_strategy = None;
    assert_eq!(step(&machine, None), Step::Rest);
    machine.spec.running = Some(true);
    assert!(matches!(step(&machine, None), Step::Start(_)));
    machine.spec.running = Some(false);
    assert_eq!(step(&machine, Some(vmi("i1", "Running"))), stop("i1"));
}

#[test]
fn commands_are_carried_out_in_order_and_taken_away() {
    let restart = json!({"stateChangeRequests": [{"action": "Stop", "uid": "i1"}, {"action": "Start"}]});
    let machine = vm("Manual", restart);
    let old = ran(vmi("i1", "Running"));
    assert_eq!(step(&machine, Some(old.clone())), stop("i1"));
    assert_eq!(report(&machine, Some(old)).state_change_requests.len(), 2);
    // The stop is done once the instance is gone; the start is next.
    assert!(matches!(step(&machine, None), Step::Start(_)));
    assert_eq!(report(&machine, None).state_change_requests.len(), 1);
    assert!(report(&machine, Some(vmi("i2", "Pending"))).state_change_requests.is_empty());
}

#[test]
fn a_stop_is_meant_for_one_instance() {
    let machine = vm("Manual", json!({"stateChangeRequests": [{"action": "Stop", "uid": "i1"}]}));
    let other = ran(vmi("i2", "Running"));
    assert_eq!(step(&machine, Some(other.clone())), Step::Rest);
    assert!(report(&machine, Some(other)).state_change_requests.is_empty());
}

#[test]
fn a_manual_start_clears_an_ended_instance_away() {
    let machine = vm("Manual", json!({"stateChangeRequests": [{"action": "Start"}]}));
    assert_eq!(step(&machine, Some(ran(vmi("i1", "Succeeded")))), stop("i1"));
}

#[test]
fn rerun_on_failure_stores_its_intention_before_it_deletes() {
    let machine = vm("RerunOnFailure", json!({"runStrategy": "RerunOnFailure"}));
    let failed = ran(vmi("i1", "Failed"));
    assert_eq!(step(&machine, Some(failed.clone())), Step::Report);
    let status = report(&machine, Some(failed.clone()));
    let machine = VirtualMachine { status: Some(status), ..machine };
    assert_eq!(step(&machine, Some(failed)), stop("i1"));
    assert!(matches!(step(&machine, None), Step::Start(_)));

    let machine = vm("RerunOnFailure", json!({"runStrategy": "RerunOnFailure"}));
    assert_eq!(step(&machine, Some(ran(vmi("i1", "Succeeded")))), stop("i1"));
    assert_eq!(step(&machine, None), Step::Rest);
}

#[test]
fn an_early_failure_is_stored_then_cleared_away_then_waited_for() {
    let machine = vm("Always", json!({}));
    let failed = vmi("i1", "Failed");
    assert_eq!(step(&machine, Some(failed.clone())), Step::Report);
    let status = report(&machine, Some(failed.clone()));
    assert_eq!(status.start_failure.as_ref().unwrap().consecutive_fail_count, Some(1));
    assert_eq!(status.printable_status.as_deref(), Some("CrashLoopBackOff"));
    let machine = VirtualMachine { status: Some(status), ..machine };
    assert_eq!(step(&machine, Some(failed)), stop("i1"));
    assert!(matches!(step(&machine, None), Step::Wait(left) if left.as_secs() >= 10));
    assert_eq!(printable(&machine, None), "CrashLoopBackOff");
    let later = Observed {
        vm: machine.clone(),
        vmi: None,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW + 16),
    };
    assert!(matches!(plan(&later), Step::Start(_)));
    // The next one runs: forgotten.
    assert_eq!(report(&machine, Some(ran(vmi("i2", "Running")))).start_failure, None);
}

#[test]
fn ownership_decides() {
    let machine = vm("Always", json!({}));
    let mut other = vmi("i1", "Running");
    other.metadata.owner_references.as_mut().unwrap()[0].uid = "m0".to_owned();
    assert_eq!(
        step(&machine, Some(other)),
        Step::Blocked("virtual machine instance a exists and belongs to VirtualMachine a".to_owned())
    );
    let mut orphan = vmi("i1", "Running");
    orphan.metadata.owner_references = None;
    assert_eq!(step(&machine, Some(orphan.clone())), Step::Adopt);
    assert_eq!(step(&machine, Some(deleting(orphan))), Step::Rest);
}

#[test]
fn deletion_takes_the_instance_first() {
    let mut machine = vm("Always", json!({}));
    machine.metadata.deletion_timestamp = Some(Time(at(NOW)));
    let running = ran(vmi("i1", "Running"));
    assert_eq!(step(&machine, Some(running.clone())), stop("i1"));
    assert_eq!(step(&machine, Some(deleting(running.clone()))), Step::Rest);
    assert_eq!(printable(&machine, Some(running.clone())), "Terminating");
    assert_eq!(step(&machine, None), Step::Release);
    let mut orphan = running.clone();
    orphan.metadata.owner_references = None;
    assert_eq!(step(&machine, Some(orphan)), Step::Release);
    machine.metadata.finalizers.as_mut().unwrap().push("orphan".to_owned());
    assert_eq!(step(&machine, Some(running)), Step::Release);
    machine.metadata.finalizers = None;
    assert_eq!(step(&machine, None), Step::Rest);
}

#[test]
fn the_finalizer_comes_before_the_instance() {
    let mut machine = vm("Always", json!({}));
    machine.metadata.finalizers = None;
    assert_eq!(step(&machine, None), Step::Hold);
}

#[test]
fn what_a_machine_names_is_kept_before_it_starts() {
    let named = |strategy: &str, status: Value| {
        let mut machine = vm(strategy, status);
        machine.spec.instancetype = serde_json::from_value(json!({"name": "small"})).unwrap();
        machine
    };
    let kept = json!({"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "r"}}});
    assert_eq!(step(&named("Always", json!({})), None), Step::Record);
    assert_eq!(step(&named("Halted", json!({})), None), Step::Record);
    assert!(matches!(step(&named("Always", kept.clone()), None), Step::Start(_)));
    assert_eq!(step(&named("Halted", kept.clone()), None), Step::Rest);
    // Nothing keeps it from being stopped or deleted.
    assert_eq!(step(&named("Halted", json!({})), Some(ran(vmi("i1", "Running")))), stop("i1"));
    let mut leaving = named("Halted", json!({}));
    leaving.metadata.deletion_timestamp = Some(Time(at(NOW)));
    assert_eq!(step(&leaving, None), Step::Release);

    let machine = named("Always", json!({"preferenceRef": {"name": "old"}}));
    let observed = Observed {
        vm: machine,
        vmi: None,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW),
    };
    let references: VirtualMachineStatus = serde_json::from_value(kept).unwrap();
    let recorded = References { instancetype: references.instancetype_ref.clone(), preference: None };
    let status = compute(&observed, None, &Outcome::Recorded(Box::new(recorded)));
    assert_eq!(status.instancetype_ref, references.instancetype_ref);
    assert_eq!(status.preference_ref.unwrap().name.as_deref(), Some("old"));
    let missing = Outcome::Failed { reason: "FailedFindInstancetype", message: "small not found".to_owned() };
    let status = compute(&observed, None, &missing);
    let failure = status.conditions.iter().find(|condition| condition.type_ == "Failure").unwrap();
    assert_eq!(failure.reason.as_deref(), Some("FailedFindInstancetype"));
    assert_eq!(status.printable_status.as_deref(), Some("Stopped"));
}

#[test]
fn words_for_people() {
    let machine = vm("Always", json!({}));
    for (instance, word) in [
        (None, "Stopped"),
        (Some(vmi("i", "Pending")), "Starting"),
        (Some(vmi("i", "Scheduling")), "Starting"),
        (Some(vmi("i", "Scheduled")), "Starting"),
        (Some(ran(vmi("i", "Running"))), "Running"),
        (Some(deleting(ran(vmi("i", "Running")))), "Stopping"),
        (Some(ran(vmi("i", "Succeeded"))), "Stopped"),
        (Some(vmi("i", "Failed")), "CrashLoopBackOff"),
        (Some(with_condition(vmi("i", "Scheduling"), "PodScheduled", "Unschedulable")), "ErrorUnschedulable"),
        (Some(with_condition(vmi("i", "Scheduling"), "Synchronized", "ErrImagePull")), "ErrImagePull"),
        (
            Some(with_condition(vmi("i", "Scheduling"), "Synchronized", "ImagePullBackOff")),
            "ImagePullBackOff",
        ),
        (Some(with_condition(vmi("i", "Scheduling"), "Synchronized", "Other")), "Starting"),
        (Some(vmi("i", "Unknown")), "Unknown"),
    ] {
        assert_eq!(printable(&machine, instance.clone()), word, "{instance:?}");
    }
    let mut paused = ran(vmi("i", "Running"));
    let condition = json!({"type": "Paused", "status": "True"});
    paused.status.as_mut().unwrap().conditions.push(serde_json::from_value(condition).unwrap());
    assert_eq!(printable(&machine, Some(paused)), "Paused");
    let held = Observed {
        vm: machine,
        vmi: None,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW),
    };
    assert_eq!(compute(&held, None, &Outcome::Held).printable_status.as_deref(), Some("Starting"));
}

/// The budget: `Starting` and `Running` are all that a start writes here.
#[test]
fn a_start_costs_two_statuses() {
    let mut machine = vm("Always", json!({}));
    let mut writes = vec![];
    let not_running = |phase| {
        with_ready(vmi("i1", phase), "False", "GuestNotRunning", "Guest VM is not reported as running")
    };
    for instance in [
        vmi("i1", "Pending"),
        vmi("i1", "Pending"),
        not_running("Scheduling"),
        not_running("Scheduled"),
        with_ready(ran(vmi("i1", "Running")), "True", "", ""),
        with_ready(ran(vmi("i1", "Running")), "True", "", ""),
    ] {
        let status = report(&machine, Some(instance));
        if machine.status.as_ref() != Some(&status) {
            writes.push(status.printable_status.clone().unwrap());
            machine.status = Some(status);
        }
    }
    assert_eq!(writes, ["Starting", "Running"]);
    assert_eq!(machine.status.unwrap().ready, Some(true));
}

fn with_ready(
    mut vmi: VirtualMachineInstance,
    status: &str,
    reason: &str,
    message: &str,
) -> VirtualMachineInstance {
    let mut condition = json!({"type": "Ready", "status": status});
    if !reason.is_empty() {
        condition["reason"] = json!(reason);
        condition["message"] = json!(message);
    }
    vmi.status.as_mut().unwrap().conditions.push(serde_json::from_value(condition).unwrap());
    vmi
}

#[test]
fn conditions_follow_the_instance() {
    let machine = vm("Always", json!({}));
    let status =
        report(&machine, Some(with_condition(vmi("i1", "Scheduling"), "Synchronized", "ErrImagePull")));
    let types: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Ready", "Synchronized"]);
    let machine = VirtualMachine { status: Some(status), ..machine };
    let status = report(&machine, None);
    assert_eq!(status.conditions.len(), 1);
    assert_eq!(status.conditions[0].reason.as_deref(), Some("VMINotExists"));
    let observed = Observed {
        vm: machine,
        vmi: None,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        data_volumes: DataVolumes::default(),
        now: at(NOW),
    };
    let failed = Outcome::Failed { reason: "FailedCreate", message: "told why".to_owned() };
    let status = compute(&observed, None, &failed);
    assert_eq!(status.conditions[1].type_, "Failure");
    assert_eq!(status.printable_status.as_deref(), Some("Stopped"));
}

#[test]
fn once_means_once_until_somebody_deletes_the_instance() {
    let machine = vm("Once", json!({}));
    let failed = vmi("i1", "Failed");
    assert_eq!(step(&machine, Some(failed.clone())), Step::Report);
    let machine = VirtualMachine { status: Some(report(&machine, Some(failed.clone()))), ..machine };
    assert_eq!(printable(&machine, Some(failed.clone())), "CrashLoopBackOff");
    assert_eq!(step(&machine, Some(failed)), Step::Rest);
    assert!(matches!(step(&machine, None), Step::Start(_)));
}

#[test]
fn a_request_with_data_switches_a_halted_machine_on_and_is_heeded_by_the_start() {
    let asked = json!({"stateChangeRequests": [{"action": "Start", "data": {"paused": "true"}}]});
    assert_eq!(step(&vm("Halted", asked.clone()), None), Step::SwitchOn);
    assert_eq!(step(&vm("Halted", asked.clone()), Some(ran(vmi("i1", "Running")))), stop("i1"));
    let Step::Start(paused) = step(&vm("Always", asked), None) else { panic!("no start") };
    assert_eq!(paused.spec.start_strategy.as_deref(), Some("Paused"));
    let plain = json!({"stateChangeRequests": [{"action": "Stop", "uid": "i0"}, {"action": "Start"}]});
    let Step::Start(plain) = step(&vm("Manual", plain), None) else { panic!("no start") };
    assert_eq!(plain.spec.start_strategy, None);
}

#[test]
fn an_instance_names_the_revision_it_is_made_from() {
    let Step::Start(instance) = step(&vm("Always", json!({})), None) else { panic!("no start") };
    let status = instance.status.unwrap();
    assert_eq!(status.virtual_machine_revision_name.as_deref(), Some("revision-start-vm-m1-2"));
}

#[test]
fn what_moved_on_needs_a_restart() {
    let running = || ran(vmi("i1", "Running"));
    let with = |vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>, drift| {
        let observed = Observed {
            vm: vm.clone(),
            vmi: vmi.clone(),
            drift,
            live: crate::vm::Live::Done,
            data_volumes: DataVolumes::default(),
            now: at(NOW),
        };
        (plan(&observed), compute(&observed, vmi.as_ref(), &Outcome::Quiet))
    };
    let told = |status: &VirtualMachineStatus| {
        status.conditions.iter().any(|condition| condition.type_ == "RestartRequired" && condition.is_true())
    };
    let machine = vm("Always", json!({}));
    let (step, moved) = with(&machine, Some(running()), Drift::Guest);
    assert!(told(&moved) && step == Step::Rest);
    let machine = VirtualMachine { status: Some(moved), ..machine };
    // It stays while nothing is known, and goes with the change or with the instance.
    assert!(told(&with(&machine, Some(running()), Drift::Unknown).1));
    for (instance, drift) in [
        (Some(running()), Drift::None),
        (Some(running()), Drift::Metadata),
        (Some(deleting(running())), Drift::Guest),
        (Some(ran(vmi("i1", "Failed"))), Drift::Guest),
        (None, Drift::None),
    ] {
        assert!(!told(&with(&machine, instance.clone(), drift).1), "{drift:?} {instance:?}");
    }
}

#[test]
fn a_change_that_is_not_the_instances_is_noted_on_it() {
    let running = Some(ran(vmi("i1", "Running")));
    let mut machine = vm("Manual", json!({}));
    machine.metadata.generation = Some(3);
    let with = |vmi: Option<VirtualMachineInstance>, drift| {
        plan(&Observed {
            vm: machine.clone(),
            vmi,
            drift,
            live: crate::vm::Live::Done,
            data_volumes: DataVolumes::default(),
            now: at(NOW),
        })
    };
    assert_eq!(with(running.clone(), Drift::Generation), Step::Note(3));
    assert_eq!(with(running.clone(), Drift::Metadata), Step::Rest);
    assert_eq!(with(running, Drift::Guest), Step::Rest);
}

#[test]
fn an_instance_takes_volumes_over_while_something_else_waits_for_a_restart() {
    let running = Some(ran(vmi("i1", "Running")));
    let mut machine = vm("Always", json!({}));
    machine.metadata.generation = Some(3);
    let patch = Box::new(json!({"volumes": null}));
    for (drift, generation) in [(Drift::Generation, Some(3)), (Drift::Guest, None), (Drift::Unknown, None)] {
        let live = crate::vm::Live::Apply { spec: patch.clone(), whole: true };
        let observed = Observed {
            vm: machine.clone(),
            vmi: running.clone(),
            drift,
            live,
            data_volumes: DataVolumes::default(),
            now: at(NOW),
        };
        assert_eq!(plan(&observed), Step::Update(patch.clone(), generation), "{drift:?}");
        // The volume is on its way out: nothing to do, and the generation is not that of the instance yet.
        let waits = Observed { live: crate::vm::Live::Wait, ..observed };
        assert_eq!(plan(&waits), Step::Rest, "{drift:?}");
    }
}

/// A machine with one template, and what there is of its DataVolume.
fn with_template(strategy: &str, phase: Option<&str>) -> Observed {
    let mut vm = vm(strategy, json!({}));
    vm.spec.data_volume_templates =
        serde_json::from_value(json!([{"metadata": {"name": "root"}, "spec": {}}])).unwrap();
    let told =
        phase.map(|phase| Told { name: "root".to_owned(), phase: phase.to_owned(), ..Told::default() });
    let data_volumes = DataVolumes(vec![told]);
    Observed { vm, vmi: None, drift: Drift::None, live: crate::vm::Live::Done, data_volumes, now: at(NOW) }
}

fn word(observed: &Observed) -> String {
    compute(observed, observed.own_vmi(), &Outcome::Quiet).printable_status.unwrap()
}

#[test]
fn data_volumes_are_made_before_the_start_and_waited_for() {
    let make = Step::Provide(Work { make: vec![0], adopt: vec![] });
    for strategy in ["Always", "Halted", "Manual"] {
        assert_eq!(plan(&with_template(strategy, None)), make, "{strategy}");
    }
    for (phase, starts, status) in [
        ("", false, "Provisioning"),
        ("ImportInProgress", false, "Provisioning"),
        ("Failed", false, "DataVolumeError"),
        ("WaitForFirstConsumer", true, "Stopped"),
        ("PendingPopulation", true, "Stopped"),
        ("Succeeded", true, "Stopped"),
    ] {
        let observed = with_template("Always", Some(phase));
        let step = plan(&observed);
        assert_eq!(matches!(step, Step::Start(_)), starts, "{phase}: {step:?}");
        assert_eq!(matches!(step, Step::Wait(_)), !starts, "{phase}: {step:?}");
        assert_eq!(word(&observed), status, "{phase}");
        // Nobody wants it to run; it is filled all the same.
        assert_eq!(plan(&with_template("Halted", Some(phase))), Step::Rest, "{phase}");
    }
    // One that is not there is no reason to go on running.
    let mut observed = with_template("Halted", None);
    observed.vmi = Some(ran(vmi("i1", "Running")));
    assert_eq!(plan(&observed), stop("i1"));
    // Where nobody asked for them yet.
    let mut later = with_template("Halted", None);
    let annotation = ("kubevirt.io/immediate-data-volume-creation".to_owned(), "false".to_owned());
    later.vm.metadata.annotations = Some([annotation].into());
    assert_eq!(plan(&later), Step::Rest);
    later.vm.spec.run_strategy = Some("Always".to_owned());
    assert_eq!(plan(&later), make);
    // A machine that is going away makes nothing.
    let mut going = with_template("Always", None);
    going.vm.metadata.deletion_timestamp = Some(Time(at(NOW)));
    assert_eq!(plan(&going), Step::Release);
}

#[test]
fn a_data_volume_of_nobody_is_taken_over_and_one_without_room_told() {
    let mut observed = with_template("Always", Some("Succeeded"));
    let told = observed.data_volumes.0[0].as_mut().unwrap();
    told.is_nobodys = true;
    assert_eq!(plan(&observed), Step::Provide(Work { make: vec![], adopt: vec!["root".to_owned()] }));
    let mut observed = with_template("Always", Some("Pending"));
    observed.data_volumes.0[0].as_mut().unwrap().over_quota = Some("no more".to_owned());
    assert_eq!(plan(&observed), Step::OverQuota("root".to_owned(), "no more".to_owned()));
}

#[test]
fn an_instance_that_waits_for_data_volumes_says_so() {
    let instance = |type_: &str, reason: &str| with_condition(vmi("i1", "Pending"), type_, reason);
    let plain = || vmi("i1", "Pending");
    let provisioning = |mut vmi: VirtualMachineInstance| {
        let condition = json!({"type": "Provisioning", "status": "True"});
        vmi.status.as_mut().unwrap().conditions.push(serde_json::from_value(condition).unwrap());
        vmi
    };
    for (phase, vmi, status) in [
        ("WaitForFirstConsumer", plain(), "WaitingForVolumeBinding"),
        ("PendingPopulation", plain(), "WaitingForVolumeBinding"),
        ("ImportInProgress", plain(), "Provisioning"),
        ("Failed", instance("PodScheduled", "Unschedulable"), "DataVolumeError"),
        ("PendingPopulation", instance("PodScheduled", "Unschedulable"), "ErrorUnschedulable"),
        ("ImportInProgress", instance("PodScheduled", "Unschedulable"), "ErrorUnschedulable"),
        ("Succeeded", plain(), "Starting"),
        ("ImportInProgress", ran(self::vmi("i1", "Running")), "Running"),
        // Those that are of no template.
        ("Succeeded", instance("Synchronized", "DataVolumeNotReady"), "Provisioning"),
        ("Succeeded", instance("Synchronized", "FailedDataVolumeImport"), "DataVolumeError"),
        ("Succeeded", provisioning(plain()), "WaitingForVolumeBinding"),
        ("Succeeded", instance("Synchronized", "FailedPvcNotFound"), "ErrorPvcNotFound"),
    ] {
        let mut observed = with_template("Always", Some(phase));
        observed.vmi = Some(vmi);
        assert_eq!(word(&observed), status, "{phase}");
    }
}

mod world {
    //! Machines under random commands, ends and deletions. The API server's part: one object for a name, finalizers.

    use super::*;
    use barevirt_api::names::MIGRATION_TARGET_ANNOTATION;
    use kube::ResourceExt;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        Reconcile,
        /// The user changes the strategy.
        Strategy(&'static str),
        /// The user gives a command as virt-api writes it.
        Start,
        Stop,
        /// The instance goes on to its next phase.
        Progress,
        Fails,
        Succeeds,
        /// Pods and finalizer are gone.
        Removed,
        UserDeletesVmi,
        Wait(i64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let strategy = prop_oneof![
            Just("Always"),
            Just("Halted"),
            Just("Manual"),
            Just("RerunOnFailure"),
            Just("Once"),
            Just("WaitAsReceiver"),
        ];
        let event = prop_oneof![
            6 => Just(Event::Reconcile),
            1 => strategy.prop_map(Event::Strategy),
            1 => Just(Event::Start),
            1 => Just(Event::Stop),
            3 => Just(Event::Progress),
            1 => Just(Event::Fails),
            1 => Just(Event::Succeeds),
            2 => Just(Event::Removed),
            1 => Just(Event::UserDeletesVmi),
            1 => (1..200i64).prop_map(Event::Wait),
        ];
        proptest::collection::vec(event, 1..60)
    }

    struct World {
        vm: VirtualMachine,
        vmi: Option<VirtualMachineInstance>,
        made: u32,
        now: i64,
    }

    impl World {
        fn new() -> Self {
            World { vm: vm("Always", json!({})), vmi: None, made: 0, now: NOW }
        }

        /// As the revisions tell it: only strategies change here, never the template.
        fn drift(&self) -> Drift {
            let of = self.vmi.as_ref().and_then(super::super::revision::generation);
            let alive = self.vmi.as_ref().is_some_and(|vmi| {
                vmi.metadata.deletion_timestamp.is_none()
                    && !barevirt_api::names::is_final_phase(crate::vmi::phase(vmi))
            });
            if alive && of != self.vm.metadata.generation { Drift::Generation } else { Drift::None }
        }

        /// A write of the machine's specification.
        fn specify(&mut self, strategy: &str) {
            self.vm.spec.run_strategy = Some(strategy.to_owned());
            *self.vm.metadata.generation.get_or_insert_default() += 1;
        }

        fn observed(&self) -> Observed {
            Observed {
                vm: self.vm.clone(),
                vmi: self.vmi.clone(),
                drift: self.drift(),
                live: crate::vm::Live::Done,
                data_volumes: DataVolumes::default(),
                now: at(self.now),
            }
        }

        /// As the shell does; whether anything was written.
        fn reconcile(&mut self) -> bool {
            let observed = self.observed();
            let mut wrote = false;
            match plan(&observed) {
                Step::Start(instance) => {
                    assert!(self.vmi.is_none(), "starts while the former instance exists");
                    self.made += 1;
                    let mut instance = *instance;
                    instance.metadata.uid = Some(format!("i{}", self.made));
                    instance.status = serde_json::from_value(json!({"phase": "Pending"})).unwrap();
                    self.vmi = Some(instance);
                    wrote = true;
                }
                Step::Stop(uid) => {
                    let vmi = self.vmi.as_mut().expect("stops what is there");
                    assert_eq!(vmi.metadata.uid.as_ref(), Some(&uid));
                    assert!(vmi.metadata.deletion_timestamp.is_none(), "stops twice");
                    vmi.metadata.deletion_timestamp = Some(Time(at(self.now)));
                    wrote = true;
                }
                Step::SwitchOn => {
                    assert_eq!(self.vm.spec.run_strategy.as_deref(), Some("Halted"));
                    self.specify("Always");
                    return true;
                }
                Step::Note(generation) => {
                    let vmi = self.vmi.as_mut().expect("notes it on what is there");
                    vmi.metadata
                        .annotations
                        .get_or_insert_default()
                        .insert("kubevirt.io/vm-generation".to_owned(), generation.to_string());
                    return true;
                }
                Step::Rest | Step::Report | Step::Wait(_) | Step::Blocked(_) => {}
                other => panic!("{other:?}"),
            }
            let status = compute(&observed, self.vmi.as_ref(), &Outcome::Quiet);
            if self.vm.status.as_ref() != Some(&status) {
                self.vm.status = Some(status);
                wrote = true;
            }
            wrote
        }

        fn phase(&mut self, phase: &str) {
            let Some(status) = self.vmi.as_mut().and_then(|vmi| vmi.status.as_mut()) else { return };
            if !barevirt_api::names::is_final_phase(status.phase.as_deref().unwrap_or_default()) {
                status.phase = Some(phase.to_owned());
                barevirt_api::v1::record_phase_transition(
                    &mut status.phase_transition_timestamps,
                    phase,
                    &Time(at(self.now)),
                );
            }
        }

        fn request(&mut self, request: Value) {
            let requests = &mut self.vm.status.get_or_insert_default().state_change_requests;
            if requests.is_empty() {
                requests.push(serde_json::from_value(request).unwrap());
            }
        }

        fn step(&mut self, event: &Event) {
            match event {
                Event::Reconcile => {
                    self.reconcile();
                }
                Event::Strategy(strategy) => self.specify(strategy),
                Event::Start => self.request(json!({"action": "Start"})),
                Event::Stop => {
                    if let Some(uid) = self.vmi.as_ref().and_then(|vmi| vmi.metadata.uid.clone()) {
                        self.request(json!({"action": "Stop", "uid": uid}));
                    }
                }
                Event::Progress => {
                    let Some(vmi) = &self.vmi else { return };
                    let next = match crate::vmi::phase(vmi) {
                        "Pending" if vmi.annotations().contains_key(MIGRATION_TARGET_ANNOTATION) => {
                            "WaitingForSync"
                        }
                        "Pending" => "Scheduled",
                        "WaitingForSync" => return,
                        _ => "Running",
                    };
                    self.phase(next);
                }
                Event::Fails => self.phase("Failed"),
                Event::Succeeds => self.phase("Succeeded"),
                Event::Removed => {
                    if self.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some()) {
                        self.vmi = None;
                    }
                }
                Event::UserDeletesVmi => {
                    if let Some(vmi) = &mut self.vmi {
                        vmi.metadata.deletion_timestamp = Some(Time(at(self.now)));
                    }
                }
                Event::Wait(seconds) => self.now += seconds,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn comes_to_what_the_strategy_says(events in events()) {
            let mut world = World::new();
            for event in &events {
                world.step(event);
            }
            // Nothing changes from outside any more, and time passes.
            let mut rounds = 0;
            loop {
                let waits = matches!(plan(&world.observed()), Step::Wait(_));
                let wrote = world.reconcile();
                let progress = world.vmi.as_ref().map(|vmi| vmi.status.clone());
                world.step(&Event::Progress);
                let gone = world.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some());
                world.step(&Event::Removed);
                world.now += 400;
                rounds += 1;
                prop_assert!(rounds < 20, "does not settle: {:?}", world.observed());
                let progressed = progress != world.vmi.as_ref().map(|vmi| vmi.status.clone());
                if !waits && !wrote && !gone && !progressed {
                    break;
                }
            }
            let phase = world.vmi.as_ref().map(crate::vmi::phase);
            match world.vm.spec.run_strategy.as_deref().unwrap() {
                "Always" => prop_assert_eq!(phase, Some("Running")),
                "Halted" => prop_assert_eq!(phase, None),
                "Once" => prop_assert!(phase.is_some()),
                // One that ran here before is the user's to end.
                "WaitAsReceiver" => prop_assert!(matches!(phase, Some("WaitingForSync" | "Running"))),
                _ => prop_assert!(phase != Some("WaitingForSync")),
            }
            // Settled means that nothing more is planned or written.
            let step = plan(&world.observed());
            let blocked = world.vm.spec.run_strategy.as_deref() == Some("WaitAsReceiver") && phase == Some("Running");
            prop_assert_eq!(matches!(step, Step::Blocked(_)), blocked, "{:?}", step);
            prop_assert!(blocked || step == Step::Rest, "{:?}", step);
            let status = compute(&world.observed(), world.vmi.as_ref(), &Outcome::Quiet);
            prop_assert_eq!(Some(&status), world.vm.status.as_ref());
            prop_assert_eq!(status.created.unwrap_or(false), world.vmi.is_some());
            // What the machine can do nothing with is of the generation that it was made from.
            if phase == Some("Running") && !blocked {
                prop_assert_eq!(status.observed_generation, world.vm.metadata.generation);
            }
        }
    }
}

#[test]
fn a_start_that_has_just_begun_is_not_worth_a_write() {
    let left = |machine: &VirtualMachine, vmi: Option<VirtualMachineInstance>| {
        let observed = Observed {
            vm: machine.clone(),
            vmi: vmi.clone(),
            drift: Drift::None,
            live: crate::vm::Live::Done,
            data_volumes: DataVolumes::default(),
            now: at(NOW),
        };
        let wanted = compute(&observed, vmi.as_ref(), &Outcome::Quiet);
        super::status::passes(&observed, &wanted)
    };
    let created = |mut vmi: VirtualMachineInstance, ago: i64| {
        vmi.metadata.creation_timestamp = Some(Time(at(NOW - ago)));
        vmi
    };
    let always = vm("Always", json!({}));
    assert_eq!(left(&always, Some(created(vmi("i1", "Pending"), 0))), Some(Duration::from_secs(3)));
    assert_eq!(left(&always, Some(created(vmi("i1", "Scheduled"), 2))), Some(Duration::from_secs(1)));
    assert_eq!(left(&always, Some(created(vmi("i1", "Scheduled"), 3))), None);
    // What is more than that is told at once.
    assert_eq!(left(&always, Some(created(vmi("i1", "Running"), 1))), None);
    let stuck = with_condition(vmi("i1", "Scheduling"), "Synchronized", "ErrImagePull");
    assert_eq!(left(&always, Some(created(stuck, 1))), None);
    assert_eq!(left(&vm("Manual", json!({})), Some(created(vmi("i1", "Pending"), 0))), None);
    let asked = json!({"stateChangeRequests": [{"action": "Start"}]});
    assert_eq!(left(&vm("Always", asked), Some(created(vmi("i1", "Pending"), 0))), None);
}
