//! The monitor for people: one session with QEMU, many clients.
//!
//! QEMU's second monitor serves one client at a time. The launcher is that client, and is to its own clients what
//! QEMU would be: it greets each, lets each negotiate, gives each all events, and passes commands on with ids of
//! its own. The launcher's own session is another one, so nothing that is said here can disturb it; what a
//! command does to the VM (`quit`, `stop`) arrives there as an event.
//!
//! Each client has a task and bounds: one line of [`MAX_LINE`] bytes, [`IN_FLIGHT`] commands, [`PATIENCE`] to read
//! what it is sent. Descriptors cannot be passed, and commands that reach beyond the guest are refused here whoever asks
//! ([`barevirt_api::monitor`]): bytes of a client never become bytes for QEMU, only commands that were understood.

mod client;
pub mod journal;

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use barevirt_api::monitor::Forbidden;
use barevirt_qmp::Qmp;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::status::Status;

/// Longest line of a client, in bytes.
pub const MAX_LINE: usize = 1 << 20;
/// Commands of one client that may be in flight; its next line is read when one is answered.
pub const IN_FLIGHT: usize = 8;
/// Clients at a time; more are turned away.
pub const MOST_CLIENTS: usize = 16;
/// How long a client may leave what it is sent unread.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a command of a person may take before it is answered that it takes long, and why. QEMU may carry it out later.
pub const COMMAND: Duration = Duration::from_secs(60);

/// Listens at `path`, for this user only, in place of a socket left there.
///
/// # Errors
/// When the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// QEMU as people reach it.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The session with it.
    pub qmp: Qmp,
    /// What else is known of it, where something is.
    pub status: Option<watch::Receiver<Status>>,
    /// How long a command may take.
    pub patience: Duration,
}

impl Guest {
    /// It is on its way to another node: only a look at it is left.
    pub(crate) fn is_closed(&self) -> bool {
        let told = self.status.as_ref().and_then(|status| status.borrow().migration.clone());
        told.is_some_and(|told| told.is_closed())
    }

    /// Its process, 0 where it is not known.
    pub(crate) fn pid(&self) -> u32 {
        self.status.as_ref().map_or(0, |status| status.borrow().qemu_pid)
    }
}

/// Serves clients of a QEMU of which nothing else is known; see [`serve_guest`].
pub async fn serve(qmp: Qmp, listener: Option<UnixListener>, sent: mpsc::Receiver<UnixStream>) {
    serve_guest(Guest { qmp, status: None, patience: COMMAND }, listener, sent).await;
}

/// Serves clients that connect to the listener, and those that are sent as connections, until the session with
/// QEMU ends. Must run within a `LocalSet`.
pub async fn serve_guest(guest: Guest, listener: Option<UnixListener>, mut sent: mpsc::Receiver<UnixStream>) {
    let seats = Rc::new(Semaphore::new(MOST_CLIENTS));
    let mut more = true;
    loop {
        let stream = tokio::select! {
            stream = accept(listener.as_ref()) => stream,
            stream = sent.recv(), if more => {
                more = stream.is_some();
                stream
            }
            () = guest.qmp.ended() => return,
        };
        let Some(stream) = stream else { continue };
        if seats.available_permits() == 0 {
            tracing::warn!(most = MOST_CLIENTS, "too many clients of the people's monitor, one turned away");
            continue;
        }
        let (guest, seats) = (guest.clone(), seats.clone());
        tokio::task::spawn_local(async move {
            let _seat = seats.acquire().await;
            let ended = client::serve(guest, stream).await;
            tracing::info!(%ended, "client of the people's monitor has gone");
        });
    }
}

/// The commands with their arguments that a client's bytes would have QEMU carry out. Pure, for tests.
#[must_use]
pub fn passed_on(bytes: &[u8]) -> Vec<(String, serde_json::Value)> {
    client::passed_on(bytes)
}

/// The answer to a command that is open to nobody.
pub(crate) fn refused(forbidden: &Forbidden) -> serde_json::Value {
    serde_json::json!({"error": {"class": client::class_of(forbidden), "desc": forbidden.to_string()}})
}

async fn accept(listener: Option<&UnixListener>) -> Option<UnixStream> {
    let Some(listener) = listener else { return std::future::pending().await };
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // Most likely too many open files, which does not go away by trying at once.
            tracing::warn!(%error, "cannot accept a client of the people's monitor");
            tokio::time::sleep(Duration::from_millis(200)).await;
            None
        }
    }
}
