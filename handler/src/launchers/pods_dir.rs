//! The kubelet's directory of pods, and the launcher's `sockets` directory beneath it.
//!
//! Users of a pod influence parts of the path (what is in the volume). So it is never resolved as a string:
//! `openat2` walks down from a descriptor of the kubelet's directory, and neither leaves it by `..` nor
//! follows links.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use barevirt_protocol::directory::SocketsDirectory;
use barevirt_protocol::names::SOCKETS_VOLUME;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use thiserror::Error;

use super::cgroup::is_uid;

/// Why there is no sockets directory.
#[derive(Debug, Error)]
pub enum PodsDirError {
    /// The kubelet's directory could not be opened.
    #[error("open the kubelet's pods directory {}", path.display())]
    Pods {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The text is not the UID of a pod.
    #[error("{0:?} is not a pod's UID")]
    Uid(String),
    /// The pod has no such directory, or the path contains a link.
    #[error("open the sockets directory of pod {uid}")]
    Sockets {
        /// The pod's UID.
        uid: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// The kubelet's directory of pods, held open.
#[derive(Debug)]
pub struct PodsDir {
    directory: OwnedFd,
}

impl PodsDir {
    /// Opens the directory once, at start. The administrator sets its path.
    pub fn open(path: &Path) -> Result<Self, PodsDirError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(path, flags, Mode::empty())
            .map_err(|errno| PodsDirError::Pods { path: path.to_owned(), source: errno.into() })?;
        Ok(Self { directory })
    }

    /// The sockets directory of a pod.
    pub fn sockets(&self, uid: &str) -> Result<SocketsDirectory, PodsDirError> {
        if !is_uid(uid) {
            return Err(PodsDirError::Uid(uid.to_owned()));
        }
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            );
        let path = format!("{uid}/{SOCKETS_VOLUME}");
        let directory = openat2(self.directory.as_fd(), path.as_str(), how)
            .map_err(|errno| PodsDirError::Sockets { uid: uid.to_owned(), source: errno.into() })?;
        Ok(SocketsDirectory::new(directory))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const UID: &str = "0a4f6f0e-9a35-4f3c-8f0e-6a1c2b3d4e5f";

    #[test]
    fn finds_the_directory_and_follows_no_link_to_it() {
        let root = tempfile::tempdir().unwrap();
        let pods = PodsDir::open(root.path()).unwrap();
        assert!(matches!(pods.sockets(UID), Err(PodsDirError::Sockets { .. })));

        let volume = root.path().join(UID).join("volumes/kubernetes.io~empty-dir");
        fs::create_dir_all(volume.join("sockets")).unwrap();
        pods.sockets(UID).unwrap();

        fs::rename(volume.join("sockets"), volume.join("elsewhere")).unwrap();
        symlink("elsewhere", volume.join("sockets")).unwrap();
        assert!(matches!(pods.sockets(UID), Err(PodsDirError::Sockets { .. })));

        // A link further up is rejected too, when the directory behind it is one.
        fs::remove_file(volume.join("sockets")).unwrap();
        fs::rename(volume.join("elsewhere"), volume.join("sockets")).unwrap();
        pods.sockets(UID).unwrap();
        let other = UID.replace('0', "1");
        symlink(UID, root.path().join(&other)).unwrap();
        assert!(matches!(pods.sockets(&other), Err(PodsDirError::Sockets { .. })));
    }

    #[test]
    fn only_uids_become_paths() {
        let root = tempfile::tempdir().unwrap();
        let pods = PodsDir::open(root.path()).unwrap();
        for bad in ["", "..", "../../etc", "/etc", "0a4f6f0e-9a35-4f3c-8f0e-6a1c2b3d4e5f/.."] {
            assert!(matches!(pods.sockets(bad), Err(PodsDirError::Uid(_))), "{bad}");
        }
    }
}
