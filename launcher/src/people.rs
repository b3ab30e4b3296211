//! The monitor for users: one session with QEMU, many clients.
//!
//! QEMU's second monitor serves one client at a time. The launcher is that client, and acts like QEMU towards
//! its own clients: it greets each, lets each negotiate, gives each all events, and passes commands on with
//! its own ids. The launcher itself uses another session, which users cannot disturb; the effect of a command
//! on the VM (`quit`, `stop`) arrives there as an event.
//!
//! Each client has a task and limits: one line of [`MAX_LINE`] bytes, [`IN_FLIGHT`] commands, [`WRITE_TIMEOUT`] to
//! read its data. Descriptors cannot be passed, and commands that reach beyond the guest are refused here for
//! every client ([`barevirt_api::monitor`]). A client's bytes are never sent to QEMU; each command is parsed
//! and encoded again.

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
/// Most unanswered commands of one client; its next line is only read after an answer.
pub const IN_FLIGHT: usize = 8;
/// Most clients at a time; more are disconnected.
pub const MOST_CLIENTS: usize = 16;
/// How long a client may leave its data unread.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a user's command may take before the answer says that it takes long, and why. QEMU may carry it
/// out later.
pub const COMMAND: Duration = Duration::from_secs(60);

/// Listens at `path`, for this user only, and replaces a socket left there.
///
/// # Errors
/// If the socket cannot be made.
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

/// The QEMU that users reach.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The session with QEMU.
    pub qmp: Qmp,
    /// The VM's status, if known.
    pub status: Option<watch::Receiver<Status>>,
    /// How long a command may take.
    pub command_timeout: Duration,
}

impl Guest {
    /// Whether the guest is moving to another node, so that only queries are allowed.
    pub(crate) fn is_closed(&self) -> bool {
        let told = self.status.as_ref().and_then(|status| status.borrow().migration.clone());
        told.is_some_and(|told| told.is_closed())
    }

    /// Its process id; 0 if unknown.
    pub(crate) fn pid(&self) -> u32 {
        self.status.as_ref().map_or(0, |status| status.borrow().qemu_pid)
    }
}

/// Serves clients of a QEMU without a known status; see [`serve_guest`].
pub async fn serve(qmp: Qmp, listener: Option<UnixListener>, sent: mpsc::Receiver<UnixStream>) {
    serve_guest(Guest { qmp, status: None, command_timeout: COMMAND }, listener, sent).await;
}

/// Serves clients that connect to the listener, and those that are sent as connections, until the session
/// with QEMU ends. Must run within a `LocalSet`.
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
            tracing::warn!(most = MOST_CLIENTS, "too many clients of the users' monitor, one rejected");
            continue;
        }
        let (guest, seats) = (guest.clone(), seats.clone());
        tokio::task::spawn_local(async move {
            let _seat = seats.acquire().await;
            let ended = client::serve(guest, stream).await;
            tracing::info!(%ended, "client of the users' monitor has disconnected");
        });
    }
}

/// The commands with their arguments that a client's bytes would make QEMU carry out. Pure, for tests.
#[must_use]
pub fn passed_on(bytes: &[u8]) -> Vec<(String, serde_json::Value)> {
    client::passed_on(bytes)
}

/// The answer to a forbidden command.
pub(crate) fn refused(forbidden: &Forbidden) -> serde_json::Value {
    serde_json::json!({"error": {"class": client::class_of(forbidden), "desc": forbidden.to_string()}})
}

async fn accept(listener: Option<&UnixListener>) -> Option<UnixStream> {
    let Some(listener) = listener else { return std::future::pending().await };
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // Most likely there are too many open files, and an immediate retry would fail as well.
            tracing::warn!(%error, "cannot accept a client of the users' monitor");
            tokio::time::sleep(Duration::from_millis(200)).await;
            None
        }
    }
}
