//! The steps of a stop: each is a stronger request to end than the one before.

use std::time::Duration;

use super::event::{Effect, Event};
use super::times::{FORCE, FORCE_AT_ONCE, LEAVE_ASKED, PRESS_AGAIN};
use super::vm::{Phase, StopState, StopStep, Why};
use crate::guest_end::{Asked, Exit, GuestEnd, MonitorReports, guest_end};

/// One step of a guest that is stopping.
pub(super) fn stopping(
    stop: StopState,
    now: Duration,
    event: Event,
    seen: &MonitorReports,
) -> (Phase, Vec<Effect>) {
    let StopState { step, why } = stop;
    match (event, step) {
        (Event::Exited(exit), _) => (Phase::Ended(conclude(exit, seen, why)), vec![]),
        (Event::Stop { grace }, step) => hurry(StopState { step, why }, now, grace),
        (Event::CannotRun(end) | Event::CannotStart(end), step) if step != StopStep::Kill => {
            // A guest that is already stopping keeps its reason.
            kill(if why == Why::Itself { Why::Failure(end) } else { why }, now)
        }
        (Event::Shutdown(_), StopStep::Powerdown { ends, .. }) => leave(why, ends.max(now + LEAVE_ASKED)),
        (Event::Tick, StopStep::Powerdown { ends, .. }) if now >= ends => quit_for(why, now, FORCE),
        (Event::Tick, StopStep::Powerdown { ends, again }) if now >= again => {
            let again = now + PRESS_AGAIN;
            let stop = StopState { step: StopStep::Powerdown { ends, again }, why };
            (Phase::Stopping(stop), vec![Effect::Powerdown, Effect::Wake(ends.min(again))])
        }
        (Event::Tick, StopStep::Leaving { ends }) if now >= ends => terminate(why, now, FORCE),
        (Event::Tick, StopStep::Quit { ends }) if now >= ends => {
            let wait = if why == Why::Asked(Asked::AtOnce) { FORCE_AT_ONCE } else { FORCE };
            terminate(why, now, wait)
        }
        (Event::Tick, StopStep::Terminate { ends }) if now >= ends => kill(why, now),
        (Event::Tick, step) => {
            let wake = Effect::Wake(step.wake(now));
            (Phase::Stopping(StopState { step, why }), vec![wake])
        }
        // Events that cannot stop the ending.
        (
            Event::Start { .. }
            | Event::Answered
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
            | Event::CannotRun(_)
            | Event::CannotStart(_),
            step,
        ) => (Phase::Stopping(StopState { step, why }), vec![]),
    }
}

/// A stop that was requested again, or after the guest had begun to shut down by itself.
fn hurry(stop: StopState, now: Duration, grace: Duration) -> (Phase, Vec<Effect>) {
    let StopState { step, why } = stop;
    match step {
        StopStep::Powerdown { .. } if grace.is_zero() => quit(Asked::AtOnce, now),
        StopStep::Powerdown { ends, again } => {
            let ends = ends.min(now + grace);
            let step = StopStep::Powerdown { ends, again };
            (Phase::Stopping(StopState { step, why }), vec![Effect::Wake(ends.min(again))])
        }
        StopStep::Leaving { ends } => leave(why, ends.min(now + grace + LEAVE_ASKED)),
        StopStep::Quit { ends } if grace.is_zero() => {
            let ends = ends.min(now + FORCE_AT_ONCE);
            (Phase::Stopping(StopState { step: StopStep::Quit { ends }, why }), vec![Effect::Wake(ends)])
        }
        StopStep::Terminate { ends } if grace.is_zero() => {
            let ends = ends.min(now + FORCE_AT_ONCE);
            (Phase::Stopping(StopState { step: StopStep::Terminate { ends }, why }), vec![Effect::Wake(ends)])
        }
        StopStep::Quit { .. } | StopStep::Terminate { .. } | StopStep::Kill => {
            (Phase::Stopping(StopState { step, why }), vec![])
        }
    }
}

pub(super) fn leave(why: Why, ends: Duration) -> (Phase, Vec<Effect>) {
    (Phase::Stopping(StopState { step: StopStep::Leaving { ends }, why }), vec![Effect::Wake(ends)])
}

pub(super) fn quit(asked: Asked, now: Duration) -> (Phase, Vec<Effect>) {
    quit_for(Why::Asked(asked), now, FORCE_AT_ONCE)
}

fn quit_for(why: Why, now: Duration, wait: Duration) -> (Phase, Vec<Effect>) {
    let ends = now + wait;
    (
        Phase::Stopping(StopState { step: StopStep::Quit { ends }, why }),
        vec![Effect::Quit, Effect::Wake(ends)],
    )
}

pub(super) fn terminate(why: Why, now: Duration, wait: Duration) -> (Phase, Vec<Effect>) {
    let ends = now + wait;
    let stop = StopState { step: StopStep::Terminate { ends }, why };
    (Phase::Stopping(stop), vec![Effect::Terminate, Effect::Wake(ends)])
}

pub(super) fn kill(why: Why, now: Duration) -> (Phase, Vec<Effect>) {
    let wake = Effect::Wake(StopStep::Kill.wake(now));
    (Phase::Stopping(StopState { step: StopStep::Kill, why }), vec![Effect::Kill, wake])
}

/// The end of what is left of a guest that has moved to another node.
pub(super) fn moved() -> GuestEnd {
    GuestEnd::succeeded("Migrated", "the guest runs on another node")
}

/// The end of what is left of a guest that was sent, if its migration's result is unknown.
pub(super) fn undecided() -> GuestEnd {
    GuestEnd::failed(
        "MigrationUndecided",
        "the guest was sent to another node, and ended here before it was known to run there",
    )
}

pub(super) fn quit_moved(now: Duration) -> (Phase, Vec<Effect>) {
    quit_for(Why::Moved, now, FORCE)
}

pub(super) fn quit_undecided(now: Duration) -> (Phase, Vec<Effect>) {
    quit_for(Why::Failure(undecided()), now, FORCE)
}

fn conclude(exit: Exit, seen: &MonitorReports, why: Why) -> GuestEnd {
    match why {
        Why::Failure(end) => end,
        Why::Asked(asked) => guest_end(exit, seen, asked),
        Why::Itself => guest_end(exit, seen, Asked::No),
        Why::Moved => moved(),
    }
}
