//! A temporary directory that is removed with the VM.
//!
//! Each is locked as long as its process lives. A killed process cannot remove its directory, so each new
//! process removes all directories whose lock is free.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// Prefix of the names; a process id follows.
const PREFIX: &str = "virt-launcher-";

/// Age from which a directory counts as left behind: a new one may not be locked yet.
const SETTLED: Duration = Duration::from_secs(5);

/// A directory of this user only, removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Scratch {
    /// Makes a directory in `parent`, where temporary files go. Removes directories that killed processes
    /// have left there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(parent: &Path) -> io::Result<Self> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        // A killed process with the same number may have left it. If it belongs to another user, this fails.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes directories that were left behind. One that cannot be read or removed belongs to another user.
fn sweep(parent: &Path) {
    let uid = nix::unistd::getuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.strip_prefix(PREFIX).is_some_and(|pid| pid.parse::<u32>().is_ok()));
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let settled =
            metadata.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > SETTLED);
        if ours && settled && metadata.is_dir() && metadata.uid() == uid && lock(&path).is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_directories_are_removed_and_used_ones_kept() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        for name in ["virt-launcher-1", "virt-launcher-2", "virt-launcher-x", "other-1"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("overlay"), "x").unwrap();
            File::open(at(name)).unwrap().set_modified(old).unwrap();
        }
        fs::create_dir(at("virt-launcher-3")).unwrap();
        let _used = lock(&at("virt-launcher-2")).unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        assert!(!at("virt-launcher-1").exists());
        for name in ["virt-launcher-2", "virt-launcher-3", "virt-launcher-x", "other-1"] {
            assert!(at(name).exists(), "{name}");
        }
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
