//! The watchdog: a timer that the guest must reset regularly.

use crate::layout::Seat;
use crate::props::Props;

/// QEMU's action if the guest did not reset it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogAction {
    /// The machine is switched off, which is a failure of the guest.
    Poweroff,
    /// The machine is reset.
    Reset,
    /// The guest's power button is pressed.
    Shutdown,
}

impl WatchdogAction {
    /// The action by its name in the API.
    #[must_use]
    pub fn from_api(name: &str) -> Option<Self> {
        Some(match name {
            "poweroff" => WatchdogAction::Poweroff,
            "reset" => WatchdogAction::Reset,
            "shutdown" => WatchdogAction::Shutdown,
            _ => return None,
        })
    }

    /// QEMU's name for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            WatchdogAction::Poweroff => "poweroff",
            WatchdogAction::Reset => "reset",
            WatchdogAction::Shutdown => "shutdown",
        }
    }
}

/// Intel 6300ESB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Its action.
    pub action: WatchdogAction,
    /// Its place on the PCI bus.
    pub seat: Seat,
}

impl Watchdog {
    pub(crate) const ID: &'static str = "watchdog0";

    pub(crate) fn props(self) -> Props {
        Props::device("i6300esb", Self::ID).seated(self.seat, None)
    }
}
