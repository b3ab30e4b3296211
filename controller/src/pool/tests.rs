//! Plans and statuses of pools: single cases, then random worlds.

use super::action::Action;
use super::generation::Older;
use super::observed::{Machine, Observed};
use super::plan::{Plan, plan};
use super::status::{Failure, compute};
use barevirt_api::names::{POOL_FINALIZER, POOL_REVISION_LABEL};
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn template(cores: u32) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"cpu": {"cores": cores}, "devices": {}}}}},
    })
}

fn pool(generation: i64, spec: Value) -> VirtualMachinePool {
    let mut pool = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "p1", "resourceVersion": "5", "generation": generation},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": template(1)},
    });
    for (name, value) in spec.as_object().unwrap() {
        pool["spec"][name] = value.clone();
    }
    serde_json::from_value(pool).unwrap()
}

fn vm(index: u32, revision: &str) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": format!("web-{index}"), "namespace": "ns", "uid": format!("m{index}"),
            "labels": {"app": "web", POOL_REVISION_LABEL: revision},
            "creationTimestamp": at(NOW - i64::from(index)).to_string(),
            "ownerReferences": [{"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
                "name": "web", "uid": "p1", "controller": true}]},
        "spec": template(1)["spec"],
        "status": {"printableStatus": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn instance(index: u32, revision: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": format!("web-{index}"), "namespace": "ns", "uid": format!("i{index}"),
            "labels": {"app": "web", POOL_REVISION_LABEL: revision}},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// A running machine; machine and instance are of that revision.
fn running(index: u32, revision: &str) -> Machine {
    Machine { vm: vm(index, revision), instance: Some(instance(index, revision)) }
}

fn observed(pool: VirtualMachinePool, machines: Vec<Machine>) -> Observed {
    let taken = |index: &u32| {
        !machines.iter().any(|machine| machine.vm.metadata.name == Some(format!("web-{index}")))
    };
    let free = (0..).filter(taken).take(super::observed::BURST).collect();
    Observed { pool, machines, strays: vec![], free, older: Older::new(), pruned: true, now: at(NOW) }
}

/// Adds a former generation in which each guest had this many cores.
fn after(mut observed: Observed, revision: &str, cores: u32) -> Observed {
    let spec = pool(1, json!({"virtualMachineTemplate": template(cores)})).spec;
    observed.older.insert(revision.to_owned(), Some(spec));
    observed
}

fn names(plan: &Plan) -> Vec<String> {
    let name = |action: &Action| match action {
        Action::Create(vm)
        | Action::Delete(vm)
        | Action::Replace(vm)
        | Action::Release(vm)
        | Action::Restart(vm, _) => vm.metadata.name.clone().unwrap(),
        Action::Hold(vm) | Action::Unhold(vm) | Action::Keep(vm) => vm.metadata.name.clone().unwrap(),
        Action::Guard | Action::Unguard => "web".to_owned(),
        Action::Update(name, _) => name.clone(),
        Action::Renew(vmi) | Action::Relabel(vmi, _) => vmi.metadata.name.clone().unwrap(),
        Action::Prune => "prune".to_owned(),
    };
    plan.actions.iter().map(name).collect()
}

fn deleting(mut machine: Machine) -> Machine {
    machine.vm.metadata.deletion_timestamp = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
    machine
}

#[test]
fn machines_are_numbered_from_the_lowest_that_is_free() {
    let made = plan(&observed(pool(1, json!({"replicas": 4})), vec![running(1, "web-1")]));
    assert_eq!(names(&made), ["web-0", "web-2", "web-3"]);
    let Action::Create(first) = &made.actions[0] else { panic!("{made:?}") };
    assert_eq!(first.metadata.labels.as_ref().unwrap()[POOL_REVISION_LABEL], "web-1");
    assert_eq!(first.metadata.owner_references.as_ref().unwrap()[0].uid, "p1");
    assert_eq!(names(&plan(&observed(pool(1, json!({})), vec![]))), ["web-0"]);
    // The number of a machine that is being deleted is used again only once it is gone.
    assert_eq!(plan(&observed(pool(1, json!({})), vec![deleting(running(0, "web-1"))])), Plan::default());
}

#[test]
fn surplus_machines_are_deleted_in_the_order_of_the_policy() {
    let machines = || (0..4).map(|index| running(index, "web-1")).collect::<Vec<_>>();
    let gone = |scale_in: Value| {
        names(&plan(&observed(pool(1, json!({"replicas": 2, "scaleInStrategy": scale_in})), machines())))
    };
    let by = |order: &str| gone(json!({"proactive": {"selectionPolicy": {"sortPolicy": order}}}));
    assert_eq!(by("AscendingOrder"), ["web-0", "web-1"]);
    assert_eq!(by("DescendingOrder"), ["web-3", "web-2"]);
    // The higher the number, the older the machine.
    assert_eq!(by("Newest"), ["web-0", "web-1"]);
    assert_eq!(by("Oldest"), ["web-3", "web-2"]);
    assert_eq!(by("Random").len(), 2);
    assert_eq!(by("Random"), gone(json!(null)));
    assert_eq!(gone(json!({"unmanaged": {}})).len(), 0);
    assert_eq!(gone(json!({"opportunistic": {}})).len(), 0);
    let selected = json!({"proactive": {"selectionPolicy": {"selectors": {
        "labelSelector": {"matchLabels": {"old": "yes"}}}}}});
    assert_eq!(gone(selected.clone()).len(), 0);
    let mut some = machines();
    some[1].vm.spec.template.metadata = serde_json::from_value(json!({"labels": {"old": "yes"}})).unwrap();
    let picked = plan(&observed(pool(1, json!({"replicas": 2, "scaleInStrategy": selected})), some));
    assert_eq!(names(&picked), ["web-1"]);
}

#[test]
fn machines_being_deleted_count_for_scale_in() {
    let machines = vec![running(0, "web-1"), running(1, "web-1"), deleting(running(2, "web-1"))];
    let one = pool(
        1,
        json!({"replicas": 1, "scaleInStrategy": {"proactive": {"selectionPolicy": {
        "sortPolicy": "AscendingOrder"}}}}),
    );
    assert_eq!(names(&plan(&observed(one, machines.clone()))), ["web-0"]);
    let two = pool(1, json!({"replicas": 2}));
    assert_eq!(plan(&observed(two, machines)), Plan::default());
}

#[test]
fn a_paused_or_leaving_pool_does_nothing() {
    let paused = pool(1, json!({"replicas": 3, "paused": true}));
    assert_eq!(plan(&observed(paused, vec![running(0, "web-0")])), Plan::default());
    let mut leaving = pool(1, json!({"replicas": 3}));
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
    assert_eq!(plan(&observed(leaving, vec![])), Plan::default());
    let blind = pool(1, json!({"selector": {"matchLabels": {"app": "db"}}}));
    assert_eq!(plan(&observed(blind, vec![])), Plan::default());
}

#[test]
fn a_machine_that_is_not_selected_any_more_is_released_first() {
    let mut machine = running(0, "web-1");
    machine.vm.metadata.labels.as_mut().unwrap().remove("app");
    let released = plan(&observed(pool(1, json!({"replicas": 2})), vec![machine.clone()]));
    assert_eq!(released.actions, [Action::Release(Box::new(machine.vm))]);
}

#[test]
fn machines_follow_the_template_at_once_and_instances_as_the_strategy_says() {
    let changed = |strategy: Value| {
        pool(2, json!({"replicas": 2, "virtualMachineTemplate": template(2), "updateStrategy": strategy}))
    };
    let old = || vec![running(0, "web-1"), running(1, "web-1")];
    let updated = plan(&after(observed(changed(json!(null)), old()), "web-1", 1));
    let [Action::Update(_, body), Action::Update(..)] = updated.actions.as_slice() else {
        panic!("{updated:?}")
    };
    assert_eq!(body["spec"]["template"]["spec"]["domain"]["cpu"]["cores"], 2);
    assert_eq!(body["metadata"]["labels"][POOL_REVISION_LABEL], "web-2");
    let unmanaged = after(observed(changed(json!({"unmanaged": {}})), old()), "web-1", 1);
    assert_eq!(plan(&unmanaged), Plan::default());
    // A generation that changed only other fields does not change machines.
    let scaled = after(observed(pool(2, json!({"replicas": 2})), old()), "web-1", 1);
    assert_eq!(plan(&scaled), Plan::default());
    // The former generation is unknown: it counts as different.
    assert_eq!(names(&plan(&observed(changed(json!(null)), old()))).len(), 2);

    // Machines are updated, instances are not.
    let half = |index| Machine { vm: vm(index, "web-2"), instance: Some(instance(index, "web-1")) };
    let rolling = |strategy| after(observed(changed(strategy), vec![half(0), half(1)]), "web-1", 1);
    assert_eq!(plan(&rolling(json!({"opportunistic": {}}))), Plan::default());
    let renewed = plan(&rolling(json!(null)));
    assert!(matches!(renewed.actions[..], [Action::Renew(_), Action::Renew(_)]), "{renewed:?}");
    // If the guest is the same, the older generation is only another name.
    let mut relabelled = rolling(json!(null));
    relabelled.older.insert("web-1".to_owned(), Some(relabelled.pool.spec.clone()));
    let relabelled = plan(&relabelled);
    assert!(
        matches!(&relabelled.actions[..], [Action::Relabel(_, name), _] if name == "web-2"),
        "{relabelled:?}"
    );
}

#[test]
fn a_machine_with_other_data_volumes_is_replaced() {
    let mut wanted = template(1);
    wanted["spec"]["dataVolumeTemplates"] = json!([{"metadata": {"name": "root"}, "spec": {}}]);
    let changed = pool(2, json!({"virtualMachineTemplate": wanted}));
    let machine = Machine { vm: vm(0, "web-2"), instance: Some(instance(0, "web-1")) };
    let plan = plan(&after(observed(changed, vec![machine.clone()]), "web-1", 1));
    assert_eq!(plan.actions, [Action::Replace(Box::new(machine.vm))]);
}

#[test]
fn a_machine_that_only_commands_start_is_restarted_by_one() {
    let changed = pool(2, json!({"virtualMachineTemplate": template(2)}));
    let mut machine = Machine { vm: vm(0, "web-2"), instance: Some(instance(0, "web-1")) };
    machine.vm.spec.run_strategy = Some("Manual".to_owned());
    let plan = plan(&after(observed(changed, vec![machine.clone()]), "web-1", 1));
    assert_eq!(plan.actions, [Action::Restart(Box::new(machine.vm), "i0".to_owned())]);
}

#[test]
fn no_more_than_max_unavailable_are_restarted_but_those_that_are_of_no_use() {
    let changed = |max: Value| {
        pool(2, json!({"replicas": 4, "virtualMachineTemplate": template(2), "maxUnavailable": max}))
    };
    let half = |index| Machine { vm: vm(index, "web-2"), instance: Some(instance(index, "web-1")) };
    let all = || (0..4).map(half).collect::<Vec<_>>();
    let restarted = |max: Value, machines: Vec<Machine>| {
        let plan = plan(&after(observed(changed(max), machines), "web-1", 1));
        (names(&plan).len(), plan.again)
    };
    let wait = Some(Duration::from_secs(3));
    assert_eq!(restarted(json!(1), all()), (1, wait));
    assert_eq!(restarted(json!("50%"), all()), (2, wait));
    assert_eq!(restarted(json!("10%"), all()), (1, wait));
    assert_eq!(restarted(json!(9), all()), (4, None));
    let mut one_down = all();
    one_down[2].instance = None;
    assert_eq!(restarted(json!(1), one_down.clone()), (0, wait));
    assert_eq!(restarted(json!(2), one_down), (1, wait));
    let mut sick = all();
    sick[2].instance.as_mut().unwrap().status.as_mut().unwrap().phase = Some("Scheduling".to_owned());
    assert_eq!(restarted(json!(1), sick), (1, wait));
}

#[test]
fn machines_that_do_not_come_up_are_replaced() {
    let healing = |healing: Value| pool(1, json!({"autohealing": healing}));
    let failing = |status: Value| {
        let mut machine = running(0, "web-1");
        machine.vm.status = serde_json::from_value(status).unwrap();
        machine
    };
    let crashing = failing(json!({"startFailure": {"consecutiveFailCount": 3}}));
    let plan_of = |pool, machine: &Machine| plan(&observed(pool, vec![machine.clone()]));
    assert_eq!(names(&plan_of(healing(json!({})), &crashing)), ["web-0"]);
    assert_eq!(plan_of(healing(json!({"startUpFailureThreshold": 4})), &crashing), Plan::default());
    assert_eq!(plan_of(pool(1, json!({})), &crashing), Plan::default());

    let stuck = failing(json!({"printableStatus": "ErrorUnschedulable", "conditions": [{"type": "Ready",
        "status": "False", "lastTransitionTime": at(NOW - 200).to_string()}]}));
    let waiting = plan_of(healing(json!({})), &stuck);
    assert_eq!((waiting.actions.len(), waiting.again), (0, Some(Duration::from_secs(100))));
    assert_eq!(names(&plan_of(healing(json!({"minFailingToStartDuration": "3m20s"})), &stuck)), ["web-0"]);
    assert_eq!(plan_of(healing(json!({})), &failing(json!({"printableStatus": "Stopped"}))), Plan::default());
    assert_eq!(names(&plan_of(healing(json!({})), &deleting(crashing))).len(), 0);
}

#[test]
fn generations_that_nothing_is_from_are_removed_once() {
    let mut settled = observed(pool(3, json!({})), vec![running(0, "web-3")]);
    settled.pruned = false;
    assert_eq!(plan(&settled).actions, [Action::Prune]);
    settled.machines[0].instance = Some(instance(0, "web-2"));
    settled.older.insert("web-2".to_owned(), Some(settled.pool.spec.clone()));
    assert!(matches!(plan(&settled).actions[..], [Action::Relabel(..)]));
    settled.machines[0].instance = None;
    settled.pruned = true;
    assert_eq!(plan(&settled), Plan::default());
}

#[test]
fn the_status_counts_and_says_what_is_wrong() {
    let mut down = running(1, "web-1");
    down.vm.status = None;
    let mut observed = observed(
        pool(1, json!({"replicas": 3, "paused": true})),
        vec![running(0, "web-1"), down, deleting(running(2, "web-1"))],
    );
    let failure = Failure { reason: "FailedScaleOut", message: "quota".to_owned() };
    let status = compute(&observed, Some(&failure));
    assert_eq!((status.replicas, status.ready_replicas), (Some(3), Some(2)));
    assert_eq!(status.label_selector.as_deref(), Some("app=web"));
    let told: Vec<_> =
        status.conditions.iter().map(|one| (one.type_.as_str(), one.reason.as_deref().unwrap())).collect();
    assert_eq!(told, [("ReplicaPaused", "SuccessfulPaused"), ("ReplicaFailure", "FailedScaleOut")]);
    observed.pool.status = Some(status.clone());
    observed.now = at(NOW + 9);
    assert_eq!(compute(&observed, Some(&failure)), status);
    observed.pool.spec.paused = None;
    assert_eq!(compute(&observed, None).conditions, []);
}

fn held(mut machine: Machine) -> Machine {
    machine.vm.metadata.finalizers = Some(vec![POOL_FINALIZER.to_owned()]);
    machine
}

/// A pool that is held and keeps the state of its machines by that strategy.
fn keeping(strategy: &str, replicas: u32) -> VirtualMachinePool {
    let strategy = json!({strategy: {"statePreservation": "Offline"}});
    let mut pool = pool(1, json!({"replicas": replicas, "scaleInStrategy": strategy}));
    pool.metadata.finalizers = Some(vec![POOL_FINALIZER.to_owned()]);
    pool
}

#[test]
fn a_machine_with_kept_state_has_a_finalizer_until_its_claims_are_released() {
    let mut loose = keeping("proactive", 1);
    loose.metadata.finalizers = None;
    assert_eq!(plan(&observed(loose, vec![running(0, "web-1")])).actions, [Action::Guard]);

    let one = || keeping("proactive", 0);
    let machine = running(0, "web-1");
    let first = plan(&observed(one(), vec![machine.clone()]));
    assert_eq!(first.actions, [Action::Hold(Box::new(machine.vm.clone()))]);
    let second = plan(&observed(one(), vec![held(machine.clone())]));
    assert_eq!(second.actions, [Action::Delete(Box::new(held(machine.clone()).vm))]);
    let leaving = deleting(held(machine.clone()));
    let third = plan(&observed(one(), vec![leaving.clone()]));
    assert_eq!(third.actions, [Action::Keep(Box::new(leaving.vm.clone()))]);
    assert_eq!(plan(&observed(one(), vec![deleting(machine.clone())])), Plan::default());
    // A machine that was to be deleted and is wanted again is released.
    let wanted = plan(&observed(keeping("proactive", 1), vec![held(machine.clone())]));
    assert_eq!(wanted.actions, [Action::Unhold(Box::new(held(machine.clone()).vm))]);
    // A machine that is replaced because it fails leaves the same state.
    let mut healing = keeping("proactive", 1);
    healing.spec.autohealing = serde_json::from_value(json!({})).unwrap();
    let mut failing = machine;
    failing.vm.status = serde_json::from_value(json!({"startFailure": {"consecutiveFailCount": 3}})).unwrap();
    assert!(matches!(plan(&observed(healing, vec![failing])).actions[..], [Action::Hold(_)]));
}

#[test]
fn machines_that_others_delete_are_held_from_the_start() {
    let made = plan(&observed(keeping("opportunistic", 1), vec![]));
    let [Action::Create(vm)] = made.actions.as_slice() else { panic!("{made:?}") };
    assert_eq!(vm.metadata.finalizers.as_deref(), Some(&[POOL_FINALIZER.to_owned()][..]));
    // Machines that existed before the strategy was set are held before their number changes.
    let older = running(0, "web-1");
    let later = plan(&observed(keeping("opportunistic", 3), vec![older.clone()]));
    assert_eq!(later.actions, [Action::Hold(Box::new(older.vm.clone()))]);
    // When the strategy is withdrawn, nothing is kept any more.
    let mut off = keeping("opportunistic", 1);
    off.spec.scale_in_strategy = None;
    let freed = plan(&observed(off.clone(), vec![held(older.clone())]));
    assert_eq!(freed.actions, [Action::Unhold(Box::new(held(older.clone()).vm))]);
    assert_eq!(plan(&observed(off, vec![older.clone()])).actions, [Action::Unguard]);
    // A pause does not delay machines that are being deleted.
    let mut paused = keeping("opportunistic", 1);
    paused.spec.paused = Some(true);
    let leaving = deleting(held(older));
    assert_eq!(plan(&observed(paused, vec![leaving.clone()])).actions, [Action::Keep(Box::new(leaving.vm))]);
}

#[test]
fn a_deleted_pool_releases_its_machines_first() {
    let mut leaving = keeping("opportunistic", 2);
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
    let (stays, goes) = (held(running(0, "web-1")), deleting(held(running(1, "web-1"))));
    let mut orphan = held(running(2, "web-1")).vm;
    orphan.metadata.owner_references = None;
    let mut seen = observed(leaving.clone(), vec![stays.clone(), goes.clone()]);
    seen.strays = vec![orphan.clone()];
    let parted = plan(&seen);
    assert_eq!(
        parted.actions,
        [
            Action::Keep(Box::new(goes.vm)),
            Action::Unhold(Box::new(orphan)),
            Action::Unhold(Box::new(stays.vm))
        ]
    );
    assert_eq!(plan(&observed(leaving.clone(), vec![running(0, "web-1")])).actions, [Action::Unguard]);
    leaving.metadata.finalizers = None;
    assert_eq!(plan(&observed(leaving, vec![running(0, "web-1")])), Plan::default());
}

mod world;
