//! What all that is plugged in and taken out has in common.

use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};

/// How long QEMU may take for one command.
pub(super) const COMMAND: Duration = Duration::from_secs(10);
/// Between two looks at a device that a guest is to let go.
pub(super) const SOON: Duration = Duration::from_millis(500);
/// Before what QEMU refused is tried again.
pub(super) const LATER: Duration = Duration::from_secs(10);
/// Before a guest is asked again for a device that it has not let go.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// How long it may take for that before it is told as trouble.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

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
