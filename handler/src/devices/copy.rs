//! A copy of a device node that the user of a pod may open. The original belongs to root and is not changed. The
//! container runtime gives a device node in a container the type, numbers, owner and mode of the device node that the
//! plugin names, so the plugin names the copy.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use barevirt_api::names::LAUNCHER_UID;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::{Gid, Uid, fchownat};

use super::v1beta1::DeviceSpec;

/// The original device node.
const USERFAULTFD: &str = "/dev/userfaultfd";
/// The kubelet's folder of plugins as the runtime sees it. The path in this process may differ.
const OF_THE_RUNTIME: &str = "/var/lib/kubelet/device-plugins";
/// File name of the copy. A kubelet that starts removes the copy.
const NAME: &str = "kubevirt-userfaultfd.node";

/// A device node and its copy.
#[derive(Clone, Debug)]
pub(super) struct NodeCopy {
    /// The original.
    pub(super) device: PathBuf,
    /// Where the copy is made.
    pub(super) copy: PathBuf,
}

impl NodeCopy {
    /// The copy of `/dev/userfaultfd` in the kubelet's folder of plugins.
    pub(super) fn userfaultfd(folder: &Path) -> Self {
        Self { device: PathBuf::from(USERFAULTFD), copy: folder.join(NAME) }
    }

    /// Makes the copy, and returns how a container gets it.
    pub(super) fn make(&self) -> io::Result<DeviceSpec> {
        let found = fs::metadata(&self.device)?;
        if !found.file_type().is_char_device() {
            return Err(io::Error::other(format!("{} is not a character device", self.device.display())));
        }
        let is_it = |there: &fs::Metadata| {
            there.file_type().is_char_device()
                && there.rdev() == found.rdev()
                && i64::from(there.uid()) == LAUNCHER_UID
        };
        if !fs::symlink_metadata(&self.copy).is_ok_and(|there| is_it(&there)) {
            self.make_node(found.rdev())?;
        }
        Ok(DeviceSpec {
            container_path: self.device.display().to_string(),
            host_path: Path::new(OF_THE_RUNTIME).join(NAME).display().to_string(),
            permissions: "rw".to_owned(),
        })
    }

    /// Makes it under another name first, so that the copy never belongs to root under its own name.
    fn make_node(&self, numbers: u64) -> io::Result<()> {
        let new = self.copy.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        mknod(&new, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, numbers)?;
        let user = u32::try_from(LAUNCHER_UID).map_err(io::Error::other)?;
        let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(user)));
        let folder = fs::File::open(new.parent().unwrap_or(Path::new("/")))?;
        let name = new.file_name().unwrap_or_default();
        fchownat(&folder, name, user, group, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        fs::rename(new, &self.copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_a_node_of_its_user_and_the_one_of_the_node_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let device = PathBuf::from("/dev/null");
        let copy = NodeCopy { device: device.clone(), copy: folder.path().join(NAME) };
        // Only root may make device nodes.
        let given = match copy.make() {
            Ok(given) => given,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(given.container_path, "/dev/null");
        assert_eq!(given.host_path, format!("/var/lib/kubelet/device-plugins/{NAME}"));
        assert_eq!(given.permissions, "rw");
        let (made, own) = (fs::metadata(folder.path().join(NAME)).unwrap(), fs::metadata(device).unwrap());
        assert_eq!(
            (made.rdev(), made.mode() & 0o7777, made.uid(), made.gid()),
            (own.rdev(), 0o600, 107, 107)
        );
        assert_eq!(own.uid(), 0);
        // It is made once, and again if it was removed.
        copy.make().unwrap();
        assert_eq!(fs::metadata(folder.path().join(NAME)).unwrap().ino(), made.ino());
        fs::remove_file(folder.path().join(NAME)).unwrap();
        copy.make().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn without_the_device_there_is_nothing_to_give() {
        let folder = tempfile::tempdir().unwrap();
        let copy = NodeCopy { device: folder.path().join("none"), copy: folder.path().join(NAME) };
        assert!(copy.make().is_err());
        let copy = NodeCopy { device: folder.path().to_owned(), copy: folder.path().join(NAME) };
        assert!(copy.make().is_err());
    }
}
