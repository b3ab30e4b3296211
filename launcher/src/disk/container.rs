//! Receives the disks of `containerDisk` volumes, or opens them itself if their images are volumes of the
//! pod.
//!
//! If they are containers, the launcher listens. In every `volume<name>` container the program
//! `container-disk` connects, sends one packet and stays connected:
//!
//! ```json
//! {"volume":"root","path":"/disk/guest.qcow2","size":10485760}      with one read-only descriptor
//! {"volume":"root","error":"image has no disk: ..."}                without
//! ```
//!
//! The connection is kept with the disk: closing it tells the container that it may end, after which its
//! image may be removed. A failure of one volume is a value with the name of the volume and, if known, the
//! path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use barevirt_api::firmware::{INITRD_FILE, KERNEL_FILE};
use barevirt_api::names::LARGEST_IMAGE_ANNOTATION;
use barevirt_protocol::seqpacket::{Packet, PacketListener, PacketSocket, SocketError};
use container_disk::disk::open_in;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::header::{Format, HeaderError, INSPECTED, Image, inspect};

/// The launcher's socket in its container; the volume containers have the directory at the same path.
pub const SOCKET: &str = "/var/run/kubevirt/container-disks/launcher.sock";

/// Time limit for a connection's packet.
const PACKET_DEADLINE: Duration = Duration::from_secs(10);

/// Most connections at the same time that have not sent their packet yet.
const MOST_WAITING: usize = 64;

/// Longest text from a container that is passed on, in bytes.
const LONGEST_TEXT: usize = 1024;

/// A disk for QEMU.
#[derive(Debug)]
pub struct ContainerDisk {
    /// Name of the volume.
    pub volume: String,
    /// Path of the disk in the image; only informative.
    pub path: String,
    /// Its format and size.
    pub image: Image,
    /// The file, open for reading only.
    pub file: OwnedFd,
    /// Keeps the volume's container running, if there is one. Drop it when QEMU is gone.
    pub connection: Option<PacketSocket>,
}

impl ContainerDisk {
    /// This disk, unless its virtual size is larger than `most` bytes.
    ///
    /// # Errors
    /// If it is larger.
    pub fn of_at_most(self, most: u64) -> Result<Self, ContainerDiskError> {
        let Self { volume, path, image, .. } = &self;
        if image.virtual_size > most {
            let (volume, path, size) = (volume.clone(), path.clone(), image.virtual_size);
            return Err(ContainerDiskError::TooLarge { volume, path, size, most });
        }
        Ok(self)
    }
}

/// Why a volume has no disk.
#[derive(Debug, thiserror::Error)]
pub enum ContainerDiskError {
    /// Its image has no disk; the text comes from the program that looked.
    #[error("volume {volume}: {text}")]
    Container {
        /// The volume.
        volume: String,
        /// The container's message.
        text: String,
    },
    /// It is not a supported image.
    #[error("volume {volume}: disk {path}: {source}")]
    Header {
        /// The volume.
        volume: String,
        /// The disk in the image.
        path: String,
        /// Why.
        source: HeaderError,
    },
    /// Its container did not send an open regular file.
    #[error("volume {volume}: disk {path} is not a regular file open for reading only")]
    Descriptor {
        /// The volume.
        volume: String,
        /// The disk in the image.
        path: String,
    },
    /// It cannot be read.
    #[error("volume {volume}: read disk {path}: {source}")]
    Read {
        /// The volume.
        volume: String,
        /// The disk in the image.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// It is larger than the installation allows: its guest could fill the node's disk.
    #[error(
        "volume {volume}: disk {path} has a virtual size of {size} bytes, more than the {most} that this installation allows (annotation {LARGEST_IMAGE_ANNOTATION} of its KubeVirt object)"
    )]
    TooLarge {
        /// The volume.
        volume: String,
        /// The disk in the image.
        path: String,
        /// Its virtual size, in bytes.
        size: u64,
        /// Largest virtual size, in bytes.
        most: u64,
    },
    /// Its container did not connect in time.
    #[error("volume {volume}: its container did not hand over a disk within {} s", within.as_secs())]
    Deadline {
        /// The volume.
        volume: String,
        /// The time limit.
        within: Duration,
    },
}

/// The result for each volume.
pub type Collected = BTreeMap<String, Result<ContainerDisk, ContainerDiskError>>;

/// The launcher's listening socket.
#[derive(Debug)]
pub struct ContainerDisks {
    listener: PacketListener,
}

impl ContainerDisks {
    /// Listens at `path`, normally [`SOCKET`].
    ///
    /// # Errors
    /// If the directory does not exist or is not writable.
    pub fn listen(path: &Path) -> Result<Self, SocketError> {
        Ok(Self { listener: PacketListener::bind(path)? })
    }

    /// Waits until every volume of `volumes` has a disk or an error, at most for `within`. Connections of
    /// users other than `uid`, for unexpected volumes, and further ones for a volume are closed.
    pub async fn collect(&self, volumes: &BTreeSet<String>, uid: u32, within: Duration) -> Collected {
        let deadline = Instant::now() + within;
        let mut collected = Collected::new();
        let mut waiting = JoinSet::new();
        while collected.len() < volumes.len() {
            let received = tokio::select! {
                accepted = self.listener.accept(), if waiting.len() < MOST_WAITING => {
                    match accepted {
                        Ok(connection) if is_of(&connection, uid) => {
                            waiting.spawn(receive(connection));
                        }
                        Ok(_) => tracing::warn!("unknown client on container disk socket rejected"),
                        Err(error) => {
                            tracing::warn!(%error, "could not accept on container disk socket");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                    continue;
                }
                Some(received) = waiting.join_next() => received,
                () = tokio::time::sleep_until(deadline) => break,
            };
            let Ok(Some((message, packet, connection))) = received else { continue };
            if !volumes.contains(&message.volume) || collected.contains_key(&message.volume) {
                tracing::warn!(volume = message.volume, "unexpected container disk rejected");
                continue;
            }
            let volume = message.volume.clone();
            // Reading from the image may wait for the node's disk, so it runs on another thread.
            let judged =
                tokio::task::spawn_blocking(move || judge(message, packet.descriptors, Some(connection)));
            let outcome = match timeout_at(deadline, judged).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) | Err(_) => Err(ContainerDiskError::Deadline { volume: volume.clone(), within }),
            };
            collected.insert(volume, outcome);
        }
        for volume in volumes {
            collected
                .entry(volume.clone())
                .or_insert_with(|| Err(ContainerDiskError::Deadline { volume: volume.clone(), within }));
        }
        collected
    }
}

/// Opens a volume's file in the image mounted at `root`: the file at `path`, or the only one below `/disk`.
///
/// # Errors
/// As for a disk from a container.
pub fn open(volume: &str, root: &Path, path: Option<&Path>) -> Result<ContainerDisk, ContainerDiskError> {
    let volume = volume.to_owned();
    match open_in(root, path) {
        Ok(disk) => {
            let message = Message { volume, path: disk.path.display().to_string(), error: None };
            judge(message, vec![disk.file.into()], None)
        }
        Err(error) => Err(ContainerDiskError::Container { volume, text: shortened(error.to_string()) }),
    }
}

fn is_of(connection: &PacketSocket, uid: u32) -> bool {
    connection.peer().is_ok_and(|peer| peer.uid == uid)
}

/// The message of a volume's container.
#[derive(Debug, Deserialize)]
struct Message {
    volume: String,
    #[serde(default)]
    path: String,
    error: Option<String>,
}

/// A connection's packet, if it is one.
async fn receive(connection: PacketSocket) -> Option<(Message, Packet, PacketSocket)> {
    let packet = match timeout(PACKET_DEADLINE, connection.receive()).await {
        Ok(Ok(Some(packet))) => packet,
        Ok(Ok(None)) | Err(_) => return None,
        Ok(Err(error)) => {
            tracing::warn!(%error, "bad packet on container disk socket");
            return None;
        }
    };
    match serde_json::from_slice(&packet.bytes) {
        Ok(message) => Some((message, packet, connection)),
        Err(error) => {
            tracing::warn!(%error, "bad message on container disk socket");
            None
        }
    }
}

fn judge(
    message: Message,
    mut descriptors: Vec<OwnedFd>,
    connection: Option<PacketSocket>,
) -> Result<ContainerDisk, ContainerDiskError> {
    let Message { volume, path, error } = message;
    let path = shortened(path);
    if let Some(text) = error {
        return Err(ContainerDiskError::Container { volume, text: shortened(text) });
    }
    let (Some(file), true) = (descriptors.pop(), descriptors.is_empty()) else {
        return Err(ContainerDiskError::Descriptor { volume, path });
    };
    let file = File::from(file);
    if !is_plain(&file) {
        return Err(ContainerDiskError::Descriptor { volume, path });
    }
    if [KERNEL_FILE, INITRD_FILE].contains(&volume.as_str()) {
        // The file is not a disk: QEMU's firmware reads it unchanged.
        let virtual_size = file.metadata().map_or(0, |found| found.len());
        let image = Image { format: Format::Raw, virtual_size };
        return Ok(ContainerDisk { volume, path, image, file: file.into(), connection });
    }
    match look(&file) {
        Ok(Ok(image)) => Ok(ContainerDisk { volume, path, image, file: file.into(), connection }),
        Ok(Err(source)) => Err(ContainerDiskError::Header { volume, path, source }),
        Err(source) => Err(ContainerDiskError::Read { volume, path, source }),
    }
}

/// Whether it is a regular file, open for reading only.
fn is_plain(file: &File) -> bool {
    let regular = file.metadata().is_ok_and(|found| found.is_file());
    let flags = fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    regular && flags.is_ok_and(|flags| flags & (OFlag::O_ACCMODE | OFlag::O_PATH) == OFlag::O_RDONLY)
}

fn look(file: &File) -> io::Result<Result<Image, HeaderError>> {
    let length = file.metadata()?.len();
    let mut head = vec![0; INSPECTED];
    let mut filled = 0;
    while filled < head.len() {
        match file.read_at(&mut head[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(inspect(&head[..filled], length))
}

fn shortened(text: String) -> String {
    if text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control) {
        return text;
    }
    text.chars().take(LONGEST_TEXT).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
