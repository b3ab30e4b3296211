//! The task that talks to the guest agent: it asks regularly, freezes and thaws file systems, and sets the guest's clock.
//!
//! ```text
//!  Status (channel open, guest runs, resumed) ─┐
//!  Ask (freeze, thaw, info, reboot) ───────────┼─> one task, one command at a time ─> Agent
//!  schedule, thaw timer, clock ────────────────┘          └─> Facts on a watch
//! ```
//!
//! Frozen file systems are thawed by this task when their time is up, whoever froze them and whatever has become of them:
//! it needs neither the handler nor an API server. What the agent says is the guest's word ([`answers`]).

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
use self::schedule::Schedule;
use crate::credentials::Kinds;
use crate::status::{Stage, Status};

/// Longest line taken from the agent, in bytes.
pub const MAX_LINE: usize = 1 << 20;
/// How long the agent may take to say something that it knows.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait between two tries to thaw.
const THAW_AGAIN: Duration = Duration::from_secs(10);
/// For how long, and how often, the guest's clock is tried to be set.
const CLOCK: Duration = Duration::from_secs(60);
const CLOCK_AGAIN: Duration = Duration::from_secs(1);

/// Something that is asked of the agent.
#[derive(Debug)]
pub enum Ask {
    /// Freeze file systems, and thaw them after that time.
    Freeze {
        /// That time; zero is the default.
        thaw_after: Duration,
        /// Told when they are frozen.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// Thaw file systems.
    Thaw {
        /// Told when they are thawed.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// Boot again.
    Reboot {
        /// Told when the agent has begun with it.
        reply: oneshot::Sender<Result<(), NotDone>>,
    },
    /// All there is to know.
    Info {
        /// Given it.
        reply: oneshot::Sender<Result<VirtualMachineInstanceGuestAgentInfo, NotDone>>,
    },
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// There is no agent.
    #[error("QEMU guest agent is not connected")]
    NotConnected,
    /// It stands still like the rest of the guest.
    #[error("VMI is paused")]
    Paused,
    /// Its channel is open, but it says nothing.
    #[error("the guest agent does not answer")]
    Silent,
    /// It refused, or did not answer.
    #[error("guest agent: {0}")]
    Agent(#[from] Error),
}

/// What is told of the guest without being asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Its operating system.
    pub os: GuestOsInfo,
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// Its file systems are frozen.
    pub frozen: bool,
    /// What its agent cannot do that it is needed for.
    pub unsupported: Option<&'static str>,
    /// What is mounted.
    pub file_systems: Vec<VirtualMachineInstanceFileSystem>,
    /// Mean number of processes that run or want to, in one, five and fifteen minutes.
    pub load: Option<[f64; 3]>,
}

/// What the agent has said since it came.
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

/// File systems are to be thawed.
#[derive(Debug, Clone, Copy)]
struct Timer {
    at: Duration,
    /// Wait after a try in vain.
    wait: Duration,
}

/// The guest's clock is to be set.
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
    /// Credentials that it is to put into effect.
    needed: Kinds,
    connected: bool,
    running: bool,
    resumes: u64,
    known: Known,
    /// There while the agent can be asked.
    schedule: Option<Schedule>,
    thaw: Option<Timer>,
    clock: Option<Clock>,
    /// Bounds lines that the guest decides on.
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

/// Whether the agent answers. It does so also while file systems are frozen.
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

    /// Takes note of what has become of the guest.
    fn look(&mut self) {
        let (connected, running, resumes) = {
            let status = self.status.borrow_and_update();
            (status.agent_connected, status.stage == Stage::Running, status.resumes)
        };
        (self.connected, self.running) = (connected, running);
        if !connected {
            // What another agent said is nothing that this one says. That file systems are to be thawed remains.
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

    /// Whether the agent can be asked at all.
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

    /// Does what is due. Gives whether there was something.
    async fn act(&mut self) -> bool {
        if self.reachable().is_err() {
            return false;
        }
        let now = self.now();
        if self.thaw.is_some_and(|thaw| thaw.at <= now) {
            let line = self.quiet.line();
            if let Some(left_out) = line {
                tracing::warn!(left_out, "file systems of the guest are thawed: nobody did in time");
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
        // A change of the guest may have come along with the question.
        self.look();
        // Fails when whoever asked has gone.
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
            Err(error @ Error::Refused { .. }) => Err(error.into()),
            // It answers only when it cannot.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn info(&mut self) -> Result<VirtualMachineInstanceGuestAgentInfo, NotDone> {
        match self.reachable() {
            // What was never asked is asked now.
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

    /// The guest's clock stood still with it.
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
