//! The task that talks to the guest agent: it queries regularly, freezes and thaws file systems, and sets the
//! guest's clock.
//!
//! ```text
//!  Status (channel open, guest runs, resumed) ─┐
//!  Ask (freeze, thaw, info, reboot) ───────────┼─> one task, one command at a time ─> Agent
//!  schedule, thaw timer, clock ────────────────┘          └─> Facts on a watch
//! ```
//!
//! This task thaws frozen file systems when their time is up, regardless of the client that froze them: this
//! needs neither the handler nor an API server. The guest decides what the agent answers ([`answers`]).

pub mod answers;
pub mod commands;
mod freeze;
mod learn;
pub mod schedule;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barevirt_api::v1::{
    GuestAgentCommandInfo, GuestOsInfo, VirtualMachineInstanceFileSystem,
    VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceGuestAgentInfo,
    VirtualMachineInstanceGuestOsUser,
};
use barevirt_qmp::qapi::qga;
use barevirt_qmp::quiet::Quiet;
use barevirt_qmp::{Agent, Deadline, Error};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use self::answers::Interface;
use self::schedule::{Schedule, Topic};
use crate::credentials::Kinds;
use crate::status::{Stage, Status};

/// Longest line from the agent, in bytes.
pub const MAX_LINE: usize = 1 << 20;
/// Time limit for simple queries.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest delay between two attempts to thaw.
const THAW_AGAIN: Duration = Duration::from_secs(10);
/// For how long, and how often, setting the guest's clock is tried.
const CLOCK: Duration = Duration::from_secs(60);
const CLOCK_AGAIN: Duration = Duration::from_secs(1);

/// A request to the agent.
#[derive(Debug)]
pub enum Ask {
    /// Freeze file systems, and thaw them after this time.
    Freeze {
        /// The time; zero means the default.
        thaw_after: Duration,
        /// Gets the result when they are frozen.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// Thaw file systems.
    Thaw {
        /// Gets the result when they are thawed.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// Reboot the guest.
    Reboot {
        /// Gets the result when the agent has started the reboot.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// The guest's network cards have changed, so the agent is asked for its interfaces again.
    Cards,
    /// All information about the guest.
    Info {
        /// Gets the information.
        reply: oneshot::Sender<Result<VirtualMachineInstanceGuestAgentInfo, NotDone>>,
    },
}

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// There is no agent.
    #[error("QEMU guest agent is not connected")]
    NotConnected,
    /// It is paused like the rest of the guest.
    #[error("VMI is paused")]
    Paused,
    /// Its channel is open, but it does not answer.
    #[error("the guest agent does not answer")]
    Silent,
    /// It refused, or did not answer.
    #[error("guest agent: {0}")]
    Agent(#[from] Error),
    /// It refused, since the guest's file systems are frozen.
    #[error("guest agent: {0}")]
    Frozen(#[source] Error),
}

/// Facts about the guest that are collected regularly.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Its operating system.
    pub os: GuestOsInfo,
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// Whether its file systems are frozen.
    pub frozen: bool,
    /// Why its agent lacks needed commands.
    pub unsupported: Option<&'static str>,
    /// Mounted file systems.
    pub file_systems: Vec<VirtualMachineInstanceFileSystem>,
    /// Mean number of processes that run or wait for a CPU, in one, five and fifteen minutes.
    pub load: Option<[f64; 3]>,
}

/// The agent's answers since it connected.
#[derive(Debug, Default)]
struct Known {
    os: GuestOsInfo,
    interfaces: Vec<Interface>,
    host_name: Option<String>,
    time_zone: Option<String>,
    version: Option<String>,
    commands: Vec<GuestAgentCommandInfo>,
    users: Vec<VirtualMachineInstanceGuestOsUser>,
    file_systems: Vec<VirtualMachineInstanceFileSystem>,
    frozen: Option<bool>,
    load: Option<[f64; 3]>,
}

/// When file systems must be thawed.
#[derive(Debug, Clone, Copy)]
struct Timer {
    at: Duration,
    /// Delay after a failed attempt.
    wait: Duration,
}

/// The guest's clock must be set.
#[derive(Debug, Clone, Copy)]
struct Clock {
    next: Duration,
    ends: Duration,
}

struct Task {
    agent: Agent,
    begun: Instant,
    status: watch::Receiver<Status>,
    facts: watch::Sender<Option<Facts>>,
    /// Kinds of credentials that the agent should set.
    needed: Kinds,
    connected: bool,
    running: bool,
    resumes: u64,
    known: Known,
    /// Set while the agent can be asked.
    schedule: Option<Schedule>,
    thaw: Option<Timer>,
    clock: Option<Clock>,
    /// Limits log lines that the guest causes.
    quiet: Quiet,
}

/// Talks with the agent until its channel is closed or the VM has ended.
pub async fn serve(
    agent: Agent,
    status: watch::Receiver<Status>,
    mut asks: mpsc::Receiver<Ask>,
    facts: watch::Sender<Option<Facts>>,
    needed: Kinds,
) {
    let mut task = Task {
        agent,
        begun: Instant::now(),
        status,
        facts,
        needed,
        connected: false,
        running: false,
        resumes: 0,
        known: Known::default(),
        schedule: None,
        thaw: None,
        clock: None,
        quiet: Quiet::new(2),
    };
    let agent = task.agent.clone();
    loop {
        task.look();
        if task.act().await {
            continue;
        }
        let wake = task.wake();
        tokio::select! {
            changed = task.status.changed() => if changed.is_err() { return },
            ask = asks.recv() => match ask {
                Some(ask) => task.answer(ask).await,
                None => return,
            },
            () = wait(wake) => {}
            () = agent.ended() => return,
        }
    }
}

/// Whether the agent answers. It also does while file systems are frozen.
pub async fn ping(agent: &Agent, within: Duration) -> Result<(), Error> {
    agent.execute(qga::guest_ping {}, Deadline::after(within)).await.map(drop)
}

fn is_frozen(status: qga::GuestFsfreezeStatus) -> bool {
    match status {
        qga::GuestFsfreezeStatus::frozen => true,
        qga::GuestFsfreezeStatus::thawed => false,
    }
}

async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

impl Task {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Updates the state from the guest's status.
    fn look(&mut self) {
        let (connected, running, resumes) = {
            let status = self.status.borrow_and_update();
            (status.agent_connected, status.stage == Stage::Running, status.resumes)
        };
        (self.connected, self.running) = (connected, running);
        if !connected {
            // Answers of a former agent do not apply to a new one. The thaw timer stays.
            self.known = Known::default();
            self.facts.send_if_modified(|facts| facts.take().is_some());
        }
        match (connected && running, &self.schedule) {
            (true, None) => self.schedule = Some(Schedule::new(self.now())),
            (false, Some(_)) => self.schedule = None,
            (true, Some(_)) | (false, None) => {}
        }
        if resumes != self.resumes {
            self.resumes = resumes;
            self.clock = Some(Clock { next: self.now(), ends: self.now() + CLOCK });
        }
    }

    /// Whether the agent can be asked.
    fn reachable(&self) -> Result<(), NotDone> {
        match (self.connected, self.running) {
            (false, _) => Err(NotDone::NotConnected),
            (true, false) => Err(NotDone::Paused),
            (true, true) => Ok(()),
        }
    }

    fn is_frozen(&self) -> bool {
        self.known.frozen == Some(true)
    }

    fn wake(&self) -> Option<Instant> {
        let schedule = self.schedule.as_ref()?;
        let moments = [
            schedule.next(self.is_frozen()),
            self.thaw.map(|thaw| thaw.at),
            self.clock.map(|clock| clock.next),
        ];
        moments.into_iter().flatten().min().map(|at| self.begun + at)
    }

    /// Carries out due work. Returns whether there was any.
    async fn act(&mut self) -> bool {
        if self.reachable().is_err() {
            return false;
        }
        let now = self.now();
        if self.thaw.is_some_and(|thaw| thaw.at <= now) {
            let line = self.quiet.line();
            if let Some(left_out) = line {
                tracing::warn!(left_out, "file systems of the guest are thawed: the time limit has passed");
            }
            if let Err(error) = self.thaw_now().await {
                if line.is_some() {
                    tracing::warn!(%error, "file systems are not thawed yet");
                }
                let now = self.now();
                self.thaw = self
                    .thaw
                    .map(|thaw| Timer { at: now + thaw.wait, wait: (thaw.wait * 2).min(THAW_AGAIN) });
            }
            return true;
        }
        if let Some(clock) = self.clock.filter(|clock| clock.next <= now) {
            self.set_clock(clock).await;
            return true;
        }
        self.poll().await
    }

    async fn answer(&mut self, ask: Ask) {
        // The guest's status may have changed together with the request.
        self.look();
        // Sending a reply fails if the requester is gone.
        match ask {
            Ask::Freeze { thaw_after, reply } => drop(reply.send(self.freeze(thaw_after).await)),
            Ask::Thaw { reply } => {
                let thawed = match self.reachable() {
                    Ok(()) => self.thaw_now().await,
                    Err(why) => Err(why),
                };
                drop(reply.send(thawed));
            }
            Ask::Reboot { reply } => drop(reply.send(self.reboot().await)),
            Ask::Cards => {
                let now = self.now();
                if let Some(schedule) = &mut self.schedule {
                    schedule.again(Topic::System, now);
                }
            }
            Ask::Info { reply } => drop(reply.send(self.info().await)),
        }
    }

    async fn ask<C: qga::QgaCommand>(&self, command: C, within: Duration) -> Result<C::Ok, Error> {
        self.agent.execute(command, Deadline::after(within)).await
    }

    async fn reboot(&mut self) -> Result<(), NotDone> {
        self.reachable()?;
        ping(&self.agent, ANSWER).await.map_err(|_| NotDone::Silent)?;
        let reboot = qga::guest_shutdown { mode: Some(qga::GuestShutdownMode::Reboot) };
        match self.ask(reboot, ANSWER).await {
            Err(error @ Error::Refused { .. }) if self.is_frozen() => Err(NotDone::Frozen(error)),
            Err(error @ Error::Refused { .. }) => Err(error.into()),
            // The agent only answers if it cannot reboot.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn info(&mut self) -> Result<VirtualMachineInstanceGuestAgentInfo, NotDone> {
        match self.reachable() {
            // Topics that were never queried are queried now.
            Ok(()) => drop(self.poll().await),
            Err(NotDone::Paused) => {}
            Err(why) => return Err(why),
        }
        let known = &self.known;
        let frozen = known.frozen.map(|frozen| if frozen { "frozen" } else { "thawed" });
        Ok(VirtualMachineInstanceGuestAgentInfo {
            fs_freeze_status: frozen.map(str::to_owned),
            fs_info: Some(VirtualMachineInstanceFileSystemInfo { disks: known.file_systems.clone() }),
            guest_agent_version: known.version.clone(),
            hostname: known.host_name.clone(),
            os: Some(known.os.clone()),
            supported_commands: known.commands.clone(),
            timezone: known.time_zone.clone(),
            user_list: known.users.clone(),
        })
    }

    /// The guest's clock stood still while the guest was paused.
    async fn set_clock(&mut self, clock: Clock) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanoseconds = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let set = self.ask(qga::guest_set_time { time: Some(nanoseconds) }, ANSWER).await;
        let next = self.now() + CLOCK_AGAIN;
        self.clock = match set {
            Ok(_) => {
                tracing::info!("the guest's clock is set");
                None
            }
            Err(error @ Error::Refused { .. }) => {
                tracing::warn!(%error, "the guest's clock is not set");
                None
            }
            Err(error) if next > clock.ends => {
                tracing::warn!(%error, "the guest's clock is not set");
                None
            }
            Err(_) => Some(Clock { next, ..clock }),
        };
    }
}
