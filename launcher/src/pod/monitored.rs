//! Shared parts for all devices that are plugged and unplugged.

use std::time::Duration;

use barevirt_machine::{Command, Step};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::time::Instant;

use crate::peripherals;

/// Time limit for one command of QEMU.
pub(super) const COMMAND: Duration = Duration::from_secs(10);
/// Interval of checks for a device that the guest should release.
pub(super) const SOON: Duration = Duration::from_millis(500);
/// Delay before an action that QEMU refused is tried again.
pub(super) const LATER: Duration = Duration::from_secs(10);
/// Delay before the guest is asked again to release a device.
const AGAIN: Duration = Duration::from_secs(5);
/// Time after which an unreleased device is reported as trouble.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A device that must be removed: it is no longer wanted, or QEMU refused it but may have kept parts of it.
#[derive(Debug)]
pub(super) struct Leaving {
    since: Instant,
    asked: Option<Instant>,
    /// QEMU's message, if it refused the device.
    pub(super) refused: Option<String>,
}

impl Leaving {
    /// A removal from now on; `refused` is QEMU's message, if it refused the device.
    pub(super) fn now(refused: Option<String>) -> Self {
        Self { since: Instant::now(), asked: None, refused }
    }

    /// Whether it is time to ask the guest, for the first time or again; if so, it counts as asked.
    pub(super) fn asks(&mut self) -> bool {
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= AGAIN);
        if due {
            self.asked = Some(Instant::now());
        }
        due
    }

    /// The trouble to report about a `device` of this kind.
    pub(super) fn trouble(&self, device: &str) -> Option<String> {
        self.refused.clone().or_else(|| {
            let late = self.since.elapsed() >= TIMEOUT;
            late.then(|| format!("the guest has not released the {device} within {} s", TIMEOUT.as_secs()))
        })
    }
}

/// Asks the guest to release a device. QEMU may refuse if the device has just gone, or the guest was already
/// asked.
pub(super) async fn ask_for(qmp: &Qmp, id: &str) -> Result<(), Error> {
    unless_refused(qmp.execute(qmp::device_del { id: id.to_owned() }, Deadline::after(COMMAND)).await)
}

/// Executes the steps until one fails; returns the reason.
pub(super) async fn carry_out(qmp: &Qmp, steps: &[Step]) -> Result<(), (Error, String)> {
    for step in steps {
        let Command { execute, arguments } = &step.forward;
        let answer = qmp.execute_raw(execute, arguments.clone(), Deadline::after(COMMAND)).await;
        answer.map_err(|error| refused(execute, error))?;
    }
    Ok(())
}

/// A failure with its reason as text.
pub(super) fn refused(what: &str, error: Error) -> (Error, String) {
    let why = format!("QEMU refuses {what}: {error}");
    (error, why)
}

/// An error answer means that the object was never made, or is in use.
pub(super) fn unless_refused<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a device that was plugged in still exists.
pub(super) async fn has_device(qmp: &Qmp, id: &str) -> Result<bool, Error> {
    Ok(peripherals::ids(qmp, Deadline::after(COMMAND)).await?.contains(id))
}
