//! The claim as the place of an archive's files.
//!
//! ```text
//!   .archive.import/a, .archive.import/b/c --(complete, synced)--> a, b/c       a file at its own place is complete
//! ```
//!
//! The author of the archive chose every name in it. So no name is resolved as a string: directories are opened below a
//! descriptor, without links and other file systems, and a file is made only where there is none. A process that changes
//! the claim at the same time can lead nothing out of it.

use crate::failure::Failure;
use crate::target::{Places, room};
use barevirt_confinement::{Calls, Domain, Files, May, Plan, Rule};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, fstatat, futimens, mkdirat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, syncfs, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{File, create_dir, read_dir, remove_dir, remove_dir_all, remove_file, rename};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where an archive is unpacked until it is complete.
pub(super) const UNFINISHED: &str = ".archive.import";
/// Permissions that an archive can give: no setuid, setgid, sticky bit.
const PERMISSIONS: u32 = 0o777;
/// The owner may always write, so that the next try can clear the tree.
const FILE: u32 = 0o600;
const DIRECTORY: u32 = 0o700;

/// Why an entry has no place. The text follows the entry's name.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlaceError {
    #[error("lies behind a link, which is not followed")]
    Link,
    #[error("lies behind another entry that is not a directory, or would replace a directory")]
    Taken,
    #[error("has a name that the claim's file system does not take")]
    Name,
    #[error("is a hard link to something that is not a file of the archive before it")]
    NotLinked,
    #[error(transparent)]
    Io(Failure),
}

impl From<Errno> for PlaceError {
    fn from(errno: Errno) -> Self {
        match errno {
            // EXDEV: of a tree without mounts only by a race.
            Errno::ELOOP | Errno::EXDEV => PlaceError::Link,
            Errno::ENOTDIR | Errno::EISDIR | Errno::EEXIST => PlaceError::Taken,
            Errno::ENAMETOOLONG | Errno::EILSEQ | Errno::EINVAL => PlaceError::Name,
            other => PlaceError::Io(Failure::io("write to the claim", &other.into())),
        }
    }
}

/// The claim that an archive is unpacked into.
#[derive(Debug)]
pub struct Tree {
    data: PathBuf,
    root: OwnedFd,
    bytes: u64,
}

impl Tree {
    /// Prepares the claim for an archive of `size` bytes, or less if there is less space; `overhead` thousandths are left to
    /// the file system. Files of an earlier try are removed.
    ///
    /// # Errors
    /// There is no claim, or no space; or the claim is a block device.
    pub fn open(places: &Places, size: u64, overhead: u16) -> Result<Self, Failure> {
        if std::fs::metadata(&places.device).is_ok_and(|found| found.file_type().is_block_device()) {
            return Err(Failure::Final("an archive needs a claim with a file system".to_owned()));
        }
        let unfinished = places.data.join(UNFINISHED);
        clear(&unfinished)?;
        let usable = room(&places.data)? / 1000 * u64::from(1000u16.saturating_sub(overhead));
        let failed = |error| Failure::io("make a directory on the claim", &error);
        create_dir(&unfinished).map_err(failed)?;
        let root = File::open(&unfinished).map_err(failed)?;
        Ok(Tree { data: places.data.clone(), root: root.into(), bytes: size.min(usable) })
    }

    /// How many bytes an archive may have, unpacked.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs work on a thread that can write to nothing but the claim, open no other file and connect to nothing.
    ///
    /// # Errors
    /// Those of the work; or the thread cannot be confined.
    pub(crate) fn confined<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let confine = |error: &dyn std::error::Error| Failure::Final(format!("unpack the archive: {error}"));
        let files = Files { reads_all: false, tcp: false, rules: vec![Rule::path(May::Write, &self.data)] };
        let plan = Plan { files: Some(files), calls: Calls::Connected };
        let domain = Domain::new("the thread that unpacks", plan).map_err(|error| confine(&error))?;
        std::thread::scope(|scope| {
            let confined = std::thread::Builder::new().name("unpack".to_owned()).spawn_scoped(scope, || {
                domain.enter().map_err(|error| confine(&error))?;
                work()
            });
            let confined = confined.map_err(|error| Failure::Passing(format!("start a thread: {error}")))?;
            let lost = |_| Err(Failure::Passing("unpacking the archive ended unexpectedly".to_owned()));
            confined.join().unwrap_or_else(lost)
        })
    }

    /// The directory of that name; it is made if it does not exist.
    fn directory(&self, parts: &[OsString]) -> Result<OwnedFd, PlaceError> {
        let path: PathBuf = parts.iter().collect();
        match beneath(&self.root, &path) {
            Err(Errno::ENOENT) => {}
            found => return Ok(found?),
        }
        let mut directory = beneath(&self.root, Path::new(""))?;
        for part in parts {
            match mkdirat(&directory, part.as_os_str(), Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            directory = beneath(&directory, Path::new(part))?;
        }
        Ok(directory)
    }

    /// The directory for an entry, and its name there. The root is no entry of it.
    fn place<'a>(&self, parts: &'a [OsString]) -> Result<(OwnedFd, &'a OsStr), PlaceError> {
        let (name, parents) = parts.split_last().ok_or(PlaceError::Taken)?;
        Ok((self.directory(parents)?, name))
    }

    /// Makes a directory, or gives an existing one its permissions.
    pub(super) fn make_directory(&self, parts: &[OsString], mode: u32) -> Result<(), PlaceError> {
        if parts.is_empty() {
            // The root is the claim's own.
            return Ok(());
        }
        let directory = self.directory(parts)?;
        // The file system's own bit, by which new files belong to the group of the volume, stays.
        let kept = fstat(&directory)?.st_mode & Mode::S_ISGID.bits();
        fchmod(&directory, Mode::from_bits_truncate(mode & PERMISSIONS | DIRECTORY | kept))?;
        Ok(())
    }

    /// Makes an empty file. An earlier entry of that name is replaced, unless it is a directory.
    pub(super) fn make_file(&self, parts: &[OsString]) -> Result<File, PlaceError> {
        let (directory, name) = self.place(parts)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(FILE);
        replacing(&directory, name, || openat(&directory, name, flags, mode)).map(File::from)
    }

    /// Makes a symbolic link. Its target has been judged.
    pub(super) fn make_link(&self, parts: &[OsString], target: &[u8]) -> Result<(), PlaceError> {
        let (directory, name) = self.place(parts)?;
        replacing(&directory, name, || symlinkat(OsStr::from_bytes(target), &directory, name))
    }

    /// Makes another name of a file of the archive.
    pub(super) fn make_hard_link(&self, parts: &[OsString], to: &[OsString]) -> Result<(), PlaceError> {
        let (directory, name) = self.place(parts)?;
        let (to_name, to_parents) = to.split_last().ok_or(PlaceError::NotLinked)?;
        let parent: PathBuf = to_parents.iter().collect();
        let source = match beneath(&self.root, &parent) {
            Err(Errno::ENOENT) => return Err(PlaceError::NotLinked),
            found => found?,
        };
        // A link to a symbolic link elsewhere would lead to another place.
        let found = fstatat(&source, to_name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        match found.map(|found| found.st_mode & SFlag::S_IFMT.bits()) {
            Ok(kind) if kind == SFlag::S_IFREG.bits() => {}
            Ok(_) | Err(Errno::ENOENT) => return Err(PlaceError::NotLinked),
            Err(error) => return Err(error.into()),
        }
        if parts == to {
            return Ok(());
        }
        replacing(&directory, name, || {
            linkat(&source, to_name.as_os_str(), &directory, name, AtFlags::empty())
        })
    }

    /// Moves the complete files to their places, each of which replaces what has its name at the root of the claim.
    ///
    /// # Errors
    /// The claim does not accept them.
    pub fn finish(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::io("write the files out", &error);
        syncfs(&self.root).map_err(|error| failed(error.into()))?;
        let unfinished = self.data.join(UNFINISHED);
        for entry in read_dir(&unfinished).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let place = self.data.join(entry.file_name());
            clear(&place)?;
            rename(entry.path(), place).map_err(failed)?;
        }
        remove_dir(&unfinished).map_err(failed)?;
        File::open(&self.data).and_then(|root| root.sync_all()).map_err(failed)
    }

    /// Removes the files of an incomplete archive.
    pub fn abandon(&self) {
        // The next try removes what is left, or it is deleted with the claim.
        let _ = clear(&self.data.join(UNFINISHED));
    }
}

/// Opens a directory below another one: through no link, in the same file system.
fn beneath(directory: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
    );
    loop {
        match openat2(directory.as_fd(), path, how) {
            // A rename elsewhere disturbed the lookup.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            found => return found,
        }
    }
}

/// Makes an entry; an earlier one of its name is removed first, unless it is a directory.
fn replacing<T>(
    directory: &OwnedFd,
    name: &OsStr,
    make: impl Fn() -> Result<T, Errno>,
) -> Result<T, PlaceError> {
    match make() {
        Err(Errno::EEXIST) => {
            unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?;
            Ok(make()?)
        }
        made => Ok(made?),
    }
}

/// Gives a written file its permissions and its time.
pub(super) fn complete(file: &File, mode: u32, time: u64) -> Result<(), PlaceError> {
    fchmod(file, Mode::from_bits_truncate(mode & PERMISSIONS | FILE))?;
    let time = TimeSpec::new(i64::try_from(time).unwrap_or(i64::MAX), 0);
    // A file system that cannot hold the time keeps the present one.
    let _ = futimens(file, &time, &time);
    Ok(())
}

/// Removes a file or a tree; a link is removed itself.
fn clear(path: &Path) -> Result<(), Failure> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => remove_dir_all(path),
        Ok(_) => remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::io("remove what an earlier try has left", &error))
        }
        _ => Ok(()),
    }
}
