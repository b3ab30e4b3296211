//! Random worlds.

use super::events::events;
use super::*;
use proptest::test_runner::{Config, TestRunner, contextualize_config};
use std::cell::RefCell;

/// Worlds in one run; `PROPTEST_CASES` sets another number. Each has up to 199 events, and then comes to rest.
const WORLDS: u32 = 300;
/// With so many worlds, the rarest end occurs.
const MANY: u32 = 10_000;

/// What became of the guests.
#[derive(Debug, Default)]
struct Ends {
    events: usize,
    /// A migration succeeded.
    moved: u32,
    /// A migration failed, and the guest goes on.
    stayed: u32,
    /// The instance is there without its guest.
    lost: u32,
    /// The source has ended because the target may have run the guest.
    given_up: u32,
}

impl Ends {
    fn count(&mut self, world: &World, events: usize) {
        let has = |phase| world.vmims.values().any(|one| Phase::of(one) == Some(phase));
        let runs = !world.running.is_empty();
        self.events += events;
        self.moved += u32::from(has(Phase::Succeeded));
        self.stayed += u32::from(has(Phase::Failed) && runs);
        self.lost += u32::from(world.vmi.is_some() && !runs);
        self.given_up += u32::from(world.given_up);
    }
}

#[test]
fn one_guest_that_is_known_and_peace_at_the_end() {
    let config = Config { cases: WORLDS, failure_persistence: None, ..Config::default() };
    let config = contextualize_config(config);
    let worlds = config.cases;
    let ends = RefCell::new(Ends::default());
    let result = TestRunner::new(config).run(&events(), |events| {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            world.check();
        }
        world.settle();
        ends.borrow_mut().count(&world, events.len());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let ends = ends.into_inner();
    println!("{worlds} worlds: {ends:?}");
    if worlds >= WORLDS {
        let few = worlds / 100;
        assert!(ends.moved > few && ends.stayed > few && ends.lost > few, "{ends:?}");
    }
    assert!(worlds < MANY || ends.given_up > 0, "{ends:?}");
}
