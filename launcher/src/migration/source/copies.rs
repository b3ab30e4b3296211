//! The copies of disks, which come before the memory.

use std::time::Duration;

use super::{Effect, Progress, Source, Stage};

impl Source {
    /// Figures of the copies.
    pub(super) fn copied(&mut self, now: Duration, remaining: u64, total: u64, done: bool) -> Vec<Effect> {
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
}
