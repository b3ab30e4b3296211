//! Opens the disk inside a user's image and hands its descriptor to the launcher.
//!
//! A `containerDisk` volume is a container of the VM pod that runs the user's image. Its first process is
//! this program, which an init container has copied there. Nothing is mounted and no process outside reads
//! the image: the program opens the one disk below the image's root, sends its read-only descriptor over the
//! launcher's socket, and stays until the launcher closes the connection, so that the image is not removed
//! while the guest runs.
//!
//! ```text
//! container-disk copy DEST                                          init container: puts the program on a volume
//! container-disk serve --volume NAME --socket PATH [--path DISK]    in the user's image; of a kernel boot, two of them
//! container-disk --version                                          version, commit and time of this build
//! ```
//!
//! SIGTERM: the kubelet sends it to every container of a pod that is deleted. Before the launcher was reached it ends
//! this program. Afterwards it is ignored: the guest is being shut down and the launcher decides when that is done;
//! the end of the connection follows in any case, even when the launcher is killed.
//!
//! Exit status: 0 when the disk was handed over and the launcher closed the connection, 1 otherwise, 2 for bad
//! arguments. What went wrong is also sent to the launcher and written as the container's termination message.
//!
//! The modules, from the outside in:
//!
//! - `arguments`: the command line.
//! - `handover`: the protocol with the launcher; it sends the descriptor, and waits until the launcher closes the
//!   connection.
//! - [`container_disk`]: finds and opens the disk.

mod arguments;
mod handover;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use barevirt_confinement::{Calls, Domain, Files, May, Plan, Rule, hide_memory};

use arguments::{Command, Serve, Wanted};
use container_disk::disk::{self, DiskError};
use container_disk::release;
use handover::{HandoverError, Launcher, Message};

/// File in which the kubelet finds the reason why a container ended.
const TERMINATION_LOG: &str = "/dev/termination-log";

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            report(&error.to_string());
            return ExitCode::from(2);
        }
    };
    let result = match command {
        Command::Copy { destination } => copy(&destination).map_err(|error| error.to_string()),
        Command::Serve(serve) => run(&serve),
        Command::Version => {
            println!("container-disk {}", release::line());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            report(&text);
            ExitCode::FAILURE
        }
    }
}

/// Reports the error on stderr and, in a container, in its status.
fn report(text: &str) {
    let _ = writeln!(io::stderr(), "container-disk: {text}");
    // The file is never created: outside of a container it does not exist and is not wanted.
    if let Ok(mut log) = OpenOptions::new().write(true).open(TERMINATION_LOG) {
        let _ = log.write_all(text.as_bytes());
    }
}

/// Copies this program to `destination` atomically.
fn copy(destination: &Path) -> Result<(), CopyError> {
    let failed = |source| CopyError { destination: destination.display().to_string(), source };
    let mut name =
        destination.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?.to_owned();
    name.push(".part");
    let part = destination.with_file_name(name);
    let all = || -> io::Result<()> {
        let mut from = File::open("/proc/self/exe")?;
        let mut to = File::create(&part)?;
        io::copy(&mut from, &mut to)?;
        // The user's image may run it as any user.
        to.set_permissions(Permissions::from_mode(0o555))?;
        drop(to);
        std::fs::rename(&part, destination)
    };
    all().map_err(|source| {
        let _ = std::fs::remove_file(&part);
        failed(source)
    })
}

/// Why the program could not be copied to where the user's image finds it.
#[derive(Debug, thiserror::Error)]
#[error("copy to {destination}: {source}")]
struct CopyError {
    destination: String,
    source: io::Error,
}

/// From here on the program only reads the image, talks to the launcher and reports errors: it writes nothing
/// except the termination message, executes nothing, and makes few system calls. It is also protected from
/// programs that hand over other users' disks.
fn confine() -> Result<(), String> {
    hide_memory().map_err(|error| format!("cannot hide the memory of this process: {error}"))?;
    // The file may be anywhere in the image, so all files may be read.
    let files = Files { reads_all: true, tcp: false, rules: vec![Rule::path(May::Use, TERMINATION_LOG)] };
    let plan = Plan { files: Some(files), calls: Calls::HandOver };
    let entered = Domain::new("container-disk", plan).and_then(Domain::enter);
    entered.map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

/// Opens the disks, sends each to the launcher, and waits for its end.
fn run(serve: &Serve) -> Result<(), String> {
    confine()?;
    let given: Vec<_> = serve.files.iter().map(|file| give(serve, file)).collect();
    let mut result = Ok(());
    for (file, (launcher, error)) in serve.files.iter().zip(given) {
        let told = launcher.and_then(|launcher| launcher.wait());
        result = result.and(match (error, told) {
            // The launcher's pod reports the disk's error to the user; a failure to reach the launcher is
            // less important.
            (Some(error), _) => Err(error.to_string()),
            (None, Err(error @ HandoverError::Ended)) => Err(error.to_string()),
            (None, Err(error)) => Err(format!("volume {}: {error}", file.volume)),
            (None, Ok(())) => Ok(()),
        });
    }
    result
}

/// Opens one disk and tells the launcher; returns the connection, and why there is no disk.
fn give(serve: &Serve, file: &Wanted) -> (Result<Launcher, HandoverError>, Option<DiskError>) {
    let (message, disk, error) = match disk::open_in(&serve.root, file.path.as_deref()) {
        Ok(disk) => (Message::disk(&file.volume, &disk), Some(disk), None),
        Err(error) => (Message::error(&file.volume, &error), None, Some(error)),
    };
    let launcher = handover::connect(&serve.socket).and_then(|launcher| {
        launcher.send(&message, disk.as_ref().map(|disk| &disk.file)).map(|()| launcher)
    });
    (launcher, error)
}
