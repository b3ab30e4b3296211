//! The total time that a migration may take, and what happens when it has passed.

use std::time::Duration;

use super::post_copy::PostCopy;
use super::{Effect, Outcome, Source, Stage};

impl Source {
    /// The end of the total time.
    pub(super) fn ends(&self) -> Option<Duration> {
        self.began.zip(self.limits.completion).map(|(began, limit)| began.saturating_add(limit))
    }

    /// The total time has passed. This also holds while disks are copied.
    pub(super) fn time_is_up(&mut self) -> (Vec<Effect>, Outcome) {
        if self.limits.post_copy {
            // QEMU can only do this once it sends memory.
            if self.stage != Stage::Sending {
                return (vec![], Outcome::None);
            }
            self.post_copy = PostCopy::Asked;
            (vec![Effect::PostCopy], Outcome::None)
        } else if self.limits.may_pause {
            self.paused = true;
            (vec![Effect::Pause], Outcome::None)
        } else {
            let seconds = self.limits.completion.unwrap_or_default().as_secs();
            let why = format!("Live migration is not completed after {seconds} seconds and has been aborted");
            self.give_up(self.explained(why))
        }
    }
}
