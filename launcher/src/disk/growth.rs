//! How far a disk on a claim grows when its claim has grown. Whether it does is decided purely, from what its storage
//! offers.
//!
//! ```text
//!   a file, before its guest starts    at_start: the file gets longer
//!   a file, while its guest runs       growth: QEMU makes it longer and tells the guest
//!   a device                           growth: its storage made it larger; QEMU tells the guest
//! ```
//!
//! Only the length of a file changes: nothing is written. A file never gets shorter, and never longer than its claim
//! and its file system allow.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::statvfs::fstatvfs;

use super::claim::{Disk, Room, aligned};

/// Size of the units in which the kernel counts the blocks of a file.
const BLOCK: u64 = 512;
/// A file that its file system limits does not grow by less than one of so many parts: the figures of a file system
/// are not exact.
const PARTS: u64 = 100;

/// What the storage of a disk offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A file.
    File {
        /// Its length.
        length: u64,
        /// Bytes that it takes on its file system.
        allocated: u64,
        /// Bytes that are free there.
        free: u64,
    },
    /// A device.
    Device {
        /// Its length.
        length: u64,
    },
}

impl Extent {
    /// Looks at an open disk. Blocks as long as its storage does not answer.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of(disk: &File) -> io::Result<Self> {
        let found = disk.metadata()?;
        if found.file_type().is_block_device() {
            let mut disk = disk;
            return Ok(Self::Device { length: disk.seek(SeekFrom::End(0))? });
        }
        let space = fstatvfs(disk.as_fd())?;
        Ok(Self::File {
            length: found.len(),
            allocated: found.blocks().saturating_mul(BLOCK),
            free: space.blocks_available().saturating_mul(space.fragment_size()),
        })
    }

    /// The new size of a disk that has `seen` bytes for its guest, and that may have at most `most`. `None` if it stays
    /// as it is.
    #[must_use]
    pub fn growth(self, seen: u64, most: u64, room: &Room) -> Option<u64> {
        let (length, allocated, free) = match self {
            Self::Device { length } => return (length > seen).then_some(length),
            Self::File { length, allocated, free } => (length, allocated, free),
        };
        let whole = aligned(most);
        let size = whole.min(aligned(allocated.saturating_add(free).saturating_sub(room.reserve)));
        let matters = size == whole || size.saturating_sub(seen) >= seen / PARTS;
        // QEMU would make a longer file shorter.
        (size > seen && size >= length && matters).then_some(size)
    }
}

/// Makes a file longer before its guest starts, to at most `most` bytes. Returns its length.
///
/// # Errors
/// The error of the system. The file is as it was.
pub fn at_start(disk: &Disk, most: u64, room: &Room) -> io::Result<u64> {
    let file = File::from(disk.file.try_clone()?);
    // A device has its whole length already.
    let Some(size) = Extent::of(&file)?.growth(disk.length, most, room) else { return Ok(disk.length) };
    file.set_len(size)?;
    file.sync_all()?;
    Ok(size)
}

/// Another descriptor of an open disk, to look at it. QEMU's locks of a file, and the lock of a device, last as long as any
/// copy of the descriptor that has them, so it is no copy where there is another way. `device` is the path of the device in
/// this pod, if it has one.
///
/// # Errors
/// The error of the system.
pub fn view(disk: BorrowedFd<'_>, device: Option<&Path>) -> io::Result<File> {
    if let Some(path) = device {
        return File::open(path);
    }
    let copy = File::from(disk.try_clone_to_owned()?);
    if copy.metadata()?.file_type().is_block_device() {
        // Another pod's device cannot be opened here. This copy is closed when the guest gives the disk back.
        return Ok(copy);
    }
    let path = format!("/proc/self/fd/{}", disk.as_raw_fd());
    File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(reserve: u64) -> Room {
        Room { reserve, ..Room::default() }
    }

    #[test]
    fn a_file_grows_as_far_as_claim_and_file_system_allow_and_never_shrinks() {
        let growth = |length: u64, allocated: u64, free: u64, seen: u64, most: u64| {
            let file = Extent::File { length: length * MIB, allocated: allocated * MIB, free: free * MIB };
            file.growth(seen * MIB, most * MIB + 7, &room(MIB)).map(|size| size / MIB)
        };
        assert_eq!(growth(100, 0, 1000, 100, 200), Some(200));
        assert_eq!(growth(100, 0, 1000, 100, 100), None);
        assert_eq!(growth(100, 0, 1000, 100, 50), None, "the claim has become smaller");
        // What the file takes already is part of the space.
        assert_eq!(growth(100, 90, 61, 100, 200), Some(150));
        assert_eq!(growth(100, 90, 11, 100, 200), None);
        assert_eq!(growth(100, 90, 0, 100, 200), None);
        // A file system's figures vary.
        assert_eq!(growth(200, 200, 2, 200, 300), None);
        assert_eq!(growth(200, 200, 3, 200, 300), Some(202));
        assert_eq!(growth(200, 200, 100, 200, 201), Some(201));
        // Somebody else has made the file longer.
        assert_eq!(growth(150, 0, 1000, 100, 200), Some(200));
        assert_eq!(growth(250, 0, 1000, 100, 200), None);
    }

    #[test]
    fn sizes_of_any_kind_do_no_harm() {
        let most = u64::MAX;
        let file = |length| Extent::File { length, allocated: most, free: most };
        assert_eq!(file(0).growth(0, most, &room(0)), Some(aligned(most)));
        assert_eq!(file(most).growth(0, most, &room(0)), None);
        assert_eq!(file(0).growth(most, most, &room(0)), None);
        assert_eq!(file(0).growth(0, most, &room(most)), None);
        assert_eq!(file(0).growth(0, MIB - 1, &room(0)), None);
    }

    #[test]
    fn a_device_has_the_size_that_its_storage_gives_it() {
        let growth = |length, seen| Extent::Device { length }.growth(seen, 1, &room(u64::MAX));
        assert_eq!([growth(10, 9), growth(10, 10), growth(9, 10)], [Some(10), None, None]);
    }

    #[test]
    fn a_file_gets_longer_and_nothing_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        std::fs::write(&path, b"kept").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let disk =
            |length| Disk { file: file.try_clone().unwrap().into(), length, device: None, short_of: None };
        assert_eq!(at_start(&disk(4), 3 * MIB + 1, &room(0)).unwrap(), 3 * MIB);
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), 3 * MIB);
        assert!(found.blocks() * BLOCK < MIB, "{}", found.blocks());
        assert_eq!(at_start(&disk(3 * MIB), 2 * MIB, &room(0)).unwrap(), 3 * MIB);
        assert_eq!(at_start(&disk(3 * MIB), 9 * MIB, &room(u64::MAX)).unwrap(), 3 * MIB);
        assert_eq!(std::fs::read(&path).unwrap().get(..4), Some(&b"kept"[..]));
        // A disk that is open only for reading stays as it is.
        let file_to_read = File::open(&path).unwrap().into();
        let disk = Disk { file: file_to_read, length: 3 * MIB, device: None, short_of: None };
        at_start(&disk, 4 * MIB, &room(0)).unwrap_err();
        assert_eq!(file.metadata().unwrap().len(), 3 * MIB);
    }

    #[test]
    fn a_view_shows_the_file_and_cannot_change_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let file = File::create(&path).unwrap();
        let view = view(file.as_fd(), None).unwrap();
        file.set_len(5 * MIB).unwrap();
        std::fs::remove_file(&path).unwrap();
        let Extent::File { length, free, .. } = Extent::of(&view).unwrap() else { panic!("a device") };
        assert_eq!(length, 5 * MIB);
        assert!(free > 0);
        view.set_len(MIB).unwrap_err();
    }
}
