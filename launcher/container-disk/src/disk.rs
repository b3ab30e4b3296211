//! Finds and opens the disk. The image's author chose every name in it, so no name is resolved as a string:
//! `openat2` opens it below a descriptor of the root, without symbolic links, magic links or other file
//! systems.
//!
//! Other file systems are excluded, because the container's root contains mounts that are not part of the
//! image: `/proc`, `/dev`, and mounts of the kubelet and the pod's author.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

/// Directory of the disk in an image, unless a path is given.
const DISK_DIRECTORY: &str = "disk";

/// The opened disk of an image.
#[derive(Debug)]
pub struct Disk {
    /// Its absolute path in the image.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The file, open for reading.
    pub file: File,
}

/// Why there is no disk. Every text names the path in the image.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error messages say it")]
pub enum DiskError {
    #[error("image has no disk: directory {0} does not exist")]
    NoDirectory(PathBuf),
    #[error("image has no disk: directory {0} is empty")]
    Empty(PathBuf),
    #[error(
        "image has several files in {directory} ({names}): only one is allowed, or name the disk with path"
    )]
    Several { directory: PathBuf, names: String },
    #[error("disk {0} does not exist in the image")]
    Missing(PathBuf),
    #[error("disk path {0} leaves the image: .. is not allowed")]
    Leaves(PathBuf),
    #[error("disk path {0} is empty")]
    NoName(PathBuf),
    #[error("disk {0} is a symbolic link or reached through one, which is not allowed")]
    Link(PathBuf),
    #[error("disk {0} is not part of the image but of something mounted into it")]
    Mounted(PathBuf),
    #[error("disk {path} is {kind}, not a regular file")]
    NotAFile { path: PathBuf, kind: &'static str },
    #[error(
        "disk {path} is not readable by user {uid}: give it that owner in the image (COPY --chown={uid}:{uid})"
    )]
    NotReadable { path: PathBuf, uid: u32 },
    #[error("open disk {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// Opens the disk at `path` below the directory `root`, or the only file below `disk` there.
///
/// # Errors
/// Why the image has no such disk.
pub fn open_in(root: &Path, path: Option<&Path>) -> Result<Disk, DiskError> {
    let directory = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| DiskError::Io { path: root.to_owned(), source: errno.into() })?;
    let relative = match path {
        Some(path) => beneath(path)?,
        None => only_file(directory.as_fd())?,
    };
    open_file(directory.as_fd(), &relative)
}

/// The path without its leading slash, if it cannot leave its root directory.
fn beneath(path: &Path) -> Result<PathBuf, DiskError> {
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => relative.push(name),
            Component::ParentDir | Component::Prefix(_) => return Err(DiskError::Leaves(path.to_owned())),
        }
    }
    if relative.as_os_str().is_empty() {
        return Err(DiskError::NoName(path.to_owned()));
    }
    Ok(relative)
}

fn absolute(relative: &Path) -> PathBuf {
    Path::new("/").join(relative)
}

/// The only entry of the image's disk directory.
fn only_file(root: BorrowedFd<'_>) -> Result<PathBuf, DiskError> {
    /// Enough names to explain the error.
    const SHOWN: usize = 4;
    let relative = Path::new(DISK_DIRECTORY);
    let shown = absolute(relative);
    let directory = match resolve(root, relative, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
        Ok(directory) => directory,
        Err(Errno::ENOENT) => return Err(DiskError::NoDirectory(shown)),
        Err(errno) => return Err(refusal(errno, shown)),
    };
    let io = |errno: Errno| DiskError::Io { path: shown.clone(), source: errno.into() };
    let mut names = Vec::new();
    for entry in Dir::from_fd(directory).map_err(io)?.iter() {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_string_lossy().into_owned());
        }
        if names.len() > SHOWN {
            break;
        }
    }
    names.sort();
    match names.as_slice() {
        [] => Err(DiskError::Empty(shown)),
        [name] => Ok(relative.join(name)),
        several => {
            let more = if several.len() > SHOWN { ", ..." } else { "" };
            let names = several.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ") + more;
            Err(DiskError::Several { directory: shown, names })
        }
    }
}

fn open_file(root: BorrowedFd<'_>, relative: &Path) -> Result<Disk, DiskError> {
    let path = absolute(relative);
    // Without O_NONBLOCK, opening a fifo would wait for a writer.
    let file = match resolve(root, relative, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY) {
        Ok(file) => file,
        Err(errno) => return Err(refusal(errno, path)),
    };
    let io = |errno: Errno| DiskError::Io { path: path.clone(), source: errno.into() };
    let found = fstat(&file).map_err(io)?;
    let kind = match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => None,
        SFlag::S_IFDIR => Some("a directory"),
        SFlag::S_IFIFO => Some("a fifo"),
        SFlag::S_IFSOCK => Some("a socket"),
        _ => Some("a device"),
    };
    if let Some(kind) = kind {
        return Err(DiskError::NotAFile { path, kind });
    }
    // O_NONBLOCK would stay set on the open file, and the launcher expects blocking reads.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_RDONLY)).map_err(io)?;
    Ok(Disk { path, size: u64::try_from(found.st_size).unwrap_or(0), file: file.into() })
}

fn resolve(root: BorrowedFd<'_>, relative: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    );
    loop {
        match openat2(root, relative, how) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            result => return result,
        }
    }
}

fn refusal(errno: Errno, path: PathBuf) -> DiskError {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => DiskError::Missing(path),
        Errno::ELOOP => DiskError::Link(path),
        Errno::EXDEV => DiskError::Mounted(path),
        Errno::EACCES => DiskError::NotReadable { path, uid: nix::unistd::geteuid().as_raw() },
        Errno::ENXIO => DiskError::NotAFile { path, kind: "a socket or device" },
        errno => DiskError::Io { path, source: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// An image with these files (a trailing slash makes a directory).
    fn image(entries: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for entry in entries {
            let path = root.path().join(entry);
            if entry.ends_with('/') {
                std::fs::create_dir_all(path).unwrap();
            } else {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, entry).unwrap();
            }
        }
        root
    }

    #[track_caller]
    fn refused(root: &Path, path: Option<&str>) -> String {
        open_in(root, path.map(Path::new)).expect_err("must be refused").to_string()
    }

    #[test]
    fn the_only_file_or_the_named_one_is_opened_for_plain_reading() {
        let root = image(&["disk/guest.qcow2", "images/other.img", "images/third.img"]);
        for (path, expected) in [
            (None, "disk/guest.qcow2"),
            (Some("/images/other.img"), "images/other.img"),
            (Some("images/./third.img"), "images/third.img"),
        ] {
            let mut disk = open_in(root.path(), path.map(Path::new)).unwrap();
            let mut text = String::new();
            disk.file.read_to_string(&mut text).unwrap();
            assert_eq!(text, expected);
            assert_eq!(disk.path, Path::new("/").join(expected));
            assert_eq!(disk.size, expected.len() as u64);
            let flags = OFlag::from_bits_retain(fcntl(&disk.file, FcntlArg::F_GETFL).unwrap());
            assert_eq!(flags & (OFlag::O_ACCMODE | OFlag::O_NONBLOCK), OFlag::O_RDONLY);
        }
    }

    #[test]
    fn no_disk_and_several_disks_are_different_errors() {
        assert_eq!(
            refused(image(&["etc/"]).path(), None),
            "image has no disk: directory /disk does not exist"
        );
        assert_eq!(refused(image(&["disk/"]).path(), None), "image has no disk: directory /disk is empty");
        let two = refused(image(&["disk/b", "disk/a"]).path(), None);
        assert!(two.starts_with("image has several files in /disk (a, b):"), "{two}");
        let many = refused(image(&["disk/1", "disk/2", "disk/3", "disk/4", "disk/5", "disk/6"]).path(), None);
        assert!(many.contains(", ...)"), "{many}");
        let missing = refused(image(&["disk/a"]).path(), Some("/disk/b"));
        assert_eq!(missing, "disk /disk/b does not exist in the image");
    }

    #[test]
    fn paths_that_leave_the_image_are_refused() {
        let outside = image(&["etc/shadow"]);
        let root = image(&["disk/a"]);
        assert_eq!(
            refused(root.path(), Some("../../etc/shadow")),
            "disk path ../../etc/shadow leaves the image: .. is not allowed"
        );
        assert!(refused(root.path(), Some("/disk/../disk/a")).contains("leaves the image"));
        for empty in ["/", ".", ""] {
            assert!(refused(root.path(), Some(empty)).contains("is empty"), "{empty:?}");
        }
        let absolute = outside.path().join("etc/shadow");
        assert!(refused(root.path(), absolute.to_str()).contains("does not exist"));
    }

    #[test]
    fn links_are_refused_wherever_they_are() {
        let outside = image(&["etc/shadow", "disk/x"]);
        let root = image(&["disk/", "real/file", "images/"]);
        symlink(outside.path().join("etc/shadow"), root.path().join("disk/a")).unwrap();
        symlink("../real/file", root.path().join("images/inside")).unwrap();
        symlink("/", root.path().join("images/up")).unwrap();
        let text = "is a symbolic link or reached through one, which is not allowed";
        assert_eq!(refused(root.path(), None), format!("disk /disk/a {text}"));
        assert_eq!(refused(root.path(), Some("/images/inside")), format!("disk /images/inside {text}"));
        assert_eq!(
            refused(root.path(), Some("/images/up/etc/passwd")),
            format!("disk /images/up/etc/passwd {text}")
        );
        let linked = image(&[]);
        symlink(outside.path().join("disk"), linked.path().join("disk")).unwrap();
        assert_eq!(refused(linked.path(), None), format!("disk /disk {text}"));
    }

    #[test]
    fn only_a_regular_file_is_opened_as_a_disk() {
        let root = image(&["disk/inner/", "other/"]);
        assert_eq!(refused(root.path(), None), "disk /disk/inner is a directory, not a regular file");
        nix::unistd::mkfifo(&root.path().join("other/fifo"), Mode::S_IRWXU).unwrap();
        assert_eq!(
            refused(root.path(), Some("/other/fifo")),
            "disk /other/fifo is a fifo, not a regular file"
        );
        let _listener = std::os::unix::net::UnixListener::bind(root.path().join("other/socket")).unwrap();
        assert!(refused(root.path(), Some("/other/socket")).contains("not a regular file"));
    }

    #[test]
    fn a_file_mounted_into_the_image_is_refused() {
        let text = refused(Path::new("/"), Some("/proc/self/environ"));
        // /proc/self is a link, which is found first; the process's own directory is not.
        assert!(text.contains("mounted into it") || text.contains("symbolic link"), "{text}");
        let text = refused(Path::new("/"), Some("/proc/version"));
        assert_eq!(text, "disk /proc/version is not part of the image but of something mounted into it");
    }
}
