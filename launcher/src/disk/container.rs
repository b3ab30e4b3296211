//! Receives the disks of `containerDisk` volumes, or opens them itself where their images are volumes of the pod.
//!
//! Where they are containers, the launcher listens; in every `volume<name>` container the program `container-disk` connects, sends one packet and
//! stays connected:
//!
//! ```json
//! {"volume":"root","path":"/disk/guest.qcow2","size":10485760}      with one read-only descriptor
//! {"volume":"root","error":"image has no disk: ..."}                without
//! ```
//!
//! The connection is kept with the disk: closing it tells the container that it may end, and with it the image may be
//! collected. What goes wrong with one volume is a value that names the volume and, where it is known, the path.

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

/// Where the launcher listens in its container; the volume containers have the directory at the same place.
pub const SOCKET: &str = "/var/run/kubevirt/container-disks/launcher.sock";

/// How long a connection may take to send its packet.
const PACKET_DEADLINE: Duration = Duration::from_secs(10);

/// Connections that have not sent their packet yet, at the same time.
const MOST_WAITING: usize = 64;

/// Longest text of a container that is passed on, in bytes.
const LONGEST_TEXT: usize = 1024;

/// A disk that can be given to QEMU.
#[derive(Debug)]
pub struct ContainerDisk {
    /// Name of the volume.
    pub volume: String,
    /// Path of the disk in the image; for people only.
    pub path: String,
    /// Its format and size.
    pub image: Image,
    /// It, open for reading only.
    pub file: OwnedFd,
    /// Keeps the volume's container running, where there is one. Drop it when QEMU is gone.
    pub connection: Option<PacketSocket>,
}

impl ContainerDisk {
    /// This one, unless its virtual size is larger than so many bytes.
    ///
    /// # Errors
    /// When it is.
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
    /// Its image has none, in the words of who looked.
    #[error("volume {volume}: {text}")]
    Container {
        /// The volume.
        volume: String,
        /// What the container said.
        text: String,
    },
    /// It is not an image that is served.
    #[error("volume {volume}: disk {path}: {source}")]
    Header {
        /// The volume.
        volume: String,
        /// The disk in the image.
        path: String,
        /// Why.
        source: HeaderError,
    },
    /// Its container sent something else than an open regular file.
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
        /// What the system said.
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
        /// Most that one may have, in bytes.
        most: u64,
    },
    /// Its container did not come.
    #[error("volume {volume}: its container did not hand over a disk within {} s", within.as_secs())]
    Deadline {
        /// The volume.
        volume: String,
        /// How long was waited.
        within: Duration,
    },
}

/// The outcome for each volume.
pub type Collected = BTreeMap<String, Result<ContainerDisk, ContainerDiskError>>;

/// The launcher's end.
#[derive(Debug)]
pub struct ContainerDisks {
    listener: PacketListener,
}

impl ContainerDisks {
    /// Listens at `path`, normally [`SOCKET`].
    ///
    /// # Errors
    /// When the directory is not there or not writable.
    pub fn listen(path: &Path) -> Result<Self, SocketError> {
        Ok(Self { listener: PacketListener::bind(path)? })
    }

    /// Waits until every volume of `volumes` has a disk or an error, at most for `within`. Connections of users other
    /// than `uid`, for volumes nobody expects, and further ones for a volume are closed.
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
                        Ok(_) => tracing::warn!("stranger on container disk socket turned away"),
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
                tracing::warn!(volume = message.volume, "container disk that nobody waits for turned away");
                continue;
            }
            let volume = message.volume.clone();
            // Reading from the image may wait for the node's disk.
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

/// Opens what the image mounted at `root` has for a volume: the file at `path`, or the only one under `/disk`.
///
/// # Errors
/// As for one that a container hands over.
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

/// What a volume's container says.
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
        // No disk: QEMU's firmware reads it as it is.
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

/// A regular file, open for reading and nothing else.
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
