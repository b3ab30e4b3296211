//! How long to wait before a failed action is tried again.

use std::time::Duration;

use tokio::time::Instant;

/// A failure that lasts longer than this is reported. A shorter one is normal during startup on a busy node.
const REPORT_AFTER: Duration = Duration::from_secs(15);

/// A failure is logged when it has happened this often in a row, and then each time the count has doubled.
const LOG_AFTER: u32 = 8;

/// Doubling delays, and the time since which there were only failures.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
    since: Option<Instant>,
    message: String,
    until: Option<Instant>,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(10);

    /// Records a failure at `now`: the next attempt is at [`Backoff::until`]. Returns the number of failures
    /// in a row if they should be logged.
    pub fn failed(&mut self, message: String, now: Instant) -> Option<u32> {
        let delay = Self::FIRST.saturating_mul(1 << self.failures.min(16)).min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.since.get_or_insert(now);
        self.message = message;
        self.until = Some(now + delay);
        let logged = self.failures >= LOG_AFTER && self.failures.is_power_of_two();
        logged.then_some(self.failures)
    }

    /// Records a success: the next failure counts as the first.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// When the next attempt may be made; `None` if it may be made now.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// The failure, if it has lasted long enough to be reported.
    pub fn failure(&self, now: Instant) -> Option<&str> {
        self.since.filter(|since| now.duration_since(*since) >= REPORT_AFTER).map(|_| self.message.as_str())
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        assert_eq!(backoff.until(now), None);
        let mut delays = Vec::new();
        for _ in 0..40 {
            backoff.failed("why".to_owned(), now);
            let until = backoff.until(now).unwrap();
            delays.push(until - now);
            now = until;
        }
        assert_eq!(delays[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(delays[39], Backoff::LONGEST);
        assert_eq!(backoff.until(now), None);
        backoff.succeeded();
        backoff.failed("why".to_owned(), now);
        assert_eq!(backoff.until(now), Some(now + Backoff::FIRST));
    }

    #[test]
    fn only_a_lasting_failure_is_reported() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        backoff.failed("why".to_owned(), now);
        assert_eq!(backoff.failure(now), None);
        let later = now + REPORT_AFTER;
        assert_eq!(backoff.failure(later), Some("why"));
        backoff.succeeded();
        assert_eq!(backoff.failure(later), None);
    }
}
