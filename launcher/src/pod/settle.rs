//! Limits changes of the status: the guest can open and close its agent's channel at any rate, and each
//! published change causes a write to the API server. A change is published at once; further changes soon
//! after it only when the value has settled.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::status::Status;

/// Shortest time between two published changes.
const REST: Duration = Duration::from_secs(5);

/// A value that does not change back at once.
#[derive(Debug, Clone, Copy, Default)]
struct Settled {
    told: bool,
    since: Option<Instant>,
}

impl Settled {
    /// The value to publish now, and when to check again if it differs from the actual value.
    fn see(&mut self, is: bool, now: Instant) -> (bool, Option<Instant>) {
        let rested = self.since.map(|since| since + REST);
        match rested.filter(|rested| *rested > now) {
            _ if is == self.told => (is, None),
            Some(rested) => (self.told, Some(rested)),
            None => {
                *self = Self { told: is, since: Some(now) };
                (is, None)
            }
        }
    }
}

/// Forwards the status until the channel closes.
pub async fn settle(mut status: watch::Receiver<Status>, settled: watch::Sender<Status>) {
    let mut agent = Settled::default();
    loop {
        let mut present = status.borrow_and_update().clone();
        let (connected, again) = agent.see(present.agent_connected, Instant::now());
        present.agent_connected = connected;
        settled.send_if_modified(|told| {
            let new = *told != present;
            *told = present;
            new
        });
        let wait = async {
            match again {
                Some(again) => sleep_until(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return },
            () = wait => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_agent_counts_as_connected_until_it_has_settled() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut agent = Settled::default();
        assert_eq!(agent.see(false, at(0)), (false, None));
        assert_eq!(agent.see(true, at(10)), (true, None));
        for ms in 11..1000 {
            let (told, again) = agent.see(ms % 2 == 0, at(ms));
            assert!(told, "{ms}");
            assert_eq!(again, (ms % 2 == 1).then(|| at(5010)), "{ms}");
        }
        assert_eq!(agent.see(false, at(5010)), (false, None));
        assert_eq!(agent.see(true, at(60_000)), (true, None));
    }
}
