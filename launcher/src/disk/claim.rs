//! Disks on claims: the file `disk.img` on a file system, or a device. The mounted file type decides which.
//!
//! A claim belongs to its owner, who may have written anything to it from another pod. So the file is opened
//! below the claim's root without following links. As in KubeVirt its content is always raw bytes of the
//! guest, never an image format, which could name another file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_api::{settings, v1};
use barevirt_machine::Cache;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::fstatvfs;

use super::late_lock;
use crate::state::beneath;

/// The disk on a file system; KubeVirt's name.
const IMAGE: &str = "disk.img";
/// A new image consists of whole mebibytes.
const ALIGNMENT: u64 = 1 << 20;
/// How often a reader looks whether a device is written to, and the pause in between.
const LOOKS: (u32, Duration) = (10, Duration::from_millis(20));

/// Paths of claims in this container, each a directory or a device with the volume's name, and limits on new
/// disks there.
#[derive(Debug, Clone, clap::Args)]
pub struct Places {
    /// Directory of the claims' file systems, one for each volume.
    #[arg(long = "claims", value_name = "DIR", default_value = barevirt_api::names::CLAIMS)]
    pub directories: PathBuf,

    /// Directory of the claims' devices, each by the name of its volume.
    #[arg(long = "claim-devices", value_name = "DIR", default_value = barevirt_api::names::CLAIM_DEVICES)]
    pub devices: PathBuf,

    /// The installation's limits on new disks.
    #[command(flatten)]
    pub room: Room,
}

/// Free space for a new disk on a file system.
#[derive(Debug, Clone, clap::Args)]
pub struct Room {
    /// Bytes that a new disk leaves free on its claim.
    #[arg(long = "claim-reserve", value_name = "BYTES", default_value_t = settings::Room::default().reserve)]
    pub reserve: u64,

    /// By how many percent a new disk on a claim may be smaller than requested.
    #[arg(
        long = "claim-tolerance",
        value_name = "PERCENT",
        default_value_t = settings::Room::default().tolerated_percent,
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub tolerated_percent: u8,
}

impl Default for Room {
    fn default() -> Self {
        let settings::Room { reserve, tolerated_percent } = settings::Room::default();
        Room { reserve, tolerated_percent }
    }
}

impl Room {
    /// The size of a new disk, given the wanted and the free bytes; `None` if it does not fit. A slightly
    /// smaller size is accepted.
    fn fit(&self, wanted: u64, free: u64) -> Option<u64> {
        let there = free.saturating_sub(self.reserve);
        if wanted <= there {
            return Some(wanted);
        }
        Some(aligned(there)).filter(|room| *room > 0 && there >= self.least(wanted))
    }

    /// The smallest disk that is accepted instead of one of this size.
    #[must_use]
    pub fn least(&self, wanted: u64) -> u64 {
        wanted / 100 * u64::from(100_u8.saturating_sub(self.tolerated_percent))
    }
}

/// The open disk of a claim.
#[derive(Debug)]
pub struct Disk {
    /// The file, or the device.
    pub file: OwnedFd,
    /// Its length in bytes.
    pub length: u64,
    /// Path of the device, if it is one.
    pub device: Option<PathBuf>,
    /// The length that was asked for, if the file is new and there was no space for so much.
    pub short_of: Option<u64>,
}

impl Disk {
    /// What to tell a user about a new disk that is smaller than was asked for.
    #[must_use]
    pub fn shortage(&self, room: &Room) -> Option<String> {
        let (wanted, length, percent) = (self.short_of?, self.length, room.tolerated_percent);
        Some(format!(
            "there is no space for a disk of {wanted} bytes; it has {length}, which is no more than {percent} % less"
        ))
    }
}

/// Why a claim has no usable disk.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// There is neither a directory nor a device.
    #[error("its claim is neither mounted nor a device of this pod")]
    Missing,
    /// It is read-only, and has no image yet.
    #[error("{IMAGE} is not on its claim, which is read-only")]
    NoImage,
    /// The size of a new image is not known.
    #[error("{IMAGE} is not on its claim, and the claim has no size of a mebibyte or more")]
    NoSize,
    /// There is no space for a new image.
    #[error(
        "cannot make {file}: {wanted} bytes are wanted and {there} are free beside {reserve} that stay so, no more than {percent} % fewer are tolerated"
    )]
    NoRoom {
        /// The image.
        file: String,
        /// Requested size.
        wanted: u64,
        /// Available bytes.
        there: u64,
        /// Bytes that stay free.
        reserve: u64,
        /// By how many percent it may be smaller.
        percent: u8,
    },
    /// It is not a regular file.
    #[error("{0} is not a regular file")]
    NoFile(String),
    /// The launcher has no permission to open it. The beginning is what KubeVirt's users know from QEMU.
    #[error("Could not open '{path}': Permission denied: user {uid} may not: {hint}")]
    Forbidden {
        /// The file or device.
        path: PathBuf,
        /// User id of the launcher.
        uid: u32,
        /// Advice for the user.
        hint: &'static str,
    },
    /// Another process holds it exclusively.
    #[error(
        "get the lock of {0}: another guest of this node writes to it, or the node itself uses it; disks that guests are to share need shareable"
    )]
    InUse(String),
    /// The system reported an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The error.
        source: io::Error,
    },
}

/// The purpose of opening a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading. Fails for a device that another guest of this node has opened for writing; others may read, or share it.
    Read,
    /// Reading and writing. While it is open, no other guest of this node can open the device for writing;
    /// for files, QEMU's locks ensure this.
    Write,
    /// Reading and writing, even if others do.
    Share,
}

/// Opens the disk of a volume. If its file system has no image, an empty one of `size` bytes is created,
/// unless it is only read.
///
/// # Errors
/// The fault of the claim.
pub fn find(volume: &str, access: Access, size: Option<u64>, places: &Places) -> Result<Disk, ClaimError> {
    let reads = access == Access::Read;
    let directory = places.directories.join(volume);
    match open(&directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(root) => {
            let hint = "the claim's files have to be readable and writable for that user or its group";
            let within = &directory;
            image(&root, &Wanted { file: IMAGE, within, reads, makes: !reads, size, hint }, &places.room)
        }
        Err(Errno::ENOENT) => device(places.devices.join(volume), access),
        Err(errno) => Err(failed(format!("open {}", directory.display()), errno)),
    }
}

/// A disk that is a file, in a directory that others write to as well.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// Its name.
    pub(super) file: &'a str,
    /// Path of the directory, for people.
    pub(super) within: &'a Path,
    /// Whether it is only read.
    pub(super) reads: bool,
    /// Whether it is created if it is missing.
    pub(super) makes: bool,
    /// The size of a new one.
    pub(super) size: Option<u64>,
    /// Advice for the user if it cannot be opened.
    pub(super) hint: &'static str,
}

/// Opens a disk below a directory without following links, or creates it.
pub(super) fn image(root: &OwnedFd, wanted: &Wanted<'_>, room: &Room) -> Result<Disk, ClaimError> {
    let Wanted { file: name, within, reads, makes, size, hint } = *wanted;
    let access = if reads { OFlag::O_RDONLY } else { OFlag::O_RDWR };
    // Without O_NONBLOCK, opening a fifo would block.
    let open = |flags| {
        let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IWGRP;
        let mode = if OFlag::contains(&flags, OFlag::O_CREAT) { mode } else { Mode::empty() };
        beneath(root, Path::new(name), access | OFlag::O_NONBLOCK | flags, mode).map(File::from)
    };
    let found = match open(OFlag::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !makes => return Err(ClaimError::NoImage),
        Err(error) if error.kind() == io::ErrorKind::NotFound => open(OFlag::O_CREAT),
        found => found,
    };
    let file = found.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENXIO) => ClaimError::NoFile(name.to_owned()),
        _ => refused(name.to_owned(), within.join(name), error, hint),
    })?;
    let stat = |source| ClaimError::Io { what: format!("look at {name}"), source };
    let found = file.metadata().map_err(stat)?;
    if !found.is_file() {
        return Err(ClaimError::NoFile(name.to_owned()));
    }
    let mut length = found.len();
    let mut short_of = None;
    // Also for an image whose creation was interrupted.
    if length == 0 {
        if !makes {
            return Err(ClaimError::NoImage);
        }
        length = new_size(root, name, size, room)?;
        short_of = size.map(aligned).filter(|wanted| length < *wanted);
        file.set_len(length)
            .and_then(|()| file.sync_all())
            .map_err(|source| ClaimError::Io { what: format!("make {name}"), source })?;
        tracing::info!(file = name, length, "there was no disk: it is new");
    }
    // O_NONBLOCK would stay set on the open file, so it is cleared.
    fcntl(&file, FcntlArg::F_SETFL(access)).map_err(|errno| failed(format!("open {name}"), errno))?;
    Ok(Disk { file: file.into(), length, device: None, short_of })
}

/// Cache mode of a disk on this file or device: without the page cache if possible, unless the manifest gives
/// a mode. Sets the descriptor's flags so that QEMU accepts it for this mode.
///
/// # Errors
/// If the manifest requires a mode without the page cache, and it is not possible.
pub fn cached(disk: &v1::Disk, file: &OwnedFd) -> io::Result<Cache> {
    // The plan refuses an invalid cache mode.
    let wanted = |usual| Cache::of(disk, usual).unwrap_or(usual);
    if wanted(Cache::None) != Cache::None {
        return Ok(wanted(Cache::None));
    }
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    match fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_DIRECT)) {
        Ok(_) => Ok(Cache::None),
        Err(_) if wanted(Cache::WriteThrough) != Cache::None => Ok(Cache::WriteThrough),
        Err(errno) => Err(errno.into()),
    }
}

/// The free space decides if it is slightly less than requested.
fn new_size(root: &OwnedFd, name: &str, size: Option<u64>, room: &Room) -> Result<u64, ClaimError> {
    let wanted = size.map_or(0, aligned);
    if wanted == 0 {
        return Err(ClaimError::NoSize);
    }
    let readable = beneath(root, Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty());
    let looked = readable.and_then(|root| fstatvfs(root.as_fd()).map_err(io::Error::from));
    let found =
        looked.map_err(|source| ClaimError::Io { what: "look at its file system".to_owned(), source })?;
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    let Room { reserve, tolerated_percent: percent } = *room;
    let fits = room.fit(wanted, free);
    let length = fits.ok_or_else(|| {
        let (file, there) = (name.to_owned(), free.saturating_sub(reserve));
        ClaimError::NoRoom { file, wanted, there, reserve, percent }
    })?;
    if length < wanted {
        tracing::warn!(file = name, wanted, length, "there is less space than requested");
    }
    Ok(length)
}

/// Whole mebibytes of that size.
pub(crate) fn aligned(bytes: u64) -> u64 {
    bytes / ALIGNMENT * ALIGNMENT
}

/// QEMU locks the inode of a file. A device has another inode in each pod, so the device itself is locked
/// here: the kernel allows one `O_EXCL` holder at a time. Processes that open it without `O_EXCL` are not
/// restricted, so a reader looks whether there is a holder.
fn device(path: PathBuf, access: Access) -> Result<Disk, ClaimError> {
    let what = || path.display().to_string();
    let hint = "the container runtime's device_ownership_from_security_context has to be on";
    match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => {}
        Ok(_) => return Err(ClaimError::Missing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ClaimError::Missing),
        Err(source) => return Err(ClaimError::Io { what: format!("look at {}", what()), source }),
    }
    let own = if access == Access::Write { OFlag::O_EXCL } else { OFlag::empty() };
    let mut options = File::options();
    options.read(true).write(access != Access::Read).custom_flags(own.bits());
    let mut file = options.open(&path).map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EBUSY) => ClaimError::InUse(what()),
        _ => refused(what(), path.clone(), error, hint),
    })?;
    if access == Access::Read && is_locked(&path) {
        return Err(ClaimError::InUse(what()));
    }
    let length = io::Seek::seek(&mut file, io::SeekFrom::End(0));
    let length =
        length.map_err(|source| ClaimError::Io { what: format!("find the size of {}", what()), source })?;
    Ok(Disk { file: file.into(), length, device: Some(path), short_of: None })
}

/// Whether somebody has the lock of a device for longer than another reader, which only looks here, too.
fn is_locked(device: &Path) -> bool {
    let (looks, pause) = LOOKS;
    let locked = |look: u32| {
        if look > 0 {
            std::thread::sleep(pause);
        }
        let error = late_lock::lock(device).err();
        error.is_some_and(|error| error.raw_os_error() == Some(Errno::EBUSY as i32))
    };
    (0..looks).all(locked)
}

fn refused(what: String, path: PathBuf, error: io::Error, hint: &'static str) -> ClaimError {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            ClaimError::Forbidden { path, uid: nix::unistd::geteuid().as_raw(), hint }
        }
        _ => ClaimError::Io { what: format!("open {what}"), source: error },
    }
}

fn failed(what: String, errno: Errno) -> ClaimError {
    ClaimError::Io { what, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::super::loop_device::Loop;
    use super::*;
    use std::os::unix::fs::symlink;

    const MIB: u64 = 1 << 20;

    fn places() -> (tempfile::TempDir, Places, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let places = Places {
            directories: root.path().join("claims"),
            devices: root.path().join("dev"),
            room: Room::default(),
        };
        std::fs::create_dir_all(places.directories.join("data")).unwrap();
        let image = places.directories.join("data/disk.img");
        (root, places, image)
    }

    #[test]
    fn an_empty_claim_gets_a_disk_and_the_next_start_finds_it() {
        let (_root, places, image) = places();
        let length = |size| find("data", Access::Write, size, &places).unwrap().length;
        assert_eq!(length(Some(3 * MIB + 7)), 3 * MIB);
        std::fs::write(&image, b"x").unwrap();
        assert_eq!(length(Some(9 * MIB)), 1);
        // The creation of the image was interrupted.
        std::fs::write(&image, b"").unwrap();
        assert_eq!(length(Some(2 * MIB)), 2 * MIB);
        assert_eq!(find("data", Access::Read, None, &places).unwrap().length, 2 * MIB);
    }

    #[test]
    fn a_missing_or_unsuitable_disk_file_is_named() {
        let (_root, places, image) = places();
        let error = |volume, access, size| find(volume, access, size, &places).unwrap_err().to_string();
        assert_eq!(
            error("data", Access::Read, Some(MIB)),
            "disk.img is not on its claim, which is read-only"
        );
        assert!(!image.exists());
        assert!(error("data", Access::Write, None).contains("has no size"));
        assert!(error("data", Access::Write, Some(1 << 60)).contains("are free"));
        assert_eq!(
            error("other", Access::Write, None),
            "its claim is neither mounted nor a device of this pod"
        );
    }

    #[test]
    fn a_disk_that_the_user_may_not_open_is_named_by_its_path() {
        let told = |errno: Errno| {
            let path = PathBuf::from("/run/claims/data/disk.img");
            refused("disk.img".to_owned(), path, errno.into(), "ask its owner").to_string()
        };
        for errno in [Errno::EACCES, Errno::EPERM] {
            let told = told(errno);
            let expected = "Could not open '/run/claims/data/disk.img': Permission denied: user ";
            assert!(told.starts_with(expected) && told.ends_with(" may not: ask its owner"), "{told}");
        }
        assert!(told(Errno::ELOOP).starts_with("open disk.img: "));
    }

    #[test]
    fn a_new_disk_leaves_the_reserve_and_may_be_a_little_smaller() {
        let fit = |reserve, tolerated_percent, wanted, free| {
            Room { reserve, tolerated_percent }.fit(wanted * MIB, free).map(|length| length / MIB)
        };
        assert_eq!(fit(MIB, 10, 100, 101 * MIB), Some(100));
        assert_eq!(fit(MIB, 10, 100, 101 * MIB - 1), Some(99));
        assert_eq!(fit(MIB, 10, 100, 91 * MIB), Some(90));
        assert_eq!(fit(MIB, 10, 100, 91 * MIB - 1), None);
        assert_eq!(fit(0, 0, 100, 100 * MIB), Some(100));
        assert_eq!(fit(0, 0, 100, 100 * MIB - 1), None);
        assert_eq!(fit(0, 100, 100, MIB), Some(1));
        // An empty disk is not allowed.
        assert_eq!(fit(0, 100, 100, MIB - 1), None);
        assert_eq!(fit(u64::MAX, 10, 100, u64::MAX), None);
    }

    #[test]
    fn a_new_disk_that_is_smaller_says_so_once() {
        let (_root, mut places, _) = places();
        let find = |places: &Places, size| {
            let disk = find("data", Access::Write, Some(size), places).unwrap();
            (disk.length, disk.shortage(&places.room))
        };
        let free = {
            let found = nix::sys::statvfs::statvfs(&places.directories).unwrap();
            found.blocks_available().saturating_mul(found.fragment_size())
        };
        // Others may write to the file system meanwhile.
        places.room = Room { reserve: free / 2, tolerated_percent: 90 };
        let (length, told) = find(&places, free);
        let told = told.unwrap();
        assert!(length < free, "{length} of {free}");
        let wanted = aligned(free);
        assert_eq!(
            told,
            format!(
                "there is no space for a disk of {wanted} bytes; it has {length}, which is no more than 90 % less"
            )
        );
        assert_eq!(find(&places, free), (length, None), "it is there already");
    }

    #[test]
    fn room_of_the_installation_counts() {
        let (_root, mut places, image) = places();
        places.room.reserve = u64::MAX;
        let error = find("data", Access::Write, Some(MIB), &places).unwrap_err().to_string();
        assert!(error.contains(&format!("0 are free beside {}", u64::MAX)), "{error}");
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 0);
        places.room.reserve = 0;
        assert_eq!(find("data", Access::Write, Some(MIB), &places).unwrap().length, MIB);
    }

    #[test]
    fn links_on_a_claim_are_not_followed() {
        let (root, places, image) = places();
        let elsewhere = root.path().join("elsewhere");
        std::fs::write(&elsewhere, b"secret").unwrap();
        symlink(&elsewhere, &image).unwrap();
        assert!(find("data", Access::Write, Some(MIB), &places).is_err());
        std::fs::remove_file(&image).unwrap();
        nix::unistd::mkfifo(&image, Mode::S_IRWXU).unwrap();
        assert_eq!(
            find("data", Access::Write, None, &places).unwrap_err().to_string(),
            "disk.img is not a regular file"
        );
        std::fs::create_dir(&places.devices).unwrap();
        std::fs::write(places.devices.join("file"), b"").unwrap();
        assert!(matches!(find("file", Access::Write, None, &places), Err(ClaimError::Missing)));
    }

    #[test]
    fn one_guest_of_a_node_writes_to_a_device_unless_they_share_it() {
        let (_root, places, _) = places();
        let Some(_device) = Loop::new(&places.devices, MIB, &["first", "second"]) else { return };
        let open = |volume, access| find(volume, access, None, &places);
        let held = open("first", Access::Write).unwrap();
        assert_eq!(held.length, MIB);
        let error = open("second", Access::Write).unwrap_err().to_string();
        assert!(error.starts_with("get the lock of ") && error.contains("shareable"), "{error}");
        open("second", Access::Share).unwrap();
        drop(held);
        open("second", Access::Write).unwrap();
    }

    #[test]
    fn a_device_that_another_guest_of_the_node_writes_to_is_not_read() {
        let (_root, places, _) = places();
        let Some(_device) = Loop::new(&places.devices, MIB, &["first", "second"]) else { return };
        let open = |volume, access| find(volume, access, None, &places);
        let held = open("first", Access::Write).unwrap();
        assert!(matches!(open("second", Access::Read), Err(ClaimError::InUse(_))));
        drop(held);
        for access in [Access::Read, Access::Share] {
            let _other = open("first", access).unwrap();
            assert_eq!(open("second", Access::Read).unwrap().length, MIB);
        }
        // That one looked does not keep a writer out.
        open("first", Access::Write).unwrap();
    }
}
