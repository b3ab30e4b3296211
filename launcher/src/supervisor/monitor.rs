//! Handles QEMU's monitor: its greeting, its events, and gaps in the events.

use barevirt_qmp::qapi::{Event as _, qmp};
use barevirt_qmp::{Deadline, Events, Qmp};

use super::{COMMAND, Outcome, Supervisor};
use crate::lifecycle::Event;

impl Supervisor<'_> {
    /// QEMU's monitor is open: the version is known, and the machine type is queried.
    pub(super) fn answered(&mut self, qmp: Qmp, events: Events) -> Event {
        let version = qmp.greeting().version();
        tracing::info!(version, oob = qmp.has_oob(), "QEMU answers");
        self.status.send_if_modified(|status| {
            status.qemu_version = version;
            true
        });
        let asking = qmp.clone();
        self.work.push(Box::pin(async move {
            let which = qmp::qom_get { path: "/machine".to_owned(), property: "type".to_owned() };
            match asking.execute(which, Deadline::after(COMMAND)).await {
                Ok(name) => Outcome::MachineType(name.as_str().unwrap_or_default().to_owned()),
                Err(_) => Outcome::Nothing,
            }
        }));
        self.qmp = Some(qmp);
        self.events = Some(events);
        Event::Answered
    }

    /// An event of QEMU, a gap in the events, or their end.
    pub(super) fn take_event(&mut self, event: Option<Result<barevirt_qmp::Event, u64>>) -> Option<Event> {
        match event {
            Some(Ok(event)) => self.understood(&event),
            Some(Err(missed)) => {
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::warn!(left_out, missed, "monitor events were missed");
                }
                self.look_again();
                None
            }
            None => {
                // No more events will come. The child's exit explains it.
                self.events = None;
                self.status.send_if_modified(|status| std::mem::replace(&mut status.ready, false));
                None
            }
        }
    }

    /// Reasons and actions are taken as QEMU writes them, because an event that the schema does not know is
    /// still an event.
    pub(super) fn understood(&mut self, event: &barevirt_qmp::Event) -> Option<Event> {
        let text = |field: &str| event.data(field).as_str().unwrap_or_default().to_owned();
        match event.name() {
            qmp::RESUME::NAME => {
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::info!(left_out, "the guest runs");
                }
                Some(Event::Resumed)
            }
            qmp::STOP::NAME => {
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::info!(left_out, "the guest stands still");
                }
                Some(Event::Stopped)
            }
            qmp::MIGRATION::NAME => self.migration_state(&text("status")),
            qmp::SHUTDOWN::NAME => {
                tracing::info!(reason = text("reason"), "QEMU is leaving");
                Some(Event::Shutdown(text("reason")))
            }
            qmp::GUEST_PANICKED::NAME => {
                if let Some(left_out) = self.lines.troubles.line() {
                    tracing::warn!(left_out, action = text("action"), "the guest panicked");
                }
                Some(Event::Panicked)
            }
            qmp::WATCHDOG::NAME => {
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::warn!(left_out, action = text("action"), "the guest's watchdog fired");
                }
                Some(Event::Watchdog(text("action")))
            }
            qmp::POWERDOWN::NAME => {
                tracing::info!("power button pressed");
                None
            }
            qmp::RESET::NAME => {
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::info!(left_out, reason = text("reason"), "the guest was reset");
                }
                Some(Event::WasReset)
            }
            // QEMU sends this before it stops the guest. Other actions concern only the guest.
            qmp::BLOCK_IO_ERROR::NAME if event.data("action") == "stop" => {
                let (disk, operation) = (text("device"), text("operation"));
                if let Some(left_out) = self.lines.troubles.line() {
                    tracing::warn!(
                        left_out,
                        disk,
                        node = text("node-name"),
                        operation,
                        why = text("reason"),
                        "the guest is stopped: storage failed"
                    );
                }
                Some(Event::IoError)
            }
            qmp::VSERPORT_CHANGE::NAME => {
                let port = event.read::<qmp::VSERPORT_CHANGE>().filter(|port| port.id == self.agent_port)?;
                let open = port.open;
                if let Some(left_out) = self.lines.habits.line() {
                    tracing::info!(left_out, open, "guest agent's channel");
                }
                self.status
                    .send_if_modified(|status| std::mem::replace(&mut status.agent_connected, open) != open);
                None
            }
            _ => None,
        }
    }

    /// After a gap in the events, queries the state that the gap may have hidden.
    pub(super) fn look_again(&mut self) {
        let Some(qmp) = self.qmp.clone() else { return };
        if self.vm.moving.has_begun() {
            self.look_at_migration();
        }
        self.work.push(Box::pin(async move {
            match qmp.execute(qmp::query_status {}, Deadline::after(COMMAND)).await {
                Ok(status) if status.running => Outcome::Happened(vec![Event::Resumed]),
                Ok(status) if status.status == qmp::RunState::io_error => {
                    Outcome::Happened(vec![Event::IoError, Event::Stopped])
                }
                Ok(_) => Outcome::Happened(vec![Event::Stopped]),
                Err(error) => {
                    tracing::warn!(%error, "whether the guest runs is not known");
                    Outcome::Nothing
                }
            }
        }));
    }
}
