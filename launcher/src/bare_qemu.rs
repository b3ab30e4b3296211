//! A QEMU without a machine, for queries. It takes some forty milliseconds to answer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;

use nix::sys::signal::Signal;
use tokio::net::UnixStream;

use crate::process::{Command, Process, SpawnError};

/// Descriptor numbers of QEMU's monitor and of /dev/kvm.
const MONITOR: i32 = 3;
const KVM: i32 = 4;

/// The accelerator that runs a guest's instructions.
#[derive(Debug)]
pub enum Accelerator {
    /// KVM, with /dev/kvm as this process got it; without it QEMU opens the device.
    Kvm(Option<OwnedFd>),
    /// QEMU itself.
    Tcg,
}

/// QEMU could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No descriptors are left.
    #[error("cannot make a socket")]
    Socket(#[source] io::Error),
    /// It cannot be executed.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// A running QEMU.
#[derive(Debug)]
pub struct BareQemu(Process);

impl BareQemu {
    /// Starts QEMU; also returns its monitor, on which nothing was sent yet.
    ///
    /// # Errors
    /// If the program does not exist.
    pub fn start(qemu: &Path, accelerator: Accelerator) -> Result<(Self, UnixStream), StartError> {
        let (ours, theirs) = StdStream::pair().map_err(StartError::Socket)?;
        ours.set_nonblocking(true).map_err(StartError::Socket)?;
        let ours = UnixStream::from_std(ours).map_err(StartError::Socket)?;
        let mut arguments: Vec<String> = [
            "-machine none -nodefaults -no-user-config -S -display none",
            "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            &format!("-chardev socket,id=monitor,fd={MONITOR} -mon chardev=monitor,mode=control"),
        ]
        .iter()
        .flat_map(|line| line.split(' '))
        .map(str::to_owned)
        .collect();
        let mut descriptors = vec![(MONITOR, OwnedFd::from(theirs))];
        let accelerator = match accelerator {
            Accelerator::Tcg => "tcg",
            Accelerator::Kvm(None) => "kvm",
            Accelerator::Kvm(Some(device)) => {
                arguments.extend(["-add-fd".to_owned(), format!("fd={KVM},set=1")]);
                descriptors.push((KVM, device));
                "kvm,device=/dev/fdset/1"
            }
        };
        arguments.extend(["-accel".to_owned(), accelerator.to_owned()]);
        let command = Command { program: qemu.to_owned(), arguments, descriptors, domain: None };
        let process = Process::spawn(command)?;
        Ok((Self(process), ours))
    }

    /// Ends QEMU; returns its last output.
    pub async fn end(mut self) -> String {
        self.0.signal(Signal::SIGKILL);
        self.0.exited().await;
        self.0.tail().last_lines()
    }
}
