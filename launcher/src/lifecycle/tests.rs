use super::*;
use crate::guest_end::GuestEnd;
use proptest::prelude::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Plays events at their moments; returns all effects in order, except the wake-ups.
fn play(events: &[(Duration, Event)]) -> (Vm, Vec<Effect>) {
    let mut vm = Vm::new();
    let mut all = Vec::new();
    for (now, event) in events {
        let (next, effects) = step(vm, *now, event.clone());
        vm = next;
        all.extend(effects.into_iter().filter(|effect| !matches!(effect, Effect::Wake(_))));
    }
    (vm, all)
}

fn started() -> Vec<(Duration, Event)> {
    vec![
        (s(0), Event::Start { acpi: true, paused: false, incoming: None }),
        (s(1), Event::Answered),
        (s(1), Event::Resumed),
    ]
}

fn after(more: &[(Duration, Event)]) -> (Vm, Vec<Effect>) {
    let mut events = started();
    events.extend(more.iter().cloned());
    let (vm, effects) = play(&events);
    assert_eq!(effects[..2], [Effect::Spawn, Effect::Continue]);
    (vm, effects[2..].to_vec())
}

fn reason(vm: &Vm) -> &str {
    &vm.end().unwrap().reason
}

#[test]
fn a_guest_that_shuts_down_when_asked() {
    let (vm, effects) = after(&[
        (s(10), Event::Stop { grace: s(30) }),
        (s(12), Event::Shutdown("guest-shutdown".into())),
        (s(12), Event::Exited(Exit::Status(0))),
    ]);
    assert_eq!(effects, [Effect::Powerdown]);
    assert_eq!(reason(&vm), "GuestShutdown");
}

#[test]
fn the_whole_ladder_within_its_time() {
    let mut events: Vec<_> = vec![(s(10), Event::Stop { grace: s(7) })];
    events.extend((10..30).map(|at| (s(at), Event::Tick)));
    events.push((s(30), Event::Exited(Exit::Signal(9))));
    let (vm, effects) = after(&events);
    let press = Effect::Powerdown;
    assert_eq!(effects, [press, press, press, Effect::Quit, Effect::Terminate, Effect::Kill]);
    assert_eq!(reason(&vm), "GracePeriodExpired");
}

#[test]
fn no_grace_is_at_once() {
    let ms = Duration::from_millis;
    let (vm, effects) = after(&[
        (s(10), Event::Stop { grace: s(0) }),
        (s(10) + ms(300), Event::Tick),
        (s(10) + ms(600), Event::Tick),
        (s(11), Event::Exited(Exit::Signal(9))),
    ]);
    assert_eq!(effects, [Effect::Quit, Effect::Terminate, Effect::Kill]);
    assert_eq!((reason(&vm), vm.end().unwrap().succeeded), ("Stopped", true));
}

#[test]
fn a_second_stop_only_shortens() {
    let asked = |first: u64, second: u64, at: u64| {
        after(&[
            (s(10), Event::Stop { grace: s(first) }),
            (s(11), Event::Stop { grace: s(second) }),
            (s(at), Event::Tick),
        ])
        .1
    };
    assert_eq!(asked(60, 2, 13).last(), Some(&Effect::Quit));
    assert_eq!(asked(2, 60, 12).last(), Some(&Effect::Quit));
    assert_eq!(asked(60, 0, 11).last(), Some(&Effect::Quit));
}

#[test]
fn a_paused_guest_is_resumed_to_shut_down() {
    let (_, effects) = after(&[(s(5), Event::Stopped), (s(10), Event::Stop { grace: s(30) })]);
    assert_eq!(effects, [Effect::Resume, Effect::Powerdown]);
}

#[test]
fn a_guest_without_a_power_button_is_ended() {
    let mut events = started();
    events[0].1 = Event::Start { acpi: false, paused: false, incoming: None };
    events.push((s(10), Event::Stop { grace: s(30) }));
    events.push((s(10), Event::Exited(Exit::Status(0))));
    let (vm, effects) = play(&events);
    assert_eq!(effects[2..], [Effect::Quit]);
    assert_eq!(reason(&vm), "Stopped");
}

#[test]
fn a_stop_before_the_start_starts_nothing() {
    let (vm, effects) = play(&[
        (s(0), Event::Stop { grace: s(30) }),
        (s(1), Event::Start { acpi: true, paused: false, incoming: None }),
    ]);
    assert_eq!((reason(&vm), effects.len()), ("StoppedBeforeStart", 0));
    let (vm, effects) = play(&[
        (s(0), Event::Start { acpi: true, paused: false, incoming: None }),
        (s(1), Event::Stop { grace: s(30) }),
        (s(1), Event::Answered),
        (s(1), Event::Exited(Exit::Status(0))),
    ]);
    assert_eq!((reason(&vm), effects), ("StoppedBeforeStart", vec![Effect::Spawn, Effect::Terminate]));
}

#[test]
fn a_monitor_that_never_answers_costs_the_child_its_life_first() {
    let why = GuestEnd::failed("StartFailed", "the monitor did not answer in time");
    let (vm, effects) = play(&[
        (s(0), Event::Start { acpi: true, paused: false, incoming: None }),
        (s(60), Event::CannotRun(why.clone())),
        (s(61), Event::Exited(Exit::Signal(9))),
    ]);
    assert_eq!(effects, [Effect::Spawn, Effect::Kill]);
    assert_eq!(vm.end(), Some(&why));
}

#[test]
fn a_guest_that_qemu_does_not_let_run_in_time_is_given_up() {
    let asked = [(s(0), Event::Start { acpi: true, paused: false, incoming: None }), (s(1), Event::Answered)];
    let late = [(s(60), Event::Tick), (s(61), Event::Tick), (s(61), Event::Exited(Exit::Signal(9)))];
    let (vm, effects) = play(&[&asked[..], &late[..]].concat());
    assert_eq!((reason(&vm), effects), ("StartFailed", vec![Effect::Spawn, Effect::Continue, Effect::Kill]));
    for answer in [Event::Continued, Event::Resumed] {
        let (vm, _) = play(&[&asked[..], &[(s(30), answer)], &late[..2]].concat());
        assert_eq!(vm.end(), None);
        assert!(!matches!(vm.phase, Phase::Stopping(_)));
    }
}

/// A guest that arrives in post-copy, whose connection breaks before QEMU has let it run.
fn waits_for_memory() -> Vec<(Duration, Event)> {
    use crate::migration::{Event as Moves, QemuState};
    let moves = |event| (s(10), Event::Migration(event));
    vec![
        (s(0), Event::Start { acpi: true, paused: false, incoming: Some("m".into()) }),
        (s(1), Event::Answered),
        moves(Moves::Receive),
        moves(Moves::QemuState(QemuState::PostCopy)),
        moves(Moves::QemuState(QemuState::Broken)),
        moves(Moves::Go { hold: false }),
        (s(70), Event::Tick),
        (s(200), Event::Tick),
    ]
}

#[test]
fn while_memory_is_missing_a_late_answer_to_cont_does_not_end_the_guest() {
    use crate::migration::{Event as Moves, QemuState};
    let events = waits_for_memory();
    let (vm, effects) = play(&events);
    assert_eq!((effects.last(), &vm.phase), (Some(&Effect::Continue), &Phase::Paused(Pause::Incoming)));
    // The answer counts when it comes.
    let whole = (s(210), Event::Migration(Moves::QemuState(QemuState::Completed)));
    let runs = [(s(200), Event::Continued), (s(200), Event::Resumed), whole.clone(), (s(300), Event::Tick)];
    assert_eq!(play(&[&events[..], &runs[..]].concat()).0.phase, Phase::Running);
    // With all of its memory, QEMU has the usual time.
    let mut late = vec![whole, (s(269), Event::Tick)];
    let (vm, _) = play(&[&events[..], &late[..]].concat());
    assert_eq!(vm.phase, Phase::Paused(Pause::Incoming));
    late.extend([(s(270), Event::Tick), (s(270), Event::Exited(Exit::Signal(9)))]);
    assert_eq!(reason(&play(&[&events[..], &late[..]].concat()).0), "StartFailed");
    // Without a new connection, the time for it ends the guest.
    let lost = [(s(430), Event::Tick), (s(430), Event::Exited(Exit::Signal(9)))];
    assert_eq!(reason(&play(&[&events[..], &lost[..]].concat()).0), "PostCopyFailed");
}

#[test]
fn a_guest_that_its_migration_has_paused_runs_when_it_is_stopped() {
    use crate::migration::{Effect as Tell, Event as Moves, Limits};
    let limits = Limits {
        bandwidth: None,
        downtime: s(1),
        auto_converge: false,
        completion: Some(s(10)),
        completion_per_gib: s(0),
        progress: None,
        may_pause: true,
        post_copy: false,
        tuning: None,
    };
    let (vm, effects) = after(&[
        (s(10), Event::Migration(Moves::Send { uid: "m".into(), limits })),
        (s(10), Event::Migration(Moves::Copies { bytes: 1 })),
        (s(20), Event::Tick),
        (s(20), Event::Stopped),
        (s(21), Event::Stop { grace: s(30) }),
    ]);
    let tell = [Tell::Send, Tell::LookAtDisks, Tell::Pause, Tell::CleanUp].map(Effect::Migrate);
    assert_eq!((&effects[..4], &effects[4..]), (&tell[..], &[Effect::Resume, Effect::Powerdown][..]));
    assert!(matches!(vm.phase, Phase::Stopping(_)));
}

#[test]
fn quit_by_a_person_is_seen() {
    let (vm, effects) =
        after(&[(s(5), Event::Shutdown("host-qmp-quit".into())), (s(5), Event::Exited(Exit::Status(0)))]);
    assert_eq!((reason(&vm), effects.len()), ("QuitByMonitor", 0));
}

#[test]
fn a_qemu_that_hangs_on_its_way_out_is_helped() {
    let (_, effects) = after(&[
        (s(5), Event::Shutdown("guest-shutdown".into())),
        (s(64), Event::Tick),
        (s(65), Event::Tick),
        (s(68), Event::Tick),
    ]);
    assert_eq!(effects, [Effect::Terminate, Effect::Kill]);
}

#[test]
fn a_panic_with_exit_is_a_failure() {
    let (vm, _) = after(&[
        (s(5), Event::Panicked),
        (s(5), Event::Shutdown("guest-panic".into())),
        (s(5), Event::Exited(Exit::Status(0))),
    ]);
    assert_eq!(reason(&vm), "GuestPanicked");
}

#[test]
fn a_paused_guest_resumes_on_request() {
    let (vm, effects) = after(&[(s(5), Event::Asked(Control::Pause)), (s(5), Event::Stopped)]);
    assert_eq!((&vm.phase, effects), (&Phase::Paused(Pause::User), vec![Effect::Hold]));
    let (vm, effects) = step(vm, s(9), Event::Asked(Control::Unpause));
    assert_eq!(effects, [Effect::Resume]);
    assert_eq!(step(vm, s(9), Event::Resumed).0.phase, Phase::Running);
}

#[test]
fn a_guest_that_starts_paused_stays_so_and_its_stop_is_a_stop_before_the_start() {
    let start = [(s(0), Event::Start { acpi: true, paused: true, incoming: None }), (s(1), Event::Answered)];
    let (vm, effects) = play(&start);
    assert_eq!((&vm.phase, effects), (&Phase::Paused(Pause::User), vec![Effect::Spawn]));
    assert_eq!(step(vm.clone(), s(2), Event::Asked(Control::Unpause)).1, [Effect::Resume]);
    let (vm, effects) = step(vm, s(2), Event::Stop { grace: s(30) });
    assert_eq!(effects[0], Effect::Quit);
    let (vm, _) = step(vm, s(2), Event::Exited(Exit::Status(0)));
    assert_eq!(reason(&vm), "StoppedBeforeStart");
}

#[test]
fn a_failed_disk_is_tried_again_and_again_until_it_answers() {
    let (mut vm, effects) = after(&[(s(100), Event::IoError), (s(100), Event::Stopped)]);
    assert_eq!(effects, []);
    let mut tried = Vec::new();
    for second in 100..140 {
        let (next, effects) = step(vm, s(second), Event::Tick);
        vm = next;
        if effects.contains(&Effect::Resume) {
            tried.push(second);
            // The guest runs, and fails again at once.
            for event in [Event::Resumed, Event::IoError, Event::Stopped] {
                vm = step(vm, s(second), event).0;
                assert!(matches!(vm.phase, Phase::Paused(Pause::Storage { .. })), "{:?}", vm.phase);
            }
        }
    }
    assert_eq!(tried, [101, 103, 107, 115, 125, 135]);
    let (vm, effects) = step(vm, s(145), Event::Tick);
    assert_eq!(effects[0], Effect::Resume);
    let (vm, _) = step(vm, s(145), Event::Resumed);
    assert!(matches!(vm.phase, Phase::Paused(Pause::Storage { .. })), "it has not proven itself yet");
    let (vm, _) = step(vm, s(147), Event::Tick);
    assert_eq!(vm.phase, Phase::Running);
    // The next failure counts as a first one.
    let (vm, _) = step(vm, s(150), Event::IoError);
    let (vm, effects) = step(vm, s(150), Event::Stopped);
    assert_eq!(effects, [Effect::Wake(s(151))]);
    // A user pauses the guest: from then on no resume is tried.
    let (vm, _) = step(vm, s(150), Event::Asked(Control::Pause));
    assert_eq!(step(vm, s(200), Event::Tick).1, []);
}

#[test]
fn a_soft_reboot_is_a_shutdown_that_is_reset() {
    let asked = [(s(5), Event::Asked(Control::SoftReboot)), (s(8), Event::Tick)];
    let (vm, effects) = after(&asked);
    assert_eq!(effects, [Effect::PressForReboot, Effect::PressForReboot]);
    let (vm, effects) = step(vm, s(9), Event::Shutdown("guest-shutdown".into()));
    assert_eq!(effects[0], Effect::Reset);
    let (vm, _) = step(vm, s(9), Event::Stopped);
    assert_eq!(vm.phase, Phase::Running, "the guest is reported as running");
    let (vm, effects) = step(vm, s(9), Event::WasReset);
    assert_eq!(effects, [Effect::LeaveOnShutdown, Effect::Resume]);
    let (vm, _) = step(vm, s(9), Event::Resumed);
    // The next shutdown is the guest's own.
    let (vm, _) = step(vm, s(90), Event::Shutdown("guest-shutdown".into()));
    let (vm, _) = step(vm, s(90), Event::Exited(Exit::Status(0)));
    assert_eq!(reason(&vm), "GuestShutdown");
}

#[test]
fn a_soft_reboot_that_the_guest_does_not_hear_is_forgotten() {
    let (vm, effects) = after(&[(s(5), Event::Asked(Control::SoftReboot)), (s(5) + REBOOT, Event::Tick)]);
    assert_eq!((vm.reboot, effects.last()), (None, Some(&Effect::LeaveOnShutdown)));
    // A guest that reboots instead has done what was requested.
    let (vm, effects) = after(&[(s(5), Event::Asked(Control::SoftReboot)), (s(9), Event::WasReset)]);
    assert_eq!((vm.reboot, effects.last()), (None, Some(&Effect::LeaveOnShutdown)));
}

#[test]
fn a_stop_during_a_soft_reboot_is_a_stop() {
    let (_, effects) =
        after(&[(s(5), Event::Asked(Control::SoftReboot)), (s(6), Event::Stop { grace: s(30) })]);
    assert_eq!(effects[1..], [Effect::LeaveOnShutdown, Effect::Powerdown]);
    let (vm, effects) = after(&[
        (s(5), Event::Asked(Control::SoftReboot)),
        (s(6), Event::Shutdown("guest-shutdown".into())),
        (s(6), Event::Stop { grace: s(30) }),
        (s(7), Event::Exited(Exit::Status(0))),
    ]);
    assert_eq!(effects.last(), Some(&Effect::Quit));
    assert!(vm.end().unwrap().succeeded);
}

#[test]
fn controls_are_judged_by_the_phase() {
    let running = play(&started()).0;
    let paused = step(running.clone(), s(9), Event::Stopped).0;
    let stopping = step(running.clone(), s(9), Event::Stop { grace: s(9) }).0;
    for (vm, control, wanted) in [
        (&Vm::new(), Control::Pause, Err(Refused::NotRunning)),
        (&stopping, Control::Unpause, Err(Refused::NotRunning)),
        (&running, Control::Pause, Ok(())),
        (&running, Control::Unpause, Ok(())),
        (&paused, Control::Unpause, Ok(())),
        (&paused, Control::Reset, Ok(())),
        (&paused, Control::SoftReboot, Err(Refused::Paused)),
        (&Vm { acpi: false, ..running.clone() }, Control::SoftReboot, Err(Refused::NoPowerButton)),
    ] {
        assert_eq!(judge(vm, control), wanted, "{control:?} of {:?}", vm.phase);
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let word = prop_oneof![Just("guest-shutdown"), Just("host-qmp-quit"), Just("x")];
    let failure = || GuestEnd::failed("X", "x");
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(acpi, paused)| Event::Start {
            acpi,
            paused,
            incoming: None
        }),
        Just(Event::CannotStart(failure())),
        Just(Event::CannotRun(failure())),
        Just(Event::Answered),
        Just(Event::Continued),
        Just(Event::Resumed),
        Just(Event::Stopped),
        word.prop_map(|word| Event::Shutdown(word.into())),
        Just(Event::Panicked),
        Just(Event::Watchdog("poweroff".into())),
        Just(Event::IoError),
        Just(Event::WasReset),
        Just(Event::Asked(Control::Pause)),
        Just(Event::Asked(Control::Unpause)),
        Just(Event::Asked(Control::Reset)),
        Just(Event::Asked(Control::SoftReboot)),
        (0u64..40).prop_map(|grace| Event::Stop { grace: s(grace) }),
        Just(Event::Tick),
        Just(Event::Tick),
        prop_oneof![Just(Exit::Status(0)), Just(Exit::Status(1)), Just(Exit::Signal(9))]
            .prop_map(Event::Exited),
    ]
}

proptest! {
    /// For any events in any order: QEMU is spawned at most once, nothing follows the end, a stopping VM
    /// keeps stopping, and it ends within a bounded time if no other events come.
    #[test]
    fn invariants_hold_in_every_order(
        events in proptest::collection::vec((0u64..5000, any_event()), 0..60),
    ) {
        let mut vm = Vm::new();
        let mut now = Duration::ZERO;
        let (mut spawned, mut child) = (0, false);
        let mut wake = None;
        for (wait, event) in events {
            now += Duration::from_millis(wait);
            let (was_stopping, was_ended) =
                (matches!(vm.phase, Phase::Stopping(_)), vm.end().cloned());
            if let (Event::Exited(_), true) = (&event, child) {
                child = false;
            }
            let lets_go = matches!(event, Event::Asked(Control::Unpause) | Event::Stop { .. });
            let (held, given) = (vm.hold && vm.phase != Phase::Waiting, event.clone());
            let (next, effects) = step(vm, now, event);
            if held && !lets_go {
                let resumed = effects.iter().any(|effect| matches!(effect, Effect::Continue | Effect::Resume));
                prop_assert!(!resumed, "what somebody paused was let go by {:?}", given);
            }
            if matches!(next.phase, Phase::Paused(Pause::Storage { .. })) || (next.reboot.is_some() && next.end().is_none()) {
                prop_assert!(wake.is_some() || effects.iter().any(|effect| matches!(effect, Effect::Wake(_))), "nothing leads on");
            }
            spawned += effects.iter().filter(|effect| **effect == Effect::Spawn).count();
            child |= effects.contains(&Effect::Spawn);
            for effect in &effects {
                if let Effect::Wake(at) = effect {
                    wake = Some(*at);
                }
            }
            if let Some(end) = was_ended {
                prop_assert_eq!(next.end(), Some(&end));
                prop_assert!(effects.is_empty());
            }
            if was_stopping {
                prop_assert!(matches!(next.phase, Phase::Stopping(_) | Phase::Ended(_)), "back from stopping");
            }
            if matches!(next.phase, Phase::Stopping(_)) {
                prop_assert!(wake.is_some(), "stopping without a wake-up");
            }
            vm = next;
        }
        prop_assert!(spawned <= 1);

        // From here on only time passes: a stop leads to SIGKILL in bounded time, through wake-ups alone.
        if matches!(vm.phase, Phase::Starting | Phase::Paused(_) | Phase::Running | Phase::Stopping(_)) {
            let (mut vm, effects) = step(vm, now, Event::Stop { grace: s(30) });
            let begun = now;
            let mut killed = effects.contains(&Effect::Kill)
                || matches!(&vm.phase, Phase::Stopping(stop) if stop.step == StopStep::Kill);
            for effect in effects {
                if let Effect::Wake(at) = effect { wake = Some(at); }
            }
            while !killed {
                let at = wake.take();
                prop_assert!(at.is_some(), "the stop has no wake-up");
                now = at.unwrap().max(now);
                prop_assert!(now - begun <= s(30) + LEAVE_ASKED + FORCE * 3, "later than the grace period allows");
                let (next, effects) = step(vm, now, Event::Tick);
                vm = next;
                killed = effects.contains(&Effect::Kill);
                for effect in effects {
                    if let Effect::Wake(at) = effect { wake = Some(at); }
                }
            }
            let (vm, _) = step(vm, now, Event::Exited(Exit::Signal(9)));
            prop_assert!(vm.end().is_some());
        }
    }
}
