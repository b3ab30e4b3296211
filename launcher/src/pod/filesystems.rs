//! Connections to the servers of the directories that the guest mounts: virtiofsd, each in its own container.
//! The launcher connects, because QEMU may not, and passes the connections on.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use barevirt_api::filesystem;
use barevirt_api::valid::ValidVmi;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use crate::verdict::Verdict;

/// Interval of checks for a container that has no socket yet.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects to each server, by the name of its volume.
///
/// # Errors
/// The verdict on a guest if a directory is not served by the deadline.
pub(super) async fn connect(
    vmi: &ValidVmi,
    sockets: &Path,
    deadline: Instant,
    say: &impl Fn(String),
) -> Result<Vec<(String, OwnedFd)>, Verdict> {
    let mut connections = Vec::new();
    for volume in filesystem::of(vmi.spec()) {
        let container = filesystem::container(&volume.name);
        say(format!("waiting for container {container}"));
        // Names of volumes are DNS labels, so they are safe in a path.
        let socket = sockets.join(filesystem::socket(&volume.name));
        let connection = one(&socket, deadline).await.map_err(|error| {
            Verdict::failed(
                "FilesystemFailed",
                format!("volume {}: container {container}: {error}", volume.name),
            )
        })?;
        connections.push((volume.name.clone(), connection));
    }
    Ok(connections)
}

async fn one(socket: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                return Ok(stream.into());
            }
            Err(error) if !is_early(&error) => return Err(error),
            Err(_) if Instant::now() >= deadline => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "it does not serve its directory in time",
                ));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// The server does not listen yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_container_may_come_later_and_one_that_never_comes_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        let soon = Instant::now() + Duration::from_secs(20);
        let (found, _listener) = tokio::join!(one(&socket, soon), async {
            sleep(PAUSE * 3).await;
            std::os::unix::net::UnixListener::bind(&socket).unwrap()
        });
        found.unwrap();
        let error = one(&directory.path().join("b.sock"), Instant::now()).await.unwrap_err();
        assert_eq!(error.to_string(), "it does not serve its directory in time");
    }
}
