//! What somebody may ask of a guest, and when.

use super::vm::{Pause, Phase, Vm};
use crate::migration::Moving;

/// Something that is asked of a guest that runs, or is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// vCPUs are to stand still.
    Pause,
    /// They are to go on.
    Unpause,
    /// The reset button.
    Reset,
    /// The power button, and on again.
    SoftReboot,
}

/// Why it is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no guest yet, or it is ending.
    #[error("VMI is not running")]
    NotRunning,
    /// A guest that stands still cannot shut itself down.
    #[error("VMI is paused")]
    Paused,
    /// It has no power button.
    #[error("VMI neither have the agent connected nor the ACPI feature enabled")]
    NoPowerButton,
    /// It is on its way to another node.
    #[error("VMI is migrating")]
    Migrating,
}

/// Whether a control makes sense now. What is so already makes sense: it is asked for again by those who lost the answer.
///
/// # Errors
/// Says why not.
pub fn judge(vm: &Vm, control: Control) -> Result<(), Refused> {
    match (&vm.phase, control) {
        (Phase::Waiting | Phase::Starting | Phase::Stopping(_) | Phase::Ended(_), _) => {
            Err(Refused::NotRunning)
        }
        // It is not here yet.
        (Phase::Paused(Pause::Incoming), _) => Err(Refused::NotRunning),
        _ if vm.moving.is_switching() => Err(Refused::Migrating),
        // What is to follow the shutdown would not go along.
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
