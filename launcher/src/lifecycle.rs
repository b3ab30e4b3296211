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
//! A guest is paused for a reason ([`Pause`]): a user paused it, or a disk failed. After a disk failure,
//! resuming is tried automatically. A guest that a user paused is only resumed by a user, or for a stop. A
//! soft reboot ([`Reboot`]) is a power-off after which QEMU stays: the machine is reset, and the guest is
//! reported as running the whole time.
//!
//! The shell ([`crate::supervisor`]) turns what happens into [`Event`]s with their moments, and carries out
//! the [`Effect`]s. A moment is the time since the launcher started.

mod control;
mod event;
mod live;
mod moving;
mod stop_steps;
mod times;
mod vm;

use std::time::Duration;

use self::stop_steps::{kill, leave, stopping, terminate};
use crate::guest_end::{Asked, Exit, MonitorReports, guest_end};
use crate::migration::{self, Moving, Target};

pub use control::{Control, Refused, judge};
pub use event::{Effect, Event};
pub use moving::{NotOrdered, Order, judge_order};
pub use times::{
    CONTINUE, FORCE, FORCE_AT_ONCE, LEAVE, LEAVE_ASKED, PRESS_AGAIN, REBOOT, RESET, RETRY, RETRY_LONGEST,
    STEADY,
};
pub use vm::{Pause, Phase, Reboot, Retry, StopState, StopStep, Vm, Why};

/// One step. Every event is handled in every state, even if it changes nothing.
#[must_use]
pub fn step(mut vm: Vm, now: Duration, event: Event) -> (Vm, Vec<Effect>) {
    match &event {
        Event::Start { acpi, paused, incoming } if vm.phase == Phase::Waiting => {
            (vm.acpi, vm.hold) = (*acpi, *paused);
            if let Some(uid) = incoming {
                // The source decides whether it is paused.
                (vm.moving, vm.hold) = (Moving::Comes(Target::new(uid.clone())), false);
            }
        }
        Event::Shutdown(reason) => {
            vm.seen.shutdown = Some(reason.clone());
            if let Moving::Comes(target) = &mut vm.moving {
                target.guest_ended();
            }
        }
        Event::Panicked => vm.seen.panicked = true,
        Event::Watchdog(action) => vm.seen.watchdog = Some(action.clone()),
        Event::IoError => vm.io_error = true,
        Event::Resumed => vm.io_error = false,
        Event::Asked(Control::Pause) => vm.hold = true,
        _ => {}
    }
    let (phase, mut effects) = match std::mem::replace(&mut vm.phase, Phase::Waiting) {
        Phase::Waiting => waiting(event),
        Phase::Starting => starting(now, event, &mut vm),
        Phase::Paused(pause) => live::step(Some(pause), &mut vm, now, event),
        Phase::Running => live::step(None, &mut vm, now, event),
        Phase::Stopping(stop) => match event {
            Event::Migration(event) => moving::while_stopping(stop, &mut vm, now, event),
            event => stopping(stop, now, event, &vm.seen),
        },
        ended @ Phase::Ended(_) => (ended, vec![]),
    };
    vm.phase = phase;
    if !vm.moving.may_run() {
        effects.retain(|effect| !effect.lets_it_run());
    }
    (vm, effects)
}

fn waiting(event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::Start { .. } => (Phase::Starting, vec![Effect::Spawn]),
        Event::CannotStart(why) | Event::CannotRun(why) => (Phase::Ended(why), vec![]),
        Event::Stop { .. } => {
            let end = guest_end(Exit::Signal(0), &MonitorReports::default(), Asked::BeforeStart);
            (Phase::Ended(end), vec![])
        }
        // There is no child: these events are not about this VM.
        Event::Answered
        | Event::Continued
        | Event::Resumed
        | Event::Stopped
        | Event::Shutdown(_)
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::IoError
        | Event::WasReset
        | Event::Asked(_)
        | Event::Migration(_)
        | Event::Tick
        | Event::Exited(_) => (Phase::Waiting, vec![]),
    }
}

fn starting(now: Duration, event: Event, vm: &mut Vm) -> (Phase, Vec<Effect>) {
    match event {
        Event::CannotStart(why) => (Phase::Ended(why), vec![]),
        Event::CannotRun(why) => kill(Why::Failure(why), now),
        // The monitor cannot be used yet.
        Event::Stop { .. } => terminate(Why::Asked(Asked::BeforeStart), now, FORCE_AT_ONCE),
        Event::Answered if !vm.moving.may_run() => {
            (Phase::Paused(Pause::Incoming), vec![Effect::Migrate(migration::Effect::Probe)])
        }
        Event::Answered if vm.hold => (Phase::Paused(Pause::User), vec![]),
        Event::Answered => {
            vm.runs_by = Some(now + CONTINUE);
            (Phase::Paused(Pause::Start), vec![Effect::Continue, Effect::Wake(now + CONTINUE)])
        }
        Event::Shutdown(_) => leave(Why::Itself, now + LEAVE),
        Event::Exited(exit) => (Phase::Ended(guest_end(exit, &vm.seen, Asked::No)), vec![]),
        // Its monitor is opened before its vCPUs are started, so these events mean nothing yet.
        Event::Start { .. }
        | Event::Continued
        | Event::Resumed
        | Event::Stopped
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::IoError
        | Event::WasReset
        | Event::Asked(_)
        | Event::Migration(_)
        | Event::Tick => (Phase::Starting, vec![]),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod two_nodes;
