//! Post-copy at the source: the guest is handed over before all of its memory is sent.

use super::{Effect, Outcome, Source, Stage};

/// The state of post-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostCopy {
    /// Post-copy is not used.
    No,
    /// QEMU was ordered to start post-copy.
    Asked,
    /// The target has the guest, and fetches the missing memory.
    Began,
    /// The target has all of the memory.
    Done,
}

impl Source {
    /// The guest was handed over and may have run on the target. The guest here is out of date and must not run.
    pub(super) fn lost(&mut self, why: &str) -> (Vec<Effect>, Outcome) {
        self.stage = Stage::Lost;
        (vec![], Outcome::Gone(self.why.get_or_insert_with(|| why.to_owned()).clone()))
    }

    /// Whether the target still fetches memory from here.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.stage == Stage::Sent && self.post_copy == PostCopy::Began
    }

    /// Whether a pause or post-copy already helps the migration to end.
    pub(super) fn is_assisted(&self) -> bool {
        self.paused || self.post_copy != PostCopy::No
    }
}
