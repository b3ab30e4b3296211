//! A device node for pods whose user may open it. That of the node belongs to root alone, and stays as it is: the runtime makes the
//! node in a container with kind, numbers, owner and mode of the one that it is shown, so it is shown another one.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

use barevirt_api::names::LAUNCHER_UID;
use nix::sys::stat::{Mode, SFlag, mknod};

use super::v1beta1::DeviceSpec;

/// The node's own file for user faults.
const USERFAULTFD: &str = "/dev/userfaultfd";
/// The kubelet's folder of plugins as the runtime sees it. This process may see it elsewhere.
const OF_THE_RUNTIME: &str = "/var/lib/kubelet/device-plugins";
/// The node that the runtime is shown. A kubelet that starts removes it.
const NAME: &str = "kubevirt-userfaultfd.node";

/// A node that is made once more.
#[derive(Clone, Debug)]
pub(super) struct NodeCopy {
    /// The device of the node.
    device: PathBuf,
    /// Where the copy is made.
    copy: PathBuf,
}

impl NodeCopy {
    /// That of `/dev/userfaultfd`, in the kubelet's folder of plugins.
    pub(super) fn userfaultfd(folder: &Path) -> Self {
        Self { device: PathBuf::from(USERFAULTFD), copy: folder.join(NAME) }
    }

    /// Makes it, and says how a container gets it.
    pub(super) fn make(&self) -> io::Result<DeviceSpec> {
        let found = fs::metadata(&self.device)?;
        if !found.file_type().is_char_device() {
            return Err(io::Error::other(format!("{} is no device", self.device.display())));
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

    /// Under another name first, so that nobody sees one that belongs to root.
    fn make_node(&self, numbers: u64) -> io::Result<()> {
        let new = self.copy.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        mknod(&new, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, numbers)?;
        let user = u32::try_from(LAUNCHER_UID).map_err(io::Error::other)?;
        lchown(&new, Some(user), Some(user))?;
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
        // Nobody else than root makes nodes.
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
        // Made once, and again where it is gone.
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
