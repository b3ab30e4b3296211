//! Single worlds, event by event.

use super::*;

/// Everything is sent and has not arrived yet.
fn on_its_way() -> World {
    let mut world = World::new();
    world.ask(false);
    let first = [Event::Watch(0), Event::Migration(0, 0), Event::PodStarts, Event::PodsSay];
    let then = [Event::Migration(0, 0), Event::TargetPrepares, Event::SourceBegins, Event::SourceStarts];
    for event in first.iter().chain(&then).chain([&Event::SourceSends]) {
        world.step(event);
        world.check();
    }
    assert!(world.running.is_empty() && world.flight.as_ref().is_some_and(|flight| flight.sent));
    world
}

/// The target's pod is force-deleted while its container still runs.
fn force_target(world: &mut World) {
    let to = world.flight.as_ref().unwrap().to.clone();
    let found = world.pods.values().find(|pod| pod.uid().as_ref() == Some(&to));
    let name = found.map(ResourceExt::name_any).unwrap();
    world.remove_pod(&name);
    world.remember();
}

#[test]
fn a_target_taken_away_by_force_may_run_the_guest_for_a_while() {
    let mut world = on_its_way();
    force_target(&mut world);
    for event in [Event::Vmi(0), Event::Wait, Event::Vmi(0), Event::SourceReads, Event::TargetArrives] {
        world.step(&event);
        world.check();
    }
    assert_eq!(world.running.len(), 1, "the target has it");
    // Alternatively it has not arrived. Nobody knows that, so the source must not go on.
    let mut world = on_its_way();
    force_target(&mut world);
    for event in
        [Event::Vmi(0), Event::Wait, Event::Wait, Event::Wait, Event::Wait, Event::Wait, Event::Vmi(0)]
    {
        world.step(&event);
        world.check();
    }
    ends_with_its_guest_lost(world);
}

#[test]
fn an_unresponsive_node_counts_as_running_the_guest_until_it_is_declared_off() {
    let mut world = on_its_way();
    force_target(&mut world);
    world.nodes.insert("b", NodeState::Lost);
    for _ in 0..20 {
        for event in [Event::Wait, Event::Vmi(0), Event::Migration(0, 0), Event::SourceReads] {
            world.step(&event);
            world.check();
        }
    }
    assert!(world.running.is_empty(), "nobody has decided");
    world.step(&Event::TargetArrives);
    world.check();
    // An administrator declares the node to be off.
    world.step(&Event::NodeGone(1, NodeState::OutOfService));
    ends_with_its_guest_lost(world);
}

#[test]
fn a_source_goes_on_only_where_the_target_reports_that_the_guest_never_ran_there() {
    // In the order of their names, the second container is the target's.
    let mut world = on_its_way();
    for event in [Event::LauncherEnds(1), Event::TargetFails, Event::SourceReads] {
        world.step(&event);
        world.check();
    }
    assert_eq!(world.running, BTreeSet::from(["s1".to_owned()]));
    world.settle();
    // The report is lost with the handler, and virt-controller does not know either.
    let mut world = on_its_way();
    let first = [Event::LauncherEnds(1), Event::HandlersDie, Event::TargetFails, Event::PodsSay];
    for event in first.iter().chain(&[Event::Vmi(0), Event::Wait, Event::Wait, Event::Vmi(0)]) {
        world.step(event);
        world.check();
    }
    ends_with_its_guest_lost(world);
}

/// The source reads the failure, and ends. So does the instance.
fn ends_with_its_guest_lost(mut world: World) {
    world.settle();
    assert!(world.running.is_empty() && world.given_up, "{:?}", world.running);
    let phase = world.vmi.and_then(|vmi| vmi.status?.phase);
    assert_eq!(phase.as_deref(), Some("Failed"));
}

#[test]
fn a_world_without_trouble_moves_its_guest_there_and_back() {
    let mut world = World::new();
    for round in 1..=3 {
        world.ask(false);
        world.settle();
        let one = world.vmims.get(&format!("m{round}")).unwrap();
        assert_eq!(Phase::of(one), Some(Phase::Succeeded), "{one:?}");
        let home = world.vmi.as_ref().unwrap().status.as_ref().unwrap().node_name.clone().unwrap();
        assert_eq!(home, NODES[round % 3]);
    }
}
