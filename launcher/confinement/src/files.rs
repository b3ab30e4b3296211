//! Files by Landlock (landlock(7)). A rule applies to the file that a path leads to now, and to everything
//! below it. Access without a rule is refused, whatever name is used. Descriptors that are already open stay
//! usable.
//!
//! Rights that a kernel does not know yet are not restricted. So a rule must not be the only protection if
//! [`Calls`](crate::Calls) can provide the same one.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};

/// The newest version whose rights are known here.
const KNOWN: ABI = ABI::V9;

/// Permitted access to a file, or below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Read, and list.
    Read,
    /// Read, list, and execute.
    Run,
    /// Read and write existing files: a disk, a device.
    Use,
    /// Everything except executing and making devices.
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

/// The file of a rule.
#[derive(Debug)]
pub enum Place {
    /// A path; without an existing file there is no rule.
    Path(PathBuf),
    /// An open file. It may be unreachable by paths of this process.
    Open(OwnedFd),
}

/// A file and the permitted access.
#[derive(Debug)]
pub struct Rule {
    /// The file.
    pub place: Place,
    /// The permitted access.
    pub may: May,
}

impl Rule {
    /// A rule for a path.
    #[must_use]
    pub fn path(may: May, path: impl Into<PathBuf>) -> Self {
        Self { place: Place::Path(path.into()), may }
    }

    /// A rule for an open file.
    #[must_use]
    pub fn open(may: May, descriptor: OwnedFd) -> Self {
        Self { place: Place::Open(descriptor), may }
    }
}

/// Files that may be opened. In any case the process can signal no process outside.
#[derive(Debug)]
pub struct Files {
    /// Whether all files may still be read and all sockets connected to, so that only other rights need a
    /// rule.
    pub reads_all: bool,
    /// Whether TCP ports may be bound and connected to.
    pub tcp: bool,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// The rules as a kernel object; `None` if the kernel has no Landlock.
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

/// A file that cannot have a rule gets none: this can only restrict more, never less.
fn add(ruleset: &mut RulesetCreated, place: &Place, rights: BitFlags<AccessFs>) {
    let added = match place {
        _ if rights.is_empty() => return,
        Place::Path(path) => {
            // The file does not exist.
            let Ok(descriptor) = PathFd::new(path) else { return };
            ruleset.add_rule(PathBeneath::new(descriptor, rights)).map(drop)
        }
        // Sockets and memory files are in no file system, and need no rule.
        Place::Open(descriptor) => ruleset.add_rule(PathBeneath::new(descriptor.as_fd(), rights)).map(drop),
    };
    if let Err(error) = added {
        tracing::debug!(%error, ?place, "no rule");
    }
}
