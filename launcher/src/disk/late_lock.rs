//! The locks of devices whose guest comes from another node.
//!
//! Its QEMU there has the lock until it ends. Where both nodes have one kernel, as nodes that are containers of one machine,
//! that is the same lock, so it is taken once it is free. Until then the guest's own source keeps others out.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Interval of attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// Takes the lock of each device as soon as it is free, and holds it until the launcher ends, and QEMU with it.
pub async fn hold(devices: Vec<PathBuf>) {
    let mut held = Vec::new();
    for device in devices {
        match free(&device).await {
            Ok(lock) => {
                tracing::info!(device = %device.display(), "the device is locked for this guest");
                held.push(lock);
            }
            Err(error) => tracing::warn!(%error, device = %device.display(), "the device is not locked"),
        }
    }
    std::future::pending::<()>().await;
    drop(held);
}

/// Waits until the lock is free.
async fn free(device: &Path) -> io::Result<File> {
    loop {
        match lock(device) {
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                tokio::time::sleep(AGAIN).await;
            }
            other => return other,
        }
    }
}

fn lock(device: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlag::O_EXCL.bits()).open(device)
}

#[cfg(test)]
mod tests {
    use super::super::loop_device::Loop;
    use super::*;

    #[tokio::test]
    async fn the_lock_of_a_guest_that_comes_follows_that_of_its_source() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("dev");
        let Some(_device) = Loop::new(&devices, 1 << 20, &["source", "target"]) else { return };
        let source = lock(&devices.join("source")).unwrap();
        let target = devices.join("target");
        let wait = free(&target);
        tokio::pin!(wait);
        assert!(tokio::time::timeout(2 * AGAIN, &mut wait).await.is_err());
        drop(source);
        let _target = tokio::time::timeout(4 * AGAIN, wait).await.unwrap().unwrap();
        assert!(lock(&devices.join("source")).is_err());
        assert!(free(&root.path().join("none")).await.is_err());
    }
}
