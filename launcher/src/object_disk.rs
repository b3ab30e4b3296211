//! Disks made of the cluster's objects: the mounted files, as they are when the guest starts.
//!
//! ```text
//!  mount ── ..data ─► ..2026_11_22_…/KEY ─► iso::image ─► <kind>-disks/<volume>.iso
//! ```
//!
//! The kubelet swaps all files of a mount at once, by the link `..data`. Only this link is followed, to a
//! directory below the mount. So all files are of the same version, and nothing outside of the mount is read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use barevirt_api::object_volume::{Kind, ObjectVolume};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, readlinkat};
use nix::sys::stat::{Mode, fstat};

use crate::iso::{self, IsoError};
use crate::state::beneath;

/// Most bytes of all files: several times the size of an object.
const LARGEST: usize = 4 << 20;
/// Most files. Making unique short names for similar names takes longer with more files.
const FILES: usize = 2048;
/// Most directories in the path of a file: the limit of ISO 9660.
const DEPTH: usize = 7;
/// The kubelet's link to the current files.
const DATA: &str = "..data";
/// The setup of Windows looks for one of these, in any case.
const ANSWERS: [&str; 2] = ["autounattend.xml", "unattend.xml"];
/// Permissions to read a file, as the kubelet sets them. The disk is read-only.
const READERS: u32 = 0o444;

/// Why an object has no disk.
#[derive(Debug, thiserror::Error)]
pub enum ObjectDiskError {
    /// It is not mounted, or cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Its content is larger than a disk may be.
    #[error("{path} has more than {limit}")]
    TooMuch {
        /// Its mount.
        path: PathBuf,
        /// The limit.
        limit: String,
    },
    /// The setup of Windows cannot use it.
    #[error("a sysprep disk should contain {} or {}, but neither was found", ANSWERS[0], ANSWERS[1])]
    NoAnswers,
    /// The files do not fit on a disk.
    #[error(transparent)]
    Iso(#[from] IsoError),
    /// The disk cannot be written.
    #[error("write {path}: {source}")]
    Write {
        /// The disk.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Makes the disk of an object whose files are mounted below the directory. Returns its path.
///
/// # Errors
/// If the files cannot be read, or do not meet the disk's rules.
pub fn make(object: &ObjectVolume<'_>, directory: &Path) -> Result<PathBuf, ObjectDiskError> {
    let files = files(object, directory)?;
    let is_answer = |file: &iso::File| ANSWERS.iter().any(|name| file.path.eq_ignore_ascii_case(name));
    if object.kind == Kind::Sysprep && !files.iter().any(is_answer) {
        return Err(ObjectDiskError::NoAnswers);
    }
    let image = iso::image(object.label, files)?;
    let path = directory.join(object.disk());
    match iso::save(&image, &path) {
        Ok(()) => Ok(path),
        Err(source) => Err(ObjectDiskError::Write { path, source }),
    }
}

/// The files of an object that is mounted below the directory, all of the same version.
///
/// # Errors
/// If they cannot be read.
pub fn files(object: &ObjectVolume<'_>, directory: &Path) -> Result<Vec<iso::File>, ObjectDiskError> {
    let mount = directory.join(object.files());
    match read(&mount) {
        // The kubelet swapped them in the meantime.
        Err(ObjectDiskError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => read(&mount),
        result => result,
    }
}

/// The files of a mount.
fn read(mount: &Path) -> Result<Vec<iso::File>, ObjectDiskError> {
    let failed = |path: PathBuf| move |errno: Errno| ObjectDiskError::Read { path, source: errno.into() };
    let root = open(mount, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let root = root.map_err(failed(mount.to_owned()))?;
    let data = match readlinkat(&root, DATA) {
        Ok(target) => PathBuf::from(target),
        // The mount was always empty: an optional object that does not exist.
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(mount.join(DATA))(errno)),
    };
    let mut reader = Reader { mount, files: Vec::new(), room: LARGEST };
    let fd = reader.open(&root, &data, OFlag::O_DIRECTORY)?;
    reader.directory(fd, "", 0)?;
    reader.files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(reader.files)
}

/// Reads the content of a mount up to the limits.
struct Reader<'a> {
    mount: &'a Path,
    files: Vec<iso::File>,
    /// Bytes that may still be read.
    room: usize,
}

impl Reader<'_> {
    fn open(
        &self,
        root: &impl std::os::fd::AsFd,
        name: &Path,
        flags: OFlag,
    ) -> Result<OwnedFd, ObjectDiskError> {
        // Without O_NONBLOCK, opening a fifo would block; it has no effect on a regular file.
        beneath(root, name, flags | OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())
            .map_err(|source| self.failed(name, source))
    }

    fn failed(&self, name: &Path, source: io::Error) -> ObjectDiskError {
        ObjectDiskError::Read { path: self.mount.join(name), source }
    }

    fn too_much(&self, limit: String) -> ObjectDiskError {
        ObjectDiskError::TooMuch { path: self.mount.to_owned(), limit }
    }

    /// `above` is the directory's path on the disk, with a slash at its end.
    fn directory(&mut self, fd: OwnedFd, above: &str, depth: usize) -> Result<(), ObjectDiskError> {
        let mut directory = Dir::from_fd(fd).map_err(|errno| self.failed(Path::new(above), errno.into()))?;
        let mut names = Vec::new();
        for entry in directory.iter() {
            let entry = entry.map_err(|errno| self.failed(Path::new(above), errno.into()))?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            if self.files.len() + names.len() > FILES {
                return Err(self.too_much(format!("{FILES} files")));
            }
        }
        for name in names {
            let path = format!("{above}{name}");
            let fd = self.open(&directory, Path::new(&name), OFlag::empty())?;
            let mode = fstat(&fd).map_err(|errno| self.failed(Path::new(&path), errno.into()))?.st_mode;
            match mode & libc::S_IFMT {
                libc::S_IFDIR if depth == DEPTH => {
                    return Err(self.too_much(format!("{DEPTH} directories in one another")));
                }
                libc::S_IFDIR => self.directory(fd, &format!("{path}/"), depth + 1)?,
                libc::S_IFREG => self.file(fd, path, mode & READERS)?,
                _ => {
                    let source =
                        io::Error::new(io::ErrorKind::InvalidData, "it is neither file nor directory");
                    return Err(self.failed(Path::new(&path), source));
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, fd: OwnedFd, path: String, mode: u32) -> Result<(), ObjectDiskError> {
        let mut contents = Vec::new();
        let read = File::from(fd).take(self.room as u64 + 1).read_to_end(&mut contents);
        read.map_err(|source| self.failed(Path::new(&path), source))?;
        let Some(room) = self.room.checked_sub(contents.len()) else {
            return Err(self.too_much(format!("{LARGEST} bytes")));
        };
        self.room = room;
        self.files.push(iso::File { path, contents, mode });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::iso::tests::{NAMES, read_back};

    /// Mounts an object like the kubelet: links into a directory that is swapped atomically.
    fn mount(directory: &Path, object: &ObjectVolume<'_>, files: &[(&str, &str)]) -> PathBuf {
        let root = directory.join(object.files());
        let data = root.join("..2026_11_22_01_02_03.4");
        std::fs::create_dir_all(&data).unwrap();
        symlink("..2026_11_22_01_02_03.4", root.join(DATA)).unwrap();
        for (path, contents) in files {
            let place = data.join(path);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(&place, contents).unwrap();
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o640)).unwrap();
            let top = path.split('/').next().unwrap();
            let _ = symlink(format!("{DATA}/{top}"), root.join(top));
        }
        root
    }

    fn object(kind: Kind) -> ObjectVolume<'static> {
        ObjectVolume { kind, name: "v", label: "some-label" }
    }

    fn found(path: &Path, names: &str, directory: &Path) -> Vec<(String, String, u32)> {
        let files = read_back(&std::fs::read(path).unwrap(), names, directory).into_iter();
        files.map(|file| (file.path, String::from_utf8(file.contents).unwrap(), file.mode)).collect()
    }

    #[test]
    fn each_key_is_a_file_and_nothing_of_the_kubelets_is() {
        for kind in [Kind::ConfigMap, Kind::Secret, Kind::ServiceAccount, Kind::DownwardApi] {
            let directory = tempfile::tempdir().unwrap();
            let object = object(kind);
            mount(
                directory.path(),
                &object,
                &[("option2", "two"), ("a.b", ""), ("pod/labels", "app=\"x\"\n")],
            );
            let path = make(&object, directory.path()).unwrap();
            assert_eq!(path, directory.path().join(object.disk()));
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            for names in NAMES {
                let found = found(&path, names, directory.path());
                let found: Vec<_> =
                    found.iter().map(|(path, contents, _)| (path.as_str(), contents.as_str())).collect();
                assert_eq!(found, [("a.b", ""), ("option2", "two"), ("pod/labels", "app=\"x\"\n")]);
            }
        }
    }

    #[test]
    fn files_of_an_object_disk_have_the_kubelets_mode() {
        let directory = tempfile::tempdir().unwrap();
        let object = object(Kind::ServiceAccount);
        mount(directory.path(), &object, &[("token", "t")]);
        let path = make(&object, directory.path()).unwrap();
        assert_eq!(found(&path, "any", directory.path()), [("token".to_owned(), "t".to_owned(), 0o440)]);
    }

    #[test]
    fn an_optional_missing_object_is_an_empty_disk_and_a_missing_mount_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let object = object(Kind::ConfigMap);
        let error = make(&object, directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("config-map/v: No such file or directory (os error 2)"), "{error}");
        std::fs::create_dir_all(directory.path().join(object.files())).unwrap();
        let path = make(&object, directory.path()).unwrap();
        assert_eq!(found(&path, "any", directory.path()), []);
        // Made again at each start.
        std::fs::remove_dir(directory.path().join(object.files())).unwrap();
        mount(directory.path(), &object, &[]);
        assert_eq!(found(&make(&object, directory.path()).unwrap(), "norock", directory.path()), []);
    }

    #[test]
    fn answers_have_a_name_that_windows_looks_for() {
        for (name, enough) in [("Autounattend.xml", true), ("UNATTEND.XML", true), ("answers.xml", false)] {
            let directory = tempfile::tempdir().unwrap();
            let object = object(Kind::Sysprep);
            mount(directory.path(), &object, &[(name, "<unattend/>"), ("more", "")]);
            match make(&object, directory.path()) {
                Ok(path) => {
                    assert!(enough);
                    assert_eq!(found(&path, "norock", directory.path()).len(), 2);
                }
                Err(error) => assert!(!enough && error.to_string().contains("neither was found"), "{error}"),
            }
        }
    }

    #[test]
    fn no_link_leads_out_of_a_mount() {
        let object = object(Kind::Secret);
        // Links to the outside: for the whole content, and for one file.
        for target in ["../../../outside", "/etc"] {
            let directory = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(directory.path().join("outside")).unwrap();
            let root = directory.path().join(object.files());
            std::fs::create_dir_all(&root).unwrap();
            symlink(target, root.join(DATA)).unwrap();
            assert!(matches!(make(&object, directory.path()), Err(ObjectDiskError::Read { .. })), "{target}");
        }
        let directory = tempfile::tempdir().unwrap();
        let root = mount(directory.path(), &object, &[("key", "x")]);
        symlink("/etc/passwd", root.join(DATA).join("other")).unwrap();
        let error = make(&object, directory.path()).unwrap_err().to_string();
        assert!(error.contains("secret-volume/v/other: "), "{error}");
    }

    #[test]
    fn there_is_an_end_to_files_and_bytes() {
        let object = object(Kind::ConfigMap);
        let directory = tempfile::tempdir().unwrap();
        let root = mount(directory.path(), &object, &[("small", "x")]);
        for name in ["large", "larger"] {
            let file = File::create(root.join(DATA).join(name)).unwrap();
            file.set_len(LARGEST as u64 / 2).unwrap();
        }
        let error = make(&object, directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("config-map/v has more than 4194304 bytes"), "{error}");

        let directory = tempfile::tempdir().unwrap();
        let root = mount(directory.path(), &object, &[]);
        for number in 0..=FILES {
            File::create(root.join(DATA).join(number.to_string())).unwrap();
        }
        let error = make(&object, directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("has more than 2048 files"), "{error}");

        let directory = tempfile::tempdir().unwrap();
        mount(directory.path(), &object, &[("a/b/c/d/e/f/g/h/i", "")]);
        let error = make(&object, directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("has more than 7 directories in one another"), "{error}");
    }
}
