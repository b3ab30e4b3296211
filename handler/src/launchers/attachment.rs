//! Disks for running guests. An attachment pod, which was admitted with the disk's claim, offers each one.
//!
//! The pod is the one whose UID the controller recorded in the VMI's `status.volumeStatus`. The process that
//! listens on its socket has to be in one of that pod's containers. It could open by itself everything that
//! it hands over, so the handler gives it no privilege.

use std::os::fd::OwnedFd;

use barevirt_protocol::descriptors::Client;
use barevirt_protocol::names::STREAM_DISK;

use super::peer::Peer;
use super::pods_dir::PodsDir;
use super::{ANSWER, CONNECT, LauncherError};

/// The disk that the attachment pod with this UID offers.
pub async fn disk(pods: &PodsDir, uid: &str) -> Result<OwnedFd, LauncherError> {
    let sockets = pods.sockets(uid)?;
    let socket = sockets.connect_descriptors(CONNECT).await?;
    Peer::verify_pod(&socket, uid)?;
    // The handler does not touch the file: access to a file on storage that hangs would hang too, and only
    // the launcher may hang.
    Ok(Client::new(socket).take(STREAM_DISK, ANSWER).await?)
}
