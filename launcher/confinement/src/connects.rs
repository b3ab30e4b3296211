//! Attempts of a process to connect that another one answers: with a connection, which takes the place of the caller's socket, or
//! with a refusal. So a process that can connect to nothing by itself gets connections that were chosen for it, also from code
//! that takes no descriptors.
//!
//! The kernel passes the calls to whoever has the listener of the filter (seccomp_unotify(2)). The child makes the listener between
//! fork and exec, sends it to its parent, and its own copy is closed by exec. The address that the caller gives is never read.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use seccompiler::BpfProgram;

use crate::{ConfinementError, apply, calls, system};

/// The child's part, prepared before the fork.
#[derive(Debug)]
pub(crate) struct Answered {
    asking: BpfProgram,
    refusing: BpfProgram,
    parent: OwnedFd,
}

impl Answered {
    pub(crate) fn new(what: &'static str) -> Result<(Self, Expected), ConfinementError> {
        let refused = |source| ConfinementError::Calls { what, source };
        let (asking, refusing) = (calls::asking().map_err(refused)?, calls::refusing().map_err(refused)?);
        let ends = UnixStream::pair().map_err(|source| ConfinementError::Enter { what, source })?;
        let (ours, parent) = (Expected(ends.0.into()), OwnedFd::from(ends.1));
        Ok((Self { asking, refusing, parent }, ours))
    }

    /// Neither allocates nor locks.
    pub(crate) fn enter(&self) -> io::Result<()> {
        match system::listen(&self.asking) {
            Ok(listener) => system::send(&self.parent, &listener),
            // The kernel is too old, or the container runtime has a listener of its own, beside which there is no other.
            Err(_) => apply(&self.refusing),
        }
    }
}

/// Where the listener of a child arrives.
#[derive(Debug)]
pub struct Expected(OwnedFd);

impl Expected {
    /// The calls of the child, once it has been started. `None` if there can be no listener here, or the kernel cannot give the child
    /// a connection: its calls fail.
    #[must_use]
    pub fn arrived(self) -> Option<Connects> {
        system::receive(&self.0).filter(system::can_replace).map(Connects)
    }
}

/// The attempts of a process to connect. When this is dropped they fail.
#[derive(Debug)]
pub struct Connects(OwnedFd);

impl Connects {
    /// Waits for the next attempt and answers it: the connection takes the place of the caller's socket; without one the call is
    /// refused. Returns whether there may be more: not once the process and all its children have ended.
    ///
    /// # Errors
    /// If the kernel gives no more calls.
    pub fn answer(&self, connection: impl FnOnce() -> Option<OwnedFd>) -> io::Result<bool> {
        if !system::wait(&self.0)? {
            return Ok(false);
        }
        // The caller may have ended.
        let Some(call) = system::take(&self.0)? else { return Ok(true) };
        let given = connection().ok_or(Errno::EPERM);
        let answer = given.and_then(|connection| system::replace(&self.0, &call, &connection));
        system::answer(&self.0, &call, answer.err())?;
        Ok(true)
    }
}
