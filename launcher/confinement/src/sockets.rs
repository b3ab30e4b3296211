//! Calls of a process that another one answers: `connect`, `listen` and `accept`. So a process that can connect to nothing by
//! itself gets connections that were chosen for it, and one that listens accepts connections that others have accepted before; also
//! from code that takes no descriptors.
//!
//! The kernel passes the calls to whoever has the listener of the filter (seccomp_unotify(2)). The child makes the listener between
//! fork and exec, sends it to its parent, and its own copy is closed by exec. Addresses that the caller gives are never read.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use nix::errno::Errno;
use nix::sys::prctl::set_no_new_privs;
use seccompiler::BpfProgram;

use crate::system::{self, Call, Given, Listening};
use crate::{ConfinementError, apply, calls};

/// Stack of the thread that tries what the kernel can do.
const STACK: usize = 64 << 10;

/// The child's part, prepared before the fork.
#[derive(Debug)]
pub(crate) enum Answered {
    /// The parent answers the calls. The listener is sent over this socket.
    Asking(BpfProgram, Listening, OwnedFd),
    /// There can be no listener here: `connect` is refused, and the other calls are the kernel's.
    Refusing(BpfProgram),
}

impl Answered {
    pub(crate) fn new(what: &'static str) -> Result<(Self, Option<Expected>), ConfinementError> {
        let refused = |source| ConfinementError::Calls { what, source };
        let asking = calls::asking().map_err(refused)?;
        let Some(listening) = tried(&asking) else {
            tracing::info!(
                what,
                "its calls for sockets cannot be answered here: a guest moves over one connection"
            );
            return Ok((Self::Refusing(calls::refusing().map_err(refused)?), None));
        };
        let (ours, theirs) = UnixStream::pair().map_err(|source| ConfinementError::Enter { what, source })?;
        Ok((Self::Asking(asking, listening, theirs.into()), Some(Expected(ours.into()))))
    }

    /// Neither allocates nor locks.
    pub(crate) fn enter(&self) -> io::Result<()> {
        match self {
            Self::Asking(asking, listening, parent) => {
                system::send(parent, &system::listen(asking, *listening)?)
            }
            Self::Refusing(refusing) => apply(refusing),
        }
    }
}

/// How there can be a listener that gives the caller descriptors: not if the kernel is too old, or if the container runtime has a
/// listener of its own, beside which there is no other. A thread tries it: a filter is for ever, but only its thread has it.
fn tried(asking: &BpfProgram) -> Option<Listening> {
    thread::scope(|scope| {
        let attempt = move || {
            set_no_new_privs().ok()?;
            [Listening::UntilKilled, Listening::UntilSignalled].into_iter().find(|listening| {
                system::listen(asking, *listening).is_ok_and(|listener| system::can_give(&listener))
            })
        };
        thread::Builder::new().stack_size(STACK).spawn_scoped(scope, attempt).ok()?.join().ok()?
    })
}

/// Where the listener of a child arrives.
#[derive(Debug)]
pub struct Expected(OwnedFd);

impl Expected {
    /// The calls of the child, once it has been started. `None` if it was not.
    #[must_use]
    pub fn arrived(self) -> Option<SocketCalls> {
        system::receive(&self.0).map(SocketCalls)
    }
}

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// `connect`.
    Connect,
    /// `listen`, with the caller's number of the socket.
    Listen(u32),
    /// `accept` or `accept4`, with the caller's number of the socket.
    Accept(u32),
}

impl Asked {
    /// `None` if the filter does not ask for this call.
    const fn of(call: &Call) -> Option<Self> {
        match call.number {
            libc::SYS_connect => Some(Self::Connect),
            libc::SYS_listen => Some(Self::Listen(call.socket)),
            libc::SYS_accept | libc::SYS_accept4 => Some(Self::Accept(call.socket)),
            _ => None,
        }
    }
}

/// What a call is answered with.
#[derive(Debug)]
pub enum Answer {
    /// It fails.
    Refused,
    /// The kernel does what it does for everybody.
    Usual,
    /// A copy of this takes the place of the caller's socket, and the call has succeeded.
    InPlace(OwnedFd),
    /// The call returns a copy of this.
    Returned(OwnedFd),
}

/// Calls for sockets of a process. When this is dropped they fail.
#[derive(Debug)]
pub struct SocketCalls(OwnedFd);

impl SocketCalls {
    /// Waits for the next call and answers it. Returns whether there may be more: not once the process and all its children have
    /// ended. A signal at the wrong moment would spoil an answer: the calling thread should block all signals.
    ///
    /// # Errors
    /// If the kernel gives no more calls.
    pub fn answer(&self, answer: impl FnOnce(Asked) -> Answer) -> io::Result<bool> {
        if !system::wait(&self.0)? {
            return Ok(false);
        }
        // The caller may have ended.
        let Some(call) = system::take(&self.0)? else { return Ok(true) };
        let answer = Asked::of(&call).map_or(Answer::Refused, answer);
        let given = match answer {
            Answer::Refused => Err(Errno::EPERM),
            Answer::Usual => {
                system::leave(&self.0, &call)?;
                return Ok(true);
            }
            Answer::InPlace(descriptor) => system::give(&self.0, &call, &descriptor, Given::InPlace),
            Answer::Returned(descriptor) => {
                match system::give(&self.0, &call, &descriptor, Given::Returned) {
                    // This was the answer, too.
                    Ok(()) => return Ok(true),
                    refused => refused,
                }
            }
        };
        system::answer(&self.0, &call, given.err())?;
        Ok(true)
    }
}
