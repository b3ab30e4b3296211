//! Connections between the launcher and programs in other containers of the pod: each program listens at its own
//! socket, and the launcher connects once.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use barevirt_protocol::readable;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use crate::signals::Stops;

/// Interval of checks for a container that has no socket yet.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens until the launcher has connected, and leaves the connection in the socket. `None` if it is stopped
/// before.
///
/// # Errors
/// If the socket cannot be made, or the launcher does not connect in time.
pub async fn listen(socket: &Path, seconds: u64, stops: &mut Stops) -> anyhow::Result<Option<UnixListener>> {
    // This container is the only one that uses this name.
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket);
    let listener = listener.with_context(|| format!("cannot listen at {}", socket.display()))?;
    tracing::info!(socket = %socket.display(), "waiting for the launcher");
    let listener = tokio::select! {
        why = stops.next() => {
            tracing::info!(why, "the container is being stopped");
            return Ok(None);
        }
        called = readable(listener.into()) => called.context("cannot wait for the launcher")?,
        () = sleep(Duration::from_secs(seconds)) => {
            anyhow::bail!("the launcher did not connect within {seconds} s");
        }
    };
    // No other connection is accepted.
    let _ = fs::remove_file(socket);
    Ok(Some(listener.into()))
}

/// Connects to such a program, which may begin to listen later. `late` is the error message if it never does.
///
/// # Errors
/// If the program does not listen by the deadline, or the kernel refuses the connection.
pub async fn call(socket: &Path, deadline: Instant, late: &'static str) -> io::Result<OwnedFd> {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                return Ok(stream.into());
            }
            Err(error) if !is_early(&error) => return Err(error),
            Err(_) if Instant::now() >= deadline => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// The program does not listen yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_may_come_later_and_one_that_never_comes_is_late() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        let soon = Instant::now() + Duration::from_secs(20);
        let (found, _listener) = tokio::join!(call(&socket, soon, "late"), async {
            sleep(PAUSE * 3).await;
            UnixListener::bind(&socket).unwrap()
        });
        found.unwrap();
        let error = call(&directory.path().join("b.sock"), Instant::now(), "it is late").await.unwrap_err();
        assert_eq!(error.to_string(), "it is late");
    }

    #[tokio::test]
    async fn a_launcher_that_does_not_call_is_not_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        let mut stops = Stops::new().unwrap();
        let error = listen(&socket, 0, &mut stops).await.unwrap_err().to_string();
        assert_eq!(error, "the launcher did not connect within 0 s");
    }
}
