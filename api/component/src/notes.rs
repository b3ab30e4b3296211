//! Events, which users read in `kubectl describe`.

use crate::error::{chain, namespace_ends};
use crate::request::DEADLINE;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::{debug, warn};

/// The content of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Whether the event may need attention.
    pub warning: bool,
    /// The reason as one word, for programs.
    pub reason: String,
    /// The reason as a sentence, for users.
    pub message: String,
}

impl Note {
    /// An event about a success.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Note { warning: false, reason: reason.into(), message: message.into() }
    }

    /// An event about a failure.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Note { warning: true, reason: reason.into(), message: message.into() }
    }
}

/// Publishes events.
#[derive(Clone)]
pub struct Notes {
    client: Client,
    reporter: Reporter,
    /// Counts repetitions, and keeps each event for minutes for that.
    warnings: Recorder,
}

impl Notes {
    /// Publishes events of a component; `instance` is the name of this process.
    pub fn new(client: Client, component: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance: Some(instance.to_owned()) };
        Notes { warnings: Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    /// Publishes an event in the background: nothing depends on its success.
    pub fn tell(&self, note: Note, about: ObjectReference) {
        // A success is published once for each object, and there may be very many, so they are not kept.
        let recorder = if note.warning {
            self.warnings.clone()
        } else {
            Recorder::new(self.client.clone(), self.reporter.clone())
        };
        tokio::spawn(async move {
            let event = Event {
                type_: if note.warning { EventType::Warning } else { EventType::Normal },
                reason: note.reason.clone(),
                // The API accepts at most a kibibyte.
                note: Some(note.message.chars().take(1000).collect()),
                action: note.reason.clone(),
                secondary: None,
            };
            match tokio::time::timeout(DEADLINE, recorder.publish(&event, &about)).await {
                Ok(Ok(())) => {}
                // In a namespace that is being deleted no event can be created any more.
                Ok(Err(error)) if namespace_ends(&error) => {
                    debug!(reason = note.reason, "the namespace accepts no events");
                }
                Ok(Err(error)) => {
                    warn!(reason = note.reason, error = %chain(&error), "cannot record an event");
                }
                Err(_) => warn!(reason = note.reason, "cannot record an event in time"),
            }
        });
    }
}
