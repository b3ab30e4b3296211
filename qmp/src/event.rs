//! Events: always read, delivered to listeners, never fatal.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::broadcast;

/// A report from QEMU about itself or the guest.
///
/// Stored as received. Names and values that the schema of the `qapi` crate does not know are normal data;
/// [`Event::read`] is the view through that schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    name: Arc<str>,
    raw: Arc<Map<String, Value>>,
}

impl Event {
    pub(crate) fn new(name: String, raw: Map<String, Value>) -> Self {
        Self { name: name.into(), raw: Arc::new(raw) }
    }

    /// Its name, e.g. `SHUTDOWN`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One field of its data; null if it is missing.
    #[must_use]
    pub fn data(&self, field: &str) -> &Value {
        self.raw.get("data").map_or(&Value::Null, |data| &data[field])
    }

    /// The whole message as received.
    #[must_use]
    pub fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// Whether the event is of this kind of the `qapi` crate, whatever its data.
    #[must_use]
    pub fn is<E: qapi::Event>(&self) -> bool {
        self.name() == E::NAME
    }

    /// Its data by the schema of the `qapi` crate; `None` if it is another event, or has a value that the
    /// schema does not know.
    #[must_use]
    pub fn read<E: qapi::Event>(&self) -> Option<E> {
        let data = self.raw.get("data").cloned().unwrap_or_else(|| Value::Object(Map::new()));
        self.is::<E>().then(|| serde_json::from_value(data).ok()).flatten()
    }
}

/// A listener fell behind and this many events were overwritten. Query the state again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} events were missed")]
pub struct EventGap(pub u64);

/// A listener's view of the events, from the moment it was made.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self(receiver)
    }

    /// The next event, or how many were missed; `None` at the end of the stream. May be cancelled.
    pub async fn next(&mut self) -> Option<Result<Event, EventGap>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(EventGap(missed))),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qapi::qmp::SHUTDOWN;
    use serde_json::json;

    fn event(value: &Value) -> Event {
        let raw = value.as_object().unwrap().clone();
        Event::new(raw["event"].as_str().unwrap().to_owned(), raw)
    }

    #[test]
    fn known_events_have_a_typed_view() {
        let shutdown =
            event(&json!({"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"},
            "timestamp": {"seconds": 1, "microseconds": 2}}));
        assert_eq!(shutdown.data("reason"), "guest-shutdown");
        assert!(shutdown.read::<SHUTDOWN>().is_some_and(|data| data.guest));
    }

    #[test]
    fn unknown_events_and_values_are_data() {
        let new = event(&json!({"event": "BRAND_NEW", "timestamp": {"seconds": 1, "microseconds": 2}}));
        assert_eq!(
            (new.name(), new.read::<SHUTDOWN>().is_none(), new.data("x")),
            ("BRAND_NEW", true, &Value::Null)
        );
        let reason = event(&json!({"event": "SHUTDOWN", "data": {"guest": true, "reason": "brand-new"},
            "timestamp": {"seconds": 1, "microseconds": 2}}));
        assert_eq!((reason.data("reason"), reason.read::<SHUTDOWN>().is_none()), (&json!("brand-new"), true));
    }
}
