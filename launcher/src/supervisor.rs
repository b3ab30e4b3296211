//! The task that owns the VM: turns what happens into events, and carries out effects.
//!
//! ```text
//!  preparation ─┐
//!  requests ────┤              ┌──────────────┐  effects   spawn, signals
//!  child's end ─┼── Event ────>│ step (pure)  │──────────> QMP commands (each its own future)
//!  monitor ─────┤              └──────────────┘            wake-up
//!  wake-up ─────┘                     │
//!                                     └── Status on a watch
//! ```
//!
//! It only waits for the next event: commands run beside it, and their failures are events, too. It does not
//! return before the child has ended.

mod effects;
mod lines;
mod migrate;
mod monitor;
mod report;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::time::Duration;

use barevirt_qmp::{Error, Events, Qmp};
use futures::StreamExt;
use futures::future::AbortHandle;
use futures::stream::FuturesUnordered;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::lines::Lines;
pub use self::migrate::MigrationOrder;
use crate::cards::Card;
use crate::guest_end::{Exit, GuestEnd};
use crate::lifecycle::{Control, Event, NotOrdered, Refused, Vm, judge, step};
use crate::migration::disks::{Copyable, LocalDisks};
use crate::migration::host_cards::HostCards;
use crate::migration::qemu::Transport;
use crate::pins::Pins;
use crate::process::{Command, Process};
use crate::real_time::RealTime;
use crate::status::{Stage, Status};
use crate::unused;

/// Time limit for the launcher's own commands.
const COMMAND: Duration = Duration::from_secs(10);
/// How long QEMU's last output is awaited after it has exited.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Everything for the start, prepared and owned, so that dropping it closes it.
#[derive(Debug)]
pub struct Launch {
    /// QEMU.
    pub command: Command,
    /// swtpm, if the machine has a TPM.
    pub tpm: Option<Command>,
    /// Our end of the launcher's own monitor.
    pub monitor: UnixStream,
    /// How long QEMU may take to answer its first command. Large guests take long to allocate.
    pub answers_within: Duration,
    /// CPUs of threads, if the guest has dedicated CPUs.
    pub pins: Option<Pins>,
    /// The condition before the guest runs, if virtual CPUs should be realtime.
    pub real_time: Option<RealTime>,
    /// Network cards; some have their links down before the guest runs.
    pub cards: Vec<Card>,
    /// Network cards of the node that the guest drives itself. A guest that comes gets them here.
    pub host_cards: HostCards,
    /// Whether the guest has an ACPI power button.
    pub acpi: bool,
    /// Whether vCPUs stay paused until a user starts them.
    pub paused: bool,
    /// Id of the guest agent's port, as `VSERPORT_CHANGE` gives it.
    pub agent_port: String,
    /// The migration that brings the guest; `None` if it starts here.
    pub incoming: Option<String>,
    /// Directory in which QEMU reads the keys of migrations.
    pub keys: PathBuf,
    /// Disks that a migration can copy.
    pub disks: Copyable,
}

/// A request to the supervisor.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a supervisor gets few requests, one at a time")]
pub enum Request {
    /// Stop the VM.
    Stop {
        /// Grace period of the guest.
        grace: Duration,
        /// The reason, for the log.
        why: String,
    },
    /// Control the guest.
    Control {
        /// The control.
        control: Control,
        /// Gets the result when QEMU has answered, or the refusal.
        reply: Reply,
    },
    /// An order about a migration.
    Migrate {
        /// Its UID.
        uid: String,
        /// The order.
        order: MigrationOrder,
        /// Gets the result when the order is being carried out, or the refusal.
        reply: Reply,
    },
}

/// The channel for the result of a control.
pub type Reply = oneshot::Sender<Result<(), NotDone>>;

/// Why a control was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// It is impossible now.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An order about a migration is impossible now.
    #[error(transparent)]
    NotOrdered(#[from] NotOrdered),
    /// The connection of a migration is missing.
    #[error("the migration has no connection")]
    NotConnected,
    /// QEMU refuses or did not answer.
    #[error(transparent)]
    Monitor(#[from] Error),
}

/// The result of work beside the loop.
enum Outcome {
    Opened(Box<Result<(Qmp, Events), Error>>),
    MachineType(String),
    Happened(Vec<Event>),
    Probed(bool),
    /// A command failed, so the state of the vCPUs must be queried.
    Doubt,
    Nothing,
}

type Work = Pin<Box<dyn Future<Output = Outcome>>>;

/// The state of the task.
struct Supervisor<'a> {
    begun: Instant,
    vm: Vm,
    launch: Option<Launch>,
    process: Option<Process>,
    tpm: Option<Process>,
    qmp: Option<Qmp>,
    events: Option<Events>,
    agent_port: String,
    keys: PathBuf,
    copyable: Copyable,
    host_cards: HostCards,
    /// Ends the wait for cards that the guest gives back too late.
    giving: Option<AbortHandle>,
    /// QEMU is asked whether the guest may run here before all of its memory has arrived.
    probing: bool,
    /// The disks that the last migration copies.
    disks: LocalDisks,
    /// The handler's connection and key for a migration that is about to begin.
    transport: Option<Transport>,
    /// A copy of the connection that replaced a broken one in post-copy.
    rejoined: Option<OwnedFd>,
    wake: Option<Instant>,
    /// The reply for the current control, which its first command takes.
    reply: Option<Reply>,
    work: FuturesUnordered<Work>,
    status: &'a watch::Sender<Status>,
    lines: Lines,
}

/// Runs one VM to its end. `prepare` returns what the start needs; until then the VM waits, and a stop ends
/// it.
pub async fn supervise(
    prepare: impl Future<Output = Result<Launch, GuestEnd>>,
    mut requests: mpsc::Receiver<Request>,
    status: &watch::Sender<Status>,
) -> GuestEnd {
    let mut prepare = pin!(prepare);
    let mut preparing = true;
    let mut supervisor = Supervisor {
        begun: Instant::now(),
        vm: Vm::new(),
        launch: None,
        process: None,
        tpm: None,
        qmp: None,
        events: None,
        agent_port: String::new(),
        keys: PathBuf::new(),
        copyable: Copyable::default(),
        host_cards: HostCards::default(),
        giving: None,
        probing: false,
        disks: LocalDisks::default(),
        transport: None,
        rejoined: None,
        wake: None,
        reply: None,
        work: FuturesUnordered::new(),
        status,
        lines: Lines::default(),
    };
    supervisor.work.push(Box::pin(async {
        unused::wake().await;
        Outcome::Nothing
    }));
    loop {
        let wake = supervisor.wake;
        let event = tokio::select! {
            prepared = &mut prepare, if preparing => {
                preparing = false;
                Some(supervisor.prepared(prepared))
            }
            Some(request) = requests.recv() => supervisor.asked(request),
            event = next_event(&mut supervisor.events) => supervisor.take_event(event),
            Some(outcome) = supervisor.work.next() => supervisor.came_of(outcome),
            exit = child_exit(&mut supervisor.process) => Some(supervisor.exited(exit).await),
            exit = child_exit(&mut supervisor.tpm) => {
                supervisor.lost_tpm(exit);
                None
            }
            () = wake_up(wake) => supervisor.wake.take().map(|_| Event::Tick),
        };
        if let Some(event) = event {
            supervisor.happened(event);
        }
        if let Some(end) = supervisor.vm.end() {
            return end.clone();
        }
    }
}

/// The next event; `Err` holds the number of events that were missed, `None` is the end. Waits forever
/// without a monitor.
async fn next_event(events: &mut Option<Events>) -> Option<Result<barevirt_qmp::Event, u64>> {
    match events {
        Some(events) => events.next().await.map(|event| event.map_err(|gap| gap.0)),
        None => std::future::pending().await,
    }
}

async fn child_exit(process: &mut Option<Process>) -> Exit {
    match process {
        Some(process) => process.exited().await,
        None => std::future::pending().await,
    }
}

async fn wake_up(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Supervisor<'_> {
    fn asked(&mut self, request: Request) -> Option<Event> {
        match request {
            Request::Stop { grace, why } => {
                tracing::info!(grace_seconds = grace.as_secs(), why, "stop asked for");
                Some(Event::Stop { grace })
            }
            Request::Control { control, reply } => {
                tracing::info!(?control, "control asked for");
                if let Err(refused) = judge(&self.vm, control) {
                    // This fails if the requester is gone.
                    let _ = reply.send(Err(refused.into()));
                    return None;
                }
                self.reply = Some(reply);
                self.happened(Event::Asked(control));
                if let Some(reply) = self.reply.take() {
                    // No command is needed, because the state is already as requested.
                    let _ = reply.send(Ok(()));
                }
                None
            }
            Request::Migrate { uid, order, reply } => {
                self.ordered(uid, order, reply);
                None
            }
        }
    }

    fn prepared(&mut self, prepared: Result<Launch, GuestEnd>) -> Event {
        match prepared {
            Ok(launch) => {
                let (acpi, paused, incoming) = (launch.acpi, launch.paused, launch.incoming.clone());
                self.launch = Some(launch);
                Event::Start { acpi, paused, incoming }
            }
            Err(end) => Event::CannotStart(end),
        }
    }

    /// Steps the state machine and carries out its effects, until no effect causes another event.
    fn happened(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let before = Stage::from(&self.vm.phase);
            tracing::debug!(?event, "event");
            let (vm, effects) = step(self.vm.clone(), self.begun.elapsed(), event);
            self.vm = vm;
            let after = Stage::from(&self.vm.phase);
            if before != after
                && let Some(left_out) = self.lines.phases.line()
            {
                tracing::info!(from = ?before, to = ?after, left_out, "phase");
            }
            for effect in effects {
                next = self.carry_out(effect).or(next);
            }
        }
        self.report();
    }

    fn came_of(&mut self, outcome: Outcome) -> Option<Event> {
        match outcome {
            Outcome::Opened(opened) => match *opened {
                Ok((qmp, events)) => Some(self.answered(qmp, events)),
                Err(error) => {
                    let message = format!("QEMU's monitor does not answer: {error}");
                    Some(Event::CannotRun(GuestEnd::failed("StartFailed", message)))
                }
            },
            Outcome::MachineType(name) => {
                self.status.send_if_modified(|status| {
                    name.trim_end_matches("-machine").clone_into(&mut status.machine_type);
                    true
                });
                None
            }
            Outcome::Happened(events) => {
                for event in events {
                    self.happened(event);
                }
                None
            }
            Outcome::Probed(offers) => Some(self.probed(offers)),
            Outcome::Doubt => {
                self.look_again();
                None
            }
            Outcome::Nothing => None,
        }
    }

    /// The child has ended: its last events are still on the monitor's stream.
    async fn exited(&mut self, exit: Exit) -> Event {
        if let Some(mut events) = self.events.take() {
            let last_words = async {
                while let Some(event) = events.next().await {
                    if let Some(event) = event.ok().and_then(|event| self.understood(&event)) {
                        self.happened(event);
                    }
                }
            };
            let _ = timeout(LAST_WORDS, last_words).await;
        }
        tracing::info!(?exit, "QEMU is gone");
        if let (Exit::Status(1..), Some(process)) = (exit, &self.process) {
            // Another task reads its stderr and is given time to reach the end.
            let tail = process.tail().clone();
            let _ = timeout(LAST_WORDS, async {
                while tail.last_lines().is_empty() {
                    sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
        if let Some(mut tpm) = self.tpm.take() {
            // swtpm sees the end of its connection. It has written its state before it answered each command.
            let _ = timeout(LAST_WORDS, tpm.exited()).await;
        }
        Event::Exited(exit)
    }

    /// swtpm ended before QEMU's end was seen. By itself it only ends well when QEMU has closed its
    /// connection. Otherwise the guest continues with a TPM that fails, like a broken chip; a QEMU that has
    /// not started yet ends by itself.
    fn lost_tpm(&mut self, exit: Exit) {
        let said = self.tpm.take().map(|tpm| tpm.tail().last_lines()).unwrap_or_default();
        if exit != Exit::Status(0) {
            tracing::error!(?exit, said, "the TPM is gone");
        }
    }
}

#[cfg(test)]
mod tests;
