//! What happens to a VM, and what is to be done then.

use std::time::Duration;

use super::control::Control;
use crate::migration;
use crate::verdict::{Exit, Verdict};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All that it takes is there.
    Start {
        /// The guest has a power button.
        acpi: bool,
        /// vCPUs are to stand still until somebody lets them go.
        paused: bool,
        /// The guest does not start here, but comes by this migration.
        incoming: Option<String>,
    },
    /// It never will be, or QEMU cannot be executed: there is no child.
    CannotStart(Verdict),
    /// The child is there but will not run a guest.
    CannotRun(Verdict),
    /// The monitor answered its first command.
    Answered,
    /// vCPUs run.
    Resumed,
    /// vCPUs stand still.
    Stopped,
    /// QEMU is leaving, with the reason that it gave.
    Shutdown(String),
    /// The guest reported a panic.
    Panicked,
    /// The guest's watchdog fired, with the action that follows.
    Watchdog(String),
    /// A disk failed, and QEMU stops the guest for it.
    IoError,
    /// The machine was reset, by whomever.
    WasReset,
    /// Somebody wants something of the guest, and may: see [`judge`].
    Asked(Control),
    /// Something of its migration.
    Migration(migration::Event),
    /// Someone wants it stopped. May come again; a shorter grace period counts, a longer one does not.
    Stop {
        /// How long the guest has.
        grace: Duration,
    },
    /// Time has passed.
    Tick,
    /// The child is gone.
    Exited(Exit),
}

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Execute QEMU.
    Spawn,
    /// `cont` for the first time; that it fails is the end.
    Continue,
    /// `cont` later on.
    Resume,
    /// `stop`.
    Hold,
    /// `system_reset`.
    Reset,
    /// Has QEMU stay after the guest's next power-off, and presses the power button.
    PressForReboot,
    /// Has QEMU end with the guest's next power-off, as ever.
    LeaveOnShutdown,
    /// `system_powerdown`.
    Powerdown,
    /// Something for its migration.
    Migrate(migration::Effect),
    /// `quit`.
    Quit,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Give a [`Event::Tick`] at this moment. Replaces an earlier one.
    Wake(Duration),
}

impl Effect {
    /// It lets the guest run, or acts on one that is to stand still.
    pub(super) const fn lets_it_run(self) -> bool {
        matches!(self, Self::Continue | Self::Resume | Self::Reset | Self::PressForReboot)
    }
}
