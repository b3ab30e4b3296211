//! Takes a picture of the display as PNG.
//!
//! QEMU writes the picture into memory that the launcher passes as a descriptor. No file is needed, and QEMU
//! never waits for a reader.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Time limit for QEMU.
const COMMAND: Duration = Duration::from_secs(10);
/// Largest picture, in bytes.
const LARGEST: u64 = 8 << 20;
/// Start of a PNG file.
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum NoPicture {
    /// QEMU refuses, or does not answer.
    #[error(transparent)]
    Monitor(#[from] Error),
    /// The system provides no memory.
    #[error("cannot make room for the picture")]
    Memory(#[from] io::Error),
    /// It is larger than any screen.
    #[error("the picture is larger than {LARGEST} bytes")]
    TooLarge,
    /// QEMU's output is not a PNG.
    #[error("QEMU did not write a PNG")]
    NotPng,
}

/// Takes a picture of the first display.
///
/// # Errors
/// The reason why there is none.
pub async fn take(qmp: &Qmp, move_cursor: bool) -> Result<Vec<u8>, NoPicture> {
    let deadline = Deadline::after(COMMAND);
    if move_cursor {
        let nudge = |value| {
            let data = qmp::InputMoveEvent { axis: qmp::InputAxis::x, value };
            qmp::InputEvent::rel(qmp::InputMoveEventWrapper { data })
        };
        let moves = qmp::input_send_event { device: None, head: None, events: vec![nudge(1), nudge(-1)] };
        // A machine without a pointer refuses this; the picture is taken anyway.
        if let Err(error) = qmp.execute(moves, deadline).await {
            tracing::debug!(%error, "the pointer was not moved");
        }
    }
    let name = c"screenshot";
    let mut memory = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
    let add = qmp::add_fd { fdset_id: None, opaque: Some("screenshot".to_owned()) };
    let added = qmp.execute_with_fds(add, &[memory.as_fd()], deadline).await?;
    // The file is opened by its descriptor number. If it were opened through the set, closing it would remove
    // the descriptor from the set and leave the set forever.
    let filename = format!("/proc/self/fd/{}", added.fd);
    let dump = qmp::screendump { filename, format: Some(qmp::ImageFormat::png), device: None, head: None };
    let dumped = qmp.execute(dump, deadline).await;
    // The set is removed in every case; a dump that is still running has its own descriptor.
    let set = qmp::remove_fd { fdset_id: added.fdset_id, fd: None };
    let removed = qmp.execute(set, Deadline::after(COMMAND)).await;
    if let Err(error) = removed {
        tracing::debug!(%error, "the picture's descriptor stays with QEMU");
    }
    dumped?;
    memory.seek(SeekFrom::Start(0))?;
    let mut picture = Vec::new();
    let read = memory.take(LARGEST + 1).read_to_end(&mut picture)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > LARGEST {
        return Err(NoPicture::TooLarge);
    }
    if !picture.starts_with(SIGNATURE) {
        return Err(NoPicture::NotPng);
    }
    Ok(picture)
}
