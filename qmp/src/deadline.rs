//! The moment at which a wait ends.

use std::time::Duration;

use tokio::time::Instant;

/// The moment at which a wait ends. Made once, at the top of an operation, and handed down: steps share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        // The far future stands in for what the clock cannot express.
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

    /// The time that is left, zero when it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}
