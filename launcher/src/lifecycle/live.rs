//! A guest that is running or paused.

use std::time::Duration;

use super::control::Control;
use super::event::{Effect, Event};
use super::moving;
use super::stop_steps::{kill, leave, moved, quit, undecided};
use super::times::{CONTINUE, LEAVE, PRESS_AGAIN, REBOOT, RESET, RETRY, RETRY_LONGEST, STEADY};
use super::vm::{Pause, Phase, Reboot, Retry, StopState, StopStep, Vm, Why};
use crate::guest_end::{Asked, GuestEnd, guest_end};
use crate::migration::source::Stage;
use crate::migration::{Moving, Outcome};

/// One step of a running guest, or of one that is paused for this reason.
pub(super) fn step(pause: Option<Pause>, vm: &mut Vm, now: Duration, event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::CannotRun(why) | Event::CannotStart(why) => return kill(Why::Failure(why), now),
        Event::Shutdown(reason) => return shut_down(pause, vm, now, &reason),
        Event::Stop { grace } => return stop(pause, vm, now, grace),
        Event::Exited(exit) => {
            let end = match &vm.moving {
                Moving::Goes(source) if source.stage == Stage::Sent => undecided(),
                Moving::Goes(source) if source.stage == Stage::Left => moved(),
                Moving::Goes(_) | Moving::Comes(_) | Moving::Stays => guest_end(exit, &vm.seen, Asked::No),
            };
            return (Phase::Ended(end), vec![]);
        }
        Event::Migration(event) => return moving::step(pause, vm, now, event),
        Event::Tick if vm.must_run_by().is_some_and(|by| now >= by) => {
            return kill(Why::Failure(does_not_run()), now);
        }
        Event::Continued
        | Event::Resumed
        | Event::Stopped
        | Event::WasReset
        | Event::Asked(_)
        | Event::Tick
        | Event::Start { .. }
        | Event::Answered
        | Event::Panicked
        | Event::Watchdog(_)
        | Event::IoError => {}
    }
    let (pause, mut effects) = match event {
        Event::Continued => {
            vm.runs_by = None;
            (pause, vec![])
        }
        Event::Resumed => (resumed(pause, vm, now), vec![]),
        Event::Stopped => (stopped(pause, vm, now), vec![]),
        Event::WasReset => was_reset(pause, vm),
        Event::Asked(control) => asked(control, pause, vm, now),
        Event::Tick => {
            let (pause, effects) = tick(pause, vm, now);
            return moving::tick(pause, vm, now, effects);
        }
        _ => (pause, vec![]),
    };
    effects.extend(wake(pause, vm).map(Effect::Wake));
    (pause.map_or(Phase::Running, Phase::Paused), effects)
}

fn does_not_run() -> GuestEnd {
    let seconds = CONTINUE.as_secs();
    let message = format!("the guest could not be made to run: no answer to cont within {seconds} seconds");
    GuestEnd::failed("StartFailed", message)
}

fn resumed(pause: Option<Pause>, vm: &mut Vm, now: Duration) -> Option<Pause> {
    (vm.ran, vm.runs_by) = (true, None);
    match pause {
        Some(Pause::Storage { tries, .. }) => {
            Some(Pause::Storage { tries, retry: Retry::Trial { ends: now + STEADY } })
        }
        Some(Pause::Start | Pause::Incoming | Pause::User) | None => None,
    }
}

fn stopped(pause: Option<Pause>, vm: &mut Vm, now: Duration) -> Option<Pause> {
    let tries = match pause {
        // Between its power-off and its reset the guest is paused, but counts as running.
        None if matches!(vm.reboot, Some(Reboot::Resetting { .. })) => return None,
        // The pause at the end of a migration counts as running as well.
        None if vm.moving.is_under_way() && !vm.hold && !vm.io_error => return None,
        None => 0,
        Some(Pause::Storage { tries, retry: Retry::Trial { .. } }) => tries,
        Some(pause) => return Some(pause),
    };
    let failed = std::mem::take(&mut vm.io_error);
    Some(if failed && !vm.hold {
        Pause::Storage { tries, retry: Retry::At(now + retry_after(tries)) }
    } else {
        Pause::User
    })
}

fn retry_after(tries: u32) -> Duration {
    RETRY.saturating_mul(1 << tries.min(8)).min(RETRY_LONGEST)
}

/// The guest powered itself off, or a user ended it through the monitor.
fn shut_down(pause: Option<Pause>, vm: &mut Vm, now: Duration, reason: &str) -> (Phase, Vec<Effect>) {
    if reason != "guest-shutdown" || !matches!(vm.reboot, Some(Reboot::Asked { .. })) {
        return leave(Why::Itself, now + LEAVE);
    }
    let ends = now + RESET;
    vm.reboot = Some(Reboot::Resetting { ends });
    vm.seen.shutdown = None;
    (pause.map_or(Phase::Running, Phase::Paused), vec![Effect::Reset, Effect::Wake(ends)])
}

fn was_reset(pause: Option<Pause>, vm: &mut Vm) -> (Option<Pause>, Vec<Effect>) {
    match vm.reboot.take() {
        None => (pause, vec![]),
        // The guest reset itself, or a user did: this is a reboot as well.
        Some(Reboot::Asked { .. }) => (pause, vec![Effect::LeaveOnShutdown]),
        Some(Reboot::Resetting { .. }) if vm.hold => (Some(Pause::User), vec![Effect::LeaveOnShutdown]),
        Some(Reboot::Resetting { .. }) => (pause, vec![Effect::LeaveOnShutdown, Effect::Resume]),
    }
}

fn asked(control: Control, pause: Option<Pause>, vm: &mut Vm, now: Duration) -> (Option<Pause>, Vec<Effect>) {
    match (control, pause) {
        // Sent even if the guest is already paused: a user's request or an attempt to resume it may be under
        // way. Commands are carried out in order.
        (Control::Pause, Some(Pause::Storage { retry: Retry::At(_), .. })) => {
            (Some(Pause::User), vec![Effect::Hold])
        }
        (Control::Pause, _) => (pause, vec![Effect::Hold]),
        (Control::Unpause, _) => {
            let held = std::mem::take(&mut vm.hold);
            let still = matches!(pause, Some(Pause::User | Pause::Storage { retry: Retry::At(_), .. }));
            let resetting = matches!(vm.reboot, Some(Reboot::Resetting { .. }));
            let resume = (held || still) && !resetting;
            (pause, resume.then_some(Effect::Resume).into_iter().collect())
        }
        (Control::Reset, _) => (pause, vec![Effect::Reset]),
        (Control::SoftReboot, _) if matches!(vm.reboot, Some(Reboot::Resetting { .. })) => (pause, vec![]),
        (Control::SoftReboot, _) => {
            vm.reboot = Some(Reboot::Asked { ends: now + REBOOT, again: now + PRESS_AGAIN });
            (pause, vec![Effect::PressForReboot])
        }
    }
}

fn tick(pause: Option<Pause>, vm: &mut Vm, now: Duration) -> (Option<Pause>, Vec<Effect>) {
    let (mut pause, mut effects) = match pause {
        Some(Pause::Storage { tries, retry: Retry::At(at) }) if now >= at => {
            let tries = tries.saturating_add(1);
            let retry = Retry::At(now + retry_after(tries));
            (Some(Pause::Storage { tries, retry }), vec![Effect::Resume])
        }
        Some(Pause::Storage { retry: Retry::Trial { ends }, .. }) if now >= ends => (None, vec![]),
        pause => (pause, vec![]),
    };
    match vm.reboot {
        Some(Reboot::Asked { ends, .. }) if now >= ends => {
            vm.reboot = None;
            effects.push(Effect::LeaveOnShutdown);
        }
        Some(Reboot::Asked { ends, again }) if now >= again => {
            vm.reboot = Some(Reboot::Asked { ends, again: now + PRESS_AGAIN });
            effects.push(Effect::PressForReboot);
        }
        Some(Reboot::Resetting { ends }) if now >= ends => {
            // The guest stays paused, and its status says so: a user can reset or stop it.
            vm.reboot = None;
            pause = Some(Pause::User);
            effects.push(Effect::LeaveOnShutdown);
        }
        Some(Reboot::Asked { .. } | Reboot::Resetting { .. }) | None => {}
    }
    (pause, effects)
}

fn stop(pause: Option<Pause>, vm: &mut Vm, now: Duration, grace: Duration) -> (Phase, Vec<Effect>) {
    if !vm.ran {
        // The guest has not run, so it cannot react to the power button.
        return quit(Asked::BeforeStart, now);
    }
    let (mut cancel, mut is_back) = (Vec::new(), false);
    if let Moving::Goes(source) = &mut vm.moving {
        let Some((effects, outcome)) = source.stop(now, grace) else {
            // The result of the migration, or the end of the grace period, will end it.
            let effects = wake(pause, vm).map(Effect::Wake).into_iter().collect();
            return (pause.map_or(Phase::Running, Phase::Paused), effects);
        };
        cancel = effects.into_iter().map(Effect::Migrate).collect();
        is_back = outcome == Outcome::Back;
    }
    let reboot = vm.reboot.take();
    // A guest that has just shut down for a reboot has ended as requested.
    if grace.is_zero() || !vm.acpi || matches!(reboot, Some(Reboot::Resetting { .. })) {
        let (phase, effects) = quit(Asked::AtOnce, now);
        return (phase, cancel.into_iter().chain(effects).collect());
    }
    let (ends, again) = (now + grace, now + PRESS_AGAIN);
    let stop = StopState { step: StopStep::Powerdown { ends, again }, why: Why::Asked(Asked::WithGrace) };
    let end_with_it = reboot.map(|_| Effect::LeaveOnShutdown);
    // A paused guest cannot shut itself down.
    let wake_up = (pause.is_some() || is_back).then_some(Effect::Resume);
    let press = [Effect::Powerdown, Effect::Wake(ends.min(again))];
    let effects = cancel.into_iter().chain(end_with_it).chain(wake_up).chain(press).collect();
    (Phase::Stopping(stop), effects)
}

/// The next moment at which time alone changes the state.
pub(super) fn wake(pause: Option<Pause>, vm: &Vm) -> Option<Duration> {
    let retry = match pause {
        Some(Pause::Storage { retry: Retry::At(at), .. }) => Some(at),
        Some(Pause::Storage { retry: Retry::Trial { ends }, .. }) => Some(ends),
        Some(Pause::Start | Pause::Incoming | Pause::User) | None => None,
    };
    let reboot = match vm.reboot {
        Some(Reboot::Asked { ends, again }) => Some(ends.min(again)),
        Some(Reboot::Resetting { ends }) => Some(ends),
        None => None,
    };
    retry.into_iter().chain(reboot).chain(vm.must_run_by()).chain(vm.moving.wake()).min()
}
