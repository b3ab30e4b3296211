//! QEMU, and swtpm beside it: executed with exactly the descriptors that they need. Each is waited for by
//! exactly one task.

mod reaper;
mod sockets;
mod stderr;
mod system;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

use barevirt_confinement::{Domain, Expected};
use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use reaper::reap_strangers;
pub use sockets::Offered;
pub use stderr::Tail;
pub use system::{AsInFile, may_bind_memory};

use crate::guest_end::Exit;

/// Why a child cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Two descriptors were given the same number.
    #[error("descriptor numbers for {program} collide")]
    Descriptors {
        /// The program.
        program: String,
    },
    /// The system refused.
    #[error("cannot execute {program}")]
    Execute {
        /// The program.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Its calls for sockets would have no answer.
    #[error("cannot answer the calls of {program} for sockets")]
    Calls {
        /// The program.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A program to execute. Owns the child's ends of all connections: they are closed here when it runs.
#[derive(Debug)]
pub struct Command {
    /// The program, by path or by name.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<String>,
    /// Descriptors, with the numbers that the arguments use.
    pub descriptors: Vec<(i32, OwnedFd)>,
    /// Its confinement; `None` means that of this process.
    pub domain: Option<Domain>,
}

/// A running child. It is killed if this value is dropped before the child was waited for.
#[derive(Debug)]
pub struct Process {
    child: tokio::process::Child,
    pid: u32,
    tail: Tail,
    offered: Option<Offered>,
}

impl Process {
    /// Executes the command in its own process group, so that a terminal's Ctrl-C does not reach it. It dies
    /// with this process, and its environment contains only `PATH`.
    ///
    /// # Errors
    /// If the program cannot be executed.
    pub fn spawn(command: Command) -> Result<Self, SpawnError> {
        let Command { program, arguments, descriptors, mut domain } = command;
        let expected = domain.as_mut().and_then(Domain::expected);
        let name = program.display().to_string();
        let speaker = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut qemu = tokio::process::Command::new(&program);
        qemu.args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        // This comes before its descriptors get their numbers, because one of them may be that of the domain.
        if let Some(domain) = domain {
            system::confine(&mut qemu, domain);
        }
        let mappings =
            descriptors.into_iter().map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd }).collect();
        qemu.fd_mappings(mappings).map_err(|_| SpawnError::Descriptors { program: name.clone() })?;
        system::die_with_this_process(&mut qemu);
        let executed = qemu.spawn();
        let mut child = executed.map_err(|source| SpawnError::Execute { program: name.clone(), source })?;
        let offered = expected.map(offer).transpose();
        let offered = offered.map_err(|source| SpawnError::Calls { program: name, source })?;
        let pid = child.id().unwrap_or_default();
        reaper::ours(pid);
        let tail = Tail::default();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(stderr::drain(stderr, tail.clone(), speaker));
        }
        Ok(Self { child, pid, tail, offered })
    }

    /// Where connections can be offered to it; `None` if it connects by itself, or to nothing.
    #[must_use]
    pub fn offered(&self) -> Option<&Offered> {
        self.offered.as_ref()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The end of its stderr.
    #[must_use]
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Waits until it ends. May be cancelled and called again.
    pub async fn exited(&mut self) -> Exit {
        let status = self.child.wait().await;
        reaper::no_longer_ours(self.pid);
        match status {
            Ok(status) => Exit::from(status),
            Err(error) => {
                tracing::warn!(%error, pid = self.pid, "the wait status of a child is lost");
                Exit::Signal(0)
            }
        }
    }

    /// Sends a signal, unless the child was already waited for.
    pub fn signal(&self, signal: Signal) {
        // The id is gone after the child was reaped, so the signal cannot reach another process.
        let Some(pid) = self.child.id() else { return };
        if let Err(error) = kill(Pid::from_raw(pid.cast_signed()), signal) {
            tracing::warn!(%error, %signal, pid = self.pid, "cannot signal a child");
        }
    }
}

/// Where connections are offered to a child that has started.
fn offer(expected: Expected) -> io::Result<Offered> {
    Offered::answering(expected.arrived().ok_or(io::ErrorKind::NotConnected)?)
}
