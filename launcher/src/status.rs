//! The launcher's complete status of its VM, on a watch channel.

use std::time::SystemTime;

use crate::lifecycle::{Pause, Phase};
use crate::migration::MigrationReport;

/// The stage of the VM's life, as published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// Something that the start needs is missing.
    #[default]
    Waiting,
    /// QEMU is being started.
    Starting,
    /// vCPUs run.
    Running,
    /// vCPUs are paused.
    Paused,
    /// It is stopping.
    Stopping,
    /// It ended as intended.
    Succeeded,
    /// It ended unexpectedly.
    Failed,
}

impl From<&Phase> for Stage {
    fn from(phase: &Phase) -> Self {
        match phase {
            Phase::Waiting => Self::Waiting,
            Phase::Starting | Phase::Paused(Pause::Incoming) => Self::Starting,
            Phase::Paused(_) => Self::Paused,
            Phase::Running => Self::Running,
            Phase::Stopping(_) => Self::Stopping,
            Phase::Ended(end) if end.succeeded => Self::Succeeded,
            Phase::Ended(_) => Self::Failed,
        }
    }
}

/// Why vCPUs are paused, as published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paused {
    /// A user paused them.
    ByUser,
    /// A disk could not be read or written.
    ByIoError,
}

impl Paused {
    /// The reason in a phase; `None` if vCPUs run, or are about to run for the first time.
    #[must_use]
    pub fn of(phase: &Phase) -> Option<Self> {
        match phase {
            Phase::Paused(Pause::User) => Some(Self::ByUser),
            Phase::Paused(Pause::Storage { .. }) => Some(Self::ByIoError),
            Phase::Paused(Pause::Start | Pause::Incoming)
            | Phase::Waiting
            | Phase::Starting
            | Phase::Running
            | Phase::Stopping(_)
            | Phase::Ended(_) => None,
        }
    }
}

/// Published state of the VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The stage of its life.
    pub stage: Stage,
    /// One CamelCase word, for the end.
    pub reason: String,
    /// A sentence for users.
    pub message: String,
    /// Whether the monitor has answered its first command and is still open.
    pub ready: bool,
    /// QEMU's process id; 0 if there is none.
    pub qemu_pid: u32,
    /// QEMU's version; empty before it answered.
    pub qemu_version: String,
    /// Machine type as QEMU resolved it; empty before it answered.
    pub machine_type: String,
    /// Whether the guest agent's channel is open in the guest.
    pub agent_connected: bool,
    /// When vCPUs first ran.
    pub running_since: Option<SystemTime>,
    /// Why they are paused.
    pub paused: Option<Paused>,
    /// How often they were resumed after a pause.
    pub resumes: u64,
    /// Whether the handler must make virtual CPUs realtime before the guest runs.
    pub awaits_real_time: bool,
    /// Its last migration.
    pub migration: Option<MigrationReport>,
    /// Most connections for memory that a migration may have in addition to the first one.
    pub memory_channels: u8,
}
