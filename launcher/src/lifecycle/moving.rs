//! A guest that moves while it runs: translates the events of [`crate::migration`] into its life cycle.

use std::time::Duration;

use super::event::{Effect, Event};
use super::live;
use super::stop_steps::{kill, quit_moved, quit_undecided, stopping};
use super::times::CONTINUE;
use super::vm::{Pause, Phase, StopState, Vm, Why};
use crate::guest_end::GuestEnd;
use crate::migration::{self, Moving, Outcome, source, target};

/// An order from the handler about a migration, without its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Send the guest.
    Send,
    /// Receive the guest.
    Receive,
    /// Give up.
    Abort,
    /// The location of the guest.
    Result,
    /// Continue over a new connection.
    Rejoin,
    /// The source runs nothing any more.
    SourceEnded,
    /// Let the guest run.
    Go,
}

/// Why an order is impossible now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOrdered {
    /// There is no guest to send.
    #[error("VMI is not running")]
    NotRunning,
    /// Another migration is under way.
    #[error("the guest is on its way by migration {0}")]
    Other(String),
    /// It is being shut down for a reboot.
    #[error("the guest is being rebooted")]
    Rebooting,
    /// There is no such migration here.
    #[error("there is no such migration here")]
    Unknown,
}

/// Whether an order must be carried out; false if that was already done.
///
/// # Errors
/// Why it is impossible.
pub fn judge_order(vm: &Vm, uid: &str, order: Order) -> Result<bool, NotOrdered> {
    match (order, &vm.moving) {
        (Order::Send, Moving::Goes(going)) if going.uid == uid => Ok(false),
        (Order::Send, Moving::Goes(going)) if going.stage != source::Stage::Over => {
            Err(NotOrdered::Other(going.uid.clone()))
        }
        (Order::Send, _) => match vm.phase {
            Phase::Paused(Pause::Start | Pause::Incoming)
            | Phase::Waiting
            | Phase::Starting
            | Phase::Stopping(_)
            | Phase::Ended(_) => Err(NotOrdered::NotRunning),
            Phase::Running | Phase::Paused(_) if vm.reboot.is_some() => Err(NotOrdered::Rebooting),
            Phase::Running | Phase::Paused(_) => Ok(true),
        },
        (Order::Receive, Moving::Comes(coming)) if coming.uid == uid => match (coming.stage, &vm.phase) {
            (target::Stage::Awaited, Phase::Paused(Pause::Incoming)) => Ok(true),
            (target::Stage::Awaited, _) => Err(NotOrdered::NotRunning),
            (target::Stage::Receiving | target::Stage::Received | target::Stage::Arrived, _) => Ok(false),
        },
        (Order::Go | Order::SourceEnded, Moving::Comes(coming)) if coming.uid == uid => Ok(true),
        (Order::Rejoin, Moving::Comes(coming)) if coming.uid == uid && coming.is_missing_memory() => Ok(true),
        (Order::Rejoin, Moving::Goes(going)) if going.uid == uid => Ok(going.awaits_connection()),
        (Order::Abort | Order::Result, Moving::Goes(going)) if going.uid == uid => Ok(true),
        (Order::Abort, Moving::Comes(coming)) if coming.uid == uid => Ok(coming.is_awaited()),
        (
            Order::Receive | Order::Go | Order::Rejoin | Order::SourceEnded | Order::Abort | Order::Result,
            _,
        ) => Err(NotOrdered::Unknown),
    }
}

/// One step of a running guest, or of one that is paused for this reason.
pub(super) fn step(
    pause: Option<Pause>,
    vm: &mut Vm,
    now: Duration,
    event: migration::Event,
) -> (Phase, Vec<Effect>) {
    let was_missing_memory = vm.moving.is_missing_memory();
    let (effects, outcome) = vm.moving.step(now, event);
    if was_missing_memory && !vm.moving.is_missing_memory() {
        // QEMU's main loop waits for nothing any more.
        vm.runs_by = vm.runs_by.map(|_| now + CONTINUE);
    }
    apply_outcome(pause, vm, now, effects.into_iter().map(Effect::Migrate).collect(), outcome)
}

/// Time has passed. `effects` are those of other parts at the same moment.
pub(super) fn tick(
    pause: Option<Pause>,
    vm: &mut Vm,
    now: Duration,
    mut effects: Vec<Effect>,
) -> (Phase, Vec<Effect>) {
    let (more, outcome) = vm.moving.tick(now);
    effects.extend(more.into_iter().map(Effect::Migrate));
    apply_outcome(pause, vm, now, effects, outcome)
}

fn apply_outcome(
    pause: Option<Pause>,
    vm: &mut Vm,
    now: Duration,
    mut effects: Vec<Effect>,
    outcome: Outcome,
) -> (Phase, Vec<Effect>) {
    let ends = |(phase, more): (Phase, Vec<Effect>), mut effects: Vec<Effect>| {
        effects.extend(more);
        (phase, effects)
    };
    let pause = match outcome {
        Outcome::None => pause,
        Outcome::Arrived { hold: true } => {
            (vm.hold, vm.ran) = (true, true);
            effects.extend(cards(vm));
            Some(Pause::User)
        }
        Outcome::Arrived { hold: false } => {
            (vm.ran, vm.runs_by) = (true, Some(now + CONTINUE));
            effects.push(Effect::Continue);
            effects.extend(cards(vm));
            pause
        }
        Outcome::Back => {
            effects.extend((!vm.hold).then_some(Effect::Resume));
            pause
        }
        Outcome::Left => return ends(quit_moved(now), effects),
        Outcome::Undecided => return ends(quit_undecided(now), effects),
        Outcome::Lost(why) => {
            let message = format!("the guest could not be taken in: {why}");
            let end = GuestEnd::failed("MigrationFailed", message);
            return ends(kill(Why::Failure(end), now), effects);
        }
        Outcome::Gone(why) => return ends(kill(Why::Failure(gone(vm, &why)), now), effects),
    };
    effects.extend(live::wake(pause, vm).map(Effect::Wake));
    (pause.map_or(Phase::Running, Phase::Paused), effects)
}

/// The node's cards for a guest that has arrived. They come after it runs, as QEMU may take long over them; with some of the
/// memory missing, they come after that.
fn cards(vm: &Vm) -> Option<Effect> {
    (!vm.moving.is_missing_memory()).then_some(Effect::Migrate(migration::Effect::GiveCards))
}

fn gone(vm: &Vm, why: &str) -> GuestEnd {
    if vm.moving.report(false).is_some_and(|report| report.post_copy) {
        GuestEnd::failed("PostCopyFailed", format!("the guest was lost in post-copy migration: {why}"))
    } else {
        GuestEnd::failed("MigrationFailed", format!("the guest was lost in migration: {why}"))
    }
}

/// The same for a guest that is stopping: it may still be sent, if the stop came too late.
pub(super) fn while_stopping(
    stop: StopState,
    vm: &mut Vm,
    now: Duration,
    event: migration::Event,
) -> (Phase, Vec<Effect>) {
    let (effects, outcome) = vm.moving.step(now, event);
    let mut effects: Vec<Effect> = effects.into_iter().map(Effect::Migrate).collect();
    let (phase, more) = match outcome {
        Outcome::Left => quit_moved(now),
        // When it runs again, it can react to the power button.
        Outcome::Back => (Phase::Stopping(stop), vec![Effect::Resume]),
        Outcome::Lost(why) => {
            stopping(stop, now, Event::CannotRun(GuestEnd::failed("MigrationFailed", why)), &vm.seen)
        }
        Outcome::Gone(why) => stopping(stop, now, Event::CannotRun(gone(vm, &why)), &vm.seen),
        Outcome::None | Outcome::Arrived { .. } | Outcome::Undecided => (Phase::Stopping(stop), vec![]),
    };
    effects.extend(more);
    (phase, effects)
}
