//! Discs that are taken out of the CD drives of the running machine; [`barevirt_machine::insert_disc`] puts them in.
//!
//! A guest locks the tray while it uses the disc. QEMU then tells it that the button was pressed, and the disc stays until the
//! guest opens the tray.
// The crate's commands have a deprecated field, which stays empty.
#![allow(deprecated)]

use barevirt_qmp::newer::QueryBlock;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};

use super::monitored::{COMMAND, unless_refused};

/// Presses the button of a drive.
pub(super) async fn ask(qmp: &Qmp, drive: &str) -> Result<(), Error> {
    let open = qmp::blockdev_open_tray { id: Some(drive.to_owned()), device: None, force: Some(false) };
    unless_refused(qmp.execute(open, Deadline::after(COMMAND)).await)
}

/// Takes the disc out of a drive whose tray is open and closes it; returns whether the drive is empty.
pub(super) async fn take_out(qmp: &Qmp, drive: &str) -> Result<bool, Error> {
    let all = qmp.execute_list(QueryBlock {}, Deadline::after(COMMAND)).await?;
    let Some(now) = all.into_iter().find(|one| one.qdev.as_deref() == Some(drive)) else { return Ok(true) };
    let is_open = now.tray_open == Some(true);
    if now.inserted.is_some() && !is_open {
        return Ok(false);
    }
    if now.inserted.is_some() {
        let remove = qmp::blockdev_remove_medium { id: drive.to_owned() };
        qmp.execute(remove, Deadline::after(COMMAND)).await?;
    }
    if is_open {
        let close = qmp::blockdev_close_tray { id: Some(drive.to_owned()), device: None };
        qmp.execute(close, Deadline::after(COMMAND)).await?;
    }
    Ok(true)
}
