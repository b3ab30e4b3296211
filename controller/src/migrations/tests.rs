//! Shared state of migrations: turns, pauses after failures, nodes of instances.

use super::*;
use crate::migrations::row::{HELD, Priority};
use barevirt_api::names::MIGRATION_FINALIZER as FINALIZER;
use barevirt_api::v1::VirtualMachineInstanceMigration;
use serde_json::{Value, json};

fn object(name: &str, vmi: &str, phase: &str, change: Value) -> VirtualMachineInstanceMigration {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "finalizers": [FINALIZER],
            "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"vmiName": vmi}, "status": {"phase": phase},
    });
    crate::merge::apply(&mut object, &change);
    serde_json::from_value(object).unwrap()
}

fn saw(all: &Migrations, name: &str, vmi: &str, phase: &str, change: Value) -> bool {
    all.saw("ns", name, Row::of(&object(name, vmi, phase, change)), Some("a"))
}

fn limits(per_cluster: usize, outbound_per_node: usize) -> Limits {
    Limits { per_cluster, outbound_per_node, drain_taint: String::new() }
}

fn no_pod(_: &str, _: &str, _: &str) -> bool {
    false
}

#[test]
fn a_row_says_what_others_need() {
    let row = Row::of(&object(
        "m",
        "web",
        "Failed",
        json!({
            "metadata": {"annotations": {"kubevirt.io/evacuationMigration": "a"}, "finalizers": []},
            "spec": {"priority": "system-critical"},
            "status": {"phaseTransitionTimestamps": [
                {"phase": "Failed", "phaseTransitionTimestamp": "2027-01-15T08:00:09Z"}]},
        }),
    ));
    assert_eq!((row.phase, row.priority, row.done), (Phase::Failed, Priority::Critical, true));
    assert_eq!((row.backs_off, row.failed_at.unwrap() - row.created), (true, 9));
    let open = Row::of(&object("m", "web", "Failed", json!({})));
    assert!(!open.done && !open.backs_off && open.priority == Priority::User);
    // A phase that is not served is left alone.
    assert!(Row::of(&object("m", "web", "WaitingForSync", json!({"metadata": {"finalizers": []}}))).done);
    let ignores = json!({"metadata": {"annotations": {
        "kubevirt.io/workloadUpdateMigration": "", "kubevirt.io/func-test-ignore-migration-backoff": ""}}});
    assert!(!Row::of(&object("m", "web", "Pending", ignores)).backs_off);
}

#[test]
fn a_turn_is_kept_until_the_migration_shows_it_or_ends() {
    let (all, now) = (Migrations::default(), Instant::now());
    for name in ["m1", "m2", "m3"] {
        saw(&all, name, &format!("vmi-{name}"), "Pending", json!({}));
    }
    let limits = limits(2, 2);
    let take = |name: &str, now| all.take_turn("ns", name, &limits, no_pod, now);
    assert!(take("m1", now) && take("m1", now) && take("m2", now) && !take("m3", now));
    assert_eq!(all.under_way(), 2);
    saw(&all, "m1", "vmi-m1", "Scheduling", json!({}));
    assert!(!take("m3", now));
    all.give_back("ns", "m2");
    // A migration that returned its turn stays first in the queue.
    assert!(!take("m3", now) && take("m2", now));
    assert!(
        saw(&all, "m1", "vmi-m1", "Failed", json!({})) && !saw(&all, "m1", "vmi-m1", "Failed", json!({}))
    );
    assert_eq!(all.next(&limits, no_pod), [("ns".into(), "m3".into())]);
    assert!(take("m3", now));
    // An unused turn expires, and its migration is first again.
    saw(&all, "m4", "vmi-m4", "Pending", json!({}));
    assert!(!take("m4", now) && !take("m4", now + KEPT));
}

#[test]
fn migrations_whose_pods_cannot_be_made_hold_back_no_other() {
    let (all, now) = (Migrations::default(), Instant::now());
    let held = json!({"status": {"conditions": [{"type": HELD, "status": "True"}]}});
    for name in ["m1", "m2", "m3", "m4", "m5"] {
        saw(&all, name, &format!("vmi-{name}"), "Pending", held.clone());
    }
    saw(&all, "m6", "vmi-m6", "Pending", json!({}));
    saw(&all, "m7", "vmi-m7", "Pending", json!({}));
    let limits = limits(2, 2);
    let take = |name: &str| all.take_turn("ns", name, &limits, no_pod, now);
    assert!(!take("m1") && take("m6") && take("m7"));
    assert_eq!(all.under_way(), 2);
    // One whose pod can be made again is the oldest that waits.
    saw(&all, "m8", "vmi-m8", "Pending", json!({}));
    saw(&all, "m3", "vmi-m3", "Pending", json!({}));
    assert!(!take("m3"));
    saw(&all, "m6", "vmi-m6", "Succeeded", json!({}));
    assert_eq!(all.next(&limits, no_pod), [("ns".into(), "m3".into())]);
    assert!(!take("m8") && take("m3"));
    // Whatever its status says, one whose pod exists has had its turn.
    let has_pod = |_: &str, vmi: &str, _: &str| vmi == "vmi-m1";
    saw(&all, "m7", "vmi-m7", "Succeeded", json!({}));
    assert!(!all.take_turn("ns", "m8", &limits, has_pod, now));
}

#[test]
fn a_pod_that_another_process_made_is_a_turn() {
    let (all, now) = (Migrations::default(), Instant::now());
    saw(&all, "m1", "vmi-1", "Pending", json!({}));
    saw(&all, "m2", "vmi-2", "Pending", json!({}));
    let has_pod = |_: &str, vmi: &str, uid: &str| (vmi, uid) == ("vmi-1", "uid-m1");
    assert!(!all.take_turn("ns", "m2", &limits(1, 1), has_pod, now));
    // It is being deleted: it takes no turn any more.
    saw(&all, "m1", "vmi-1", "Pending", json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:01Z"}}));
    assert!(all.take_turn("ns", "m2", &limits(1, 1), no_pod, now));
}

#[test]
fn a_node_is_left_by_so_many_at_a_time() {
    let (all, now) = (Migrations::default(), Instant::now());
    for (name, node) in [("m1", "a"), ("m2", "a"), ("m3", "b")] {
        let row = Row::of(&object(name, &format!("vmi-{name}"), "Pending", json!({})));
        all.saw("ns", name, row, Some(node));
    }
    let take = |name: &str| all.take_turn("ns", name, &limits(9, 1), no_pod, now);
    assert!(take("m1") && !take("m2") && take("m3"));
    all.saw_instance("ns", "vmi-m2", "c");
    assert!(take("m2"));
}

#[test]
fn failures_delay_what_this_program_asks_for() {
    let all = Migrations::default();
    let created = |second: u32| format!("2027-01-15T08:{:02}:{:02}Z", second / 60, second % 60);
    let automatic = |second: u32, failed: Option<u32>| {
        let stamps: Vec<Value> = failed
            .map(|at| json!({"phase": "Failed", "phaseTransitionTimestamp": created(at)}))
            .into_iter()
            .collect();
        json!({"metadata": {"annotations": {"kubevirt.io/evacuationMigration": "a"},
            "creationTimestamp": created(second)}, "status": {"phaseTransitionTimestamps": stamps}})
    };
    let at = |second: u32| {
        let time: k8s_openapi::jiff::Timestamp = created(second).parse().unwrap();
        time.as_second()
    };
    let left = |name: &str, second: u32| all.back_off("ns", name, at(second)).as_secs();
    saw(&all, "m1", "web", "Failed", automatic(0, Some(10)));
    saw(&all, "m2", "web", "Pending", automatic(11, None));
    assert_eq!((left("m2", 11), left("m2", 29), left("m2", 30)), (19, 1, 0));
    saw(&all, "m2", "web", "Failed", automatic(11, Some(40)));
    saw(&all, "m3", "web", "Pending", automatic(41, None));
    assert_eq!(left("m3", 40), 40);
    // A user's migration is not delayed, nor are other kinds.
    saw(&all, "m4", "web", "Pending", json!({"metadata": {"creationTimestamp": created(41)}}));
    saw(&all, "m5", "shop", "Pending", automatic(41, None));
    assert_eq!((left("m4", 41), left("m5", 41)), (0, 0));
    saw(&all, "m3", "web", "Succeeded", automatic(41, None));
    saw(&all, "m6", "web", "Pending", automatic(50, None));
    assert_eq!(left("m6", 50), 0);
}

#[test]
fn a_deleted_migration_leaves_no_entry() {
    let (all, now) = (Migrations::default(), Instant::now());
    saw(&all, "m1", "web", "Pending", json!({}));
    assert!(all.is_wanted("ns", "web", now));
    assert!(all.take_turn("ns", "m1", &limits(1, 1), no_pod, now));
    all.noticed("uid-m1", Matter::TargetLost, now);
    assert_eq!(all.noticed("uid-m1", Matter::TargetLost, now + KEPT), KEPT);
    assert_eq!(all.missing(&HashSet::new()), [("ns".into(), "m1".into())]);
    assert_eq!(all.gone("ns", "m1").as_deref(), Some("web"));
    assert_eq!(all.gone("ns", "m1"), None);
    all.saw_instance("ns", "web", "a");
    all.saw_target("ns", "web", "pod");
    assert_eq!(all.targets("ns", "web"), ["pod".into()]);
    all.target_gone("ns", "web", "pod");
    all.asked("ns", "web", now);
    assert!(all.is_wanted("ns", "web", now) && !all.is_wanted("ns", "web", now + KEPT));
    let known = all.lock();
    let sizes = [known.rows.len(), known.of_instance.len(), known.homes.len(), known.turns.len()];
    assert_eq!((sizes, known.noticed.len(), known.targets.len(), known.asked.len()), ([0; 4], 0, 0, 0));
}

#[test]
fn phases_are_counted() {
    let all = Migrations::default();
    for (name, phase) in [("m1", ""), ("m2", "Pending"), ("m3", "TargetReady"), ("m4", "Running")] {
        saw(&all, name, "web", phase, json!({}));
    }
    saw(&all, "m5", "web", "Succeeded", json!({}));
    assert_eq!(all.counts(), [1, 1, 0, 2]);
    assert_eq!(all.ended(), [(("ns".into(), "m5".into()), "web".into(), true)]);
    assert_eq!(all.unfinished("ns", "web").len(), 4);
}
