//! A guest that is handed over before all of its memory is sent: how far that is, and what it means for the source.

use super::{Effect, Outcome, Source, Stage};

/// Whether the guest is handed over before all of its memory is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostCopy {
    /// No.
    No,
    /// QEMU was asked to.
    Asked,
    /// The target has the guest, and fetches the memory that it lacks.
    Began,
    /// The target has all of the memory.
    Done,
}

impl Source {
    /// The guest was handed over and may have run there. What is here is older, and must not run.
    pub(super) fn lost(&mut self, why: &str) -> (Vec<Effect>, Outcome) {
        self.stage = Stage::Lost;
        (vec![], Outcome::Gone(self.why.get_or_insert_with(|| why.to_owned()).clone()))
    }

    /// The target still fetches memory from here.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.stage == Stage::Sent && self.post_copy == PostCopy::Began
    }

    /// Something was done to have it end.
    pub(super) fn is_assisted(&self) -> bool {
        self.paused || self.post_copy != PostCopy::No
    }
}
