//! The audit of commands: a log entry for each, and an Event for disruptive ones.
//!
//! Only the names of arguments are logged: values may be passwords.

use std::time::Duration;

use barevirt_api::monitor::Class;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::gate::Gate;

/// How long an Event may take to be recorded.
const RECORD: Duration = Duration::from_secs(10);
/// Longest name that is logged; names of commands and arguments are far shorter.
const LONGEST: usize = 100;

/// The audit log entry of a command.
#[derive(Debug)]
pub(super) struct AuditEntry {
    by: &'static str,
    execute: String,
    arguments: String,
    pub(super) class: Option<Class>,
}

impl AuditEntry {
    /// `by` says whether the command came by a call or a stream.
    pub(super) fn new(by: &'static str) -> Self {
        Self { by, execute: String::new(), arguments: String::new(), class: None }
    }

    pub(super) fn command(&mut self, execute: &str, arguments: Option<&Map<String, Value>>) {
        self.execute = execute.chars().take(LONGEST).collect();
        let names: Vec<&str> = arguments.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        self.arguments = names.join(",").chars().take(LONGEST).collect();
    }

    /// Writes the entry to the log.
    pub(super) fn write(&self, gate: &Gate, outcome: &str) {
        tracing::info!(
            audit = "qmp",
            by = self.by,
            user = gate.user.name,
            namespace = gate.namespace,
            name = gate.name,
            execute = self.execute,
            arguments = self.arguments,
            class = self.class.map_or("refused", Class::word),
            outcome,
            "qmp command"
        );
    }
}

/// Records an Event about a command that was passed on, if it is disruptive.
pub(super) fn record_event(gate: &Gate, class: Class, execute: &str) {
    if class != Class::Disruptive {
        return;
    }
    let event = event(&gate.user.name, execute);
    let about = ObjectReference {
        api_version: Some("kubevirt.io/v1".to_owned()),
        kind: Some("VirtualMachineInstance".to_owned()),
        namespace: Some(gate.namespace.clone()),
        name: Some(gate.name.clone()),
        uid: Some(gate.uid.clone()),
        ..ObjectReference::default()
    };
    let reporter = Reporter { controller: "virt-api".to_owned(), instance: None };
    let recorder = Recorder::new(gate.client.0.clone(), reporter);
    let execute = execute.to_owned();
    // The command does not wait for the event; the log line is written in any case.
    tokio::spawn(async move {
        match timeout(RECORD, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(execute, %error, "cannot record an event"),
            Err(_) => tracing::warn!(execute, "cannot record an event in time"),
        }
    });
}

fn event(user: &str, execute: &str) -> Event {
    Event {
        type_: EventType::Normal,
        reason: "QmpCommand".to_owned(),
        note: Some(format!("{user} gave QEMU the command {execute}").chars().take(1000).collect()),
        action: "QmpCommand".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_arguments_are_written_down_values_are_not() {
        let mut entry = AuditEntry::new("call");
        let arguments = json!({"protocol": "vnc", "password": "hush"});
        entry.command("set_password", arguments.as_object());
        assert_eq!((entry.execute.as_str(), entry.arguments.as_str()), ("set_password", "password,protocol"));
        entry.command(&"x".repeat(5000), None);
        assert_eq!((entry.execute.len(), entry.arguments.len()), (LONGEST, 0));
    }

    #[test]
    fn the_event_says_who_and_what() {
        assert_eq!(event("ann", "quit").note.unwrap(), "ann gave QEMU the command quit");
    }
}
