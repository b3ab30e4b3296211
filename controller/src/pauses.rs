//! Pods that were made a moment ago: the next one of the same name has to wait.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between a volume's pod and its replacement.
const PAUSE: Duration = Duration::from_secs(5);

/// When pods were made: the next one of the same name has to wait.
#[derive(Default)]
pub struct Pauses(Mutex<HashMap<(String, String), Instant>>);

impl Pauses {
    /// Records that a pod was made, or refused.
    pub(crate) fn begin(&self, namespace: &str, pod: &str, now: Instant) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|_, since| now.duration_since(*since) < PAUSE);
        made.insert((namespace.to_owned(), pod.to_owned()), now);
    }

    /// Records that a pod is no longer wanted: if it is wanted again, that is not a repetition.
    pub(crate) fn end(&self, namespace: &str, pod: &str) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.remove(&(namespace.to_owned(), pod.to_owned()));
    }

    pub(crate) fn left(&self, namespace: &str, pod: &str, now: Instant) -> Duration {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = made.get(&(namespace.to_owned(), pod.to_owned()));
        since.map_or(Duration::ZERO, |since| PAUSE.saturating_sub(now.duration_since(*since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_name_follow_each_other_with_a_pause() {
        let (pauses, start) = (Pauses::default(), Instant::now());
        assert_eq!(pauses.left("ns", "a", start), Duration::ZERO);
        pauses.begin("ns", "a", start);
        assert_eq!(pauses.left("ns", "a", start + Duration::from_secs(2)), Duration::from_secs(3));
        assert_eq!(pauses.left("other", "a", start), Duration::ZERO);
        assert_eq!(pauses.left("ns", "a", start + PAUSE), Duration::ZERO);
        pauses.begin("ns", "b", start + PAUSE);
        assert_eq!(pauses.0.lock().unwrap().len(), 1);
        pauses.end("ns", "b");
        assert_eq!(pauses.left("ns", "b", start + PAUSE), Duration::ZERO);
    }
}
