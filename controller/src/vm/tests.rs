//! Steps and statuses of machines: single cases, then random worlds.

use super::instancetype::References;
use super::plan::{Observed, Step, plan};
use super::status::{Outcome, compute};
use super::{DataVolumes, Drift, Work};
use barevirt_api::names::VM_FINALIZER;
use barevirt_api::settings::ReferencePolicy;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineStatus};
use barevirt_plan::data_volumes::DataVolumeState;
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

/// A machine that has not changed since its instance was made.
fn observed(vm: VirtualMachine, vmi: Option<VirtualMachineInstance>) -> Observed {
    Observed {
        vm,
        vmi,
        drift: Drift::None,
        live: crate::vm::Live::Done,
        volumes: crate::vm::Move::Nothing,
        data_volumes: DataVolumes::default(),
        references: ReferencePolicy::default(),
        moving_for: Duration::ZERO,
        now: at(NOW),
    }
}

fn step(vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>) -> Step {
    plan(&observed(vm.clone(), vmi))
}

fn stop(uid: &str) -> Step {
    Step::Stop(uid.to_owned())
}

fn report(vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>) -> VirtualMachineStatus {
    let observed = observed(vm.clone(), vmi.clone());
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
fn a_receiver_waits_until_its_strategy_changes() {
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
    // The next instance would wait just the same.
    let mut machine = vm("Always", json!({}));
    machine.spec.template.metadata.get_or_insert_default().annotations =
        Some([(annotation, "true".to_owned())].into());
    assert_eq!(step(&machine, Some(waiting)), Step::Rest);
}

#[test]
fn running_is_read_without_a_run_strategy() {
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
    // The stop is complete once the instance is gone; the start is next.
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
        volumes: crate::vm::Move::Nothing,
        data_volumes: DataVolumes::default(),
        references: ReferencePolicy::default(),
        moving_for: Duration::ZERO,
        now: at(NOW + 16),
    };
    assert!(matches!(plan(&later), Step::Start(_)));
    // The next one runs: the failure is forgotten.
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
fn revisions_are_recorded_before_a_machine_starts() {
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
    // Another policy has no copies.
    let written = |vm: VirtualMachine, vmi: Option<VirtualMachineInstance>| {
        plan(&Observed { references: ReferencePolicy::ExpandAll, ..observed(vm, vmi) })
    };
    for status in [json!({}), kept.clone()] {
        assert_eq!(written(named("Always", status.clone()), None), Step::Expand);
        assert_eq!(written(named("Always", status), Some(ran(vmi("i1", "Running")))), Step::Expand);
    }
    assert_eq!(written(named("Halted", json!({})), Some(ran(vmi("i1", "Running")))), stop("i1"));
    // The machine can still be stopped and deleted.
    assert_eq!(step(&named("Halted", json!({})), Some(ran(vmi("i1", "Running")))), stop("i1"));
    let mut leaving = named("Halted", json!({}));
    leaving.metadata.deletion_timestamp = Some(Time(at(NOW)));
    assert_eq!(step(&leaving, None), Step::Release);

    let machine = named("Always", json!({"preferenceRef": {"name": "old"}}));
    let observed = observed(machine, None);
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
    let held = observed(machine, None);
    assert_eq!(compute(&held, None, &Outcome::Held).printable_status.as_deref(), Some("Starting"));
}

/// The budget: a start writes only `Starting` and `Running` here.
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
    let observed = observed(machine, None);
    let failed = Outcome::Failed { reason: "FailedCreate", message: "told why".to_owned() };
    let status = compute(&observed, None, &failed);
    assert_eq!(status.conditions[1].type_, "Failure");
    assert_eq!(status.printable_status.as_deref(), Some("Stopped"));
}

#[test]
fn a_machine_that_runs_once_starts_again_after_its_instance_is_deleted() {
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
fn a_changed_template_sets_restart_required() {
    let running = || ran(vmi("i1", "Running"));
    let with = |vm: &VirtualMachine, vmi: Option<VirtualMachineInstance>, drift| {
        let observed = Observed {
            vm: vm.clone(),
            vmi: vmi.clone(),
            drift,
            live: crate::vm::Live::Done,
            volumes: crate::vm::Move::Nothing,
            data_volumes: DataVolumes::default(),
            references: ReferencePolicy::default(),
            moving_for: Duration::ZERO,
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
    // The condition stays while nothing is known, and goes with the change or with the instance.
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
            volumes: crate::vm::Move::Nothing,
            data_volumes: DataVolumes::default(),
            references: ReferencePolicy::default(),
            moving_for: Duration::ZERO,
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
            volumes: crate::vm::Move::Nothing,
            data_volumes: DataVolumes::default(),
            references: ReferencePolicy::default(),
            moving_for: Duration::ZERO,
            now: at(NOW),
        };
        assert_eq!(plan(&observed), Step::Update(patch.clone(), generation), "{drift:?}");
        // The volume is being removed: nothing to do, and the instance is not of that generation yet.
        let waits = Observed { live: crate::vm::Live::Wait, ..observed };
        assert_eq!(plan(&waits), Step::Rest, "{drift:?}");
    }
}

#[test]
fn a_machine_has_the_address_of_a_card_before_its_instance_has_the_card() {
    let mut machine = vm("Always", json!({}));
    machine.metadata.generation = Some(3);
    let card = json!({"name": "red", "bridge": {}});
    machine.spec.template.spec.domain.devices.interfaces = serde_json::from_value(json!([card])).unwrap();
    let mut observed = observed(machine, Some(ran(vmi("i1", "Running"))));
    let patch = Box::new(json!({"domain": {"devices": {"interfaces": [card]}}}));
    observed.drift = Drift::Generation;
    observed.live = crate::vm::Live::Apply { spec: patch.clone(), whole: true };
    let Step::Cards(cards, networks) = plan(&observed) else { panic!("{:?}", plan(&observed)) };
    assert!(cards[0].mac_address.is_some() && networks.is_empty(), "{cards:?}");
    observed.vm.spec.template.spec.domain.devices.interfaces = cards;
    assert_eq!(plan(&observed), Step::Update(patch, Some(3)));
}

mod data_volumes;
mod volumes;
mod world;

#[test]
fn a_start_that_has_just_begun_is_not_worth_a_write() {
    let left = |machine: &VirtualMachine, vmi: Option<VirtualMachineInstance>| {
        let observed = observed(machine.clone(), vmi.clone());
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
    // Any further change is reported at once.
    assert_eq!(left(&always, Some(created(vmi("i1", "Running"), 1))), None);
    let stuck = with_condition(vmi("i1", "Scheduling"), "Synchronized", "ErrImagePull");
    assert_eq!(left(&always, Some(created(stuck, 1))), None);
    assert_eq!(left(&vm("Manual", json!({})), Some(created(vmi("i1", "Pending"), 0))), None);
    let asked = json!({"stateChangeRequests": [{"action": "Start"}]});
    assert_eq!(left(&vm("Always", asked), Some(created(vmi("i1", "Pending"), 0))), None);
}

#[test]
fn a_guest_that_is_hardly_on_its_way_is_not_worth_a_write() {
    let mut moving = ran(vmi("i1", "Running"));
    let machine =
        vm("Always", serde_json::to_value(report(&vm("Always", json!({})), Some(moving.clone()))).unwrap());
    moving.status.as_mut().unwrap().migration_state =
        serde_json::from_value(json!({"migrationUid": "g1", "targetNode": "node02"})).unwrap();
    let left = |machine: &VirtualMachine, vmi: &VirtualMachineInstance, seconds| {
        let moving_for = Duration::from_secs(seconds);
        let observed = Observed { moving_for, ..observed(machine.clone(), Some(vmi.clone())) };
        let wanted = compute(&observed, Some(vmi), &Outcome::Quiet);
        assert_eq!(wanted.printable_status.as_deref(), Some("Migrating"));
        super::status::passes(&observed, &wanted)
    };
    assert_eq!(left(&machine, &moving, 0), Some(Duration::from_secs(3)));
    assert_eq!(left(&machine, &moving, 2), Some(Duration::from_secs(1)));
    assert_eq!(left(&machine, &moving, 3), None);
    assert_eq!(left(&machine, &moving, u64::MAX), None);
    // Any further change is reported at once.
    assert_eq!(left(&machine, &with_condition(moving.clone(), "AgentConnected", "Other"), 0), None);
    assert_eq!(left(&vm("Always", json!({"printableStatus": "Starting"})), &moving, 0), None);
    // After its arrival, nothing is left to write.
    let mut there = moving;
    let state = there.status.as_mut().unwrap().migration_state.as_mut().unwrap();
    (state.completed, state.end_timestamp) = (Some(true), Some(Time(at(NOW))));
    assert_eq!(Some(report(&machine, Some(there))), machine.status);
}
