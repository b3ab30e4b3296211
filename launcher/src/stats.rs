//! Numbers for monitoring: what the kernel counts of QEMU, what QEMU counts of the machine, what the guest tells.
//!
//! ```text
//!  handler ─ Stats ─► Meter ─┬─ /proc of QEMU            at once
//!                            ├─ monitor for people       at most PATIENCE, one question at a time
//!                            ├─ pages of its memory      what was measured after the question before
//!                            └─ guest agent's last word  at once
//! ```
//!
//! The launcher's own monitor is not used, and a QEMU that hangs is not asked again before it has answered: however often
//! monitoring comes by, at most one set of questions waits in its queue.

pub mod answers;
mod dirty;
pub mod proc;

use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use barevirt_protocol::v1::{
    AgentStats, FileSystemStats, LoadStats, MachineStats, MigrationStats, StatsResponse,
};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout};

use crate::guest_agent::Facts;
use crate::migration::{Progress, State, Told};
use crate::status::Status;

/// How long whoever asks waits for QEMU.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long QEMU may take before it is asked anew.
const ANSWER: Duration = Duration::from_secs(600);
/// Seconds between two accounts of its memory that the guest is asked for, as in KubeVirt; from the first question on.
const POLLING: u32 = 10;
/// From one look at the pages of a guest to the next, however often somebody asks.
const MEASURED: Duration = Duration::from_secs(10);
/// For how long what was measured is told.
const FRESH: Duration = Duration::from_secs(300);
/// The balloon in QEMU's tree of objects.
const BALLOON: &str = "/machine/peripheral/balloon0";

/// Takes the numbers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Meter {
    people: watch::Receiver<Option<Qmp>>,
    status: watch::Receiver<Status>,
    guest: watch::Receiver<Option<Facts>>,
    asking: Arc<Mutex<Asking>>,
    written: Arc<Lock<Written>>,
}

/// What the guest writes to its memory.
#[derive(Debug, Default)]
struct Written {
    /// When a measurement was last begun.
    begun: Option<Instant>,
    /// What one gave, in bytes a second, and when.
    told: Option<(Instant, u64)>,
}

/// What is held while a question waits for its answer.
#[derive(Debug, Default)]
struct Asking {
    /// The guest tells of its memory.
    polled: bool,
}

impl Meter {
    /// Of the VM whose monitor for people, status and guest agent these are.
    #[must_use]
    pub fn new(
        people: watch::Receiver<Option<Qmp>>,
        status: watch::Receiver<Status>,
        guest: watch::Receiver<Option<Facts>>,
    ) -> Self {
        Self { people, status, guest, asking: Arc::default(), written: Arc::default() }
    }

    /// The numbers as they are now.
    pub async fn read(&self) -> StatsResponse {
        let machine = self.machine().await;
        let pid = self.status.borrow().qemu_pid;
        StatsResponse {
            process: proc::process(pid),
            machine,
            agent: self.guest.borrow().as_ref().map(agent),
            dirty_bytes_per_second: self.written(pid),
            migration: self.status.borrow().migration.as_ref().and_then(way),
        }
    }

    /// What QEMU tells, if it does in time.
    pub async fn machine(&self) -> Option<MachineStats> {
        timeout(PATIENCE, self.ask()).await.ok().flatten()
    }

    /// What was measured last. Measures anew for whoever asks next.
    fn written(&self, pid: u32) -> Option<u64> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if pid != 0 && written.begun.is_none_or(|begun| begun.elapsed() >= MEASURED) {
            written.begun = Some(Instant::now());
            let (tell, begun) = (self.written.clone(), Instant::now());
            tokio::spawn(async move {
                let rate = dirty::rate(pid).await;
                tell.lock().unwrap_or_else(PoisonError::into_inner).told = rate.map(|rate| (begun, rate));
            });
        }
        written.told.filter(|(when, _)| when.elapsed() < FRESH).map(|(_, rate)| rate)
    }

    /// What QEMU tells. Nothing while it has not answered who asked before.
    async fn ask(&self) -> Option<MachineStats> {
        let qmp = self.people.borrow().clone()?;
        let pid = self.status.borrow().qemu_pid;
        let asking = self.asking.clone().lock_owned().await;
        // Goes on when nobody waits any more: its end, not the end of patience, makes way for the next.
        let asked = tokio::spawn(machine(qmp, pid, asking));
        asked.await.ok()?.ok()
    }
}

async fn machine(monitor: Qmp, pid: u32, mut asking: OwnedMutexGuard<Asking>) -> Result<MachineStats, Error> {
    let by = Deadline::after(ANSWER);
    let threads = answers::threads(&monitor.execute_list(qmp::query_cpus_fast {}, by).await?);
    let blocks =
        answers::blocks(&monitor.execute_list(qmp::query_blockstats { query_nodes: None }, by).await?);
    let balloon = told(monitor.execute(qmp::query_balloon {}, by).await)?;
    let mut memory = None;
    if balloon.is_some() {
        if !asking.polled {
            let property = "guest-stats-polling-interval".to_owned();
            let poll = qmp::qom_set { path: BALLOON.to_owned(), property, value: POLLING.into() };
            asking.polled = told(monitor.execute(poll, by).await)?.is_some();
        }
        let which = qmp::qom_get { path: BALLOON.to_owned(), property: "guest-stats".to_owned() };
        memory = told(monitor.execute(which, by).await)?;
    }
    Ok(MachineStats {
        vcpus: threads.into_iter().filter_map(|(index, thread)| proc::vcpu(pid, thread, index)).collect(),
        blocks,
        balloon_bytes: balloon.and_then(|balloon| balloon.actual.try_into().ok()),
        memory: memory.as_ref().and_then(answers::memory),
    })
}

/// An answer, or nothing where QEMU refuses: the machine has no such device.
fn told<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Error::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn agent(facts: &Facts) -> AgentStats {
    let file_systems = facts.file_systems.iter().map(|one| FileSystemStats {
        disk: one.disk_name.clone(),
        mount_point: one.mount_point.clone(),
        r#type: one.file_system_type.clone(),
        total_bytes: one.total_bytes.try_into().unwrap_or_default(),
        used_bytes: one.used_bytes.try_into().unwrap_or_default(),
    });
    AgentStats {
        file_systems: file_systems.collect(),
        load: facts.load.map(|[one_minute, five_minutes, fifteen_minutes]| LoadStats {
            one_minute,
            five_minutes,
            fifteen_minutes,
        }),
    }
}

/// How far a guest that leaves is.
fn way(told: &Told) -> Option<MigrationStats> {
    let Progress { transferred, remaining, total, rate, dirty_rate, .. } = told.progress;
    matches!(told.state, State::Sending | State::Switching).then_some(MigrationStats {
        total_bytes: total,
        transferred_bytes: transferred,
        remaining_bytes: remaining,
        sent_bytes_per_second: rate,
        written_bytes_per_second: dirty_rate,
    })
}
