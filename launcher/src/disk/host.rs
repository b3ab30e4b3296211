//! Disks that are files of the node (`hostDisk`). The kubelet mounts the directory of the file into the
//! launcher's container. The launcher opens the file below it, without following links and with the rights of
//! its own user only, so a guest sees no file that this user may not read on the node.

use std::path::Path;

use barevirt_api::quantity;
use barevirt_api::v1::HostDisk;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::claim::{self, ClaimError, Disk, Room};

/// Why a file of the node cannot be used as a disk.
#[derive(Debug, thiserror::Error)]
pub enum HostDiskError {
    /// The path is invalid.
    #[error("its path is not that of a file")]
    Path,
    /// Its directory does not exist.
    #[error("the directory of its file is not mounted")]
    Directory,
    /// It is missing or empty, and must not be created.
    #[error(
        "{0} is not there or has no contents, and only a disk that is written, of type DiskOrCreate, is made"
    )]
    Missing(String),
    /// The size of a new file is not given.
    #[error("{0} is not there, and there is no capacity of a mebibyte or more to make it with")]
    NoCapacity(String),
    /// It cannot be opened.
    #[error(transparent)]
    Open(ClaimError),
}

/// Opens the disk, whose directory is mounted at `mounted`. A missing file of type `DiskOrCreate` is created,
/// unless it is only read.
///
/// # Errors
/// The fault of the file.
pub fn find(source: &HostDisk, mounted: &Path, reads: bool, room: &Room) -> Result<Disk, HostDiskError> {
    let (_, file) = source.place().ok_or(HostDiskError::Path)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(mounted, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOENT => HostDiskError::Directory,
        errno => HostDiskError::Open(ClaimError::Io {
            what: format!("open {}", mounted.display()),
            source: errno.into(),
        }),
    })?;
    let wanted = claim::Wanted {
        file,
        within: mounted,
        reads,
        makes: source.makes() && !reads,
        size: source.capacity.as_ref().and_then(|capacity| quantity::bytes(capacity).ok()),
        hint: "on the node, that user or its group has to be able to use the file, and to create it in its directory",
    };
    claim::image(&root, &wanted, room).map_err(|error| match error {
        ClaimError::NoImage => HostDiskError::Missing(file.to_owned()),
        ClaimError::NoSize => HostDiskError::NoCapacity(file.to_owned()),
        other => HostDiskError::Open(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MIB: u64 = 1 << 20;

    fn source(type_: &str, capacity: &str) -> HostDisk {
        let mut source = serde_json::json!({"path": "/srv/disks/a.img", "type": type_});
        if !capacity.is_empty() {
            source["capacity"] = capacity.into();
        }
        serde_json::from_value(source).unwrap()
    }

    #[test]
    fn a_disk_is_found_and_made_only_where_that_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let find = |type_: &str, capacity: &str, reads| {
            find(&source(type_, capacity), directory.path(), reads, &Room::default())
                .map(|disk| disk.length)
                .map_err(|error| error.to_string())
        };
        for (type_, reads) in [("Disk", false), ("Disk", true), ("DiskOrCreate", true)] {
            assert!(find(type_, "", reads).unwrap_err().starts_with("a.img is not there or has no contents"));
        }
        assert!(!directory.path().join("a.img").exists());
        let error = find("DiskOrCreate", "", false).unwrap_err();
        assert!(error.contains("no capacity of a mebibyte"), "{error}");
        assert_eq!(find("DiskOrCreate", "3Mi", false), Ok(3 * MIB));
        assert_eq!(find("DiskOrCreate", "9Mi", false), Ok(3 * MIB));
        assert_eq!(find("Disk", "", true), Ok(3 * MIB));
        std::fs::write(directory.path().join("a.img"), b"x").unwrap();
        assert_eq!(find("Disk", "", false), Ok(1));
    }

    #[test]
    fn no_link_is_followed_and_only_a_file_is_a_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (directory.path().join("a.img"), directory.path().join("elsewhere"));
        std::fs::write(&elsewhere, b"secret").unwrap();
        symlink(&elsewhere, &file).unwrap();
        let find = |mounted: &Path| {
            find(&source("DiskOrCreate", "1Mi"), mounted, false, &Room::default()).unwrap_err().to_string()
        };
        assert!(find(directory.path()).starts_with("open a.img"));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(find(directory.path()).starts_with("open a.img"));
        assert_eq!(find(&directory.path().join("none")), "the directory of its file is not mounted");
    }
}
