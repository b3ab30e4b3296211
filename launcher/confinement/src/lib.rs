//! Irrevocable restrictions of a process: files that it may not open, sockets that it may not reach, system
//! calls that it may not make.
//!
//! A [`Domain`] is made from a [`Plan`], which is data, while memory may still be allocated. The calling
//! thread enters it, or a child between fork and exec. A process cannot leave it, and its children are in it
//! as well.
//!
//! - [`files`]: files that may be opened, by Landlock. A kernel without Landlock, or with an older version,
//!   restricts less; this is logged.
//! - [`calls`]: system calls that may be made, by seccomp. A refused call fails with an errno and does not
//!   kill the process.
//! - [`sockets`]: the connections of a process that can connect to nothing by itself.

pub mod calls;
pub mod files;
pub mod sockets;
mod system;

use std::io;
use std::os::fd::OwnedFd;

use seccompiler::{BpfProgram, BpfProgramRef};

pub use calls::Calls;
pub use files::{Files, May, Place, Rule};
use sockets::Answered;
pub use sockets::{Answer, Asked, Expected, SocketCalls};

/// All rights that a process keeps.
#[derive(Debug, Default)]
pub struct Plan {
    /// The files; `None` means no restriction.
    pub files: Option<Files>,
    /// The system calls.
    pub calls: Calls,
}

/// Why a process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The kernel has Landlock but refuses the rules.
    #[error("cannot make the rules for files of {what}")]
    Files {
        /// The process.
        what: &'static str,
        /// Why.
        source: Box<landlock::RulesetError>,
    },
    /// The filter of system calls cannot be made.
    #[error("cannot make the filter of system calls of {what}")]
    Calls {
        /// The process.
        what: &'static str,
        /// Why.
        source: seccompiler::BackendError,
    },
    /// The kernel refuses the confinement.
    #[error("cannot enter the confinement of {what}")]
    Enter {
        /// The process.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// A confinement, ready to be entered.
#[derive(Debug)]
pub struct Domain {
    what: &'static str,
    ruleset: Option<OwnedFd>,
    filters: Vec<BpfProgram>,
    answered: Option<Answered>,
    expected: Option<Expected>,
}

impl Domain {
    /// Prepares the plan for `what`, a name for users.
    ///
    /// # Errors
    /// If the kernel supports the confinement but refuses it.
    pub fn new(what: &'static str, plan: Plan) -> Result<Self, ConfinementError> {
        let ruleset = plan.files.map(|files| files::ruleset(what, files)).transpose();
        let ruleset =
            ruleset.map_err(|source| ConfinementError::Files { what, source: Box::new(source) })?.flatten();
        let filters =
            calls::filters(plan.calls).map_err(|source| ConfinementError::Calls { what, source })?;
        let (answered, expected) = match plan.calls {
            Calls::Answered => {
                let (answered, expected) = Answered::new(what)?;
                (Some(answered), expected)
            }
            Calls::Usual | Calls::Connected | Calls::AsIfSandboxed | Calls::HandOver => (None, None),
        };
        Ok(Self { what, ruleset, filters, answered, expected })
    }

    /// Where the calls of a child arrive that [`Calls::Answered`] lets its parent answer; taken once, before the child is started.
    /// `None` with other calls, and where nobody can answer them.
    pub fn expected(&mut self) -> Option<Expected> {
        self.expected.take()
    }

    /// Confines this thread, and everything that it starts from now on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enter(self) -> Result<(), ConfinementError> {
        self.enter_in_child().map_err(|source| ConfinementError::Enter { what: self.what, source })
    }

    /// The same for a child between fork and exec: it only makes a few system calls.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enter_in_child(&self) -> io::Result<()> {
        nix::sys::prctl::set_no_new_privs()?;
        if let Some(ruleset) = &self.ruleset {
            system::restrict_self(ruleset)?;
        }
        self.filters.iter().try_for_each(|filter| apply(filter))?;
        self.answered.as_ref().map_or(Ok(()), Answered::enter)
    }
}

/// Filters the calls of this thread.
fn apply(filter: BpfProgramRef<'_>) -> io::Result<()> {
    match seccompiler::apply_filter(filter) {
        Ok(()) => Ok(()),
        Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error)) => Err(error),
        Err(_) => Err(nix::errno::Errno::EINVAL.into()),
    }
}

/// Protects this process from other processes of its user: no debugger can attach to it, no process can read
/// its memory or its descriptors in /proc, and no core file of it is written. Programs that it executes are
/// not protected.
///
/// # Errors
/// If the kernel refuses.
pub fn hide_memory() -> io::Result<()> {
    nix::sys::prctl::set_dumpable(false).map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
