//! The end of a VM, concluded from the kernel's exit status of the child and QEMU's last reports.
//!
//! | child | last `SHUTDOWN` | stop was asked | end |
//! |---|---|---|---|
//! | not started, or start given up | - | - | Failed, the reason given |
//! | signal, or status 0 after `quit` or a signal | any | before the guest ran | Succeeded `StoppedBeforeStart` |
//! | the same | any | with no grace, or no ACPI | Succeeded `Stopped` |
//! | the same | any | with grace, which ran out | Failed `GracePeriodExpired` |
//! | signal | any | no | Failed `QemuKilled` or, for a fault of its own, `QemuCrashed` |
//! | any status | `guest-panic` | any | Failed `GuestPanicked` |
//! | status not 0 | anything else | any | Failed `QemuFailed` |
//! | status 0 | `guest-shutdown` | any | Succeeded `GuestShutdown` |
//! | status 0 | `guest-reset`, `host-qmp-system-reset` | any | Succeeded `GuestReset` |
//! | status 0 | `host-qmp-quit` | no | Failed `QuitByMonitor` |
//! | status 0 | `host-signal` | no | Failed `QemuTerminated` |
//! | status 0 | none, after a watchdog's poweroff | any | Failed `WatchdogFired` |
//! | status 0 | anything else | any | Failed `QemuExited` |
//!
//! The phases follow KubeVirt: a guest that was destroyed although it had a grace period and ACPI has failed.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// How the child ended, according to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By a signal of this number.
    Signal(i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Status(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// How far a requested stop had come when the child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// No stop was requested.
    No,
    /// Before the guest's first instruction.
    BeforeStart,
    /// An immediate end, or an end without ACPI, which is needed to ask the guest.
    AtOnce,
    /// With a grace period.
    WithGrace,
}

/// Observations on QEMU's monitor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MonitorReports {
    /// Reason of the last `SHUTDOWN` event.
    pub shutdown: Option<String>,
    /// Whether the guest reported a panic.
    pub panicked: bool,
    /// Action of the last `WATCHDOG` event.
    pub watchdog: Option<String>,
}

/// The end of a VM, in the terms of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestEnd {
    /// Whether the guest ended as intended; else the phase is Failed.
    pub succeeded: bool,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence for users.
    pub message: String,
}

impl GuestEnd {
    /// The guest ended as intended.
    #[must_use]
    pub fn succeeded(reason: &str, message: impl Into<String>) -> Self {
        Self { succeeded: true, reason: reason.to_owned(), message: message.into() }
    }

    /// The guest failed.
    #[must_use]
    pub fn failed(reason: &str, message: impl Into<String>) -> Self {
        Self { succeeded: false, reason: reason.to_owned(), message: message.into() }
    }

    /// `Succeeded` or `Failed`, as KubeVirt names the phases.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        if self.succeeded { "Succeeded" } else { "Failed" }
    }
}

/// The end, as in the table above.
#[must_use]
pub fn guest_end(exit: Exit, seen: &MonitorReports, asked: Asked) -> GuestEnd {
    match exit {
        Exit::Signal(number) => stopped(asked).unwrap_or_else(|| killed(number, seen)),
        Exit::Status(0) => left(seen, asked),
        Exit::Status(_) if seen.shutdown.as_deref() == Some("guest-panic") => panicked(),
        Exit::Status(code) => GuestEnd::failed("QemuFailed", format!("QEMU exited with status {code}")),
    }
}

fn stopped(asked: Asked) -> Option<GuestEnd> {
    match asked {
        Asked::No => None,
        Asked::BeforeStart => {
            Some(GuestEnd::succeeded("StoppedBeforeStart", "stopped before the guest was started"))
        }
        Asked::AtOnce => Some(GuestEnd::succeeded("Stopped", "the guest was ended at once, as asked")),
        Asked::WithGrace => Some(GuestEnd::failed(
            "GracePeriodExpired",
            "the guest did not shut down within its grace period and was ended",
        )),
    }
}

fn killed(number: i32, seen: &MonitorReports) -> GuestEnd {
    let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
    let panicked = if seen.panicked { " after its guest had panicked" } else { "" };
    let message = format!("QEMU was killed by signal {number} ({name}){panicked}");
    let fault = matches!(
        Signal::try_from(number),
        Ok(Signal::SIGSEGV
            | Signal::SIGABRT
            | Signal::SIGBUS
            | Signal::SIGILL
            | Signal::SIGFPE
            | Signal::SIGSYS)
    );
    GuestEnd::failed(if fault { "QemuCrashed" } else { "QemuKilled" }, message)
}

fn panicked() -> GuestEnd {
    GuestEnd::failed("GuestPanicked", "the guest's kernel panicked")
}

fn left(seen: &MonitorReports, asked: Asked) -> GuestEnd {
    match seen.shutdown.as_deref() {
        Some("guest-shutdown") => GuestEnd::succeeded("GuestShutdown", "the guest shut down"),
        Some("guest-reset") => {
            GuestEnd::succeeded("GuestReset", "the guest reset itself, which ends this VM")
        }
        Some("host-qmp-system-reset") => GuestEnd::succeeded("GuestReset", "a reset ends this VM"),
        Some("guest-panic") => panicked(),
        Some("host-qmp-quit") => stopped(asked).unwrap_or_else(|| {
            GuestEnd::failed("QuitByMonitor", "QEMU was ended by the command quit at its monitor")
        }),
        Some("host-signal") => stopped(asked)
            .unwrap_or_else(|| GuestEnd::failed("QemuTerminated", "QEMU was ended by a signal to terminate")),
        Some(other) => GuestEnd::failed("QemuExited", format!("QEMU exited, giving the reason {other}")),
        None if seen.watchdog.as_deref() == Some("poweroff") => {
            GuestEnd::failed("WatchdogFired", "the guest's watchdog fired and switched it off")
        }
        None => stopped(asked)
            .unwrap_or_else(|| GuestEnd::failed("QemuExited", "QEMU exited without giving a reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(shutdown: Option<&str>) -> MonitorReports {
        MonitorReports { shutdown: shutdown.map(str::to_owned), ..MonitorReports::default() }
    }

    #[test]
    fn the_table() {
        use Asked::{AtOnce, BeforeStart, No, WithGrace};
        let rows = [
            (Exit::Status(0), Some("guest-shutdown"), No, true, "GuestShutdown"),
            (Exit::Status(0), Some("guest-shutdown"), WithGrace, true, "GuestShutdown"),
            (Exit::Status(0), Some("guest-reset"), No, true, "GuestReset"),
            (Exit::Status(0), Some("host-qmp-system-reset"), No, true, "GuestReset"),
            (Exit::Status(0), Some("guest-panic"), No, false, "GuestPanicked"),
            (Exit::Status(1), Some("guest-panic"), No, false, "GuestPanicked"),
            (Exit::Status(0), Some("host-qmp-quit"), No, false, "QuitByMonitor"),
            (Exit::Status(0), Some("host-qmp-quit"), AtOnce, true, "Stopped"),
            (Exit::Status(0), Some("host-qmp-quit"), WithGrace, false, "GracePeriodExpired"),
            (Exit::Status(0), Some("host-signal"), No, false, "QemuTerminated"),
            (Exit::Status(0), Some("host-signal"), BeforeStart, true, "StoppedBeforeStart"),
            (Exit::Status(0), Some("reason-of-the-future"), No, false, "QemuExited"),
            (Exit::Status(0), None, No, false, "QemuExited"),
            (Exit::Status(1), None, No, false, "QemuFailed"),
            (Exit::Status(1), Some("guest-shutdown"), No, false, "QemuFailed"),
            (Exit::Signal(9), None, No, false, "QemuKilled"),
            (Exit::Signal(9), Some("guest-shutdown"), No, false, "QemuKilled"),
            (Exit::Signal(9), None, WithGrace, false, "GracePeriodExpired"),
            (Exit::Signal(15), None, BeforeStart, true, "StoppedBeforeStart"),
            (Exit::Signal(11), None, No, false, "QemuCrashed"),
            (Exit::Signal(99), None, No, false, "QemuKilled"),
        ];
        for (exit, shutdown, asked, succeeded, reason) in rows {
            let got = guest_end(exit, &seen(shutdown), asked);
            assert_eq!(
                (got.succeeded, got.reason.as_str()),
                (succeeded, reason),
                "{exit:?} {shutdown:?} {asked:?}"
            );
        }
    }

    #[test]
    fn a_kill_names_the_signal() {
        let got = guest_end(Exit::Signal(9), &seen(None), Asked::No);
        assert_eq!(got.message, "QEMU was killed by signal 9 (SIGKILL)");
    }

    #[test]
    fn a_watchdog_switches_off_without_a_shutdown_event() {
        let seen = MonitorReports { watchdog: Some("poweroff".into()), ..MonitorReports::default() };
        assert_eq!(guest_end(Exit::Status(0), &seen, Asked::No).reason, "WatchdogFired");
    }
}
