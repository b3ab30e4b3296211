//! A connection that breaks in post-copy, after the guest was handed over.

use super::post_copy::{handed_over_by, local_in_post_copy};
use super::splice::Splice;
use super::*;

/// Bytes per second, so that most of the memory is still missing when the connection breaks.
const SLOW: u64 = 20 << 10;

pub(super) fn is_broken(status: &Status) -> bool {
    status.migration.as_ref().is_some_and(|told| told.recovery.is_some())
}

fn awaits_connection(status: &Status) -> bool {
    let told = status.migration.as_ref().and_then(|told| told.recovery);
    told.is_some_and(|recovery| recovery.awaits_connection)
}

/// A guest that runs on the target and lacks most of its memory, and the middle of its connection.
async fn over_a_slow_connection() -> (Pair, u32, Splice) {
    let (ours, theirs, splice) = Splice::new(true);
    let (pair, last) = handed_over_by((ours, theirs), async || splice.slow_down(SLOW)).await;
    (pair, last, splice)
}

async fn rejoin(source: &End, target: &End) {
    let (ours, theirs) = connection();
    target.order(MigrationOrder::Rejoin { connection: Some(theirs) }).await.unwrap();
    source.order(MigrationOrder::Rejoin { connection: Some(ours) }).await.unwrap();
}

/// The guest gets the rest of its memory, goes on where it was, and never runs at the source.
async fn arrives(source: &mut End, target: &mut End, last: u32) {
    assert!(target.reaches(State::Arrived).await.recovery.is_none());
    let first = target.count().await;
    assert!(first + 3 >= last, "the guest has started again: {last}, then {first}");
    assert!(target.count().await > first);
    let told = source.until("recovered", |status| !is_broken(status)).await.migration.unwrap();
    assert_eq!(told.state, State::Sent);
    assert!(timeout(Duration::from_millis(500), counter::next_count(&mut source.serial)).await.is_err());
}

#[test]
fn after_a_break_in_post_copy_the_guest_goes_on_over_a_new_connection() {
    local_in_post_copy(async {
        let (pair, last, splice) = over_a_slow_connection().await;
        let Pair { mut source, mut target, _directory } = pair;
        splice.cut();
        source.until("waiting for a connection", awaits_connection).await;
        target.until("broken", is_broken).await;
        assert_eq!(target.status.borrow().stage, Stage::Running);
        rejoin(&source, &target).await;
        arrives(&mut source, &mut target, last).await;
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        assert_eq!(source.end().await.reason, "Migrated");
        let first = target.count().await;
        assert!(target.count().await > first);
    });
}

#[test]
fn a_target_that_does_not_notice_the_break_takes_the_new_connection() {
    local_in_post_copy(async {
        let (pair, last, splice) = over_a_slow_connection().await;
        let Pair { mut source, mut target, _directory } = pair;
        let _half = splice.cut_at_source();
        source.until("waiting for a connection", awaits_connection).await;
        assert!(!is_broken(&target.status.borrow()));
        rejoin(&source, &target).await;
        arrives(&mut source, &mut target, last).await;
    });
}

#[test]
fn an_attempt_that_fails_is_followed_by_another() {
    local_in_post_copy(async {
        let (pair, last, splice) = over_a_slow_connection().await;
        let Pair { mut source, mut target, _directory } = pair;
        splice.cut();
        source.until("waiting for a connection", awaits_connection).await;
        // The other end of this connection is closed at once.
        source.order(MigrationOrder::Rejoin { connection: Some(connection().0) }).await.unwrap();
        let second = |status: &Status| {
            let told = status.migration.as_ref().and_then(|told| told.recovery);
            told.is_some_and(|recovery| recovery.tries == 1 && recovery.awaits_connection)
        };
        source.until("waiting for a second connection", second).await;
        rejoin(&source, &target).await;
        arrives(&mut source, &mut target, last).await;
    });
}

/// QEMU 10.0 gives up if the connection breaks after it has written everything. It then resumes a guest that ran until the
/// switch.
#[test]
fn a_break_after_the_last_byte_was_written_never_lets_the_guest_run_twice() {
    local_in_post_copy(async {
        let (ours, theirs, splice) = Splice::new(false);
        let (pair, _) = handed_over_by((ours, theirs), async || splice.slow_down(SLOW)).await;
        let Pair { mut source, mut target, _directory } = pair;
        let written = |status: &Status| {
            status
                .migration
                .as_ref()
                .is_some_and(|told| told.progress.total > 0 && told.progress.remaining == 0)
        };
        source.until("finished writing", written).await;
        let mut serial = std::mem::replace(&mut source.serial, UnixStream::pair().unwrap().0);
        splice.cut();
        let end = source.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (false, "PostCopyFailed"), "{end:?}");
        let mut rest = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut serial, &mut rest).await.unwrap();
        assert!(rest.is_empty(), "the source's guest ran: {}", String::from_utf8_lossy(&rest));
        target.until("broken", is_broken).await;
        target.order(MigrationOrder::SourceEnded).await.unwrap();
        assert_eq!(target.end().await.reason, "PostCopyFailed");
    });
}
