//! Strangers: processes that lost their parent and were given to the first process of the pod.
//!
//! `waitpid(-1)` would also take the exit status of our own child from under its waiter. So the children are
//! listed, and only those that are not ours are waited for.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// Process id of our own child, 0 while there is none. Set before anything else can run on this thread, so that the
/// child is never taken for a stranger.
static OURS: AtomicU32 = AtomicU32::new(0);

/// Remembers which child is ours.
pub(super) fn ours(pid: u32) {
    OURS.store(pid, Ordering::Relaxed);
}

/// Reaps for ever whatever child of this process is not ours.
pub async fn reap_strangers() {
    let mut ended = match signal(SignalKind::child()) {
        Ok(ended) => ended,
        Err(error) => {
            tracing::warn!(%error, "strangers will not be reaped");
            return;
        }
    };
    while ended.recv().await.is_some() {
        let ours = OURS.load(Ordering::Relaxed);
        for pid in children().into_iter().filter(|pid| *pid != ours) {
            let stranger = Pid::from_raw(pid.cast_signed());
            if let Ok(status) = waitpid(stranger, Some(WaitPidFlag::WNOHANG)) {
                tracing::debug!(pid, ?status, "stranger");
            }
        }
    }
}

/// The children of this thread, which is the only one and so of this process.
fn children() -> Vec<u32> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
