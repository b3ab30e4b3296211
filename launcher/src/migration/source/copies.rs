//! The copies of disks, which come before the memory.

use std::time::Duration;

use super::{Effect, Outcome, Progress, SOON, Source, Stage};

impl Source {
    /// QEMU has begun to copy this many bytes of disks.
    pub(super) fn copies(&mut self, now: Duration, bytes: u64) -> (Vec<Effect>, Outcome) {
        if self.stage != Stage::Preparing {
            return (vec![], Outcome::None);
        }
        (self.stage, self.look) = (Stage::Copying, now + SOON);
        (self.least, self.began) = ((u64::MAX, now), Some(now));
        self.limits = self.limits.with_disks(bytes);
        // It was given up before it had begun.
        self.why.clone().map_or((vec![], Outcome::None), |why| self.is_over(why))
    }

    /// Figures of the copies.
    pub(super) fn copied(&mut self, now: Duration, remaining: u64, total: u64, done: bool) -> Vec<Effect> {
        if self.stage != Stage::Copying {
            return vec![];
        }
        let transferred = total.saturating_sub(remaining);
        self.progress = Progress { remaining, total, transferred, ..self.progress };
        self.speedometer.seen(now, transferred, total);
        if remaining < self.least.0 {
            self.least.1 = now;
        }
        // Nothing remains while QEMU still finds out how much of a disk there is to copy.
        self.least.0 = remaining;
        if !done {
            return vec![];
        }
        self.stage = Stage::Preparing;
        vec![Effect::SendMemory]
    }
}
