//! What all that is plugged in and taken out has in common.

use std::time::Duration;

use barevirt_machine::{Command, Step};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::time::Instant;

/// How long QEMU may take for one command.
pub(super) const COMMAND: Duration = Duration::from_secs(10);
/// Between two looks at a device that a guest is to let go.
pub(super) const SOON: Duration = Duration::from_millis(500);
/// Before what QEMU refused is tried again.
pub(super) const LATER: Duration = Duration::from_secs(10);
/// Before a guest is asked again for a device that it has not let go.
const AGAIN: Duration = Duration::from_secs(5);
/// How long it may take for that before it is told as trouble.
const PATIENCE: Duration = Duration::from_secs(60);

/// It is to go: not wanted any more, or not taken by QEMU, of which something may be there all the same.
#[derive(Debug)]
pub(super) struct Leaving {
    since: Instant,
    asked: Option<Instant>,
    /// What QEMU said, where it was not taken.
    pub(super) refused: Option<String>,
}

impl Leaving {
    /// From now on; `refused` is what QEMU said, where it was not taken.
    pub(super) fn now(refused: Option<String>) -> Self {
        Self { since: Instant::now(), asked: None, refused }
    }

    /// Whether it is time to ask the guest for it, at first or again; then that counts as done.
    pub(super) fn asks(&mut self) -> bool {
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= AGAIN);
        if due {
            self.asked = Some(Instant::now());
        }
        due
    }

    /// What is told as trouble, about a `device` of that kind.
    pub(super) fn trouble(&self, device: &str) -> Option<String> {
        self.refused.clone().or_else(|| {
            let late = self.since.elapsed() >= PATIENCE;
            late.then(|| format!("the guest has not let go of the {device} within {} s", PATIENCE.as_secs()))
        })
    }
}

/// Asks the guest for a device. It may have gone a moment ago, or the guest is asked already.
pub(super) async fn ask_for(qmp: &Qmp, id: &str) -> Result<(), Error> {
    unless_refused(qmp.execute(qmp::device_del { id: id.to_owned() }, Deadline::after(COMMAND)).await)
}

/// Executes the steps until one fails: why, in words.
pub(super) async fn carry_out(qmp: &Qmp, steps: &[Step]) -> Result<(), (Error, String)> {
    for step in steps {
        let Command { execute, arguments } = &step.forward;
        let answer = qmp.execute_raw(execute, arguments.clone(), Deadline::after(COMMAND)).await;
        answer.map_err(|error| refused(execute, error))?;
    }
    Ok(())
}

/// A failure, and why in words.
pub(super) fn refused(what: &str, error: Error) -> (Error, String) {
    let why = format!("QEMU refuses {what}: {error}");
    (error, why)
}

/// What is to be taken away was never made, or is in use.
pub(super) fn unless_refused<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a device that was plugged in is still there.
pub(super) async fn has_device(qmp: &Qmp, id: &str) -> Result<bool, Error> {
    let all = qmp::qom_list { path: "/machine/peripheral".to_owned() };
    let all = qmp.execute(all, Deadline::after(COMMAND)).await?;
    Ok(all.iter().any(|one| one.name == id))
}
