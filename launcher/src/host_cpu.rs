//! Asks a QEMU without a machine what a guest's CPU can have here, where the manifest makes that matter.
//!
//! It takes some forty milliseconds, and only machines with KVM and the model `host-model`, with a named model, or with
//! features of their own wait for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;

use barevirt_machine::{Accelerator, CpuQuestion, HostCpu};
use barevirt_qmp::{Deadline, Error, Options, Qmp};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::process::{Command, Process, SpawnError};

/// How long all of it may take.
const WITHIN: Duration = Duration::from_secs(30);
/// Numbers that QEMU knows the monitor and /dev/kvm by.
const MONITOR: i32 = 3;
const KVM: i32 = 4;

/// QEMU did not answer.
#[derive(Debug, thiserror::Error)]
pub enum HostCpuError {
    /// No descriptors are left.
    #[error("cannot make a socket")]
    Socket(#[source] io::Error),
    /// It cannot be executed.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It ended, or refused a question.
    #[error("QEMU did not say what its CPUs can have: {source}{said}")]
    Qmp {
        /// What it said last on its way out.
        said: String,
        /// What became of the question.
        source: Error,
    },
}

/// Asks; `kvm` is /dev/kvm as this process was given it, and with KVM QEMU opens the device where there is none.
///
/// # Errors
/// When QEMU does not start or does not answer.
pub async fn ask(
    qemu: &Path,
    accelerator: &Accelerator,
    kvm: Option<OwnedFd>,
    question: &CpuQuestion,
) -> Result<HostCpu, HostCpuError> {
    let (ours, theirs) = StdStream::pair().map_err(HostCpuError::Socket)?;
    ours.set_nonblocking(true).map_err(HostCpuError::Socket)?;
    let ours = UnixStream::from_std(ours).map_err(HostCpuError::Socket)?;
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
    let accelerator = match (accelerator, kvm) {
        (Accelerator::Tcg { .. }, _) => "tcg",
        (Accelerator::Kvm { .. }, None) => "kvm",
        (Accelerator::Kvm { .. }, Some(device)) => {
            arguments.extend(["-add-fd".to_owned(), format!("fd={KVM},set=1")]);
            descriptors.push((KVM, device));
            "kvm,device=/dev/fdset/1"
        }
    };
    arguments.extend(["-accel".to_owned(), accelerator.to_owned()]);
    let mut process = Process::spawn(Command { program: qemu.to_owned(), arguments, descriptors })?;
    let answers = questions(ours, question).await;
    process.signal(Signal::SIGKILL);
    process.exited().await;
    answers.map_err(|source| {
        let last = process.tail().last_lines();
        let said = if last.is_empty() { String::new() } else { format!(": {last}") };
        HostCpuError::Qmp { said, source }
    })
}

async fn questions(monitor: UnixStream, question: &CpuQuestion) -> Result<HostCpu, Error> {
    let by = Deadline::after(WITHIN);
    let (qmp, _events) = Qmp::open(monitor, Options::default(), by).await?;
    let expansion = "query-cpu-model-expansion";
    let model = qmp.execute_raw(expansion, question.model(), by).await?;
    let offer = qmp.execute_raw(expansion, question.offer(), by).await?;
    let definitions = match question.named {
        Some(_) => qmp.execute_raw("query-cpu-definitions", Value::Null, by).await?,
        None => Value::Null,
    };
    Ok(HostCpu::of_answers(question, &model, &offer, &definitions))
}
