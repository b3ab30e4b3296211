//! Controls of a guest, and when they are possible.

use super::vm::{Pause, Phase, Vm};
use crate::migration::Moving;

/// A control of a running or paused guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Pause the vCPUs.
    Pause,
    /// Let the vCPUs run again.
    Unpause,
    /// Press the reset button.
    Reset,
    /// Press the power button, and start again.
    SoftReboot,
}

/// Why a control is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no guest yet, or it is ending.
    #[error("VMI is not running")]
    NotRunning,
    /// A paused guest cannot shut itself down.
    #[error("VMI is paused")]
    Paused,
    /// It has no ACPI power button.
    #[error("VMI neither have the agent connected nor the ACPI feature enabled")]
    NoPowerButton,
    /// It is moving to another node.
    #[error("VMI is migrating")]
    Migrating,
}

/// Whether a control is possible now. A control that changes nothing is possible, because a client that lost
/// the answer sends it again.
///
/// # Errors
/// The reason why not.
pub fn judge(vm: &Vm, control: Control) -> Result<(), Refused> {
    match (&vm.phase, control) {
        (Phase::Waiting | Phase::Starting | Phase::Stopping(_) | Phase::Ended(_), _) => {
            Err(Refused::NotRunning)
        }
        // The guest has not arrived yet.
        (Phase::Paused(Pause::Incoming), _) => Err(Refused::NotRunning),
        _ if vm.moving.is_switching() => Err(Refused::Migrating),
        // The reset after the shutdown would not move along.
        (_, Control::SoftReboot) if matches!(vm.moving, Moving::Goes(_)) && vm.moving.is_under_way() => {
            Err(Refused::Migrating)
        }
        (Phase::Paused(_), Control::SoftReboot) => Err(Refused::Paused),
        (Phase::Running, Control::SoftReboot) if !vm.acpi => Err(Refused::NoPowerButton),
        (
            Phase::Paused(_) | Phase::Running,
            Control::Pause | Control::Unpause | Control::Reset | Control::SoftReboot,
        ) => Ok(()),
    }
}
