//! The moment at which a wait ends.

use std::time::Duration;

use tokio::time::Instant;

/// The moment at which a wait ends. It is made once, at the start of an operation, and passed to all its
/// steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// This long from now.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        // A time that the clock cannot express is replaced by a far future.
        Self(
            Instant::now().checked_add(wait).unwrap_or_else(|| Instant::now() + Duration::from_secs(1 << 30)),
        )
    }

    /// At this instant.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The instant itself, for `tokio::time::timeout_at`.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    /// The remaining time; zero if the deadline has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}
