//! The side that a guest leaves.

use std::time::Duration;

use super::bottleneck;
use super::event::{Effect, Event, Outcome, Progress, Said, State, Told};
use super::limits::Limits;

/// How long the switch may take beyond the guest's downtime, because a failed network gives no sign.
const SWITCH: Duration = Duration::from_secs(10);
/// Delay before the first query of the disk copies, because small ones take no time.
const SOON: Duration = Duration::from_millis(100);
/// Interval of queries of the figures.
const LOOK: Duration = Duration::from_secs(1);

/// The stage of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// QEMU is being configured.
    Preparing,
    /// Disks are copied while the guest runs. Its later writes are made on both sides.
    Copying,
    /// Memory is sent while the guest runs.
    Sending,
    /// The guest is paused, and the rest is sent.
    Switching,
    /// Everything was sent. It is unknown whether the guest has arrived, and the guest here is paused.
    Sent,
    /// The guest is on the other node.
    Left,
    /// The migration has ended, and the guest is here.
    Over,
}

/// A guest that is being sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// UID of the migration.
    pub uid: String,
    /// The stage of the migration.
    pub stage: Stage,
    /// Its limits.
    pub limits: Limits,
    progress: Progress,
    /// End of the total time.
    ends: Option<Duration>,
    /// The smallest remainder so far, and since when.
    least: (u64, Duration),
    look: Duration,
    /// End of the time for the switch.
    switch: Duration,
    /// Whether the guest was paused so that the copy can complete.
    paused: bool,
    aborted: bool,
    /// Why it is or was given up.
    why: Option<String>,
    /// When a sent guest ends here without a verdict.
    stop: Option<Duration>,
}

impl Source {
    /// Starts sending.
    #[must_use]
    pub fn begin(uid: String, limits: Limits, now: Duration) -> (Self, Vec<Effect>) {
        let source = Self {
            uid,
            stage: Stage::Preparing,
            limits,
            progress: Progress::default(),
            ends: limits.completion.map(|limit| now + limit),
            least: (u64::MAX, now),
            look: now + LOOK,
            switch: now,
            paused: false,
            aborted: false,
            why: None,
            stop: None,
        };
        (source, vec![Effect::Send])
    }

    pub(super) fn step(&mut self, now: Duration, event: Event) -> (Vec<Effect>, Outcome) {
        match event {
            Event::Said(said) => self.said(now, said),
            Event::Seen(progress) => {
                self.seen(now, progress);
                (vec![], Outcome::None)
            }
            Event::Copies => {
                if self.stage == Stage::Preparing {
                    (self.stage, self.look) = (Stage::Copying, now + SOON);
                    self.least = (u64::MAX, now);
                    if let Some(why) = self.why.clone() {
                        return self.is_over(why);
                    }
                }
                (vec![], Outcome::None)
            }
            Event::Copied { remaining, total, done } => {
                (self.copied(now, remaining, total, done), Outcome::None)
            }
            Event::Begun => {
                if self.stage == Stage::Preparing {
                    self.stage = Stage::Sending;
                    // The disks had their own time limit.
                    self.ends = self.limits.completion.map(|limit| now + limit);
                    (self.least, self.look) = ((u64::MAX, now), now + LOOK);
                    // It was given up before it had begun.
                    let cancel = self.why.is_some().then_some(Effect::Cancel);
                    return (cancel.into_iter().collect(), Outcome::None);
                }
                (vec![], Outcome::None)
            }
            Event::CannotGoOn(why) => match self.stage {
                Stage::Copying => self.is_over(why),
                Stage::Preparing => {
                    // If QEMU still carries out the last command, the clean-up follows it.
                    let (effects, outcome) = self.is_over(why);
                    ([Effect::Cancel].into_iter().chain(effects).collect(), outcome)
                }
                Stage::Sending | Stage::Switching => (self.give_up(why), Outcome::None),
                Stage::Sent | Stage::Left | Stage::Over => (vec![], Outcome::None),
            },
            Event::Abort => match self.stage {
                Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching => {
                    self.aborted = true;
                    (self.give_up("Live migration aborted".to_owned()), Outcome::None)
                }
                // It is too late, or has ended.
                Stage::Sent | Stage::Left | Stage::Over => (vec![], Outcome::None),
            },
            Event::Verdict { went } => self.verdict(went),
            Event::Send { .. } | Event::Receive | Event::Go { .. } => (vec![], Outcome::None),
        }
    }

    fn said(&mut self, now: Duration, said: Said) -> (Vec<Effect>, Outcome) {
        match (said, self.stage) {
            (Said::PreSwitchover, Stage::Preparing | Stage::Sending) => {
                self.stage = Stage::Switching;
                self.switch = now + self.limits.downtime + SWITCH;
                // A migration that was given up is already cancelled.
                let switch = self.why.is_none().then_some(Effect::Switch);
                (switch.into_iter().collect(), Outcome::None)
            }
            (Said::Completed, Stage::Preparing | Stage::Sending | Stage::Switching) => {
                self.stage = Stage::Sent;
                (vec![Effect::Look], Outcome::None)
            }
            (Said::Failed(why), Stage::Preparing | Stage::Sending | Stage::Switching) => self.is_over(why),
            (Said::Cancelled, Stage::Preparing | Stage::Sending | Stage::Switching) => {
                self.is_over("it was cancelled".to_owned())
            }
            (
                Said::Active | Said::PreSwitchover | Said::Completed | Said::Failed(_) | Said::Cancelled,
                Stage::Preparing
                | Stage::Copying
                | Stage::Sending
                | Stage::Switching
                | Stage::Sent
                | Stage::Left
                | Stage::Over,
            ) => (vec![], Outcome::None),
        }
    }

    /// The guest is here, and QEMU has resumed it if it ran before.
    fn is_over(&mut self, why: String) -> (Vec<Effect>, Outcome) {
        self.stage = Stage::Over;
        // The reason for giving up is more helpful than QEMU's message after it.
        self.why.get_or_insert(why);
        let outcome = if self.paused { Outcome::Back } else { Outcome::None };
        (vec![Effect::CleanUp], outcome)
    }

    fn verdict(&mut self, went: bool) -> (Vec<Effect>, Outcome) {
        match (self.stage, went) {
            // The instance's status says so, and no other source can: the rest here ends.
            (Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching | Stage::Sent, true) => {
                self.stage = Stage::Left;
                (vec![], Outcome::Left)
            }
            (Stage::Sent, false) => {
                self.stage = Stage::Over;
                self.why.get_or_insert_with(|| "the guest did not arrive".to_owned());
                (vec![Effect::CleanUp], Outcome::Back)
            }
            (Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching, false) => {
                (self.give_up("it is over for the instance".to_owned()), Outcome::None)
            }
            (Stage::Left | Stage::Over, _) => (vec![], Outcome::None),
        }
    }

    /// Gives up, once. QEMU reports the result.
    fn give_up(&mut self, why: String) -> Vec<Effect> {
        if self.why.is_some() {
            return vec![];
        }
        self.why = Some(why);
        match self.stage {
            // Before it has begun there is nothing to cancel.
            Stage::Preparing => vec![],
            // No part of the guest was sent.
            Stage::Copying => {
                self.stage = Stage::Over;
                vec![Effect::CleanUp]
            }
            Stage::Sending | Stage::Switching | Stage::Sent | Stage::Left | Stage::Over => {
                vec![Effect::Cancel]
            }
        }
    }

    /// Stops the guest. Returns whether the stop waits for the verdict.
    pub fn stop(&mut self, now: Duration, grace: Duration) -> (Vec<Effect>, bool) {
        match self.stage {
            Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching => {
                (self.give_up("the guest is stopped".to_owned()), false)
            }
            Stage::Sent => {
                let ends = now + grace;
                self.stop = Some(self.stop.map_or(ends, |before| before.min(ends)));
                (vec![], true)
            }
            Stage::Left | Stage::Over => (vec![], false),
        }
    }

    fn copied(&mut self, now: Duration, remaining: u64, total: u64, done: bool) -> Vec<Effect> {
        if self.stage != Stage::Copying {
            return vec![];
        }
        self.progress =
            Progress { remaining, total, transferred: total.saturating_sub(remaining), ..self.progress };
        if remaining < self.least.0 {
            self.least = (remaining, now);
        }
        if !done {
            return vec![];
        }
        self.stage = Stage::Preparing;
        vec![Effect::SendMemory]
    }

    fn seen(&mut self, now: Duration, progress: Progress) {
        self.progress = progress;
        if self.stage == Stage::Sending && progress.total > 0 && progress.remaining < self.least.0 {
            self.least = (progress.remaining, now);
        }
    }

    pub(super) fn tick(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        match self.stage {
            Stage::Copying | Stage::Sending => {}
            Stage::Switching if now >= self.switch => {
                return (self.give_up("the switch took too long".to_owned()), Outcome::None);
            }
            Stage::Sent if self.stop.is_some_and(|stop| now >= stop) => return (vec![], Outcome::Undecided),
            Stage::Preparing | Stage::Switching | Stage::Sent | Stage::Left | Stage::Over => {
                return (vec![], Outcome::None);
            }
        }
        let mut effects = Vec::new();
        if now >= self.look {
            self.look = now + LOOK;
            effects.push(if self.stage == Stage::Copying { Effect::LookAtDisks } else { Effect::Look });
        }
        if self.why.is_some() {
            return (effects, Outcome::None);
        }
        if let Some(limit) = self.limits.progress.filter(|limit| now >= self.least.1 + *limit) {
            let why = format!("Live migration stuck for {} seconds and has been aborted", limit.as_secs());
            effects.extend(self.give_up(self.explained(why)));
        } else if self.stage == Stage::Sending && self.ends.is_some_and(|ends| now >= ends) && !self.paused {
            if self.limits.may_pause {
                self.paused = true;
                effects.push(Effect::Pause);
            } else {
                let seconds = self.limits.completion.unwrap_or_default().as_secs();
                let why =
                    format!("Live migration is not completed after {seconds} seconds and has been aborted");
                effects.extend(self.give_up(self.explained(why)));
            }
        }
        (effects, Outcome::None)
    }

    /// A reason, with the known bottleneck of the migration.
    fn explained(&self, why: String) -> String {
        let told = (self.stage == Stage::Sending).then(|| bottleneck::told(&self.progress, &self.limits));
        told.flatten().map_or_else(|| why.clone(), |told| format!("{why}: {told}"))
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        match self.stage {
            Stage::Copying | Stage::Sending => Some(self.look),
            Stage::Switching => self.why.is_none().then_some(self.switch),
            Stage::Sent => self.stop,
            Stage::Preparing | Stage::Left | Stage::Over => None,
        }
    }

    pub(super) fn told(&self, hold: bool) -> Told {
        let state = match self.stage {
            Stage::Preparing | Stage::Copying | Stage::Sending => State::Sending,
            Stage::Switching => State::Switching,
            Stage::Sent => State::Sent,
            Stage::Left => State::Left,
            Stage::Over => State::Over,
        };
        let Self { uid, progress, paused, aborted, why, .. } = self;
        Told {
            uid: uid.clone(),
            state,
            progress: *progress,
            reason: why.clone().unwrap_or_default(),
            paused: *paused,
            aborted: *aborted,
            hold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits {
            bandwidth: None,
            downtime: Duration::from_millis(900),
            auto_converge: false,
            completion: Some(10 * S),
            progress: Some(5 * S),
            may_pause: false,
        }
    }

    fn begun(limits: Limits) -> Source {
        let mut source = Source::begin("m".to_owned(), limits, S).0;
        source.step(S, Event::Begun);
        source
    }

    fn look(source: &mut Source, second: u32, remaining: u64) -> Vec<Effect> {
        let progress = Progress { remaining, total: 1000, ..Progress::default() };
        source.step(second * S, Event::Seen(progress));
        source.tick(second * S).0
    }

    #[test]
    fn one_that_goes_well_ends_with_the_verdict() {
        let mut source = begun(limits());
        assert_eq!(source.step(S, Event::Said(Said::PreSwitchover)).0, [Effect::Switch]);
        source.step(S, Event::Said(Said::Completed));
        assert_eq!((source.stage, source.wake()), (Stage::Sent, None));
        // From now on only the verdict counts.
        for event in
            [Event::Abort, Event::Said(Said::Failed("late".into())), Event::CannotGoOn("late".into())]
        {
            assert_eq!(source.step(S, event).1, Outcome::None);
            assert_eq!(source.stage, Stage::Sent);
        }
        assert_eq!(source.step(S, Event::Verdict { went: true }).1, Outcome::Left);
    }

    #[test]
    fn one_that_is_lost_on_the_way_goes_on_here() {
        let mut source = begun(limits());
        source.step(S, Event::Said(Said::PreSwitchover));
        source.step(S, Event::Said(Said::Completed));
        assert_eq!(source.step(S, Event::Verdict { went: false }), (vec![Effect::CleanUp], Outcome::Back));
        assert_eq!(source.told(false).reason, "the guest did not arrive");
    }

    #[test]
    fn no_progress_and_too_long_are_given_up_with_kubevirts_words() {
        let mut source = begun(limits());
        assert_eq!(look(&mut source, 2, 500), [Effect::Look]);
        assert_eq!(look(&mut source, 6, 500), [Effect::Look]);
        assert_eq!(look(&mut source, 7, 600), [Effect::Look, Effect::Cancel]);
        assert!(source.told(false).reason.starts_with("Live migration stuck for 5 seconds"));
        // The explanation is only given once.
        assert_eq!(look(&mut source, 8, 600), [Effect::Look]);
        let (effects, outcome) = source.step(9 * S, Event::Said(Said::Cancelled));
        assert_eq!((effects, outcome), (vec![Effect::CleanUp], Outcome::None));

        let mut source = begun(limits());
        for second in 2..11 {
            assert_eq!(look(&mut source, second, 1000 - u64::from(second)), [Effect::Look]);
        }
        assert_eq!(look(&mut source, 11, 10), [Effect::Look, Effect::Cancel]);
        assert_eq!(
            source.told(false).reason,
            "Live migration is not completed after 10 seconds and has been aborted"
        );
    }

    #[test]
    fn what_kept_it_from_its_end_is_told() {
        let mut source = begun(limits());
        for (second, remaining) in [(2, 999), (6, 998), (10, 997)] {
            let progress = Progress {
                remaining,
                total: 1000,
                rate: 1 << 20,
                dirty_rate: 2 << 20,
                ..Progress::default()
            };
            source.step(second * S, Event::Seen(progress));
        }
        assert_eq!(source.tick(11 * S).0, [Effect::Look, Effect::Cancel]);
        let reason = source.told(false).reason;
        assert!(
            reason.contains("after 10 seconds and has been aborted: limited by the dirty rate"),
            "{reason}"
        );
    }

    #[test]
    fn where_it_may_the_guest_is_paused_instead_and_goes_on_if_that_fails() {
        let mut source = begun(Limits { may_pause: true, progress: None, ..limits() });
        assert_eq!(look(&mut source, 11, 10), [Effect::Look, Effect::Pause]);
        assert_eq!(look(&mut source, 12, 10), [Effect::Look]);
        assert!(source.told(false).paused);
        let failed = source.step(13 * S, Event::Said(Said::Failed("reset".into())));
        assert_eq!(failed, (vec![Effect::CleanUp], Outcome::Back));
    }

    #[test]
    fn an_abort_in_time_is_told_as_one() {
        let mut source = begun(limits());
        assert_eq!(source.step(S, Event::Abort).0, [Effect::Cancel]);
        // The switch was just reached: it does not happen.
        assert_eq!(source.step(S, Event::Said(Said::PreSwitchover)).0, []);
        source.step(S, Event::Said(Said::Cancelled));
        let told = source.told(false);
        assert_eq!(
            (told.state, told.aborted, told.reason.as_str()),
            (State::Over, true, "Live migration aborted")
        );
    }

    #[test]
    fn before_it_has_begun_there_is_nothing_to_cancel() {
        let mut source = Source::begin("m".to_owned(), limits(), S).0;
        assert_eq!(source.step(S, Event::Abort).0, []);
        assert_eq!(source.step(S, Event::Begun).0, [Effect::Cancel]);
        let mut source = Source::begin("m".to_owned(), limits(), S).0;
        let (effects, outcome) = source.step(S, Event::CannotGoOn("refused".to_owned()));
        assert_eq!((effects, outcome), (vec![Effect::Cancel, Effect::CleanUp], Outcome::None));
        assert_eq!((source.stage, source.told(false).reason.as_str()), (Stage::Over, "refused"));
    }

    #[test]
    fn disks_come_first_and_a_migration_that_is_given_up_meanwhile_sends_nothing() {
        let copying = || {
            let mut source = Source::begin("m".to_owned(), limits(), S).0;
            source.step(S, Event::Copies);
            source
        };
        let mut source = copying();
        assert_eq!(source.tick(2 * S).0, [Effect::LookAtDisks]);
        assert_eq!(source.step(2 * S, Event::Copied { remaining: 5, total: 9, done: false }).0, []);
        assert_eq!(
            source.step(30 * S, Event::Copied { remaining: 0, total: 9, done: true }).0,
            [Effect::SendMemory]
        );
        source.step(30 * S, Event::Begun);
        // Memory has its own time limit, which starts now.
        assert_eq!((source.stage, source.tick(31 * S).0), (Stage::Sending, vec![Effect::Look]));
        let mut source = copying();
        assert_eq!(source.step(2 * S, Event::Abort).0, [Effect::CleanUp]);
        assert_eq!((source.stage, source.told(false).aborted), (Stage::Over, true));
        let mut source = copying();
        let (effects, _) = source.step(2 * S, Event::CannotGoOn("no space left".to_owned()));
        assert_eq!((effects, source.stage), (vec![Effect::CleanUp], Stage::Over));
    }

    #[test]
    fn a_stop_cancels_it_or_waits_for_the_verdict() {
        let mut source = begun(limits());
        assert_eq!(source.stop(2 * S, S), (vec![Effect::Cancel], false));
        // It is too late: the guest was sent.
        source.step(2 * S, Event::Said(Said::Completed));
        assert_eq!(source.stop(3 * S, 30 * S), (vec![], true));
        assert_eq!(source.stop(3 * S, 60 * S), (vec![], true));
        assert_eq!(source.wake(), Some(33 * S));
        assert_eq!(source.tick(32 * S).1, Outcome::None);
        assert_eq!(source.tick(33 * S).1, Outcome::Undecided);
    }
}
