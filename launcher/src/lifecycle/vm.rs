//! The state of one VM.

use std::time::Duration;

use super::times::FORCE;
use crate::migration::Moving;
use crate::verdict::{Asked, Seen, Verdict};

/// The state: a phase, and what was seen on the way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Where in its life it is.
    pub phase: Phase,
    /// What the verdict will need.
    pub seen: Seen,
    /// The guest has a power button.
    pub acpi: bool,
    /// Somebody wants it paused.
    pub hold: bool,
    /// It ran, if only for a moment.
    pub ran: bool,
    /// A disk failed in a way that stops the guest; the stop itself follows.
    pub io_error: bool,
    /// A soft reboot on its way.
    pub reboot: Option<Reboot>,
    /// Whether it moves.
    pub moving: Moving,
}

/// Where in its life a VM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// What it takes to start is not complete.
    Waiting,
    /// QEMU is there, its monitor has not answered yet.
    Starting,
    /// The monitor answers and vCPUs stand still.
    Paused(Pause),
    /// vCPUs run.
    Running,
    /// On the way out.
    Stopping(Ladder),
    /// QEMU is gone, or never was there.
    Ended(Verdict),
}

/// Why vCPUs stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// They were not let go yet.
    Start,
    /// They come from another node, and are not here yet.
    Incoming,
    /// Somebody wants it, here or at the monitor.
    User,
    /// A disk could not be read or written.
    Storage {
        /// How often the guest was let go in vain.
        tries: u32,
        /// What is being waited for.
        retry: Retry,
    },
}

/// How a try to go on after a disk failed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The next is at this moment.
    At(Duration),
    /// vCPUs run. Where they still do at this moment, all is well.
    Trial {
        /// That moment.
        ends: Duration,
    },
}

/// A soft reboot by the power button: the guest shuts down, and is reset instead of ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// The guest was told.
    Asked {
        /// When it is given up.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// It shut down and is being reset.
    Resetting {
        /// When it is given up.
        ends: Duration,
    },
}

/// The stop ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    /// Where on it.
    pub rung: Rung,
    /// What asked for it.
    pub why: Why,
}

/// What put a VM on the ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A stop that was asked for.
    Asked(Asked),
    /// The guest, or a person at the monitor, ended it.
    Itself,
    /// The guest is on another node.
    Moved,
    /// It could not be made to run.
    Failure(Verdict),
}

/// One rung of the ladder. Moments say when the next one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// The guest was asked by its power button.
    Powerdown {
        /// End of its grace period.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// QEMU said that it is leaving.
    Leaving {
        /// When it is helped.
        ends: Duration,
    },
    /// QEMU was told to quit.
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
    /// A VM that waits for what it takes to start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            seen: Seen::default(),
            acpi: true,
            hold: false,
            ran: false,
            io_error: false,
            reboot: None,
            moving: Moving::Stays,
        }
    }

    /// The verdict, when it has ended.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Ended(verdict) => Some(verdict),
            _ => None,
        }
    }
}

impl Rung {
    /// When something follows on this rung, if nothing happens before.
    pub(super) fn wake(self, now: Duration) -> Duration {
        match self {
            Self::Powerdown { ends, again } => ends.min(again),
            Self::Leaving { ends } | Self::Quit { ends } | Self::Terminate { ends } => ends,
            // Nothing follows SIGKILL; looking again does no harm.
            Self::Kill => now + FORCE,
        }
    }
}
