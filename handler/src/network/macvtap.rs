//! Opens a macvtap of the calling thread's network namespace.
//!
//! A macvtap is a link, and also a device from which frames are read: `tap<index of the link>`. The device
//! number is read from sysfs as that namespace sees it, and the device node is created on a file system to
//! which no other process has access: both file systems are mounted nowhere. `/dev/tap<index>` of the node
//! may belong to another namespace, because each namespace counts its own indexes.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, makedev, mknodat};

use crate::kernel;

/// Opens one queue of the macvtap. Frames carry a virtio-net header.
pub fn open(index: u32, multi_queue: bool) -> io::Result<OwnedFd> {
    let sysfs = kernel::mount_nowhere(c"sysfs")?;
    let path = format!("class/macvtap/tap{index}/dev");
    let mut number = String::new();
    File::from(openat(&sysfs, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
        .take(32)
        .read_to_string(&mut number)?;
    let (major, minor) = device(&number)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "sysfs has no number of the device"))?;
    let directory = kernel::mount_nowhere(c"tmpfs")?;
    mknodat(&directory, "tap", SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(major, minor))?;
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let tap = File::from(openat(&directory, "tap", flags, Mode::empty())?);
    kernel::set_macvtap(&tap, multi_queue)?;
    Ok(tap.into())
}

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.trim_end().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_as_sysfs_writes_them() {
        assert_eq!(device("241:1\n"), Some((241, 1)));
        for wrong in ["", "241", "241:", ":1", "a:b", "241:1:2", "-1:2"] {
            assert_eq!(device(wrong), None, "{wrong}");
        }
    }
}
