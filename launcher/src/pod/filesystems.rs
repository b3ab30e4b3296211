//! Connections to the servers of the directories that the guest mounts: virtiofsd, each in its own container.
//! The launcher connects, because QEMU may not, and passes the connections on.

use std::os::fd::OwnedFd;
use std::path::Path;

use barevirt_api::filesystem;
use barevirt_api::valid::ValidVmi;
use tokio::time::Instant;

use crate::awaited;
use crate::guest_end::GuestEnd;

/// Connects to each server, by the name of its volume.
///
/// # Errors
/// The end of the guest if a directory is not served by the deadline.
pub(super) async fn connect(
    vmi: &ValidVmi,
    sockets: &Path,
    deadline: Instant,
    say: &impl Fn(String),
) -> Result<Vec<(String, OwnedFd)>, GuestEnd> {
    let mut connections = Vec::new();
    for volume in filesystem::of(vmi.spec()) {
        let container = filesystem::container(&volume.name);
        say(format!("waiting for container {container}"));
        // Names of volumes are DNS labels, so they are safe in a path.
        let socket = sockets.join(filesystem::socket(&volume.name));
        let connection = awaited::call(&socket, deadline, "it does not serve its directory in time").await;
        let connection = connection.map_err(|error| {
            GuestEnd::failed(
                "FilesystemFailed",
                format!("volume {}: container {container}: {error}", volume.name),
            )
        })?;
        connections.push((volume.name.clone(), connection));
    }
    Ok(connections)
}
