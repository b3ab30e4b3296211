//! The side that receives a guest.

use super::event::{Effect, Event, MigrationReport, Outcome, Progress, QemuState, State};

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
    offers: bool,
}

impl Target {
    /// A guest that is awaited.
    #[must_use]
    pub fn new(uid: String) -> Self {
        Self { uid, stage: Stage::Awaited, go: None, memory: Memory::First, offers: false }
    }

    pub(super) fn step(&mut self, event: Event) -> (Vec<Effect>, Outcome) {
        match (event, self.stage) {
            (Event::Receive, Stage::Awaited) => {
                self.stage = Stage::Receiving;
                (vec![Effect::Receive], Outcome::None)
            }
            (Event::QemuState(QemuState::Completed), Stage::Awaited | Stage::Receiving) => {
                self.stage = Stage::Received;
                let outcome = self.go.map_or(Outcome::None, |hold| self.arrive(hold));
                (vec![Effect::CleanUp], outcome)
            }
            (Event::QemuState(QemuState::PostCopy), Stage::Awaited | Stage::Receiving) => {
                (self.stage, self.memory) = (Stage::Received, Memory::Missing);
                // The disks belong to the guest now, and existing connections do not need the key any more.
                let outcome = self.go.map_or(Outcome::None, |hold| self.arrive(hold));
                (vec![Effect::CleanUp], outcome)
            }
            (Event::QemuState(QemuState::Completed), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                self.memory = Memory::After;
                (vec![], Outcome::None)
            }
            (Event::QemuState(QemuState::Broken), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                (vec![], Outcome::Gone("the connection to the source broke".to_owned()))
            }
            (Event::QemuState(QemuState::Failed(why)), Stage::Received | Stage::Arrived)
                if self.is_missing_memory() =>
            {
                (vec![], Outcome::Gone(why))
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
                | Event::Copies
                | Event::Copied { .. }
                | Event::Begun
                | Event::Receive
                | Event::QemuState(_)
                | Event::Progress(_)
                | Event::CannotGoOn(_)
                | Event::Abort
                | Event::Result(_)
                | Event::Go { .. },
                Stage::Awaited | Stage::Receiving | Stage::Received | Stage::Arrived,
            ) => (vec![], Outcome::None),
        }
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
            paused: false,
            aborted: false,
            hold: false,
            post_copy: self.memory != Memory::First,
            offers_post_copy: self.offers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_runs_the_guest_after_all_data_and_the_go_order() {
        let go = Event::Go { hold: false };
        let completed = Event::QemuState(QemuState::Completed);
        for (first, second) in [(go.clone(), completed.clone()), (completed, go)] {
            let mut target = Target::new("m".into());
            assert_eq!(target.step(Event::Receive).0, [Effect::Receive]);
            assert_eq!(target.step(Event::Receive).0, []);
            assert_eq!(target.step(first).1, Outcome::None);
            assert_eq!(target.step(second.clone()).1, Outcome::Arrived { hold: false });
            assert_eq!(target.step(second).1, Outcome::None);
        }
    }

    #[test]
    fn a_failure_before_the_target_runs_ends_the_target() {
        let mut target = Target::new("m".into());
        target.step(Event::Receive);
        let lost = target.step(Event::QemuState(QemuState::Failed("bad section".into()))).1;
        assert_eq!(lost, Outcome::Lost("bad section".into()));
        target.step(Event::QemuState(QemuState::Completed));
        target.step(Event::Go { hold: true });
        assert_eq!(target.step(Event::CannotGoOn("late".into())).1, Outcome::None);
    }

    /// A guest that was handed over in post-copy and was ordered to run.
    fn runs_without_all(first: Event, second: Event) -> Target {
        let mut target = Target::new("m".into());
        target.step(Event::Receive);
        assert_eq!(target.step(first).1, Outcome::None);
        assert_eq!(target.step(second).1, Outcome::Arrived { hold: false });
        target
    }

    #[test]
    fn in_post_copy_disks_are_given_back_before_the_guest_runs() {
        let mut target = Target::new("m".into());
        target.step(Event::Receive);
        target.step(Event::Go { hold: true });
        let handed_over = target.step(Event::QemuState(QemuState::PostCopy));
        assert_eq!(handed_over, (vec![Effect::CleanUp], Outcome::Arrived { hold: true }));
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
            assert_eq!(target.step(Event::QemuState(QemuState::Completed)), (vec![], Outcome::None));
            assert_eq!(target.report().state, State::Arrived);
            // A connection that breaks now has no effect.
            assert_eq!(target.step(Event::QemuState(QemuState::Broken)).1, Outcome::None);
        }
    }

    #[test]
    fn a_connection_that_breaks_in_post_copy_is_the_end_of_the_guest() {
        let (go, post_copy) = (Event::Go { hold: false }, Event::QemuState(QemuState::PostCopy));
        let mut target = runs_without_all(post_copy.clone(), go.clone());
        assert!(matches!(target.step(Event::QemuState(QemuState::Broken)).1, Outcome::Gone(_)));
        assert_eq!(target.report().state, State::Received);
        // A guest that has shut itself down needs no more memory.
        let mut target = runs_without_all(post_copy, go);
        target.guest_ended();
        assert_eq!(target.step(Event::QemuState(QemuState::Broken)).1, Outcome::None);
        assert_eq!(target.report().state, State::Arrived);
    }
}
