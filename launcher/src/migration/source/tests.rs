//! Sequences of events from QEMU, the handler and the clock at a source.

use super::*;

const S: Duration = Duration::from_secs(1);

pub(super) fn limits() -> Limits {
    Limits {
        bandwidth: None,
        downtime: Duration::from_millis(900),
        auto_converge: false,
        completion: Some(10 * S),
        completion_per_gib: 10 * S,
        progress: Some(5 * S),
        may_pause: false,
        post_copy: false,
        tuning: None,
    }
}

/// Memory is sent since second 1.
pub(super) fn begun(limits: Limits) -> Source {
    let mut source = Source::begin("m".to_owned(), limits, S).0;
    source.step(S, Event::Begun);
    source
}

fn look(source: &mut Source, second: u32, remaining: u64) -> Vec<Effect> {
    let progress = Progress { remaining, total: 1000, ..Progress::default() };
    source.step(second * S, Event::Progress(progress));
    source.tick(second * S).0
}

#[test]
fn a_successful_migration_ends_with_the_result() {
    let mut source = begun(limits());
    assert_eq!(source.step(S, Event::QemuState(QemuState::PreSwitchover)).0, [Effect::Switch]);
    source.step(S, Event::QemuState(QemuState::Completed));
    assert_eq!((source.stage, source.wake()), (Stage::Sent, None));
    // From now on only the result counts.
    for event in
        [Event::Abort, Event::QemuState(QemuState::Failed("late".into())), Event::CannotGoOn("late".into())]
    {
        assert_eq!(source.step(S, event).1, Outcome::None);
        assert_eq!(source.stage, Stage::Sent);
    }
    assert_eq!(source.step(S, Event::Result(Location::Target)).1, Outcome::Left);
}

#[test]
fn a_guest_that_did_not_arrive_continues_at_the_source() {
    let mut source = begun(limits());
    source.step(S, Event::QemuState(QemuState::PreSwitchover));
    source.step(S, Event::QemuState(QemuState::Completed));
    assert_eq!(source.step(S, Event::Result(Location::Source)), (vec![Effect::CleanUp], Outcome::Back));
    assert_eq!(source.report(false).reason, "the guest did not arrive");
}

#[test]
fn a_guest_that_may_have_run_on_the_target_never_runs_here_again() {
    let mut source = begun(limits());
    source.step(S, Event::QemuState(QemuState::PreSwitchover));
    // The target is gone, and QEMU has not handed the guest over yet.
    assert_eq!(source.step(S, Event::Result(Location::Nowhere)), (vec![Effect::Cancel], Outcome::None));
    source.step(S, Event::QemuState(QemuState::Completed));
    let (effects, outcome) = source.step(S, Event::Result(Location::Nowhere));
    assert!(effects.is_empty() && matches!(outcome, Outcome::Gone(_)), "{effects:?} {outcome:?}");
    assert_eq!(source.stage, Stage::Lost);
}

#[test]
fn no_progress_and_too_long_are_given_up_with_kubevirts_words() {
    let mut source = begun(limits());
    assert_eq!(look(&mut source, 2, 500), [Effect::Look]);
    assert_eq!(look(&mut source, 6, 500), [Effect::Look]);
    assert_eq!(look(&mut source, 7, 600), [Effect::Look, Effect::Cancel]);
    assert!(source.report(false).reason.starts_with("Live migration stuck for 5 seconds"));
    // The explanation is only given once.
    assert_eq!(look(&mut source, 8, 600), [Effect::Look]);
    let (effects, outcome) = source.step(9 * S, Event::QemuState(QemuState::Cancelled));
    assert_eq!((effects, outcome), (vec![Effect::CleanUp], Outcome::None));

    let mut source = begun(limits());
    for second in 2..11 {
        assert_eq!(look(&mut source, second, 1000 - u64::from(second)), [Effect::Look]);
    }
    assert_eq!(look(&mut source, 11, 10), [Effect::Look, Effect::Cancel]);
    assert_eq!(
        source.report(false).reason,
        "Live migration is not completed after 10 seconds and has been aborted"
    );
}

#[test]
fn the_bottleneck_of_a_failed_migration_is_reported() {
    let mut source = begun(limits());
    for (second, remaining) in [(2, 999), (6, 998), (10, 997)] {
        let progress =
            Progress { remaining, total: 1000, rate: 1 << 20, dirty_rate: 2 << 20, ..Progress::default() };
        source.step(second * S, Event::Progress(progress));
    }
    let bottleneck = source.report(false).bottleneck.unwrap_or_default();
    assert!(bottleneck.starts_with("limited by the dirty rate"), "{bottleneck}");
    assert_eq!(source.tick(11 * S).0, [Effect::Look, Effect::Cancel]);
    let reason = source.report(false).reason;
    assert!(reason.contains("after 10 seconds and has been aborted: limited by the dirty rate"), "{reason}");
}

#[test]
fn where_it_may_the_guest_is_paused_instead_and_goes_on_if_that_fails() {
    let mut source = begun(Limits { may_pause: true, progress: None, ..limits() });
    assert_eq!(look(&mut source, 11, 10), [Effect::Look, Effect::Pause]);
    assert_eq!(look(&mut source, 12, 10), [Effect::Look]);
    assert!(source.report(false).paused);
    let failed = source.step(13 * S, Event::QemuState(QemuState::Failed("reset".into())));
    assert_eq!(failed, (vec![Effect::CleanUp], Outcome::Back));
}

#[test]
fn an_abort_before_the_switchover_ends_as_aborted() {
    let mut source = begun(limits());
    assert_eq!(source.step(S, Event::Abort).0, [Effect::Cancel]);
    // The switch was just reached: it does not happen.
    assert_eq!(source.step(S, Event::QemuState(QemuState::PreSwitchover)).0, []);
    source.step(S, Event::QemuState(QemuState::Cancelled));
    let report = source.report(false);
    assert_eq!(
        (report.state, report.aborted, report.reason.as_str()),
        (State::Over, true, "Live migration aborted")
    );
}

#[test]
fn before_it_has_begun_there_is_nothing_to_cancel() {
    let mut source = Source::begin("m".to_owned(), limits(), S).0;
    assert_eq!(source.step(S, Event::Abort).0, []);
    assert_eq!(source.step(S, Event::Begun).0, [Effect::Cancel]);
    let mut source = Source::begin("m".to_owned(), limits(), S).0;
    let (effects, outcome) = source.step(S, Event::CannotGoOn("refused".to_owned()));
    assert_eq!((effects, outcome), (vec![Effect::Cancel, Effect::CleanUp], Outcome::None));
    assert_eq!((source.stage, source.report(false).reason.as_str()), (Stage::Over, "refused"));
}

/// A source that has begun to copy so many GiB of disks.
fn copying(limits: Limits, gib: u64) -> Source {
    let mut source = Source::begin("m".to_owned(), limits, S).0;
    source.step(S, Event::Copies { bytes: gib << 30 });
    source
}

fn copied(source: &mut Source, second: u32, remaining: u64) -> Vec<Effect> {
    source.step(second * S, Event::Copied { remaining, total: 1000, done: false });
    source.tick(second * S).0
}

#[test]
fn disks_come_first_and_a_migration_that_is_given_up_meanwhile_sends_nothing() {
    let copying = || copying(limits(), 0);
    let mut source = copying();
    assert_eq!(copied(&mut source, 2, 5), [Effect::LookAtDisks]);
    let done = Event::Copied { remaining: 0, total: 1000, done: true };
    assert_eq!(source.step(3 * S, done).0, [Effect::SendMemory]);
    source.step(3 * S, Event::Begun);
    assert_eq!((source.stage, source.tick(4 * S).0), (Stage::Sending, vec![Effect::Look]));
    let mut source = copying();
    assert_eq!(source.step(2 * S, Event::Abort), (vec![Effect::CleanUp], Outcome::None));
    assert_eq!((source.stage, source.report(false).aborted), (Stage::Over, true));
    let mut source = copying();
    let (effects, _) = source.step(2 * S, Event::CannotGoOn("no space left".to_owned()));
    assert_eq!((effects, source.stage), (vec![Effect::CleanUp], Stage::Over));
}

#[test]
fn a_copy_that_takes_too_long_is_given_up_and_larger_disks_have_more_time() {
    for (gib, seconds) in [(0, 10_u32), (3, 40)] {
        let mut source = copying(limits(), gib);
        for second in 2..=seconds {
            // It makes progress all the time.
            let remaining = 1000 - u64::from(second);
            assert_eq!(copied(&mut source, second, remaining), [Effect::LookAtDisks], "{second}");
        }
        assert_eq!(copied(&mut source, seconds + 1, 10), [Effect::LookAtDisks, Effect::CleanUp]);
        let report = source.report(false);
        let why = format!("Live migration is not completed after {seconds} seconds and has been aborted");
        assert!(report.reason.starts_with(&why), "{report:?}");
        assert_eq!(report.state, State::Over);
    }
}

#[test]
fn a_copy_whose_size_is_known_late_is_not_stuck() {
    let mut source = copying(Limits { completion: None, ..limits() }, 0);
    assert_eq!(copied(&mut source, 2, 0), [Effect::LookAtDisks]);
    for second in 3..=20_u32 {
        let remaining = 1000 - u64::from(second);
        assert_eq!(copied(&mut source, second, remaining), [Effect::LookAtDisks], "{second}");
    }
    assert_eq!(copied(&mut source, 24, 980), [Effect::LookAtDisks]);
    assert_eq!(copied(&mut source, 25, 980), [Effect::LookAtDisks, Effect::CleanUp]);
    assert!(source.report(false).reason.starts_with("Live migration stuck for 5 seconds"));
}

#[test]
fn the_bottleneck_of_copies_is_reported() {
    const MIB: u64 = 1 << 20;
    // The guest writes as much each second to what was copied as is copied for the first time.
    for (bandwidth, written, why) in [
        (Some(MIB), 0_u64, "limited by bandwidth: 1.0 of the 1.0 MiB/s of"),
        (
            None,
            1,
            "limited by the guest's writes: it writes 1.0 MiB/s to its disks, 1.0 MiB/s more are copied",
        ),
    ] {
        let mut source = copying(Limits { bandwidth, progress: None, ..limits() }, 0);
        for second in 2..=10_u32 {
            let (remaining, total) =
                ((100 - u64::from(second)) * MIB, (100 + written * u64::from(second)) * MIB);
            source.step(second * S, Event::Copied { remaining, total, done: false });
        }
        let bottleneck = source.report(false).bottleneck.unwrap_or_default();
        assert!(bottleneck.starts_with(why), "{bottleneck}");
        assert_eq!(source.tick(11 * S).0, [Effect::LookAtDisks, Effect::CleanUp]);
        let reason = source.report(false).reason;
        assert!(reason.contains(&format!("10 seconds and has been aborted: {why}")), "{reason}");
    }
}

#[test]
fn the_time_of_the_copies_counts_when_memory_is_sent() {
    let mut source = copying(limits(), 0);
    source.step(9 * S, Event::Copied { remaining: 0, total: 1000, done: true });
    source.step(9 * S, Event::Begun);
    assert_eq!(look(&mut source, 10, 10), [Effect::Look]);
    assert_eq!(look(&mut source, 11, 9), [Effect::Look, Effect::Cancel]);
}

#[test]
fn a_guest_that_is_paused_while_its_disks_are_copied_goes_on_if_that_ends() {
    let paused = || {
        let mut source = copying(Limits { may_pause: true, progress: None, ..limits() }, 0);
        assert_eq!(copied(&mut source, 11, 10), [Effect::LookAtDisks, Effect::Pause]);
        assert_eq!(copied(&mut source, 12, 10), [Effect::LookAtDisks]);
        assert!(source.report(false).paused);
        source
    };
    let back = (vec![Effect::CleanUp], Outcome::Back);
    assert_eq!(paused().step(13 * S, Event::Abort), back);
    assert_eq!(paused().step(13 * S, Event::CannotGoOn("no space left".to_owned())), back);
    assert_eq!(paused().stop(13 * S, S), Some(back));
}

#[test]
fn post_copy_that_is_due_waits_for_the_copies_of_disks() {
    let mut source = copying(Limits { may_pause: true, post_copy: true, progress: None, ..limits() }, 0);
    assert_eq!(copied(&mut source, 11, 10), [Effect::LookAtDisks]);
    source.step(12 * S, Event::Copied { remaining: 0, total: 1000, done: true });
    source.step(12 * S, Event::Begun);
    assert_eq!(look(&mut source, 13, 10), [Effect::Look, Effect::PostCopy]);
}

#[test]
fn a_stop_cancels_a_migration_or_waits_for_its_result() {
    let mut source = begun(limits());
    assert_eq!(source.stop(2 * S, S), Some((vec![Effect::Cancel], Outcome::None)));
    // It is too late: the guest was sent.
    source.step(2 * S, Event::QemuState(QemuState::Completed));
    assert_eq!(source.stop(3 * S, 30 * S), None);
    assert_eq!(source.stop(3 * S, 60 * S), None);
    assert_eq!(source.wake(), Some(33 * S));
    assert_eq!(source.tick(32 * S).1, Outcome::None);
    assert_eq!(source.tick(33 * S).1, Outcome::Undecided);
}

/// A source whose migration took too long, so that post-copy was ordered.
fn in_post_copy() -> Source {
    let mut source = begun(Limits { may_pause: true, post_copy: true, progress: None, ..limits() });
    assert_eq!(look(&mut source, 11, 10), [Effect::Look, Effect::PostCopy]);
    // Post-copy is ordered only once, and the migration is not cancelled.
    assert_eq!(look(&mut source, 12, 10), [Effect::Look]);
    assert!(!source.report(false).post_copy, "post-copy has not begun");
    assert_eq!(source.step(13 * S, Event::QemuState(QemuState::PreSwitchover)).0, [Effect::Switch]);
    source
}

#[test]
fn where_it_may_the_guest_is_handed_over_and_never_runs_here_again() {
    let mut source = in_post_copy();
    assert_eq!(source.step(13 * S, Event::QemuState(QemuState::PostCopy)).0, [Effect::Look]);
    let report = source.report(false);
    assert_eq!((report.state, report.post_copy, report.paused), (State::Sent, true, false));
    // From now on nothing undoes the hand-over.
    for event in [Event::Abort, Event::CannotGoOn("late".into())] {
        assert_eq!(source.step(13 * S, event), (vec![], Outcome::None));
    }
    // The figures are queried until all of the memory was sent.
    assert_eq!((source.wake(), source.tick(14 * S).0), (Some(14 * S), vec![Effect::Look]));
    source.step(14 * S, Event::QemuState(QemuState::Completed));
    assert_eq!((source.wake(), source.stage), (None, Stage::Sent));
    let (effects, outcome) = source.clone().step(15 * S, Event::Result(Location::Source));
    assert!(effects.is_empty() && matches!(outcome, Outcome::Gone(_)));
    assert_eq!(source.step(15 * S, Event::Result(Location::Target)).1, Outcome::Left);
}

#[test]
fn a_migration_that_completes_before_an_ordered_post_copy_is_none() {
    let mut source = in_post_copy();
    source.step(13 * S, Event::QemuState(QemuState::Completed));
    assert_eq!((source.stage, source.report(false).post_copy, source.wake()), (Stage::Sent, false, None));
    // A target that reports that it never ran the guest gives it back.
    assert_eq!(source.step(14 * S, Event::Result(Location::Source)).1, Outcome::Back);
}

#[test]
fn a_failure_before_post_copy_leaves_the_guest_at_the_source() {
    let mut source = in_post_copy();
    let failed = source.step(13 * S, Event::QemuState(QemuState::Failed("reset".into())));
    // It was paused for the switch.
    assert_eq!((failed, source.stage), ((vec![Effect::CleanUp], Outcome::Back), Stage::Over));
}

#[test]
fn a_switch_to_post_copy_that_qemu_never_ends_is_the_end_of_the_guest() {
    let mut source = in_post_copy();
    let first = source.wake().unwrap();
    assert_eq!(source.tick(first), (vec![Effect::Cancel], Outcome::None));
    let second = source.wake().unwrap();
    assert!(second > first);
    assert!(matches!(source.tick(second).1, Outcome::Gone(_)));
    let report = source.report(false);
    assert_eq!((source.stage, report.state, report.post_copy), (Stage::Lost, State::Over, true));
    // If QEMU could cancel it after all, the guest is here.
    let mut source = in_post_copy();
    source.tick(first);
    source.step(first, Event::QemuState(QemuState::Cancelled));
    assert_eq!((source.stage, source.tick(second)), (Stage::Over, (vec![], Outcome::None)));
}

/// A source that sends the rest of the memory, with this much left.
fn fetched(remaining: u64) -> Source {
    let mut source = in_post_copy();
    source.step(13 * S, Event::QemuState(QemuState::PostCopy));
    source.step(
        13 * S,
        Event::Progress(Progress { remaining, transferred: 1, total: 99, ..Progress::default() }),
    );
    source
}

fn broken() -> Event {
    Event::QemuState(QemuState::Broken)
}

fn recovery(source: &Source) -> Option<(u32, bool)> {
    source.report(false).recovery.map(|recovery| (recovery.tries, recovery.awaits_connection))
}

#[test]
fn a_broken_connection_is_replaced_and_the_guest_never_runs_here() {
    let mut source = fetched(50);
    assert_eq!(
        (source.step(20 * S, broken()), recovery(&source)),
        ((vec![], Outcome::None), Some((0, true)))
    );
    assert_eq!(source.report(false).state, State::Sent);
    // QEMU waits, so it is not queried.
    assert_eq!(source.tick(25 * S), (vec![], Outcome::None));
    assert_eq!(source.step(26 * S, Event::Rejoin).0, [Effect::Rejoin]);
    assert_eq!((source.step(26 * S, Event::Rejoin).0, recovery(&source)), (vec![], Some((1, false))));
    // This is an answer that QEMU gave before it had the new connection.
    source.step(26 * S, broken());
    assert_eq!(recovery(&source), Some((1, false)));
    source.step(27 * S, Event::Rejoined);
    source.step(27 * S, Event::QemuState(QemuState::PostCopy));
    assert_eq!((recovery(&source), source.tick(28 * S).0), (Some((1, false)), vec![Effect::Look]));
    let progress = Progress { remaining: 49, transferred: 2, total: 99, ..Progress::default() };
    source.step(28 * S, Event::Progress(progress));
    assert_eq!(recovery(&source), None);
    source.step(30 * S, Event::QemuState(QemuState::Completed));
    assert_eq!((source.stage, source.wake()), (Stage::Sent, None));
}

#[test]
fn attempts_pause_longer_and_longer_and_end_with_the_guest() {
    let mut source = fetched(50);
    source.step(20 * S, broken());
    let (mut now, mut pauses) = (20 * S, Vec::new());
    let end = loop {
        if recovery(&source).is_some_and(|(_, awaits)| awaits) {
            source.step(now, Event::Rejoin);
            source.step(now, Event::CannotGoOn("refused".into()));
            pauses.push(source.wake().unwrap() - now);
        }
        now = source.wake().unwrap();
        if let (_, Outcome::Gone(why)) = source.tick(now) {
            break why;
        }
    };
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30].map(|seconds| seconds * S));
    assert_eq!((now, source.stage), (20 * S + RECOVERY, Stage::Lost));
    assert!(end.contains("no new one worked for 300 seconds"), "{end}");
}

#[test]
fn a_new_connection_that_sends_nothing_gives_no_more_time() {
    let again = |remaining| {
        let mut source = fetched(50);
        source.step(20 * S, broken());
        source.step(20 * S, Event::Rejoin);
        source.step(20 * S, Event::Rejoined);
        source.step(21 * S, Event::QemuState(QemuState::PostCopy));
        let progress = Progress { remaining, transferred: 2, total: 99, ..Progress::default() };
        source.step(30 * S, Event::Progress(progress));
        source.step(40 * S, broken());
        source
    };
    let idle = again(50);
    assert_eq!((recovery(&idle), idle.wake()), (Some((1, false)), Some(41 * S)));
    assert!(matches!(again(50).tick(20 * S + RECOVERY).1, Outcome::Gone(_)));
    let mut busy = again(49);
    assert_eq!((recovery(&busy), busy.wake()), (Some((0, true)), Some(40 * S + RECOVERY)));
    assert_eq!(busy.tick(20 * S + RECOVERY).1, Outcome::None);
}

#[test]
fn a_connection_over_which_nothing_comes_is_given_up() {
    let mut source = fetched(50);
    for second in 14..43 {
        assert_eq!(source.tick(second * S).0, [Effect::Look], "{second}");
    }
    assert_eq!(source.tick(43 * S).0, [Effect::Look, Effect::BreakOff]);
    // With nothing left to send, QEMU only waits for the target's answer.
    assert_eq!(fetched(0).tick(90 * S).0, [Effect::Look]);
    // The same holds for an attempt that hangs.
    source.step(44 * S, broken());
    source.step(44 * S, Event::Rejoin);
    source.step(44 * S, Event::Rejoined);
    assert_eq!(source.tick(74 * S).0, [Effect::Look, Effect::BreakOff]);
    source.step(75 * S, broken());
    assert_eq!(recovery(&source), Some((1, false)));
}

#[test]
fn a_break_that_qemu_cannot_mend_is_the_end_of_the_guest() {
    let mut source = fetched(0);
    let failed = source.step(20 * S, Event::QemuState(QemuState::Failed("reset".into())));
    assert!(matches!(failed.1, Outcome::Gone(_)) && source.stage == Stage::Lost, "{failed:?}");
}
