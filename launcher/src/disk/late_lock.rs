//! The locks of devices whose guest comes from another node.
//!
//! Its QEMU there has the lock until it ends. Where both nodes have one kernel, as nodes that are containers of one machine,
//! that is the same lock, so it is taken once it is free. Until then the guest's own source keeps others out. On any other node
//! a lock that is taken is another guest's.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use tokio::task::{JoinHandle, spawn_local};

/// The boot of the running kernel (`random(4)`), which the kubelet reports as `status.nodeInfo.bootID`.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The first pause between two attempts. Each further one is twice as long as the one before, up to [`LONGEST`].
const AGAIN: Duration = Duration::from_millis(500);
/// The longest pause: a guest may take hours to come.
const LONGEST: Duration = Duration::from_secs(4);

/// Whether a source whose node reports that boot has this kernel.
#[must_use]
pub fn is_this_kernel(source: Option<&str>) -> bool {
    let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
    source.is_some_and(|source| !source.is_empty() && source == boot.trim())
}

/// The task that takes the lock of one device: there is one, however often the device is handed over.
#[derive(Debug, Default)]
pub struct LateLock(Option<JoinHandle<()>>);

impl LateLock {
    /// Has the lock taken, as by [`hold`], unless that is being done. Must be called within a `LocalSet`, with which it ends.
    pub fn take(&mut self, hold: impl Future<Output = ()> + 'static) {
        if self.0.as_ref().is_none_or(JoinHandle::is_finished) {
            self.0 = Some(spawn_local(hold));
        }
    }
}

/// Takes the lock of a device as soon as it is free, and holds it until the launcher ends, and QEMU with it.
pub async fn hold(device: PathBuf) {
    match free(&device).await {
        Ok(_lock) => {
            tracing::info!(device = %device.display(), "the device is locked for this guest");
            std::future::pending::<()>().await;
        }
        Err(error) => tracing::warn!(%error, device = %device.display(), "the device is not locked"),
    }
}

/// Waits until the lock is free.
async fn free(device: &Path) -> io::Result<File> {
    let mut pause = AGAIN;
    loop {
        match lock(device) {
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST);
            }
            other => return other,
        }
    }
}

/// Takes the lock of a device, which goes with the descriptor.
pub(super) fn lock(device: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlag::O_EXCL.bits()).open(device)
}

#[cfg(test)]
mod tests {
    use super::super::loop_device::Loop;
    use super::*;
    use std::rc::Rc;
    use tokio::task::{LocalSet, yield_now};

    #[tokio::test]
    async fn a_device_that_is_handed_over_again_and_again_is_asked_for_by_one_task() {
        let tasks = Rc::new(());
        let hold = || {
            let task = tasks.clone();
            async move {
                std::future::pending::<()>().await;
                drop(task);
            }
        };
        let mut lock = LateLock::default();
        let handed_over = async {
            // One that could not take it is no more, and is replaced.
            lock.take(async {});
            yield_now().await;
            for _ in 0..3 {
                lock.take(hold());
                yield_now().await;
            }
            assert_eq!(Rc::strong_count(&tasks), 2, "one task, and the test");
        };
        LocalSet::new().run_until(handed_over).await;
    }

    #[test]
    fn only_a_source_of_this_boot_has_this_kernel() {
        let boot = std::fs::read_to_string(BOOT).unwrap();
        assert!(is_this_kernel(Some(boot.trim())));
        for other in [None, Some(""), Some("00000000-0000-0000-0000-000000000000")] {
            assert!(!is_this_kernel(other));
        }
    }

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
