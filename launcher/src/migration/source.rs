//! The side that a guest leaves.

mod copies;
mod downtime;
mod post_copy;
mod slow;
mod time;

use std::time::Duration;

use super::bottleneck;
use super::event::{
    Effect, Event, Location, MigrationReport, Outcome, Progress, QemuState, Recovery, Slow, State,
};
use super::limits::{Downtime, Limits};
use super::speedometer::Speedometer;
use post_copy::{Connection, PostCopy};

pub use post_copy::RECOVERY;

/// How long the switch may take beyond the guest's downtime. A failed network gives no sign before the handlers' limit on silence,
/// which is as long.
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
    /// Everything was sent, or in post-copy everything but the memory that the target still fetches. It is unknown
    /// whether the guest has arrived, and the guest here is paused.
    Sent,
    /// The guest is on the other node.
    Left,
    /// The migration has ended, and the guest is here.
    Over,
    /// The guest was handed over, may have run on the target, and is lost there. It must not run here either.
    Lost,
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
    /// Speed of the disks' copies.
    speedometer: Speedometer,
    /// When QEMU began to send disks or memory. The total time counts from then on.
    began: Option<Duration>,
    /// The remainder that counts as progress when it gets smaller, and since when it has not.
    least: (u64, Duration),
    look: Duration,
    downtime: Downtime,
    /// What limited it after half of the total time.
    slow: Option<Slow>,
    /// End of the time for the switch.
    switch: Duration,
    /// Whether the guest was paused so that the copy can complete.
    paused: bool,
    post_copy: PostCopy,
    connection: Connection,
    aborted: bool,
    /// Why it is or was given up.
    why: Option<String>,
    /// When a sent guest ends here without a result.
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
            speedometer: Speedometer::default(),
            began: None,
            least: (u64::MAX, now),
            look: now + LOOK,
            downtime: Downtime { allowed: limits.first_downtime(), since: now },
            slow: None,
            switch: now,
            paused: false,
            post_copy: PostCopy::No,
            connection: Connection::new(),
            aborted: false,
            why: None,
            stop: None,
        };
        (source, vec![Effect::Send])
    }

    pub(super) fn step(&mut self, now: Duration, event: Event) -> (Vec<Effect>, Outcome) {
        match event {
            Event::QemuState(state) => self.qemu_state(now, state),
            Event::Progress(progress) => {
                self.seen(now, progress);
                (vec![], Outcome::None)
            }
            Event::Copies { bytes } => self.copies(now, bytes),
            Event::Copied { remaining, total, done } => {
                (self.copied(now, remaining, total, done), Outcome::None)
            }
            Event::Begun => {
                if self.stage == Stage::Preparing {
                    self.stage = Stage::Sending;
                    self.began.get_or_insert(now);
                    self.downtime.since = now;
                    // The time may have passed in the copies.
                    let look = self.ends().map_or(now + LOOK, |ends| ends.clamp(now, now + LOOK));
                    (self.least, self.look) = ((u64::MAX, now), look);
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
                Stage::Sending | Stage::Switching => self.give_up(why),
                Stage::Sent => {
                    self.not_rejoined(now);
                    (vec![], Outcome::None)
                }
                Stage::Left | Stage::Over | Stage::Lost => (vec![], Outcome::None),
            },
            Event::Rejoin => (self.rejoin(now), Outcome::None),
            Event::Rejoined => {
                self.rejoined(now);
                (vec![], Outcome::None)
            }
            Event::Abort => match self.stage {
                // It is too late: QEMU was already ordered to hand the guest over.
                Stage::Switching if self.post_copy == PostCopy::Asked => (vec![], Outcome::None),
                Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching => {
                    self.aborted = true;
                    self.give_up("Live migration aborted".to_owned())
                }
                // It is too late, or has ended.
                Stage::Sent | Stage::Left | Stage::Over | Stage::Lost => (vec![], Outcome::None),
            },
            Event::Result(location) => self.result(location),
            Event::Send { .. }
            | Event::Receive
            | Event::Go { .. }
            | Event::SourceEnded
            | Event::Offers(_) => (vec![], Outcome::None),
        }
    }

    fn qemu_state(&mut self, now: Duration, state: QemuState) -> (Vec<Effect>, Outcome) {
        match (state, self.stage) {
            (QemuState::PreSwitchover, Stage::Preparing | Stage::Sending) => {
                self.stage = Stage::Switching;
                self.switch = now + self.limits.downtime + SWITCH;
                // A migration that was given up is already cancelled.
                let switch = self.why.is_none().then_some(Effect::Switch);
                (switch.into_iter().collect(), Outcome::None)
            }
            (QemuState::Completed, Stage::Preparing | Stage::Sending | Stage::Switching) => {
                // An ordered post-copy that had not begun was not needed: the target has all of the memory.
                (self.stage, self.post_copy) = (Stage::Sent, PostCopy::No);
                (vec![Effect::Look], Outcome::None)
            }
            (
                state @ (QemuState::PostCopy | QemuState::Broken),
                Stage::Preparing | Stage::Sending | Stage::Switching,
            ) => self.hand_over(now, &state),
            (state, Stage::Sent) if self.is_fetched() => self.fetched(now, &state),
            (QemuState::Failed(why), Stage::Preparing | Stage::Sending | Stage::Switching) => {
                self.is_over(why)
            }
            (QemuState::Cancelled, Stage::Preparing | Stage::Sending | Stage::Switching) => {
                self.is_over("it was cancelled".to_owned())
            }
            (
                QemuState::Active
                | QemuState::PreSwitchover
                | QemuState::PostCopy
                | QemuState::Broken
                | QemuState::Completed
                | QemuState::Failed(_)
                | QemuState::Cancelled,
                Stage::Preparing
                | Stage::Copying
                | Stage::Sending
                | Stage::Switching
                | Stage::Sent
                | Stage::Left
                | Stage::Over
                | Stage::Lost,
            ) => (vec![], Outcome::None),
        }
    }

    /// The guest is here, and QEMU has resumed it if it ran before the migration paused it.
    fn is_over(&mut self, why: String) -> (Vec<Effect>, Outcome) {
        self.stage = Stage::Over;
        // The reason for giving up is more helpful than QEMU's message after it.
        self.why.get_or_insert(why);
        let outcome = if self.is_assisted() { Outcome::Back } else { Outcome::None };
        (vec![Effect::CleanUp], outcome)
    }

    fn result(&mut self, location: Location) -> (Vec<Effect>, Outcome) {
        match (self.stage, location) {
            // The instance's status says so, and no other source can: the rest here ends.
            (
                Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching | Stage::Sent,
                Location::Target,
            ) => {
                self.stage = Stage::Left;
                (vec![], Outcome::Left)
            }
            (Stage::Sent, _) if self.post_copy != PostCopy::No => {
                self.lost("the target ended before it had all of the memory")
            }
            // Its disks and peers may have seen later states of the guest than the one here.
            (Stage::Sent, Location::Nowhere) => self.lost("the target ended, and may have run the guest"),
            (Stage::Sent, Location::Source) => {
                self.stage = Stage::Over;
                self.why.get_or_insert_with(|| "the guest did not arrive".to_owned());
                (vec![Effect::CleanUp], Outcome::Back)
            }
            // QEMU has not handed it over. If it does before the cancellation, the result comes again.
            (Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching, _) => {
                self.give_up("it is over for the instance".to_owned())
            }
            (Stage::Left | Stage::Over | Stage::Lost, _) => (vec![], Outcome::None),
        }
    }

    /// Gives up, once. QEMU reports the result.
    fn give_up(&mut self, why: String) -> (Vec<Effect>, Outcome) {
        if self.why.is_some() {
            return (vec![], Outcome::None);
        }
        if self.stage == Stage::Copying {
            // No part of the guest was sent.
            return self.is_over(why);
        }
        self.why = Some(why);
        // Before it has begun there is nothing to cancel.
        let cancel = (self.stage != Stage::Preparing).then_some(Effect::Cancel);
        (cancel.into_iter().collect(), Outcome::None)
    }

    /// Stops the guest. `None` means that the stop waits for the result.
    pub fn stop(&mut self, now: Duration, grace: Duration) -> Option<(Vec<Effect>, Outcome)> {
        match self.stage {
            Stage::Preparing | Stage::Copying | Stage::Sending | Stage::Switching => {
                Some(self.give_up("the guest is stopped".to_owned()))
            }
            Stage::Sent => {
                let ends = now + grace;
                self.stop = Some(self.stop.map_or(ends, |before| before.min(ends)));
                None
            }
            Stage::Left | Stage::Over | Stage::Lost => Some((vec![], Outcome::None)),
        }
    }

    fn seen(&mut self, now: Duration, progress: Progress) {
        self.progress = progress;
        if self.stage == Stage::Sending && progress.total > 0 && progress.remaining < self.least.0 {
            self.least = (progress.remaining, now);
        }
        if self.is_fetched() {
            self.fetched_so_far(now, &progress);
        }
    }

    pub(super) fn tick(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        match self.stage {
            Stage::Copying | Stage::Sending => {}
            Stage::Switching if now >= self.switch && self.why.is_none() => {
                self.switch = now + SWITCH;
                return self.give_up("the switch took too long".to_owned());
            }
            // If the stream breaks between the switch and post-copy, QEMU 10.0 reports nothing and never resumes
            // its guest.
            Stage::Switching if now >= self.switch && self.post_copy == PostCopy::Asked => {
                self.post_copy = PostCopy::Began;
                return self.lost("the connection broke at the switch to post-copy");
            }
            Stage::Sent if self.stop.is_some_and(|stop| now >= stop) => return (vec![], Outcome::Undecided),
            Stage::Sent if self.is_fetched() => return self.tick_fetched(now),
            Stage::Preparing | Stage::Switching | Stage::Sent | Stage::Left | Stage::Over | Stage::Lost => {
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
        self.note_slowness(now);
        effects.extend(self.raise_downtime(now));
        let stuck = self.limits.progress.filter(|limit| now >= self.least.1 + *limit);
        let (more, outcome) = if let Some(limit) = stuck {
            let why = format!("Live migration stuck for {} seconds and has been aborted", limit.as_secs());
            self.give_up(self.explained(why))
        } else if self.ends().is_some_and(|ends| now >= ends) && !self.is_assisted() {
            self.time_is_up()
        } else {
            (vec![], Outcome::None)
        };
        effects.extend(more);
        (effects, outcome)
    }

    /// A reason, with the known bottleneck of the migration.
    fn explained(&self, why: String) -> String {
        self.bottleneck().map_or_else(|| why.clone(), |bottleneck| format!("{why}: {bottleneck}"))
    }

    fn bottleneck(&self) -> Option<String> {
        let Self { progress, speedometer, limits, .. } = self;
        match self.stage {
            Stage::Copying => bottleneck::of_copies(speedometer.speed, progress.remaining, limits),
            Stage::Sending => bottleneck::bottleneck(progress, limits),
            Stage::Preparing | Stage::Switching | Stage::Sent | Stage::Left | Stage::Over | Stage::Lost => {
                None
            }
        }
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        match self.stage {
            Stage::Copying | Stage::Sending => Some(self.look),
            Stage::Switching => {
                (self.why.is_none() || self.post_copy == PostCopy::Asked).then_some(self.switch)
            }
            Stage::Sent if self.is_fetched() => self.stop.into_iter().chain(self.wake_fetched()).min(),
            Stage::Sent => self.stop,
            Stage::Preparing | Stage::Left | Stage::Over | Stage::Lost => None,
        }
    }

    pub(super) fn report(&self, hold: bool) -> MigrationReport {
        let state = match self.stage {
            Stage::Preparing | Stage::Copying | Stage::Sending => State::Sending,
            Stage::Switching => State::Switching,
            Stage::Sent => State::Sent,
            Stage::Left => State::Left,
            Stage::Over | Stage::Lost => State::Over,
        };
        let Self { uid, progress, slow, paused, aborted, post_copy, why, .. } = self;
        MigrationReport {
            uid: uid.clone(),
            state,
            progress: *progress,
            reason: why.clone().unwrap_or_default(),
            bottleneck: self.bottleneck(),
            slow: slow.clone(),
            paused: *paused,
            aborted: *aborted,
            hold,
            post_copy: matches!(post_copy, PostCopy::Began | PostCopy::Done),
            offers_post_copy: false,
            recovery: self.recovery(),
        }
    }
}

#[cfg(test)]
mod tests;
