//! Files by Landlock (landlock(7)). A rule is about what a path leads to now and about all beneath it; what has no rule is
//! refused, also by another name. Descriptors that are open already stay of use.
//!
//! Rights that a kernel does not know yet are not asked of it. So a rule must never be the only thing that keeps something
//! safe where [`Calls`](crate::Calls) can do the same.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};

/// The youngest version whose rights are known here.
const KNOWN: ABI = ABI::V9;

/// What may be done with a file, or beneath a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Read, and list.
    Read,
    /// Read, list, and execute.
    Run,
    /// Read and write what is there already: a disk, a device.
    Use,
    /// Everything but to execute and to make devices.
    Write,
    /// Make and remove sockets.
    Listen,
}

impl May {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::Run => read | AccessFs::Execute,
            Self::Use => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
            Self::Write => {
                AccessFs::from_all(KNOWN) & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock)
            }
            Self::Listen => AccessFs::MakeSock | AccessFs::RemoveFile,
        }
    }
}

/// What a rule is about.
#[derive(Debug)]
pub enum Place {
    /// By its name; one that is not there has no rule.
    Path(PathBuf),
    /// Open already. It may be where no path of this process leads.
    Open(OwnedFd),
}

/// A place and what may be done there.
#[derive(Debug)]
pub struct Rule {
    /// The place.
    pub place: Place,
    /// What may be done there.
    pub may: May,
}

impl Rule {
    /// A rule for a path.
    #[must_use]
    pub fn path(may: May, path: impl Into<PathBuf>) -> Self {
        Self { place: Place::Path(path.into()), may }
    }

    /// A rule for something open.
    #[must_use]
    pub fn open(may: May, descriptor: OwnedFd) -> Self {
        Self { place: Place::Open(descriptor), may }
    }
}

/// What may be opened. In any case no process outside is sent a signal.
#[derive(Debug)]
pub struct Files {
    /// Whatever may be read at all may be read on, and sockets connected to: only the other rights need a rule.
    pub reads_all: bool,
    /// TCP ports may be bound and connected to.
    pub tcp: bool,
    /// What may be done where.
    pub rules: Vec<Rule>,
}

/// The rules as the kernel holds them; none where it has no Landlock.
pub(crate) fn ruleset(what: &str, files: Files) -> Result<Option<OwnedFd>, RulesetError> {
    let mut handled = AccessFs::from_all(KNOWN);
    if files.reads_all {
        handled &= !(AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::ResolveUnix);
    }
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(handled)?;
    if !files.tcp {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let mut ruleset = ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()?;
    for Rule { place, may } in files.rules {
        add(&mut ruleset, &place, may.rights() & handled);
    }
    let descriptor = Option::<OwnedFd>::from(ruleset);
    if descriptor.is_none() {
        tracing::info!(what, "this kernel has no Landlock: any file of the container may be opened");
    }
    Ok(descriptor)
}

/// What cannot have a rule goes without: less may be done, never more.
fn add(ruleset: &mut RulesetCreated, place: &Place, rights: BitFlags<AccessFs>) {
    let added = match place {
        _ if rights.is_empty() => return,
        Place::Path(path) => {
            // It is not there.
            let Ok(descriptor) = PathFd::new(path) else { return };
            ruleset.add_rule(PathBeneath::new(descriptor, rights)).map(drop)
        }
        // Sockets and memory have no place in a file system, and need none.
        Place::Open(descriptor) => ruleset.add_rule(PathBeneath::new(descriptor.as_fd(), rights)).map(drop),
    };
    if let Err(error) = added {
        tracing::debug!(%error, ?place, "no rule");
    }
}
