//! Computes the complete status from the state of the VM.

use std::time::SystemTime;

use barevirt_protocol::names::MOST_MEMORY_CHANNELS;

use super::Supervisor;
use crate::lifecycle::{Pause, Phase};
use crate::migration::State;
use crate::process::Process;
use crate::status::{Paused, Stage};

impl Supervisor<'_> {
    /// Computes the complete status; publishes it only if it has changed.
    pub(super) fn report(&mut self) {
        let tail = self.process.as_ref().map(|process| process.tail().last_lines()).unwrap_or_default();
        if let Phase::Ended(end) = &mut self.vm.phase
            && matches!(end.reason.as_str(), "QemuFailed" | "StartFailed" | "QemuCrashed")
            && !tail.is_empty()
            && !end.message.ends_with(&tail)
        {
            end.message = format!("{}: {tail}", end.message);
        }
        let stage = Stage::from(&self.vm.phase);
        let pid = match self.vm.phase {
            Phase::Ended(_) => 0,
            _ => self.process.as_ref().map_or(0, Process::pid),
        };
        let (reason, message) = match self.vm.end() {
            Some(end) => (end.reason.clone(), end.message.clone()),
            None => (String::new(), String::new()),
        };
        let ready = self.events.is_some() && self.vm.end().is_none();
        // For more than one connection QEMU connects or listens by itself, so these have to be offered to it.
        let offered = self.process.as_ref().and_then(Process::offered);
        let memory_channels = if offered.is_some() { MOST_MEMORY_CHANNELS } else { 0 };
        let paused = Paused::of(&self.vm.phase);
        // The handler sends the guest as soon as this is published, so it is only published when QEMU waits
        // for the guest, and has said whether it supports post-copy.
        let waits = matches!(self.vm.phase, Phase::Paused(Pause::Incoming)) && !self.probing;
        let migration =
            self.vm.moving.report(self.vm.hold).filter(|report| waits || report.state != State::Awaited);
        self.status.send_if_modified(|status| {
            let before = status.clone();
            status.reason = reason;
            status.message = message;
            status.qemu_pid = pid;
            status.ready = ready;
            let stood_still = status.stage == Stage::Paused && status.running_since.is_some();
            if stood_still && stage == Stage::Running {
                status.resumes += 1;
            }
            if migration.as_ref().is_some_and(|told| told.state == State::Arrived)
                && stage == Stage::Running
                && status.stage == Stage::Starting
            {
                // The guest was paused during its migration.
                status.resumes += 1;
            }
            status.migration = migration;
            status.memory_channels = memory_channels;
            status.paused = paused;
            status.stage = stage;
            if stage == Stage::Running && status.running_since.is_none() {
                status.running_since = Some(SystemTime::now());
            }
            *status != before
        });
    }
}
