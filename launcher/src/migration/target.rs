//! The side that receives a guest.

use super::event::{Effect, Event, Outcome, Progress, Said, State, Told};

/// The stage of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// QEMU waits for it.
    Awaited,
    /// QEMU receives it.
    Receiving,
    /// Everything has arrived. The guest is paused, because the source may still have it.
    Received,
    /// It is the only one.
    Arrived,
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
}

impl Target {
    /// A guest that is awaited.
    #[must_use]
    pub fn new(uid: String) -> Self {
        Self { uid, stage: Stage::Awaited, go: None }
    }

    pub(super) fn step(&mut self, event: Event) -> (Vec<Effect>, Outcome) {
        match (event, self.stage) {
            (Event::Receive, Stage::Awaited) => {
                self.stage = Stage::Receiving;
                (vec![Effect::Receive], Outcome::None)
            }
            (Event::Said(Said::Completed), Stage::Awaited | Stage::Receiving) => {
                self.stage = Stage::Received;
                let outcome = self.go.map_or(Outcome::None, |hold| self.arrive(hold));
                (vec![Effect::CleanUp], outcome)
            }
            (Event::Go { hold }, Stage::Received) => (vec![], self.arrive(hold)),
            (Event::Go { hold }, Stage::Awaited | Stage::Receiving) => {
                self.go = Some(hold);
                (vec![], Outcome::None)
            }
            (
                Event::Said(Said::Failed(why)) | Event::CannotGoOn(why),
                Stage::Awaited | Stage::Receiving | Stage::Received,
            ) => (vec![], Outcome::Lost(why)),
            (Event::Said(Said::Cancelled), Stage::Awaited | Stage::Receiving | Stage::Received) => {
                (vec![], Outcome::Lost("the migration was cancelled".to_owned()))
            }
            (
                Event::Send { .. }
                | Event::Copies
                | Event::Copied { .. }
                | Event::Begun
                | Event::Receive
                | Event::Said(_)
                | Event::Seen(_)
                | Event::CannotGoOn(_)
                | Event::Abort
                | Event::Verdict { .. }
                | Event::Go { .. },
                Stage::Awaited | Stage::Receiving | Stage::Received | Stage::Arrived,
            ) => (vec![], Outcome::None),
        }
    }

    fn arrive(&mut self, hold: bool) -> Outcome {
        self.stage = Stage::Arrived;
        Outcome::Arrived { hold }
    }

    pub(super) fn told(&self) -> Told {
        let state = match self.stage {
            Stage::Awaited => State::Awaited,
            Stage::Receiving => State::Receiving,
            Stage::Received => State::Received,
            Stage::Arrived => State::Arrived,
        };
        Told {
            uid: self.uid.clone(),
            state,
            progress: Progress::default(),
            reason: String::new(),
            paused: false,
            aborted: false,
            hold: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_only_when_all_is_here_and_the_word_has_come() {
        let go = Event::Go { hold: false };
        let completed = Event::Said(Said::Completed);
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
    fn what_fails_before_it_runs_is_its_end() {
        let mut target = Target::new("m".into());
        target.step(Event::Receive);
        let lost = target.step(Event::Said(Said::Failed("bad section".into()))).1;
        assert_eq!(lost, Outcome::Lost("bad section".into()));
        target.step(Event::Said(Said::Completed));
        target.step(Event::Go { hold: true });
        assert_eq!(target.step(Event::CannotGoOn("late".into())).1, Outcome::None);
    }
}
