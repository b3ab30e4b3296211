//! The side that receives a guest.

use std::time::Duration;

use super::event::{Effect, Event, MigrationReport, Outcome, Progress, QemuState, Recovery, State};

/// How long the guest waits for a new connection. The source gives up [earlier](super::source::RECOVERY), and its end
/// then ends the guest here.
pub const ORPHANED: Duration = Duration::from_secs(420);
/// How long memory may still come out of a connection whose other end has ended.
const REST: Duration = Duration::from_secs(10);

/// The stage of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// QEMU waits for it.
    Awaited,
    /// QEMU receives it.
    Receiving,
    /// Everything has arrived, or in post-copy everything but some of the memory. The guest is paused, because the
    /// source may still have it.
    Received,
    /// It is the only one.
    Arrived,
}

/// Where the memory is when the guest is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// All of it arrived before the hand-over.
    First,
    /// Some of it is still at the source. Without this part, the guest cannot continue for long.
    Missing,
    /// The rest arrived after the hand-over.
    After,
}

/// A guest that comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// UID of the migration.
    pub uid: String,
    /// The stage of the migration.
    pub stage: Stage,
    /// Set if the order to let the guest run came before QEMU had received everything; the value says whether
    /// it stays paused.
    go: Option<bool>,
    memory: Memory,
    /// Whether QEMU waits for a new connection.
    broken: bool,
    /// When the guest is given up.
    ends: Option<Duration>,
    offers: bool,
}

impl Target {
    /// A guest that is awaited.
    #[must_use]
    pub fn new(uid: String) -> Self {
        Self {
            uid,
            stage: Stage::Awaited,
            go: None,
            memory: Memory::First,
            broken: false,
            ends: None,
            offers: false,
        }
    }

    pub(super) fn step(&mut self, now: Duration, event: Event) -> (Vec<Effect>, Outcome) {
        match (event, self.stage) {
            (Event::Receive, Stage::Awaited) => {
                self.stage = Stage::Receiving;
                (vec![Effect::Receive], Outcome::None)
            }
            (Event::QemuState(QemuState::Completed), Stage::Awaited | Stage::Receiving) => {
                (self.stage, self.ends) = (Stage::Received, None);
                let outcome = self.go.map_or(Outcome::None, |hold| self.arrive(hold));
                (vec![Effect::CleanUp], outcome)
            }
            (Event::QemuState(QemuState::PostCopy), Stage::Awaited | Stage::Receiving) => {
                (self.stage, self.memory, self.ends) = (Stage::Received, Memory::Missing, None);
                // The disks belong to the guest now. A new connection would need the key.
                let outcome = self.go.map_or(Outcome::None, |hold| self.arrive(hold));
                (vec![Effect::ReleaseDisks], outcome)
            }
            (Event::QemuState(QemuState::Completed), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                (self.memory, self.broken, self.ends) = (Memory::After, false, None);
                // QEMU has to reach all of the memory for the cards. A guest that has not arrived gets them then.
                let cards = (self.stage == Stage::Arrived).then_some(Effect::GiveCards);
                ([Effect::CleanUp].into_iter().chain(cards).collect(), Outcome::None)
            }
            (Event::QemuState(QemuState::PostCopy), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                (self.broken, self.ends) = (false, None);
                (vec![], Outcome::None)
            }
            (Event::QemuState(QemuState::Broken), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                self.broken = true;
                self.ends.get_or_insert(now + ORPHANED);
                (vec![], Outcome::None)
            }
            (Event::Rejoin, Stage::Received | Stage::Arrived) if self.is_missing_memory() => {
                (vec![Effect::Rejoin], Outcome::None)
            }
            (Event::SourceEnded, Stage::Received | Stage::Arrived) if self.is_missing_memory() => {
                if self.broken {
                    return (
                        vec![],
                        Outcome::Gone("the source ended before all of the memory was sent".to_owned()),
                    );
                }
                self.ends = Some(self.ends.map_or(now + REST, |ends| ends.min(now + REST)));
                (vec![], Outcome::None)
            }
            (Event::QemuState(QemuState::Failed(why)), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                (vec![], Outcome::Gone(why))
            }
            // The source cannot have the guest back, and QEMU may have been busy: this is not the end of the guest.
            (Event::CannotGoOn(_), Stage::Received) if self.is_missing_memory() => (vec![], Outcome::None),
            // QEMU 10.0 waits for ever if its source ends before both have agreed on encryption.
            (Event::Abort, Stage::Awaited | Stage::Receiving) => {
                self.ends.get_or_insert(now + REST);
                (vec![], Outcome::None)
            }
            (Event::Offers(offers), _) => {
                self.offers = offers;
                (vec![], Outcome::None)
            }
            (Event::Go { hold }, Stage::Received) => (vec![], self.arrive(hold)),
            (Event::Go { hold }, Stage::Awaited | Stage::Receiving) => {
                self.go = Some(hold);
                (vec![], Outcome::None)
            }
            (
                Event::QemuState(QemuState::Failed(why)) | Event::CannotGoOn(why),
                Stage::Awaited | Stage::Receiving | Stage::Received,
            ) => (vec![], Outcome::Lost(why)),
            (Event::QemuState(QemuState::Cancelled), Stage::Awaited | Stage::Receiving | Stage::Received) => {
                (vec![], Outcome::Lost("the migration was cancelled".to_owned()))
            }
            (
                Event::Send { .. }
                | Event::Copies { .. }
                | Event::Copied { .. }
                | Event::Begun
                | Event::Receive
                | Event::QemuState(_)
                | Event::Progress(_)
                | Event::CannotGoOn(_)
                | Event::Abort
                | Event::Rejoin
                | Event::Rejoined
                | Event::SourceEnded
                | Event::Result(_)
                | Event::Go { .. },
                Stage::Awaited | Stage::Receiving | Stage::Received | Stage::Arrived,
            ) => (vec![], Outcome::None),
        }
    }

    pub(super) fn tick(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        let outcome = if self.wake().is_none_or(|ends| now < ends) {
            Outcome::None
        } else if self.is_missing_memory() {
            let why = "the connection to the source broke, and the rest of the memory did not come in time";
            Outcome::Gone(why.to_owned())
        } else {
            Outcome::Lost(
                "the migration was cancelled, or the source ended, before the guest arrived".to_owned(),
            )
        };
        (vec![], outcome)
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        self.ends.filter(|_| self.is_missing_memory() || self.is_awaited())
    }

    /// Whether QEMU still waits for the guest, or receives it.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.stage, Stage::Awaited | Stage::Receiving)
    }

    /// Whether some of the memory of a guest that may run here is still at the source.
    #[must_use]
    pub fn is_missing_memory(&self) -> bool {
        self.memory == Memory::Missing
    }

    /// The guest has ended by itself and needs no more memory.
    pub fn guest_ended(&mut self) {
        if self.stage == Stage::Arrived && self.is_missing_memory() {
            self.memory = Memory::After;
        }
    }

    fn arrive(&mut self, hold: bool) -> Outcome {
        self.stage = Stage::Arrived;
        Outcome::Arrived { hold }
    }

    pub(super) fn report(&self) -> MigrationReport {
        let state = match self.stage {
            Stage::Awaited => State::Awaited,
            Stage::Receiving => State::Receiving,
            Stage::Received => State::Received,
            // The source has to stay until all of the memory has arrived.
            Stage::Arrived if self.is_missing_memory() => State::Received,
            Stage::Arrived => State::Arrived,
        };
        MigrationReport {
            uid: self.uid.clone(),
            state,
            progress: Progress::default(),
            reason: String::new(),
            bottleneck: None,
            slow: None,
            paused: false,
            aborted: self.is_awaited() && self.ends.is_some(),
            hold: false,
            post_copy: self.memory != Memory::First,
            offers_post_copy: self.offers,
            recovery: (self.broken && self.is_missing_memory())
                .then_some(Recovery { tries: 0, awaits_connection: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    #[test]
    fn the_target_runs_the_guest_after_all_data_and_the_go_order() {
        let go = Event::Go { hold: false };
        let completed = Event::QemuState(QemuState::Completed);
        for (first, second) in [(go.clone(), completed.clone()), (completed, go)] {
            let mut target = Target::new("m".into());
            assert_eq!(target.step(NOW, Event::Receive).0, [Effect::Receive]);
            assert_eq!(target.step(NOW, Event::Receive).0, []);
            assert_eq!(target.step(NOW, first).1, Outcome::None);
            assert_eq!(target.step(NOW, second.clone()).1, Outcome::Arrived { hold: false });
            assert_eq!(target.step(NOW, second).1, Outcome::None);
        }
    }

    #[test]
    fn a_failure_before_the_target_runs_ends_the_target() {
        let mut target = Target::new("m".into());
        target.step(NOW, Event::Receive);
        let lost = target.step(NOW, Event::QemuState(QemuState::Failed("bad section".into()))).1;
        assert_eq!(lost, Outcome::Lost("bad section".into()));
        target.step(NOW, Event::QemuState(QemuState::Completed));
        target.step(NOW, Event::Go { hold: true });
        assert_eq!(target.step(NOW, Event::CannotGoOn("late".into())).1, Outcome::None);
    }

    /// A guest that was handed over in post-copy and was ordered to run.
    fn runs_without_all(first: Event, second: Event) -> Target {
        let mut target = Target::new("m".into());
        target.step(NOW, Event::Receive);
        assert_eq!(target.step(NOW, first).1, Outcome::None);
        assert_eq!(target.step(NOW, second).1, Outcome::Arrived { hold: false });
        target
    }

    #[test]
    fn in_post_copy_disks_are_given_back_before_the_guest_runs() {
        let mut target = Target::new("m".into());
        target.step(NOW, Event::Receive);
        target.step(NOW, Event::Go { hold: true });
        let handed_over = target.step(NOW, Event::QemuState(QemuState::PostCopy));
        assert_eq!(handed_over, (vec![Effect::ReleaseDisks], Outcome::Arrived { hold: true }));
    }

    #[test]
    fn a_post_copy_target_runs_at_the_go_order_and_arrives_with_all_memory() {
        let (go, post_copy) = (Event::Go { hold: false }, Event::QemuState(QemuState::PostCopy));
        for (first, second) in [(go.clone(), post_copy.clone()), (post_copy, go)] {
            let mut target = runs_without_all(first, second);
            let report = target.report();
            assert_eq!(
                (target.stage, report.state, report.post_copy),
                (Stage::Arrived, State::Received, true)
            );
            assert_eq!(
                target.step(NOW, Event::QemuState(QemuState::Completed)),
                (vec![Effect::CleanUp, Effect::GiveCards], Outcome::None)
            );
            assert_eq!(target.report().state, State::Arrived);
            // A connection that breaks now has no effect.
            assert_eq!(target.step(NOW, Event::QemuState(QemuState::Broken)).1, Outcome::None);
        }
    }

    fn without_all() -> Target {
        runs_without_all(Event::QemuState(QemuState::PostCopy), Event::Go { hold: false })
    }

    #[test]
    fn after_a_break_in_post_copy_the_guest_waits_for_a_new_connection() {
        let mut target = without_all();
        let broken = Event::QemuState(QemuState::Broken);
        assert_eq!(target.step(NOW, broken.clone()), (vec![], Outcome::None));
        assert_eq!((target.report().state, target.report().recovery.is_some()), (State::Received, true));
        assert_eq!(target.step(NOW, Event::Rejoin).0, [Effect::Rejoin]);
        target.step(NOW, Event::QemuState(QemuState::PostCopy));
        assert_eq!((target.report().recovery, target.wake()), (None, None));
        assert_eq!(target.tick(NOW + ORPHANED).1, Outcome::None);
        // Further reports of the same break do not give it more time.
        target.step(NOW, broken.clone());
        target.step(2 * NOW, broken);
        assert_eq!(target.wake(), Some(NOW + ORPHANED));
        assert!(matches!(target.tick(NOW + ORPHANED).1, Outcome::Gone(_)));
    }

    #[test]
    fn a_guest_whose_source_has_ended_is_lost_unless_the_rest_is_on_its_way() {
        let mut target = without_all();
        target.step(NOW, Event::QemuState(QemuState::Broken));
        assert!(matches!(target.step(NOW, Event::SourceEnded).1, Outcome::Gone(_)));
        let mut target = without_all();
        assert_eq!(target.step(NOW, Event::SourceEnded).1, Outcome::None);
        let mut other = target.clone();
        target.step(NOW, Event::QemuState(QemuState::Completed));
        assert_eq!((target.report().state, target.wake()), (State::Arrived, None));
        assert!(matches!(other.tick(NOW + REST).1, Outcome::Gone(_)));
    }

    #[test]
    fn an_aborted_target_waits_for_commands_in_flight() {
        for begins in [false, true] {
            let mut target = Target::new("m".into());
            if begins {
                target.step(NOW, Event::Receive);
            }
            assert!(!target.report().aborted);
            assert_eq!(target.step(NOW, Event::Abort), (vec![], Outcome::None));
            // A repeated order does not give it more time.
            target.step(NOW + REST / 2, Event::Abort);
            assert_eq!((target.wake(), target.report().aborted), (Some(NOW + REST), true));
            for last in [QemuState::Completed, QemuState::PostCopy] {
                let mut late = target.clone();
                late.step(NOW, Event::QemuState(last));
                assert_eq!((late.wake(), late.report().aborted), (None, false));
                assert_eq!(late.step(NOW, Event::Abort), (vec![], Outcome::None));
                assert_eq!(late.tick(NOW + REST).1, Outcome::None);
            }
            assert!(matches!(target.tick(NOW + REST).1, Outcome::Lost(_)));
        }
    }

    #[test]
    fn a_guest_that_has_ended_itself_needs_no_connection() {
        let mut target = without_all();
        target.step(NOW, Event::QemuState(QemuState::Broken));
        target.guest_ended();
        assert_eq!((target.step(NOW, Event::SourceEnded).1, target.wake()), (Outcome::None, None));
        assert_eq!((target.report().state, target.report().recovery), (State::Arrived, None));
    }
}
