//! What a process gives up for good: files that it may not open, sockets that it may not reach, system calls that it may not
//! make.
//!
//! A [`Domain`] is planned from a [`Plan`], which is data, made while memory may still be allocated, and entered by the thread
//! that asks, or by a child between fork and exec. There is no way out of it, and every child is in it too.
//!
//! - [`files`]: what may be opened, by Landlock. A kernel without it, or with an older one, confines less; that is logged.
//! - [`calls`]: what may be asked of the kernel, by seccomp. What is not allowed fails with an errno and kills nobody.

pub mod calls;
pub mod files;
mod system;

use std::io;
use std::os::fd::OwnedFd;

use seccompiler::BpfProgram;

pub use calls::Calls;
pub use files::{Files, May, Place, Rule};

/// All that a process is to keep.
#[derive(Debug, Default)]
pub struct Plan {
    /// The files; none: as before.
    pub files: Option<Files>,
    /// The system calls.
    pub calls: Calls,
}

/// A process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The kernel has Landlock, and refuses the rules.
    #[error("cannot make the rules for files of {what}")]
    Files {
        /// Whom they are for.
        what: &'static str,
        /// Why.
        source: Box<landlock::RulesetError>,
    },
    /// The filter of system calls cannot be made.
    #[error("cannot make the filter of system calls of {what}")]
    Calls {
        /// Whom it is for.
        what: &'static str,
        /// Why.
        source: seccompiler::BackendError,
    },
    /// The kernel does not take it.
    #[error("cannot enter the confinement of {what}")]
    Enter {
        /// Whom it is for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A confinement, ready to be entered.
#[derive(Debug)]
pub struct Domain {
    what: &'static str,
    ruleset: Option<OwnedFd>,
    filters: Vec<BpfProgram>,
}

impl Domain {
    /// Makes ready what the plan says for `what`, a name for people.
    ///
    /// # Errors
    /// When the kernel could and does not.
    pub fn new(what: &'static str, plan: Plan) -> Result<Self, ConfinementError> {
        let ruleset = plan.files.map(|files| files::ruleset(what, files)).transpose();
        let ruleset =
            ruleset.map_err(|source| ConfinementError::Files { what, source: Box::new(source) })?.flatten();
        let filters =
            calls::filters(plan.calls).map_err(|source| ConfinementError::Calls { what, source })?;
        Ok(Self { what, ruleset, filters })
    }

    /// Confines this thread, and whatever it starts from here on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(self) -> Result<(), ConfinementError> {
        self.enter_in_child().map_err(|source| ConfinementError::Enter { what: self.what, source })
    }

    /// The same for a child between fork and exec: a few system calls, nothing else.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter_in_child(&self) -> io::Result<()> {
        nix::sys::prctl::set_no_new_privs()?;
        if let Some(ruleset) = &self.ruleset {
            system::restrict_self(ruleset)?;
        }
        self.filters.iter().try_for_each(|filter| match seccompiler::apply_filter(filter) {
            Ok(()) => Ok(()),
            Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error)) => Err(error),
            Err(_) => Err(nix::errno::Errno::EINVAL.into()),
        })
    }
}

/// Takes this process out of reach for others of its user: no debugger attaches to it, nobody reads its memory or its
/// descriptors in /proc, and no core file of it is written. Programs that it executes are within reach as before.
///
/// # Errors
/// When the kernel refuses.
pub fn hide_memory() -> io::Result<()> {
    nix::sys::prctl::set_dumpable(false).map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
