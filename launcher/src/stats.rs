//! Metrics for monitoring: the kernel's counts for QEMU, QEMU's counts for the machine, and the guest's
//! reports.
//!
//! ```text
//!  handler ─ Stats ─► Meter ─┬─ /proc of QEMU            at once
//!                            ├─ monitor for users        at most QUERY_TIMEOUT, one question at a time
//!                            ├─ pages of its memory      measured after the previous request
//!                            └─ guest agent's last report at once
//! ```
//!
//! The launcher's own monitor is not used. A QEMU that hangs is not queried again before it has answered: at
//! most one set of queries waits in its queue, however often monitoring asks.

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
use crate::migration::{MigrationReport, Progress, State};
use crate::status::Status;

/// How long a request waits for QEMU.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long QEMU may take before it is queried again.
const ANSWER: Duration = Duration::from_secs(600);
/// Usual interval of the guest's memory reports in seconds, as in KubeVirt; they start with the first request.
pub const MEMORY_REPORTS: u32 = 10;
/// Shortest interval between two measurements of a guest's pages, however often they are requested.
const MEASURED: Duration = Duration::from_secs(10);
/// How long a measurement stays valid.
const FRESH: Duration = Duration::from_secs(300);
/// The balloon in QEMU's tree of objects.
const BALLOON: &str = "/machine/peripheral/balloon0";

/// Collects the metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Meter {
    people: watch::Receiver<Option<Qmp>>,
    status: watch::Receiver<Status>,
    guest: watch::Receiver<Option<Facts>>,
    asking: Arc<Mutex<Asking>>,
    written: Arc<Lock<Written>>,
    /// Interval of the guest's memory reports in seconds; 0: there are none.
    reports: u32,
}

/// The rate at which the guest writes to its memory.
#[derive(Debug, Default)]
struct Written {
    /// When the last measurement was started.
    begun: Option<Instant>,
    /// Result of a measurement in bytes per second, and its time.
    told: Option<(Instant, u64)>,
}

/// Held while a query waits for its answer.
#[derive(Debug, Default)]
struct Asking {
    /// Whether the guest's memory reports are switched on.
    polled: bool,
}

impl Meter {
    /// A meter for the VM with this monitor for users, status and guest agent.
    #[must_use]
    pub fn new(
        people: watch::Receiver<Option<Qmp>>,
        status: watch::Receiver<Status>,
        guest: watch::Receiver<Option<Facts>>,
    ) -> Self {
        let (asking, written) = (Arc::default(), Arc::default());
        Self { people, status, guest, asking, written, reports: MEMORY_REPORTS }
    }

    /// The same with another interval of the guest's memory reports in seconds; with 0 the guest makes none.
    #[must_use]
    pub fn with_reports(self, reports: u32) -> Self {
        Self { reports, ..self }
    }

    /// The current metrics.
    pub async fn read(&self) -> StatsResponse {
        let machine = self.machine().await;
        let pid = self.status.borrow().qemu_pid;
        StatsResponse {
            process: proc::process(pid),
            machine,
            agent: self.guest.borrow().as_ref().map(agent),
            dirty_bytes_per_second: self.written(pid),
            migration: self.status.borrow().migration.as_ref().and_then(migration),
        }
    }

    /// QEMU's metrics, if it answers in time.
    pub async fn machine(&self) -> Option<MachineStats> {
        timeout(QUERY_TIMEOUT, self.ask()).await.ok().flatten()
    }

    /// The last measurement. Starts a new one for the next request.
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

    /// QEMU's metrics. `None` while an earlier query is unanswered.
    async fn ask(&self) -> Option<MachineStats> {
        let qmp = self.people.borrow().clone()?;
        let pid = self.status.borrow().qemu_pid;
        let asking = self.asking.clone().lock_owned().await;
        // The query continues even if the caller stops waiting: only its end, not the time limit, allows the
        // next query.
        let asked = tokio::spawn(machine(qmp, pid, asking, self.reports));
        asked.await.ok()?.ok()
    }
}

async fn machine(
    monitor: Qmp,
    pid: u32,
    mut asking: OwnedMutexGuard<Asking>,
    reports: u32,
) -> Result<MachineStats, Error> {
    let by = Deadline::after(ANSWER);
    let threads = answers::threads(&monitor.execute_list(qmp::query_cpus_fast {}, by).await?);
    let blocks =
        answers::blocks(&monitor.execute_list(qmp::query_blockstats { query_nodes: None }, by).await?);
    let balloon = unless_refused(monitor.execute(qmp::query_balloon {}, by).await)?;
    let mut memory = None;
    if balloon.is_some() && reports > 0 {
        if !asking.polled {
            let property = "guest-stats-polling-interval".to_owned();
            let poll = qmp::qom_set { path: BALLOON.to_owned(), property, value: reports.into() };
            asking.polled = unless_refused(monitor.execute(poll, by).await)?.is_some();
        }
        let which = qmp::qom_get { path: BALLOON.to_owned(), property: "guest-stats".to_owned() };
        memory = unless_refused(monitor.execute(which, by).await)?;
    }
    Ok(MachineStats {
        vcpus: threads.into_iter().filter_map(|(index, thread)| proc::vcpu(pid, thread, index)).collect(),
        blocks,
        balloon_bytes: balloon.and_then(|balloon| balloon.actual.try_into().ok()),
        memory: memory.as_ref().and_then(answers::memory),
    })
}

/// An answer, or `None` if QEMU refuses, because the machine has no such device.
fn unless_refused<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
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

/// Progress of an outgoing migration.
fn migration(report: &MigrationReport) -> Option<MigrationStats> {
    let Progress { transferred, remaining, total, rate, dirty_rate, .. } = report.progress;
    matches!(report.state, State::Sending | State::Switching).then_some(MigrationStats {
        total_bytes: total,
        transferred_bytes: transferred,
        remaining_bytes: remaining,
        sent_bytes_per_second: rate,
        written_bytes_per_second: dirty_rate,
    })
}
