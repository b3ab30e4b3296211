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
//! The shell ([`crate::supervisor`]) turns what happens into [`Event`]s with the moment at which they happened,
//! and carries out the [`Effect`]s. A moment is the time since the launcher started.

use std::time::Duration;

use crate::verdict::{Asked, Exit, Seen, Verdict, verdict};

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

/// The state: a phase, and what was seen on the way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Where in its life it is.
    pub phase: Phase,
    /// What the verdict will need.
    pub seen: Seen,
    /// The guest has a power button.
    pub acpi: bool,
}

/// Where in its life a VM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// What it takes to start is not complete.
    Waiting,
    /// QEMU is there, its monitor has not answered yet.
    Starting,
    /// The monitor answers and vCPUs stand still.
    Paused,
    /// vCPUs run.
    Running,
    /// On the way out.
    Stopping(Ladder),
    /// QEMU is gone, or never was there.
    Ended(Verdict),
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
    /// `cont`.
    Continue,
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
        Self { phase: Phase::Waiting, seen: Seen::default(), acpi: true }
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
pub fn step(vm: Vm, now: Duration, event: Event) -> (Vm, Vec<Effect>) {
    let Vm { phase, mut seen, mut acpi } = vm;
    match &event {
        Event::Start { acpi: given } if phase == Phase::Waiting => acpi = *given,
        Event::Shutdown(reason) => seen.shutdown = Some(reason.clone()),
        Event::Panicked => seen.panicked = true,
        Event::Watchdog(action) => seen.watchdog = Some(action.clone()),
        _ => {}
    }
    let (phase, effects) = match phase {
        Phase::Waiting => waiting(event),
        Phase::Starting => starting(now, event, &seen),
        Phase::Paused => live(Phase::Paused, now, event, &seen, acpi),
        Phase::Running => live(Phase::Running, now, event, &seen, acpi),
        Phase::Stopping(ladder) => stopping(ladder, now, event, &seen),
        ended @ Phase::Ended(_) => (ended, vec![]),
    };
    (Vm { phase, seen, acpi }, effects)
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
        | Event::Tick
        | Event::Exited(_) => (Phase::Waiting, vec![]),
    }
}

fn starting(now: Duration, event: Event, seen: &Seen) -> (Phase, Vec<Effect>) {
    match event {
        Event::CannotStart(why) => (Phase::Ended(why), vec![]),
        Event::CannotRun(why) => kill(Why::Failure(why), now),
        // The monitor cannot be asked yet.
        Event::Stop { .. } => terminate(Why::Asked(Asked::BeforeStart), now, FORCE_AT_ONCE),
        Event::Answered => (Phase::Paused, vec![Effect::Continue]),
        Event::Shutdown(_) => leave(Why::Itself, now + LEAVE),
        Event::Exited(exit) => (Phase::Ended(verdict(exit, seen, Asked::No)), vec![]),
        // Its monitor is opened before its vCPUs are let go, so these say nothing yet.
        Event::Start { .. }
        | Event::Resumed
        | Event::Stopped
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::Tick => (Phase::Starting, vec![]),
    }
}

fn live(phase: Phase, now: Duration, event: Event, seen: &Seen, acpi: bool) -> (Phase, Vec<Effect>) {
    match event {
        Event::Resumed => (Phase::Running, vec![]),
        Event::Stopped => (Phase::Paused, vec![]),
        Event::CannotRun(why) | Event::CannotStart(why) => kill(Why::Failure(why), now),
        Event::Shutdown(_) => leave(Why::Itself, now + LEAVE),
        Event::Stop { grace } if grace.is_zero() || !acpi => quit(Asked::AtOnce, now),
        Event::Stop { grace } => {
            let (ends, again) = (now + grace, now + PRESS_AGAIN);
            let ladder = Ladder { rung: Rung::Powerdown { ends, again }, why: Why::Asked(Asked::WithGrace) };
            // A guest that stands still cannot shut itself down.
            let wake_up = (phase == Phase::Paused).then_some(Effect::Continue);
            let press = [Effect::Powerdown, Effect::Wake(ends.min(again))];
            (Phase::Stopping(ladder), wake_up.into_iter().chain(press).collect())
        }
        Event::Exited(exit) => (Phase::Ended(verdict(exit, seen, Asked::No)), vec![]),
        Event::Start { .. } | Event::Answered | Event::Panicked | Event::Watchdog(_) | Event::Tick => {
            (phase, vec![])
        }
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
