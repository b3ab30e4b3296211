//! Orphans: processes that lost their parent and became children of the first process of the pod.
//!
//! `waitpid(-1)` would also take the exit status of our own children away from their waiters. So the children
//! are listed, and only those that are not ours are reaped.

use std::fs;
use std::sync::{Mutex, PoisonError};

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// Process ids of our own children. Each is recorded before other code can run on this thread, so that none
/// is taken for an orphan.
static OURS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Records a child that is ours.
pub(super) fn ours(pid: u32) {
    OURS.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
}

/// Forgets a child that was waited for, because an orphan may get its number.
pub(super) fn no_longer_ours(pid: u32) {
    OURS.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| *known != pid);
}

/// Reaps forever all children of this process that are not ours.
pub async fn reap_strangers() {
    let mut ended = match signal(SignalKind::child()) {
        Ok(ended) => ended,
        Err(error) => {
            tracing::warn!(%error, "orphaned processes will not be reaped");
            return;
        }
    };
    while ended.recv().await.is_some() {
        let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for pid in children().into_iter().filter(|pid| !ours.contains(pid)) {
            let stranger = Pid::from_raw(pid.cast_signed());
            if let Ok(status) = waitpid(stranger, Some(WaitPidFlag::WNOHANG)) {
                tracing::debug!(pid, ?status, "stranger");
            }
        }
    }
}

/// The children of this thread. It is the only one, so they are the children of this process.
fn children() -> Vec<u32> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
