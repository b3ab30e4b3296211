//! Gives both QEMUs a new connection, after one broke in post-copy.
//!
//! A thread of the target's QEMU that needs a missing page waits for it, and holds what the main loop needs while it waits.
//! So the target's QEMU is only asked out of band, where it takes no descriptors: it listens on a socket of its own, to
//! which the launcher relays the connection. The source's QEMU has all of the memory, and takes the connection as the
//! first one.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use barevirt_qmp::qapi::qmp::{self, QmpCommand};
use barevirt_qmp::{Deadline, Error, Qmp};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::time::sleep;

use super::channels;
use super::disks::connect;
use super::qemu::{COMMAND, CONNECTION, NotBegun, uri};

/// How often the target's QEMU is asked to listen. It refuses for as long as it uses the former connection.
const REQUESTS: u32 = 20;
/// Pause between two requests.
const BETWEEN: Duration = Duration::from_millis(250);

/// Makes the source's QEMU continue over this connection.
///
/// # Errors
/// If QEMU refuses, or does not answer: its main loop waits for the target while the connection is encrypted.
pub async fn resume(qmp: &Qmp, connection: OwnedFd) -> Result<(), Error> {
    let name = qmp::getfd { fdname: CONNECTION.to_owned() };
    let begun = async {
        qmp.execute_with_fds(name, &[connection.as_fd()], Deadline::after(COMMAND)).await?;
        let again = qmp::migrate { channels: None, detach: None, resume: Some(true), uri: Some(uri()) };
        qmp.execute(again, Deadline::after(COMMAND)).await
    };
    let begun = begun.await;
    if begun.is_err() {
        close(&connection);
    }
    begun.map(drop)
}

/// Makes the target's QEMU continue over this connection. It listens on the socket.
///
/// # Errors
/// If QEMU refuses or does not answer, or cannot be connected to.
pub async fn recover(qmp: &Qmp, socket: &Path, connection: OwnedFd) -> Result<(), NotBegun> {
    let listen = qmp::migrate_recover { uri: channels::uri(socket) };
    let mut requests = 0;
    loop {
        requests += 1;
        match out_of_band(qmp, listen.clone()).await {
            Ok(()) => break,
            // It still uses the former connection, which may be dead.
            Err(Error::Refused { .. }) if requests < REQUESTS => {
                let _ = break_off(qmp).await;
                sleep(BETWEEN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    connect(socket, connection).await
}

/// Makes QEMU give its connection up and wait for a new one.
///
/// # Errors
/// If QEMU refuses, because it has no connection, or does not answer.
pub async fn break_off(qmp: &Qmp) -> Result<(), Error> {
    out_of_band(qmp, qmp::migrate_pause {}).await
}

async fn out_of_band<C: QmpCommand>(qmp: &Qmp, command: C) -> Result<(), Error> {
    let deadline = Deadline::after(COMMAND);
    let done = if qmp.has_oob() {
        qmp.execute_oob(command, deadline).await
    } else {
        qmp.execute(command, deadline).await
    };
    done.map(drop)
}

/// Ends a connection, whichever process still holds it.
pub fn close(connection: &OwnedFd) {
    // It may have ended already.
    let _ = shutdown(connection.as_raw_fd(), Shutdown::Both);
}
