//! A rate limit: a token bucket, with which the handler limits what a launcher causes, and the launcher what its guest
//! does. Pure: the time is a parameter.

use std::time::Duration;

use tokio::time::Instant;

/// Allows a number of events at once, and then one in each period.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// The content of a full bucket as a time: all tokens but one.
    slack: Duration,
    every: Duration,
    /// When the bucket is full again. `None` or a past time means that it is full.
    full: Option<Instant>,
}

impl Bucket {
    /// A full bucket of `most` tokens, to which one is added after each `every`.
    #[must_use]
    pub fn new(most: u32, every: Duration) -> Self {
        Self { slack: every.saturating_mul(most.saturating_sub(1)), every, full: None }
    }

    /// Takes a token. Returns false if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        if self.until(now).is_some() {
            return false;
        }
        self.full = Some(self.full.unwrap_or(now).max(now) + self.every);
        true
    }

    /// When the next token is available; `None` if one is available now.
    #[must_use]
    pub fn until(&self, now: Instant) -> Option<Instant> {
        let full = self.full?;
        (full.saturating_duration_since(now) > self.slack).then(|| full - self.slack)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    #[test]
    fn a_bucket_gives_its_tokens_at_once_and_then_one_a_period() {
        let mut bucket = Bucket::new(3, EVERY);
        let now = Instant::now();
        assert_eq!([(); 4].map(|()| bucket.take(now)), [true, true, true, false]);
        let next = bucket.until(now).unwrap();
        assert_eq!(next, now + EVERY);
        assert!(bucket.take(next) && !bucket.take(next));
        let later = now + EVERY * 10;
        assert_eq!([(); 4].map(|()| bucket.take(later)), [true, true, true, false]);
    }

    proptest! {
        #[test]
        fn no_span_of_time_has_more_than_the_bucket_and_what_came_back(
            most in 1_u32..20, waits in proptest::collection::vec(0_u64..3000, 1..200),
        ) {
            let (mut bucket, begun) = (Bucket::new(most, EVERY), Instant::now());
            let (mut now, mut taken) = (begun, 0_u32);
            for wait in waits {
                now += Duration::from_millis(wait);
                let refused = bucket.until(now);
                prop_assert_eq!(bucket.take(now), refused.is_none());
                taken += u32::from(refused.is_none());
                if let Some(until) = refused {
                    prop_assert!(until > now && until <= now + EVERY);
                }
                prop_assert!(EVERY * taken.saturating_sub(most) <= now - begun);
            }
        }
    }
}
