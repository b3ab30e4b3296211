//! The life of one VM as a state machine: pure, total, without clock.
//!
//! ```text
//!            Start             Answered             Resumed
//!  Waiting ─────────> Starting ─────────> Paused <──────────> Running
//!     │                  │                   │     Stopped       │
//!     │ Stop             │ Stop, CannotRun   │ Stop, Shutdown    │
//!     │ CannotStart      v                   v                   v
//!     │              ┌─────────────────── Stopping ──────────────────┐
//!     │              │ Powerdown ─> Quit ─> Terminate ─> Kill        │
//!     │              │     └───> Leaving ──────^                     │
//!     v              └───────────────────────────────────────────────┘
//!   Ended <──────────────── Exited, in every state
//! ```
//!
//! A guest is paused for a reason ([`Pause`]): somebody wants it, or a disk failed. The latter is tried again by itself;
//! what somebody paused is resumed by nobody but somebody, or a stop. A soft reboot ([`Reboot`]) is a power-off that QEMU
//! does not follow: the machine is reset in its place, and the guest is told to be running all the while.
//!
//! The shell ([`crate::supervisor`]) turns what happens into [`Event`]s with the moment at which they happened,
//! and carries out the [`Effect`]s. A moment is the time since the launcher started.

mod control;
mod live;

use std::time::Duration;

use crate::verdict::{Asked, Exit, Seen, Verdict, verdict};

pub use control::{Control, Refused, judge};

/// How long to wait for the guest to react before the power button is pressed again.
pub const PRESS_AGAIN: Duration = Duration::from_secs(3);
/// How long QEMU may take to leave after a guest shut down by itself.
pub const LEAVE: Duration = Duration::from_secs(60);
/// The same for a guest that was told to, beyond its grace period.
pub const LEAVE_ASKED: Duration = Duration::from_secs(3);
/// How long `quit`, and then SIGTERM, may take. Both fit in the ten seconds that the pod has beyond the guest's
/// grace period.
pub const FORCE: Duration = Duration::from_secs(3);
/// The same where no grace was given, and the pod has a second in all.
pub const FORCE_AT_ONCE: Duration = Duration::from_millis(300);

/// When a guest whose disk failed is let go again for the first time; doubled each time, up to [`RETRY_LONGEST`].
pub const RETRY: Duration = Duration::from_secs(1);
/// Longest wait between two tries.
pub const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// How long it has to run after such a try until the storage counts as well.
pub const STEADY: Duration = Duration::from_secs(2);
/// How long a guest may take to shut down for a soft reboot. A power-off after that is the guest's own wish.
pub const REBOOT: Duration = Duration::from_secs(300);
/// How long the reset after it may take.
pub const RESET: Duration = Duration::from_secs(30);

/// The state: a phase, and what was seen on the way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Where in its life it is.
    pub phase: Phase,
    /// What the verdict will need.
    pub seen: Seen,
    /// The guest has a power button.
    pub acpi: bool,
    /// Somebody wants it paused.
    pub hold: bool,
    /// It ran, if only for a moment.
    pub ran: bool,
    /// A disk failed in a way that stops the guest; the stop itself follows.
    pub io_error: bool,
    /// A soft reboot on its way.
    pub reboot: Option<Reboot>,
}

/// Where in its life a VM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// What it takes to start is not complete.
    Waiting,
    /// QEMU is there, its monitor has not answered yet.
    Starting,
    /// The monitor answers and vCPUs stand still.
    Paused(Pause),
    /// vCPUs run.
    Running,
    /// On the way out.
    Stopping(Ladder),
    /// QEMU is gone, or never was there.
    Ended(Verdict),
}

/// Why vCPUs stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// They were not let go yet.
    Start,
    /// Somebody wants it, here or at the monitor.
    User,
    /// A disk could not be read or written.
    Storage {
        /// How often the guest was let go in vain.
        tries: u32,
        /// What is being waited for.
        retry: Retry,
    },
}

/// How a try to go on after a disk failed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The next is at this moment.
    At(Duration),
    /// vCPUs run. Where they still do at this moment, all is well.
    Trial {
        /// That moment.
        ends: Duration,
    },
}

/// A soft reboot by the power button: the guest shuts down, and is reset instead of ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// The guest was told.
    Asked {
        /// When it is given up.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// It shut down and is being reset.
    Resetting {
        /// When it is given up.
        ends: Duration,
    },
}

/// The stop ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    /// Where on it.
    pub rung: Rung,
    /// What asked for it.
    pub why: Why,
}

/// What put a VM on the ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A stop that was asked for.
    Asked(Asked),
    /// The guest, or a person at the monitor, ended it.
    Itself,
    /// It could not be made to run.
    Failure(Verdict),
}

/// One rung of the ladder. Moments say when the next one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// The guest was asked by its power button.
    Powerdown {
        /// End of its grace period.
        ends: Duration,
        /// When the button is pressed again.
        again: Duration,
    },
    /// QEMU said that it is leaving.
    Leaving {
        /// When it is helped.
        ends: Duration,
    },
    /// QEMU was told to quit.
    Quit {
        /// When it is sent SIGTERM.
        ends: Duration,
    },
    /// QEMU was sent SIGTERM.
    Terminate {
        /// When it is sent SIGKILL.
        ends: Duration,
    },
    /// QEMU was sent SIGKILL.
    Kill,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All that it takes is there.
    Start {
        /// The guest has a power button.
        acpi: bool,
        /// vCPUs are to stand still until somebody lets them go.
        paused: bool,
    },
    /// It never will be, or QEMU cannot be executed: there is no child.
    CannotStart(Verdict),
    /// The child is there but will not run a guest.
    CannotRun(Verdict),
    /// The monitor answered its first command.
    Answered,
    /// vCPUs run.
    Resumed,
    /// vCPUs stand still.
    Stopped,
    /// QEMU is leaving, with the reason that it gave.
    Shutdown(String),
    /// The guest reported a panic.
    Panicked,
    /// The guest's watchdog fired, with the action that follows.
    Watchdog(String),
    /// A disk failed, and QEMU stops the guest for it.
    IoError,
    /// The machine was reset, by whomever.
    WasReset,
    /// Somebody wants something of the guest, and may: see [`judge`].
    Asked(Control),
    /// Someone wants it stopped. May come again; a shorter grace period counts, a longer one does not.
    Stop {
        /// How long the guest has.
        grace: Duration,
    },
    /// Time has passed.
    Tick,
    /// The child is gone.
    Exited(Exit),
}

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Execute QEMU.
    Spawn,
    /// `cont` for the first time; that it fails is the end.
    Continue,
    /// `cont` later on.
    Resume,
    /// `stop`.
    Hold,
    /// `system_reset`.
    Reset,
    /// Has QEMU stay after the guest's next power-off, and presses the power button.
    PressForReboot,
    /// Has QEMU end with the guest's next power-off, as ever.
    LeaveOnShutdown,
    /// `system_powerdown`.
    Powerdown,
    /// `quit`.
    Quit,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Give a [`Event::Tick`] at this moment. Replaces an earlier one.
    Wake(Duration),
}

impl Default for Vm {
    fn default() -> Self {
        Self::new()
    }
}

impl Vm {
    /// A VM that waits for what it takes to start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            seen: Seen::default(),
            acpi: true,
            hold: false,
            ran: false,
            io_error: false,
            reboot: None,
        }
    }

    /// The verdict, when it has ended.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Ended(verdict) => Some(verdict),
            _ => None,
        }
    }
}

/// One step. Every event has a meaning in every state, if only to be nothing new.
#[must_use]
pub fn step(mut vm: Vm, now: Duration, event: Event) -> (Vm, Vec<Effect>) {
    match &event {
        Event::Start { acpi, paused } if vm.phase == Phase::Waiting => (vm.acpi, vm.hold) = (*acpi, *paused),
        Event::Shutdown(reason) => vm.seen.shutdown = Some(reason.clone()),
        Event::Panicked => vm.seen.panicked = true,
        Event::Watchdog(action) => vm.seen.watchdog = Some(action.clone()),
        Event::IoError => vm.io_error = true,
        Event::Resumed => vm.io_error = false,
        Event::Asked(Control::Pause) => vm.hold = true,
        _ => {}
    }
    let (phase, effects) = match std::mem::replace(&mut vm.phase, Phase::Waiting) {
        Phase::Waiting => waiting(event),
        Phase::Starting => starting(now, event, &vm),
        Phase::Paused(pause) => live::step(Some(pause), &mut vm, now, event),
        Phase::Running => live::step(None, &mut vm, now, event),
        Phase::Stopping(ladder) => stopping(ladder, now, event, &vm.seen),
        ended @ Phase::Ended(_) => (ended, vec![]),
    };
    vm.phase = phase;
    (vm, effects)
}

fn waiting(event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::Start { .. } => (Phase::Starting, vec![Effect::Spawn]),
        Event::CannotStart(why) | Event::CannotRun(why) => (Phase::Ended(why), vec![]),
        Event::Stop { .. } => {
            let verdict = verdict(Exit::Signal(0), &Seen::default(), Asked::BeforeStart);
            (Phase::Ended(verdict), vec![])
        }
        // There is no child: whatever this tells of one is not of this VM.
        Event::Answered
        | Event::Resumed
        | Event::Stopped
        | Event::Shutdown(_)
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::IoError
        | Event::WasReset
        | Event::Asked(_)
        | Event::Tick
        | Event::Exited(_) => (Phase::Waiting, vec![]),
    }
}

fn starting(now: Duration, event: Event, vm: &Vm) -> (Phase, Vec<Effect>) {
    match event {
        Event::CannotStart(why) => (Phase::Ended(why), vec![]),
        Event::CannotRun(why) => kill(Why::Failure(why), now),
        // The monitor cannot be asked yet.
        Event::Stop { .. } => terminate(Why::Asked(Asked::BeforeStart), now, FORCE_AT_ONCE),
        Event::Answered if vm.hold => (Phase::Paused(Pause::User), vec![]),
        Event::Answered => (Phase::Paused(Pause::Start), vec![Effect::Continue]),
        Event::Shutdown(_) => leave(Why::Itself, now + LEAVE),
        Event::Exited(exit) => (Phase::Ended(verdict(exit, &vm.seen, Asked::No)), vec![]),
        // Its monitor is opened before its vCPUs are let go, so these say nothing yet.
        Event::Start { .. }
        | Event::Resumed
        | Event::Stopped
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::IoError
        | Event::WasReset
        | Event::Asked(_)
        | Event::Tick => (Phase::Starting, vec![]),
    }
}

fn stopping(ladder: Ladder, now: Duration, event: Event, seen: &Seen) -> (Phase, Vec<Effect>) {
    let Ladder { rung, why } = ladder;
    match (event, rung) {
        (Event::Exited(exit), _) => (Phase::Ended(conclude(exit, seen, why)), vec![]),
        (Event::Stop { grace }, rung) => hurry(Ladder { rung, why }, now, grace),
        (Event::CannotRun(verdict) | Event::CannotStart(verdict), rung) if rung != Rung::Kill => {
            // Whoever was on the way out already keeps the reason for it.
            kill(if why == Why::Itself { Why::Failure(verdict) } else { why }, now)
        }
        (Event::Shutdown(_), Rung::Powerdown { ends, .. }) => leave(why, ends.max(now + LEAVE_ASKED)),
        (Event::Tick, Rung::Powerdown { ends, .. }) if now >= ends => quit_for(why, now, FORCE),
        (Event::Tick, Rung::Powerdown { ends, again }) if now >= again => {
            let again = now + PRESS_AGAIN;
            let ladder = Ladder { rung: Rung::Powerdown { ends, again }, why };
            (Phase::Stopping(ladder), vec![Effect::Powerdown, Effect::Wake(ends.min(again))])
        }
        (Event::Tick, Rung::Leaving { ends }) if now >= ends => terminate(why, now, FORCE),
        (Event::Tick, Rung::Quit { ends }) if now >= ends => {
            let wait = if why == Why::Asked(Asked::AtOnce) { FORCE_AT_ONCE } else { FORCE };
            terminate(why, now, wait)
        }
        (Event::Tick, Rung::Terminate { ends }) if now >= ends => kill(why, now),
        (Event::Tick, rung) => {
            let wake = Effect::Wake(rung.wake(now));
            (Phase::Stopping(Ladder { rung, why }), vec![wake])
        }
        // Nothing that leads back.
        (
            Event::Start { .. }
            | Event::Answered
            | Event::Resumed
            | Event::Stopped
            | Event::Shutdown(_)
            | Event::Panicked
            | Event::Watchdog(_)
            | Event::IoError
            | Event::WasReset
            | Event::Asked(_)
            | Event::CannotRun(_)
            | Event::CannotStart(_),
            rung,
        ) => (Phase::Stopping(Ladder { rung, why }), vec![]),
    }
}

/// A stop that was asked for again, or after the guest had begun to leave by itself.
fn hurry(ladder: Ladder, now: Duration, grace: Duration) -> (Phase, Vec<Effect>) {
    let Ladder { rung, why } = ladder;
    match rung {
        Rung::Powerdown { .. } if grace.is_zero() => quit(Asked::AtOnce, now),
        Rung::Powerdown { ends, again } => {
            let ends = ends.min(now + grace);
            let rung = Rung::Powerdown { ends, again };
            (Phase::Stopping(Ladder { rung, why }), vec![Effect::Wake(ends.min(again))])
        }
        Rung::Leaving { ends } => leave(why, ends.min(now + grace + LEAVE_ASKED)),
        Rung::Quit { ends } if grace.is_zero() => {
            let ends = ends.min(now + FORCE_AT_ONCE);
            (Phase::Stopping(Ladder { rung: Rung::Quit { ends }, why }), vec![Effect::Wake(ends)])
        }
        Rung::Terminate { ends } if grace.is_zero() => {
            let ends = ends.min(now + FORCE_AT_ONCE);
            (Phase::Stopping(Ladder { rung: Rung::Terminate { ends }, why }), vec![Effect::Wake(ends)])
        }
        Rung::Quit { .. } | Rung::Terminate { .. } | Rung::Kill => {
            (Phase::Stopping(Ladder { rung, why }), vec![])
        }
    }
}

impl Rung {
    fn wake(self, now: Duration) -> Duration {
        match self {
            Self::Powerdown { ends, again } => ends.min(again),
            Self::Leaving { ends } | Self::Quit { ends } | Self::Terminate { ends } => ends,
            // Nothing follows SIGKILL; looking again does no harm.
            Self::Kill => now + FORCE,
        }
    }
}

fn leave(why: Why, ends: Duration) -> (Phase, Vec<Effect>) {
    (Phase::Stopping(Ladder { rung: Rung::Leaving { ends }, why }), vec![Effect::Wake(ends)])
}

fn quit(asked: Asked, now: Duration) -> (Phase, Vec<Effect>) {
    quit_for(Why::Asked(asked), now, FORCE_AT_ONCE)
}

fn quit_for(why: Why, now: Duration, wait: Duration) -> (Phase, Vec<Effect>) {
    let ends = now + wait;
    (Phase::Stopping(Ladder { rung: Rung::Quit { ends }, why }), vec![Effect::Quit, Effect::Wake(ends)])
}

fn terminate(why: Why, now: Duration, wait: Duration) -> (Phase, Vec<Effect>) {
    let ends = now + wait;
    let ladder = Ladder { rung: Rung::Terminate { ends }, why };
    (Phase::Stopping(ladder), vec![Effect::Terminate, Effect::Wake(ends)])
}

fn kill(why: Why, now: Duration) -> (Phase, Vec<Effect>) {
    let wake = Effect::Wake(Rung::Kill.wake(now));
    (Phase::Stopping(Ladder { rung: Rung::Kill, why }), vec![Effect::Kill, wake])
}

fn conclude(exit: Exit, seen: &Seen, why: Why) -> Verdict {
    match why {
        Why::Failure(verdict) => verdict,
        Why::Asked(asked) => verdict(exit, seen, asked),
        Why::Itself => verdict(exit, seen, Asked::No),
    }
}

#[cfg(test)]
mod tests;
