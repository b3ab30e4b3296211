//! What the launcher says of its VM, whole, on a watch.

use std::time::SystemTime;

use crate::lifecycle::{Pause, Phase};
use crate::migration::Told;

/// Where the VM is in its life, as told to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// What it takes to start is not complete.
    #[default]
    Waiting,
    /// QEMU is being started.
    Starting,
    /// vCPUs run.
    Running,
    /// vCPUs stand still.
    Paused,
    /// On the way out.
    Stopping,
    /// Ended as it should.
    Succeeded,
    /// Ended otherwise.
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
            Phase::Ended(verdict) if verdict.succeeded => Self::Succeeded,
            Phase::Ended(_) => Self::Failed,
        }
    }
}

/// Why vCPUs stand still, as told to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paused {
    /// Somebody asked for it.
    ByUser,
    /// A disk could not be read or written.
    ByIoError,
}

impl Paused {
    /// Of a phase; nothing where they run, or are about to for the first time.
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

/// What is known of the VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Where it is in its life.
    pub stage: Stage,
    /// One CamelCase word, for the end.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The monitor answered its first command, and still can.
    pub ready: bool,
    /// QEMU's process id, 0 while there is none.
    pub qemu_pid: u32,
    /// QEMU's version, empty before it answered.
    pub qemu_version: String,
    /// Machine type as QEMU resolved it, empty before.
    pub machine_type: String,
    /// The guest agent's channel is open in the guest.
    pub agent_connected: bool,
    /// When vCPUs first ran.
    pub running_since: Option<SystemTime>,
    /// Why they stand still.
    pub paused: Option<Paused>,
    /// How often they went on after they had stood still.
    pub resumes: u64,
    /// The handler is to make virtual CPUs realtime; the guest is let go after that.
    pub awaits_real_time: bool,
    /// Its last migration.
    pub migration: Option<Told>,
}
