//! Places for a machine's state: in a directory that is removed with the pod, or on a claim that outlives it.
//!
//! A claim belongs to its owner, who may have written anything to it from another pod. So no path on it is
//! resolved as a string: files are opened below a descriptor of its root, without following symbolic links.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Directories of a launcher's state.
#[derive(Debug, Clone)]
pub struct Places {
    /// Removed with the VM.
    pub private: PathBuf,
    /// Mount point of the claim.
    pub claim: PathBuf,
}

impl Places {
    /// The directory with this name; on the claim if it is to be kept. It is created if it is missing.
    ///
    /// # Errors
    /// If it cannot be created or opened, or is not a directory.
    pub fn directory(&self, name: &str, kept: bool) -> io::Result<Directory> {
        let root = if kept { &self.claim } else { &self.private };
        let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        match mkdirat(&root, name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        beneath(&root, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).map(Directory)
    }
}

/// An open directory for state.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// The descriptor, for a program that uses the directory.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    /// Opens the file with this name for reading and writing: the existing one, else a copy of `template`.
    /// The copy is made atomically.
    ///
    /// # Errors
    /// If the file cannot be created or opened, or is not a regular file of the template's size.
    pub fn copy_once(&self, name: &str, template: &Path) -> io::Result<OwnedFd> {
        let contents = std::fs::read(template)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", template.display())))?;
        let file = match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.write(name, &contents)?;
                self.open(name)?
            }
            found => found?,
        };
        let found = file.metadata()?;
        if !found.is_file() || found.len() != contents.len() as u64 {
            let text = format!("{name} is not a file of {} bytes", contents.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(file.into())
    }

    /// Removes the file with this name, if it exists.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open(&self, name: &str) -> io::Result<File> {
        // Without O_NONBLOCK, opening a fifo would block; it has no effect on a regular file.
        beneath(&self.0, Path::new(name), OFlag::O_RDWR | OFlag::O_NONBLOCK, Mode::empty()).map(File::from)
    }

    fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let part = format!("{name}.part");
        self.remove(&part)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut file = File::from(beneath(&self.0, Path::new(&part), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(contents)?;
        file.sync_all()?;
        renameat(&self.0, part.as_str(), &self.0, name)?;
        nix::unistd::fsync(&self.0)?;
        Ok(())
    }
}

/// Opens a path below a root without following links.
pub(crate) fn beneath(root: &impl AsFd, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    );
    loop {
        match openat2(root.as_fd(), path, how) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn places() -> (tempfile::TempDir, Places, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["private", "claim"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("template"), "fresh").unwrap();
        let places = Places { private: at("private"), claim: at("claim") };
        let template = at("template");
        (root, places, template)
    }

    #[test]
    fn persistent_state_is_found_again_and_temporary_state_is_fresh() {
        let (_root, places, template) = places();
        for (kept, second) in [(true, "lived"), (false, "lived")] {
            let open = || places.directory("nvram", kept).unwrap().copy_once("vars", &template).unwrap();
            let mut file = File::from(open());
            assert_eq!(io::read_to_string(&file).unwrap(), "fresh");
            io::Seek::rewind(&mut file).unwrap();
            file.write_all(b"lived").unwrap();
            assert_eq!(io::read_to_string(File::from(open())).unwrap(), second);
        }
        assert!(places.claim.join("nvram/vars").is_file() && !places.claim.join("nvram/vars.part").exists());
    }

    #[test]
    fn links_on_the_state_claim_are_not_followed() {
        let (root, places, template) = places();
        std::fs::write(root.path().join("other"), "other").unwrap();
        symlink(root.path(), places.claim.join("tpm")).unwrap();
        assert!(places.directory("tpm", true).is_err());
        let nvram = places.directory("nvram", true).unwrap();
        symlink(root.path().join("other"), places.claim.join("nvram/vars")).unwrap();
        assert!(nvram.copy_once("vars", &template).is_err());
        symlink(root.path().join("other"), places.claim.join("nvram/new.part")).unwrap();
        nvram.copy_once("new", &template).unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("other")).unwrap(), "other");
        std::fs::write(places.claim.join("nvram/short"), "x").unwrap();
        let error = nvram.copy_once("short", &template).unwrap_err();
        assert_eq!(error.to_string(), "short is not a file of 5 bytes");
    }
}
