//! Work inside the network namespace of a pod, on a thread of its own.
//!
//! A thread that has entered a namespace ends with its work and never returns to a pool, so no other work of
//! the handler can run in a pod's namespace by mistake.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use nix::sched::{CloneFlags, setns};
use thiserror::Error;
use tokio::sync::oneshot;

/// Why work in a namespace failed.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// The thread could not be started.
    #[error("start a thread for the pod's network namespace")]
    Thread(#[source] io::Error),
    /// The namespace could not be entered: the pod may just have gone.
    #[error("enter the pod's network namespace")]
    Enter(#[source] io::Error),
    /// The work panicked.
    #[error("the thread in the pod's network namespace ended without a result")]
    Panicked,
}

/// Runs `work` in the namespace `netns` and returns its result.
pub async fn run<T: Send + 'static>(
    netns: OwnedFd,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NetnsError> {
    let (answer, result) = oneshot::channel();
    thread::Builder::new()
        .name("pod-network".to_owned())
        .spawn(move || {
            let result =
                setns(&netns, CloneFlags::CLONE_NEWNET).map_err(|error| NetnsError::Enter(error.into()));
            // The receiver is gone only if the VM's task was dropped: then the result is not needed.
            drop(answer.send(result.map(|()| work())));
        })
        .map_err(NetnsError::Thread)?;
    result.await.map_err(|_| NetnsError::Panicked)?
}

/// The network namespace of the calling thread.
pub fn current() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}
