//! When router advertisements are sent: when the guest asks, and every so often, with a gap between two.
//!
//! What the guest sends is read during the gap, too. However often it asks until then, it gets one advertisement: so a guest that
//! sends many solicitations gets few answers, and those do not go on when it stops. Its other messages do not wait behind them.

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
    /// Whether the next one only waits for the gap.
    is_wanted: bool,
}

impl Pace {
    pub(super) fn new() -> Self {
        let mut unasked = interval(Duration::from_secs(router::INTERVAL));
        unasked.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { unasked, last: None, is_wanted: false }
    }

    /// The guest asks for an advertisement.
    pub(super) fn ask(&mut self) {
        self.is_wanted = true;
    }

    /// Waits until an advertisement is due: the guest has asked, or it is time for one that nobody asks for, and the one before was
    /// not too recent. May be dropped at any time.
    pub(super) async fn due(&mut self) {
        if !self.is_wanted {
            self.unasked.tick().await;
            self.is_wanted = true;
        }
        if let Some(last) = self.last {
            sleep_until(last + GAP).await;
        }
        self.last = Some(Instant::now());
        self.is_wanted = false;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_asks_all_the_time_gets_ten_advertisements_in_a_second_and_then_one() {
        let mut pace = Pace::new();
        let (end, mut sent) = (Instant::now() + Duration::from_millis(1050), 0);
        while Instant::now() < end {
            tokio::select! {
                () = pace.due() => sent += 1,
                () = sleep(Duration::from_millis(1)) => pace.ask(),
            }
        }
        assert_eq!(sent, 11, "one at once, and ten in a second");
        assert!(timeout(GAP * 2, pace.due()).await.is_ok(), "the guest has asked");
        assert!(timeout(Duration::from_secs(60), pace.due()).await.is_err(), "the guest asks no more");
        assert!(timeout(Duration::from_secs(router::INTERVAL), pace.due()).await.is_ok(), "not asked for");
    }
}
