//! Events: what people read in `kubectl describe`.

use crate::error::{chain, namespace_ends};
use crate::request::DEADLINE;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::{debug, warn};

/// An event to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Whether something may need a look.
    pub warning: bool,
    /// One word that a program can compare.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

impl Note {
    /// Something went as it should.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Note { warning: false, reason: reason.into(), message: message.into() }
    }

    /// Something did not.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Note { warning: true, reason: reason.into(), message: message.into() }
    }
}

/// Tells events.
#[derive(Clone)]
pub struct Notes {
    client: Client,
    reporter: Reporter,
    /// Counts repetitions, and keeps each event for minutes to do so.
    warnings: Recorder,
}

impl Notes {
    /// Those of a component; `instance` is this process' name.
    pub fn new(client: Client, component: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance: Some(instance.to_owned()) };
        Notes { warnings: Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    /// Tells one, in the background: nothing depends on it being heard.
    pub fn tell(&self, note: Note, about: ObjectReference) {
        // What went well is told once for each object, and there may be very many: nothing is kept of it.
        let recorder = if note.warning {
            self.warnings.clone()
        } else {
            Recorder::new(self.client.clone(), self.reporter.clone())
        };
        tokio::spawn(async move {
            let event = Event {
                type_: if note.warning { EventType::Warning } else { EventType::Normal },
                reason: note.reason.clone(),
                // The API takes at most a kibibyte.
                note: Some(note.message.chars().take(1000).collect()),
                action: note.reason.clone(),
                secondary: None,
            };
            match tokio::time::timeout(DEADLINE, recorder.publish(&event, &about)).await {
                Ok(Ok(())) => {}
                // Where everything is being deleted nothing can be told any more.
                Ok(Err(error)) if namespace_ends(&error) => {
                    debug!(reason = note.reason, "the namespace takes no event");
                }
                Ok(Err(error)) => {
                    warn!(reason = note.reason, error = %chain(&error), "cannot record an event");
                }
                Err(_) => warn!(reason = note.reason, "cannot record an event in time"),
            }
        });
    }
}
