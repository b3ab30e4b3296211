//! The claim: a disk in its file system, or a block device.
//!
//! ```text
//!   file system:  .disk.img.import --(complete, synced)--> disk.img     a disk with its final name is complete
//!   block device: written in place
//! ```

use crate::failure::Failure;
use barevirt_import_job::{DISK, DISK_ALIGNMENT};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the disk until it is complete.
const UNFINISHED: &str = ".disk.img.import";
/// Name of a staged image, which is to be converted.
const STAGED: &str = ".image.import";
/// QEMU and the claim's group may read and write, as with CDI.
const MODE: u32 = 0o660;
/// Blocks of this size that contain only zeros are not written.
const BLOCK: usize = 64 << 10;
/// Zeros for one write.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Paths. Constants of `barevirt_import_job` except in tests.
#[derive(Clone, Debug)]
pub struct Places {
    /// Directory of a claim with a file system.
    pub data: PathBuf,
    /// A claim that is a block device: used if it exists.
    pub device: PathBuf,
    /// Directory for contents that cannot be streamed into a block device.
    pub scratch: PathBuf,
    /// Directory of the source.
    pub source: PathBuf,
    /// A source claim that is a block device: used if it exists.
    pub source_device: PathBuf,
    /// Directory with the pod's key, for a copy from another namespace.
    pub keys: PathBuf,
    /// Directory where a sender finds the importer's certificate.
    pub receiver: PathBuf,
}

/// The claim that is being filled.
#[derive(Debug)]
pub struct Target {
    file: File,
    path: PathBuf,
    /// Directory of a file; `None` for a block device.
    directory: Option<PathBuf>,
    staged: PathBuf,
    /// Size of the disk, in bytes.
    size: u64,
    /// Whether all of it reads as zeros.
    fresh: bool,
}

impl Target {
    /// Prepares a disk of `size` bytes, in a file rounded up to whole MiB, or smaller if the file system has less space;
    /// `overhead` thousandths are left to the file system. Files of an earlier try are removed.
    ///
    /// # Errors
    /// There is no claim, or no space.
    pub fn open(places: &Places, size: u64, overhead: u16, preallocation: bool) -> Result<Self, Failure> {
        match std::fs::metadata(&places.device) {
            Ok(found) if found.file_type().is_block_device() => Self::device(places, size, preallocation),
            _ => Self::file(places, size, overhead, preallocation),
        }
    }

    fn file(places: &Places, size: u64, overhead: u16, preallocation: bool) -> Result<Self, Failure> {
        let (path, staged) = (places.data.join(UNFINISHED), places.data.join(STAGED));
        for former in [&path, &staged, &places.data.join(DISK)] {
            remove(former)?;
        }
        let usable = room(&places.data)? / 1000 * u64::from(1000u16.saturating_sub(overhead));
        // Block devices of 4096 bytes a block take no disk whose size is no multiple of that. As CDI's, ours have whole MiB.
        let size = usable.min(size.checked_next_multiple_of(DISK_ALIGNMENT).unwrap_or(size)) / DISK_ALIGNMENT
            * DISK_ALIGNMENT;
        if size == 0 {
            return Err(Failure::Final("no room is left on the claim; ask for a larger one".to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(MODE);
        let file = options.open(&path).map_err(|error| Failure::io("make the disk on the claim", &error))?;
        let failed = |error| Failure::io("give the disk its size", &error);
        file.set_permissions(Permissions::from_mode(MODE)).map_err(failed)?;
        file.set_len(size).map_err(failed)?;
        let target = Target { file, path, directory: Some(places.data.clone()), staged, size, fresh: true };
        if preallocation {
            target.allocate()?;
        }
        Ok(target)
    }

    fn device(places: &Places, size: u64, preallocation: bool) -> Result<Self, Failure> {
        let path = places.device.clone();
        let failed = |error| Failure::io("open the claim's device", &error);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        let found = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if found < size {
            return Err(Failure::Final(format!("the claim's device has {found} bytes, {size} are needed")));
        }
        let mut target = Target {
            file,
            path,
            directory: None,
            staged: places.scratch.join(STAGED),
            size: found,
            fresh: false,
        };
        remove(&target.staged)?;
        // The former contents of the device belong to another claim; and zeros need not be written.
        let how = if preallocation {
            FallocateFlags::FALLOC_FL_ZERO_RANGE
        } else {
            FallocateFlags::FALLOC_FL_PUNCH_HOLE
        };
        target.fresh = target.range(how | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, found)?;
        Ok(target)
    }

    /// Size of the disk, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Path of the disk, for programs that open it themselves.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all unwritten parts read as zeros.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Path for an image that has to be converted.
    #[must_use]
    pub fn staged(&self) -> &Path {
        &self.staged
    }

    /// Space for a staged image, in bytes.
    ///
    /// # Errors
    /// The space cannot be determined.
    pub fn room(&self) -> Result<u64, Failure> {
        room(self.staged.parent().unwrap_or(Path::new("/")))
    }

    /// Writes at an offset, skipping zeros.
    ///
    /// # Errors
    /// The write fails.
    pub fn write(&self, mut offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        for block in bytes.chunks(BLOCK) {
            if !self.fresh || block != &ZEROS[..block.len()] {
                self.file
                    .write_all_at(block, offset)
                    .map_err(|error| Failure::io("write to the claim", &error))?;
            }
            offset += block.len() as u64;
        }
        Ok(())
    }

    /// Makes the rest zero, unless it reads as zeros already.
    ///
    /// # Errors
    /// The write fails.
    pub fn zero_from(&self, offset: u64) -> Result<(), Failure> {
        if self.fresh { Ok(()) } else { self.write_zeros_from(offset, "write to the claim") }
    }

    fn write_zeros_from(&self, mut offset: u64, what: &str) -> Result<(), Failure> {
        while offset < self.size {
            let count = (self.size - offset).min(BLOCK as u64);
            let zeros = &ZEROS[..usize::try_from(count).unwrap_or(BLOCK)];
            self.file.write_all_at(zeros, offset).map_err(|error| Failure::io(what, &error))?;
            offset += count;
        }
        Ok(())
    }

    /// Syncs the complete disk and gives it its name.
    ///
    /// # Errors
    /// The claim does not accept it.
    pub fn finish(&self) -> Result<u64, Failure> {
        let failed = |error: io::Error| Failure::io("write the disk out", &error);
        self.file.sync_all().map_err(failed)?;
        remove(&self.staged)?;
        if let Some(directory) = &self.directory {
            std::fs::rename(&self.path, directory.join(DISK)).map_err(failed)?;
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
        Ok(self.size)
    }

    /// Removes an incomplete disk.
    pub fn abandon(&self) {
        // The next try removes what is left, or it is deleted with the claim.
        let _ = remove(&self.staged);
        if self.directory.is_some() {
            let _ = remove(&self.path);
        }
    }

    fn allocate(&self) -> Result<(), Failure> {
        if self.range(FallocateFlags::empty(), 0, self.size)? {
            return Ok(());
        }
        // If the file system cannot allocate, zeros are written.
        self.write_zeros_from(0, "reserve the disk's space")
    }

    /// False where the claim does not support the operation.
    fn range(&self, how: FallocateFlags, offset: u64, length: u64) -> Result<bool, Failure> {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Err(Failure::Final(format!("a disk of {length} bytes is too large")));
        };
        loop {
            return match fallocate(&self.file, how, offset, length) {
                Ok(()) => Ok(true),
                Err(Errno::EINTR) => continue,
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => Ok(false),
                Err(error) => Err(Failure::io("reserve the disk's space", &error.into())),
            };
        }
    }
}

/// Free space in the file system of a directory, in bytes.
pub(crate) fn room(directory: &Path) -> Result<u64, Failure> {
    let told =
        statvfs(directory).map_err(|error| Failure::io("look for room on the claim", &error.into()))?;
    Ok(told.blocks_available().saturating_mul(told.fragment_size()))
}

fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::io("remove what an earlier try has left", &error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn places(directory: &Path) -> Places {
        Places {
            data: directory.to_owned(),
            device: directory.join("no device"),
            scratch: directory.to_owned(),
            source: directory.join("no source"),
            source_device: directory.join("no source"),
            keys: directory.join("keys"),
            receiver: directory.join("receiver"),
        }
    }

    #[test]
    fn a_disk_has_its_name_only_once_it_is_whole_and_holes_stay_holes() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(UNFINISHED), "of an earlier try").unwrap();
        let target = Target::open(&places(directory.path()), 8 << 20, 60, false).unwrap();
        target.write(0, &[0; 1 << 20]).unwrap();
        target.write(1 << 20, b"here").unwrap();
        let disk = directory.path().join(DISK);
        assert!(!disk.exists());
        assert_eq!(target.finish().unwrap(), 8 << 20);
        let found = std::fs::metadata(&disk).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (8 << 20, MODE));
        assert!(found.blocks() * 512 < 1 << 20, "{} bytes are allocated", found.blocks() * 512);
        let bytes = std::fs::read(&disk).unwrap();
        assert_eq!(&bytes[1 << 20..(1 << 20) + 4], b"here");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_disk_in_a_file_has_whole_mib() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::open(&places(directory.path()), 1_000_000_000, 0, false).unwrap();
        assert_eq!(target.size(), 954 << 20);
    }

    #[test]
    fn a_disk_is_no_larger_than_its_room() {
        let directory = tempfile::tempdir().unwrap();
        let places = places(directory.path());
        let target = Target::open(&places, 1 << 60, 500, false).unwrap();
        let (size, all) = (target.size(), room(directory.path()).unwrap());
        assert!(
            size > 0 && size.is_multiple_of(DISK_ALIGNMENT) && size <= all / 1000 * 501,
            "{size} of {all}"
        );
        assert!(Target::open(&places, 1 << 60, 1000, false).unwrap_err().is_final());
    }

    #[test]
    fn a_preallocated_disk_takes_its_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::open(&places(directory.path()), 4 << 20, 60, true).unwrap();
        target.finish().unwrap();
        let found = std::fs::metadata(directory.path().join(DISK)).unwrap();
        assert!(found.blocks() * 512 >= 4 << 20);
    }

    #[test]
    fn nothing_is_left_of_what_is_abandoned() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::open(&places(directory.path()), 4096, 60, false).unwrap();
        std::fs::write(target.staged(), "staged").unwrap();
        target.abandon();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
