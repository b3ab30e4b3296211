//! Confinement of the processes in a pod. The launcher, its QEMU and its swtpm have the same user and see the
//! same files, so each is confined: a guest that breaks out of QEMU reaches QEMU's own files and nothing else
//! of the pod.
//!
//! | who | reads | writes | executes | connects |
//! |---|---|---|---|---|
//! | launcher | all | the pod's own directories, claims, state, devices | programs of the image | to unix sockets |
//! | QEMU | programs and firmware, /proc, /sys, its disks | its disks, its devices | programs of the image | to what the launcher gives it |
//! | swtpm | programs, /proc | its state | programs of the image | to nothing |
//!
//! When QEMU calls `connect`, the launcher answers: while a guest leaves over several connections, the next of them takes the place of
//! QEMU's socket. At all other times, and once they are used up, the call is refused.
//!
//! None of them can signal a process outside, be a TCP client or server, or make the system calls that
//! [`Calls`] refuses. QEMU and swtpm are within the launcher's confinement too, so the launcher must have
//! every right that a child has.
//!
//! Some rules are looser than they could be. QEMU reads all of /proc and /sys, because it finds devices of
//! the host there; secrets of other processes are only visible there to processes that may trace them. It may
//! execute programs of the image, because its own loader counts as one; its sandbox prevents it from starting
//! any. The launcher reads everything, because a kernel from a user's image is a file of another container,
//! which no path here leads to.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use barevirt_confinement::{Calls, ConfinementError, Domain, Files, May, Plan, Rule};
use barevirt_machine::{FileSource, VolumeFacts};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::args::Args;
use crate::migration::qemu::USERFAULTFD;
use crate::process::Command;
use crate::supervisor::Launch;

/// Directories of programs and their libraries in an image of Debian, whether /bin is a link or not.
const PROGRAMS: [&str; 4] = ["/usr", "/lib", "/lib64", "/bin"];

/// Devices that programs expect.
const PLAIN: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Devices of the node, which a pod only has if they were assigned to it, for QEMU. Devices that the handler
/// opened come as descriptors; a driver reopens the files of a device that is passed through.
const OF_THE_NODE: [&str; 5] = ["/dev/kvm", "/dev/vhost-net", "/dev/vfio", "/dev/bus/usb", USERFAULTFD];

/// Confines this process, which is the launcher.
///
/// # Errors
/// If the kernel supports the confinement but refuses it.
pub fn enter(args: &Args) -> Result<(), ConfinementError> {
    let files = Some(Files { reads_all: true, tcp: false, rules: of_launcher(args) });
    Domain::new("the launcher", Plan { files, calls: Calls::Usual })?.enter()
}

fn of_launcher(args: &Args) -> Vec<Rule> {
    let mut rules = programs(&[&args.qemu, &args.swtpm]);
    let sockets_of_disks = args.container_disks.parent().unwrap_or(Path::new("/"));
    let written: [&Path; 6] = [
        &args.sockets,
        &args.private,
        &args.ephemeral_disks,
        &args.claims.directories,
        &args.state,
        sockets_of_disks,
    ];
    rules.extend(written.map(|path| Rule::path(May::Write, path)));
    rules.extend([Path::new("/dev"), &args.termination_log].map(|path| Rule::path(May::Use, path)));
    rules
}

/// Why QEMU or swtpm cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum NotConfined {
    /// A directory of QEMU cannot be made.
    #[error("cannot make {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The kernel refuses.
    #[error(transparent)]
    Confinement(#[from] ConfinementError),
}

/// Confines QEMU and swtpm to their own files, before they start.
///
/// # Errors
/// If QEMU's directories cannot be made, or the kernel refuses.
pub fn children(
    args: &Args,
    sockets: PathBuf,
    disks: &[Disk],
    launch: &mut Launch,
) -> Result<(), NotConfined> {
    let own = Directories { sockets, keys: launch.keys.clone() };
    // The rules need existing directories.
    for path in [&own.sockets, &own.keys] {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| NotConfined::Directory { path: path.clone(), source })?;
    }
    launch.command.domain = Some(qemu(args, &own, disks, &launch.command)?);
    if let Some(command) = &mut launch.tpm {
        command.domain = Some(tpm(args, command)?);
    }
    Ok(())
}

/// QEMU's confinement. Its disks are those of `disks` and the files that `command` passes as descriptors.
///
/// # Errors
/// If no descriptors are left, or the kernel refuses.
pub fn qemu(
    args: &Args,
    own: &Directories,
    disks: &[Disk],
    command: &Command,
) -> Result<Domain, ConfinementError> {
    let mut rules = programs(&[&args.qemu]);
    rules.extend([Path::new("/etc"), Path::new("/proc"), Path::new("/sys"), &args.ovmf].map(read));
    rules.extend(PLAIN.iter().chain(&OF_THE_NODE).map(|path| Rule::path(May::Use, path)));
    rules.push(Rule::path(May::Listen, &own.sockets));
    rules.push(Rule::path(May::Read, &own.keys));
    rules.extend(disks.iter().map(|disk| Rule::path(disk.may, &disk.path)));
    // QEMU reopens kernels, tables and variables by their descriptor numbers.
    rules.extend(command.descriptors.iter().filter_map(|(_, descriptor)| again(descriptor.as_fd())));
    let files = Some(Files { reads_all: false, tcp: false, rules });
    Domain::new("QEMU", Plan { files, calls: Calls::Answered })
}

/// swtpm's confinement: programs, and its state directory.
///
/// # Errors
/// If the kernel refuses.
pub fn tpm(args: &Args, command: &Command) -> Result<Domain, ConfinementError> {
    let mut rules = helper(&args.swtpm);
    rules.extend(command.descriptors.iter().filter_map(|(_, descriptor)| again(descriptor.as_fd())));
    let files = Some(Files { reads_all: false, tcp: false, rules });
    Domain::new("swtpm", Plan { files, calls: Calls::Connected })
}

/// Rules for a program of the image beside QEMU, with the settings and devices that programs expect.
pub(crate) fn helper(program: &PathBuf) -> Vec<Rule> {
    let mut rules = programs(&[program]);
    rules.extend(["/etc", "/proc"].map(read));
    rules.extend(PLAIN.map(|path| Rule::path(May::Use, path)));
    rules
}

/// Rules for programs of the image, and for these files.
fn programs(named: &[&PathBuf]) -> Vec<Rule> {
    let run = |path: &Path| Rule::path(May::Run, path);
    PROGRAMS.iter().map(|path| run(Path::new(path))).chain(named.iter().map(|path| run(path))).collect()
}

fn read(path: impl AsRef<Path>) -> Rule {
    Rule::path(May::Read, path.as_ref())
}

/// QEMU's directories below the launcher's own directory; it uses nothing else there.
#[derive(Debug)]
pub struct Directories {
    /// Directory in which it makes its sockets.
    pub sockets: PathBuf,
    /// Directory in which it reads the key of a migration, which is written when there is one.
    pub keys: PathBuf,
}

/// A disk that QEMU opens by its path.
#[derive(Debug, PartialEq, Eq)]
pub struct Disk {
    path: PathBuf,
    may: May,
}

/// The disks among these volumes that QEMU opens by their paths.
#[must_use]
pub fn disks(volumes: &[VolumeFacts]) -> Vec<Disk> {
    let disk = |source: &FileSource, may| match source {
        FileSource::Path(path) | FileSource::BlockDevice(path) => Some(Disk { path: path.into(), may }),
        FileSource::FdSet(_) | FileSource::DeviceFdSet(_) => None,
    };
    let of = |volume: &VolumeFacts| {
        let own = disk(&volume.source, if volume.read_only { May::Read } else { May::Use });
        own.into_iter().chain(volume.overlay.as_ref().and_then(|overlay| disk(overlay, May::Use)))
    };
    volumes.iter().flat_map(of).collect()
}

/// A rule for an open file that has a place in a file system; for a directory, a rule to write files there.
fn again(given: BorrowedFd<'_>) -> Option<Rule> {
    let look = || -> io::Result<Option<(OwnedFd, May)>> {
        let copy = File::from(given.try_clone_to_owned()?);
        let kind = copy.metadata()?.file_type();
        let flags = OFlag::from_bits_retain(fcntl(&copy, FcntlArg::F_GETFL)?);
        let may = match flags & OFlag::O_ACCMODE {
            _ if kind.is_dir() => May::Write,
            OFlag::O_RDONLY => May::Read,
            _ => May::Use,
        };
        let has_place = kind.is_dir() || kind.is_file() || is_device(&kind);
        Ok(has_place.then(|| (copy.into(), may)))
    };
    match look() {
        Ok(found) => found.map(|(descriptor, may)| Rule::open(may, descriptor)),
        Err(error) => {
            tracing::debug!(%error, "a descriptor has no rule");
            None
        }
    }
}

fn is_device(kind: &std::fs::FileType) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    kind.is_block_device() || kind.is_char_device()
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_machine::{Cache, ImageFormat};

    #[test]
    fn a_volume_is_written_where_it_or_its_overlay_is() {
        let path = |name: &str| FileSource::Path(name.to_owned());
        let volume = |source, read_only, overlay| VolumeFacts {
            name: "v".to_owned(),
            source,
            format: ImageFormat::Raw,
            read_only,
            overlay,
            cache: Cache::Disposable,
            thick: false,
            blocks: None,
        };
        let volumes = [
            volume(FileSource::FdSet(1), true, Some(path("/over"))),
            volume(path("/read"), true, None),
            volume(FileSource::BlockDevice("/dev/data".to_owned()), false, None),
        ];
        let told: Vec<_> =
            disks(&volumes).into_iter().map(|disk| (disk.path.display().to_string(), disk.may)).collect();
        let told: Vec<_> = told.iter().map(|(path, may)| (path.as_str(), *may)).collect();
        assert_eq!(told, [("/over", May::Use), ("/read", May::Read), ("/dev/data", May::Use)]);
    }

    #[test]
    fn a_given_open_file_may_be_reopened_with_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let may = |file: &dyn AsFd| again(file.as_fd()).map(|rule| rule.may);
        assert_eq!(may(&File::open(&path).unwrap()), Some(May::Read));
        assert_eq!(may(&File::options().read(true).write(true).open(&path).unwrap()), Some(May::Use));
        assert_eq!(may(&File::open(directory.path()).unwrap()), Some(May::Write));
        assert_eq!(may(&std::os::unix::net::UnixStream::pair().unwrap().0), None);
    }
}
