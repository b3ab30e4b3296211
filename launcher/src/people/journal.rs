//! QEMU's last events, for clients that were not listening in time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use barevirt_qmp::Events;
use serde_json::{Value, json};

/// Number of events that are kept.
const KEPT: usize = 100;
/// Longest event that is kept, as JSON, in bytes; of a longer one only the name is kept.
const LONGEST: usize = 2048;

/// The kept events. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Mutex<VecDeque<Value>>>);

impl Journal {
    /// Records events to the end of the stream.
    pub async fn keep(self, mut events: Events) {
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.add(event.name(), Value::Object(event.raw().clone())),
                Err(gap) => self.add("", json!({"missed": gap.0})),
            }
        }
    }

    fn add(&self, name: &str, event: Value) {
        let event = if event.to_string().len() > LONGEST { json!({"event": name}) } else { event };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(event);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// The last events, oldest first.
    #[must_use]
    pub fn last(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_small_events_are_kept() {
        let journal = Journal::default();
        for n in 0..KEPT + 7 {
            journal.add("STOP", json!({"event": "STOP", "n": n}));
        }
        assert_eq!((journal.last().len(), &journal.last()[0]["n"]), (KEPT, &json!(7)));
        journal.add("LARGE", json!({"event": "LARGE", "data": "x".repeat(LONGEST)}));
        assert_eq!(journal.last()[KEPT - 1], json!({"event": "LARGE"}));
    }
}
