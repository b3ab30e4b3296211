//! When router advertisements are sent: when the guest asks, and every so often, with a gap between two.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::router;

/// Shortest time between two advertisements, which limits the answers to a guest that sends many
/// solicitations.
const GAP: Duration = Duration::from_millis(100);

/// The pace of one guest's advertisements. The first one is due at once.
pub(super) struct Pace {
    unasked: Interval,
    last: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        let mut unasked = interval(Duration::from_secs(router::INTERVAL));
        unasked.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { unasked, last: None }
    }

    /// Waits until an advertisement is due that nobody asks for. May be dropped at any time.
    pub(super) async fn due(&mut self) {
        self.unasked.tick().await;
    }

    /// Waits until an advertisement may follow the one before.
    pub(super) async fn gap(&mut self) {
        if let Some(last) = self.last {
            sleep_until(last + GAP).await;
        }
        self.last = Some(Instant::now());
    }
}
