//! Prepares the files that QEMU opens for volumes: the overlay over an image, the empty disk, the cloud-init
//! image.
//!
//! All files made here are in one directory and are removed with the VM. An image is only read, through a
//! descriptor; the guest's writes go to an empty qcow2 file over it.

mod empty;
mod made;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use barevirt_api::v1::{HostDisk, Volume, VolumeClaim};
use barevirt_api::valid::{ValidDisk, ValidVmi};
use barevirt_machine::{Blocks, Cache, FdSet, FdSetMember, FileSource, ImageFormat, VolumeFacts};
use barevirt_protocol::v1::{ClaimDisk, DiskTrouble};

pub use self::made::Made;
use crate::cloudinit::{CloudInitError, ConfigDrive};
use crate::descriptors::Descriptors;
use crate::disk::block_size;
use crate::disk::claim::{self, Access, ClaimError};
use crate::disk::host::{self, HostDiskError};
use crate::disk::qcow2::{self, Qcow2Error};
use crate::disk::{Format, Image};
use crate::downward_metrics;
use crate::growing::{self, Growing};
use crate::object_disk::ObjectDiskError;
use crate::reported;

/// Why a volume cannot be prepared; names the volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It has no image.
    #[error("volume {volume}: there is no image for it")]
    NoImage {
        /// The volume.
        volume: String,
    },
    /// Its kind is not supported here.
    #[error("volume {volume}: it has no source that is served")]
    NoSource {
        /// The volume.
        volume: String,
    },
    /// Its size cannot be read.
    #[error("volume {volume}: capacity is not a number of bytes")]
    Capacity {
        /// The volume.
        volume: String,
    },
    /// Its file cannot be made.
    #[error("volume {volume}: {source}")]
    Make {
        /// The volume.
        volume: String,
        /// Why.
        source: Qcow2Error,
    },
    /// Its disk of metrics cannot be made.
    #[error("volume {volume}: cannot make its disk of metrics")]
    Metrics {
        /// The volume.
        volume: String,
        /// Why.
        source: std::io::Error,
    },
    /// Its claim has no usable disk.
    #[error("volume {volume}: {source}")]
    Claim {
        /// The volume.
        volume: String,
        /// Why.
        source: ClaimError,
    },
    /// Its file on the node cannot be used as a disk.
    #[error("volume {volume}: {source}")]
    HostDisk {
        /// The volume.
        volume: String,
        /// Why.
        source: HostDiskError,
    },
    /// The cluster's object has no disk.
    #[error("volume {volume}: {source}")]
    Object {
        /// The volume.
        volume: String,
        /// Why.
        source: ObjectDiskError,
    },
    /// Its file system does not support bypassing the page cache.
    #[error("volume {volume}: its file system cannot do without the page cache, which cache none asks for")]
    Cache {
        /// The volume.
        volume: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file for the contents that its guest brings along cannot be made.
    #[error("volume {volume}: cannot make the file of its disk")]
    Blank {
        /// The volume.
        volume: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The block sizes that its disk is to have are not known.
    #[error("volume {volume}: cannot find its block size: {source}")]
    Blocks {
        /// The volume.
        volume: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Its cloud-init image cannot be made.
    #[error(transparent)]
    CloudInit(#[from] CloudInitError),
}

/// An image that is only read.
#[derive(Debug)]
pub struct Base {
    /// The file, open for reading only.
    pub file: OwnedFd,
    /// Its format and size.
    pub image: Image,
}

/// Directories.
#[derive(Debug, Clone)]
pub struct Places {
    /// Directory of files that are made here.
    pub directory: PathBuf,
    /// Mounted secrets, one directory for each volume.
    pub secrets: PathBuf,
    /// Mounted objects, and their disks.
    pub objects: PathBuf,
    /// Claims, each by the name of its volume.
    pub claims: claim::Places,
    /// Whether the guest comes from another node: its disks are left as they are.
    pub comes: bool,
    /// Whether disks come with it that were made of objects and that it only reads.
    pub images_come: bool,
    /// Whether its source has the same kernel, and so the same locks of devices.
    pub shares_kernel: bool,
}

/// The volumes' part of the plan's facts.
#[derive(Debug, Default)]
pub struct Prepared {
    /// One for each volume.
    pub volumes: Vec<VolumeFacts>,
    /// Descriptors through which they are opened.
    pub fd_sets: Vec<FdSet>,
    /// Disks on claims that the guest writes, and empty disks, with their sizes.
    pub on_claims: Vec<ClaimDisk>,
    /// Those of them that can grow.
    pub growing: Vec<Growing>,
    /// Devices whose locks the source of the guest still has.
    pub late_locks: Vec<PathBuf>,
    /// Config drives that are made once the places of the machine's devices are known.
    pub config_drives: Vec<ConfigDrive>,
    /// Disks that were made of the manifest and of objects.
    pub made: Vec<Made>,
    /// New disks that are smaller than was asked for.
    pub smaller: Vec<DiskTrouble>,
}

impl Prepared {
    /// Keeps what the status reports about a disk.
    fn note(&mut self, volume: &str, disk: &claim::Disk, room: &claim::Room) {
        let told = disk.shortage(room).map(|why| format!("volume {volume}: {why}"));
        self.smaller.extend(told.map(|text| DiskTrouble { volume: volume.to_owned(), text }));
    }
}

/// Prepares every volume. `bases` are the images, by the name of their volume.
///
/// # Errors
/// Names the first volume that cannot be prepared.
pub fn prepare(
    vmi: &ValidVmi,
    mut bases: BTreeMap<String, Base>,
    places: &Places,
    descriptors: &mut Descriptors,
) -> Result<Prepared, VolumeError> {
    let mut prepared = Prepared::default();
    for disk in vmi.boot_disks() {
        let facts = prepare_one(vmi, disk, &mut bases, places, descriptors, &mut prepared)?;
        prepared.volumes.push(facts);
    }
    Ok(prepared)
}

fn prepare_one(
    vmi: &ValidVmi,
    disk: &ValidDisk,
    bases: &mut BTreeMap<String, Base>,
    places: &Places,
    descriptors: &mut Descriptors,
    prepared: &mut Prepared,
) -> Result<VolumeFacts, VolumeError> {
    let Volume { name, container_disk, empty_disk, .. } = &disk.volume;
    let volume = || name.clone();
    if let Some(claim) = disk.volume.claim() {
        return on_claim(vmi, disk, claim, places, descriptors, prepared);
    }
    if let Some(source) = &disk.volume.host_disk {
        return on_node(disk, source, places, descriptors, prepared);
    }
    if container_disk.is_some() {
        let Base { file, image } =
            bases.remove(name).ok_or_else(|| VolumeError::NoImage { volume: volume() })?;
        let overlay = if disk.disk.is_cdrom() {
            None
        } else {
            let path = places.directory.join(format!("{name}.overlay.qcow2"));
            make(name, &path, image.virtual_size)?;
            Some(source_of(&path))
        };
        let blocks = blocks(disk, &file)?;
        let source = hold(name, file, descriptors, &mut prepared.fd_sets);
        let ready = disposable(name, source, format_of(image.format));
        return Ok(VolumeFacts { read_only: true, overlay, blocks, ..ready });
    }
    if disk.volume.downward_metrics.is_some() {
        let path = downward_metrics::disk::path(&places.directory, name);
        downward_metrics::disk::create(&path)
            .map_err(|source| VolumeError::Metrics { volume: volume(), source })?;
        let ready = disposable(name, source_of(&path), ImageFormat::Raw);
        return Ok(VolumeFacts { read_only: true, ..ready });
    }
    let (path, format, blocks) = if let Some(path) = made::prepare(vmi, disk, places, prepared)? {
        (path, ImageFormat::Raw, None)
    } else if let Some(source) = empty_disk {
        let bytes = empty::bytes(vmi, name, source, places.comes)
            .ok_or_else(|| VolumeError::Capacity { volume: volume() })?;
        let path = places.directory.join(format!("{name}.empty.qcow2"));
        make(name, &path, bytes)?;
        let file = File::open(&path).map_err(|source| VolumeError::Blocks { volume: volume(), source })?;
        prepared.on_claims.push(ClaimDisk { volume: volume(), bytes });
        (path, ImageFormat::Qcow2, blocks(disk, &file)?)
    } else {
        return Err(VolumeError::NoSource { volume: volume() });
    };
    Ok(VolumeFacts { blocks, ..disposable(name, source_of(&path), format) })
}

/// A volume that ends with the pod.
fn disposable(name: &str, source: FileSource, format: ImageFormat) -> VolumeFacts {
    VolumeFacts {
        name: name.to_owned(),
        source,
        format,
        read_only: false,
        overlay: None,
        cache: Cache::Disposable,
        thick: false,
        blocks: None,
    }
}

/// The block sizes of an open volume, if its disk is to have them.
fn blocks(disk: &ValidDisk, file: &impl AsFd) -> Result<Option<Blocks>, VolumeError> {
    block_size::wanted(&disk.disk, file)
        .map_err(|source| VolumeError::Blocks { volume: disk.volume.name.clone(), source })
}

/// The disk of a claim, with an overlay if writes are to be lost.
fn on_claim(
    vmi: &ValidVmi,
    disk: &ValidDisk,
    claim: VolumeClaim<'_>,
    places: &Places,
    descriptors: &mut Descriptors,
    prepared: &mut Prepared,
) -> Result<VolumeFacts, VolumeError> {
    let name = &disk.volume.name;
    let is_written = !disk.disk.is_readonly();
    let read_only = claim.is_read_only || claim.is_ephemeral;
    let reads = read_only || !is_written;
    let (size, places_of_claims) = match reported::moved_size(vmi, name) {
        // A disk that moves here must have the full size of its source.
        Some(size) => {
            let claims = &places.claims;
            let room = claim::Room { tolerated_percent: 0, ..claims.room.clone() };
            (Some(size), claim::Places { room, ..claims.clone() })
        }
        None => (reported::claim_size(vmi, name), places.claims.clone()),
    };
    let access = match disk.disk.shareable {
        _ if reads => Access::Read,
        Some(true) => Access::Share,
        _ => Access::Write,
    };
    let mut found = match claim::find(name, access, size, &places_of_claims) {
        // Its source has it.
        Err(ClaimError::InUse(_)) if access == Access::Write && places.comes && places.shares_kernel => {
            prepared.late_locks.push(places.claims.devices.join(name));
            claim::find(name, Access::Share, size, &places_of_claims)
        }
        found => found,
    }
    .map_err(|source| VolumeError::Claim { volume: name.clone(), source })?;
    prepared.note(name, &found, &places_of_claims.room);
    // Guests that share a file would change its length at the same time.
    if access == Access::Write && !places.comes {
        growing::at_start(vmi, name, &mut found, &places.claims.room);
    }
    if !reads {
        prepared.on_claims.push(ClaimDisk { volume: name.clone(), bytes: found.length });
        let device = found.device.as_deref();
        prepared.growing.extend(Growing::of(vmi, name, claim.name, found.file.as_fd(), device));
    }
    let claim::Disk { file, length, device, short_of: _ } = found;
    let blocks = blocks(disk, &file)?;
    let overlay = (claim.is_ephemeral && is_written).then(|| {
        let path = places.directory.join(format!("{name}.overlay.qcow2"));
        make(name, &path, length).map(|()| source_of(&path))
    });
    let overlay = overlay.transpose()?;
    let cache = match &overlay {
        Some(_) => Cache::Disposable,
        None => claim::cached(&disk.disk, &file)
            .map_err(|source| VolumeError::Cache { volume: name.clone(), source })?,
    };
    let source = match device {
        // QEMU opens the device again. The descriptor here is inherited by QEMU and closed when QEMU ends,
        // because it holds the lock.
        Some(path) => {
            descriptors.add(file);
            FileSource::BlockDevice(path.display().to_string())
        }
        None => hold(name, file, descriptors, &mut prepared.fd_sets),
    };
    let thick = reported::is_preallocated(vmi, name);
    let (name, format) = (name.clone(), ImageFormat::Raw);
    Ok(VolumeFacts { name, source, format, read_only, overlay, cache, thick, blocks })
}

/// A file of the node.
fn on_node(
    disk: &ValidDisk,
    source: &HostDisk,
    places: &Places,
    descriptors: &mut Descriptors,
    prepared: &mut Prepared,
) -> Result<VolumeFacts, VolumeError> {
    let name = &disk.volume.name;
    let read_only = disk.disk.is_readonly();
    let mounted = places.claims.directories.join(name);
    let found = host::find(source, &mounted, read_only, &places.claims.room)
        .map_err(|source| VolumeError::HostDisk { volume: name.clone(), source })?;
    prepared.note(name, &found, &places.claims.room);
    let cache = claim::cached(&disk.disk, &found.file)
        .map_err(|source| VolumeError::Cache { volume: name.clone(), source })?;
    let blocks = blocks(disk, &found.file)?;
    let source = hold(name, found.file, descriptors, &mut prepared.fd_sets);
    let (name, format) = (name.clone(), ImageFormat::Raw);
    Ok(VolumeFacts { name, source, format, read_only, overlay: None, cache, thick: false, blocks })
}

/// Makes an empty image for the guest's writes.
fn make(volume: &str, path: &Path, size: u64) -> Result<(), VolumeError> {
    // An earlier launcher of the same pod may have left a file, which is useless now.
    let _ = std::fs::remove_file(path);
    qcow2::create(path, size)
        .map(drop)
        .map_err(|source| VolumeError::Make { volume: volume.to_owned(), source })
}

/// Puts an open image into its own set of descriptors.
fn hold(volume: &str, file: OwnedFd, descriptors: &mut Descriptors, fd_sets: &mut Vec<FdSet>) -> FileSource {
    let number = u32::try_from(fd_sets.len()).unwrap_or(u32::MAX) + FIRST_SET;
    let member = FdSetMember { fd: descriptors.add(file), what: format!("volume {volume}") };
    fd_sets.push(FdSet { number, members: vec![member] });
    FileSource::FdSet(number)
}

/// Number of the first set; lower numbers are not for volumes.
const FIRST_SET: u32 = 10;

fn source_of(path: &Path) -> FileSource {
    FileSource::Path(path.display().to_string())
}

fn format_of(format: Format) -> ImageFormat {
    match format {
        Format::Raw => ImageFormat::Raw,
        Format::Qcow2 => ImageFormat::Qcow2,
    }
}
