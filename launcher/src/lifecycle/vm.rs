//! The state of one VM.

use std::time::Duration;

use super::times::FORCE;
use crate::guest_end::{Asked, GuestEnd, MonitorReports};
use crate::migration::Moving;

/// The state: a phase, and observations of how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// The phase of its life.
    pub phase: Phase,
    /// Observations of how it ended.
    pub seen: MonitorReports,
    /// Whether the guest has an ACPI power button.
    pub acpi: bool,
    /// Whether a user wants it paused.
    pub hold: bool,
    /// Whether it has run, even for a moment.
    pub ran: bool,
    /// When QEMU must have answered the first `cont`, while it has not.
    pub runs_by: Option<Duration>,
    /// Whether a disk failed so that the guest is stopped; the stop itself follows.
    pub io_error: bool,
    /// A soft reboot in progress.
    pub reboot: Option<Reboot>,
    /// Its migration.
    pub moving: Moving,
}

/// The phase of a VM's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Something that the start needs is missing.
    Waiting,
    /// QEMU runs, but its monitor has not answered yet.
    Starting,
    /// The monitor answers and the vCPUs are paused.
    Paused(Pause),
    /// vCPUs run.
    Running,
    /// It is stopping.
    Stopping(StopState),
    /// QEMU has ended, or was never started.
    Ended(GuestEnd),
}

/// Why the vCPUs are paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// They were not started yet.
    Start,
    /// They come from another node and have not arrived yet.
    Incoming,
    /// A user paused them, by a control or at the monitor.
    User,
    /// A disk could not be read or written.
    Storage {
        /// Number of failed attempts to resume.
        tries: u32,
        /// The next step.
        retry: Retry,
    },
}

/// State of the attempts to resume after a disk failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The next attempt is at this moment.
    At(Duration),
    /// vCPUs run. If they still run at this moment, the attempt has succeeded.
    Trial {
        /// The end of the trial.
        ends: Duration,
    },
}

/// A soft reboot by the power button: the guest shuts down, and is reset instead of ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// The guest was asked to shut down.
    Asked {
        /// When it is given up.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// The guest shut down and is being reset.
    Resetting {
        /// When it is given up.
        ends: Duration,
    },
}

/// The state of a stopping VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopState {
    /// The current step.
    pub step: StopStep,
    /// The reason.
    pub why: Why,
}

/// Why a VM is stopping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A stop was requested.
    Asked(Asked),
    /// The guest, or a user at the monitor, ended it.
    Itself,
    /// The guest is on another node.
    Moved,
    /// It could not be started.
    Failure(GuestEnd),
}

/// One step of a stop. Its moments say when the next step follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStep {
    /// The guest was asked by its power button.
    Powerdown {
        /// End of its grace period.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// QEMU said that it is ending.
    Leaving {
        /// When it is sent SIGTERM.
        ends: Duration,
    },
    /// QEMU was sent the command `quit`.
    Quit {
        /// When it is sent SIGTERM.
        ends: Duration,
    },
    /// QEMU was sent SIGTERM.
    Terminate {
        /// When it is sent SIGKILL.
        ends: Duration,
    },
    /// QEMU was sent SIGKILL.
    Kill,
}

impl Default for Vm {
    fn default() -> Self {
        Self::new()
    }
}

impl Vm {
    /// A VM that waits for what the start needs.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            seen: MonitorReports::default(),
            acpi: true,
            hold: false,
            ran: false,
            runs_by: None,
            io_error: false,
            reboot: None,
            moving: Moving::Stays,
        }
    }

    /// When QEMU must have answered the first `cont`. While memory is missing there is no such moment: QEMU's main
    /// loop may wait for a page, as long as the guest has time for a new connection.
    pub(super) fn must_run_by(&self) -> Option<Duration> {
        self.runs_by.filter(|_| !self.moving.is_missing_memory())
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<&GuestEnd> {
        match &self.phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }
}

impl StopStep {
    /// When something is due in this step, if nothing happens before.
    pub(super) fn wake(self, now: Duration) -> Duration {
        match self {
            Self::Powerdown { ends, again } => ends.min(again),
            Self::Leaving { ends } | Self::Quit { ends } | Self::Terminate { ends } => ends,
            // No step follows SIGKILL; the wake-up has no effect.
            Self::Kill => now + FORCE,
        }
    }
}
