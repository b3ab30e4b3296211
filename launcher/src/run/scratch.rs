//! A directory that ends with the VM.
//!
//! Each is locked for as long as its process lives. A process that is killed cannot remove its own; the next one
//! removes every directory that nobody holds the lock of.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// What the names begin with; a process id follows.
const PREFIX: &str = "virt-launcher-";

/// How old a directory must be to count as left behind: one that was just made may not be locked yet.
const SETTLED: Duration = Duration::from_secs(5);

/// A directory of this user only, removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Scratch {
    /// A new one in `parent`, where temporary files go. Removes what killed processes have left there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(parent: &Path) -> io::Result<Self> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        // Left by a process of the same number that was killed; of another user, it cannot be removed.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
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

/// Whatever cannot be looked at or removed is somebody else's.
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
    fn what_was_left_is_removed_and_what_is_used_is_not() {
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
