//! Disks for running guests: each is offered by an attachment pod, which was admitted with the claim that it is on.
//!
//! The pod is the one whose UID the controller recorded in the VMI's `status.volumeStatus`; who listens on its socket has to be
//! in one of its containers. What it hands over it could open itself: no privilege of ours goes into it.

use std::os::fd::OwnedFd;

use barevirt_protocol::descriptors::Client;
use barevirt_protocol::names::STREAM_DISK;

use super::peer::Peer;
use super::pods_dir::PodsDir;
use super::{ANSWER, CONNECT, LauncherError};

/// The disk that the attachment pod with that UID offers.
pub async fn disk(pods: &PodsDir, uid: &str) -> Result<OwnedFd, LauncherError> {
    let sockets = pods.sockets(uid)?;
    let socket = sockets.connect_descriptors(CONNECT).await?;
    Peer::verify_pod(&socket, uid)?;
    // It is not looked at here: to look at a file of storage that hangs would hang, and only the launcher may.
    Ok(Client::new(socket).take(STREAM_DISK, ANSWER).await?)
}
