//! Events of a VM, and the effects that follow.

use std::time::Duration;

use super::control::Control;
use crate::guest_end::{Exit, GuestEnd};
use crate::migration;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Everything is ready for the start.
    Start {
        /// The guest has a power button.
        acpi: bool,
        /// Whether the vCPUs stay paused until a user starts them.
        paused: bool,
        /// The migration that brings the guest; `None` if the guest starts here.
        incoming: Option<String>,
    },
    /// The start failed, or QEMU cannot be executed: there is no child.
    CannotStart(GuestEnd),
    /// The child exists but cannot run a guest.
    CannotRun(GuestEnd),
    /// The monitor answered its first command.
    Answered,
    /// QEMU has answered the first `cont`.
    Continued,
    /// vCPUs run.
    Resumed,
    /// vCPUs are paused.
    Stopped,
    /// QEMU is ending, with the reason that it gave.
    Shutdown(String),
    /// The guest reported a panic.
    Panicked,
    /// The guest's watchdog fired, with the action that follows.
    Watchdog(String),
    /// A disk failed, and QEMU pauses the guest.
    IoError,
    /// The machine was reset, by the guest or a user.
    WasReset,
    /// A user sent a control that [`judge`] has permitted.
    Asked(Control),
    /// An event of its migration.
    Migration(migration::Event),
    /// The VM should stop. This may come again; only a shorter grace period has an effect.
    Stop {
        /// Grace period of the guest.
        grace: Duration,
    },
    /// A moment has arrived that [`Effect::Wake`] requested.
    Tick,
    /// The child has exited.
    Exited(Exit),
}

/// An action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Execute QEMU.
    Spawn,
    /// `cont` for the first time; its failure ends the VM, and so does no answer within [`CONTINUE`](super::CONTINUE).
    Continue,
    /// `cont` later on.
    Resume,
    /// `stop`.
    Hold,
    /// `system_reset`.
    Reset,
    /// Makes QEMU stay after the guest's next power-off, and presses the power button.
    PressForReboot,
    /// Makes QEMU end with the guest's next power-off, which is the default.
    LeaveOnShutdown,
    /// `system_powerdown`.
    Powerdown,
    /// An action for its migration.
    Migrate(migration::Effect),
    /// `quit`.
    Quit,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Send an [`Event::Tick`] at this moment. Replaces an earlier request.
    Wake(Duration),
}

impl Effect {
    /// Whether it starts the guest's CPUs, or acts on a guest that should stay paused.
    pub(super) const fn lets_it_run(self) -> bool {
        matches!(self, Self::Continue | Self::Resume | Self::Reset | Self::PressForReboot)
    }
}
