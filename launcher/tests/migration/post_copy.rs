//! Post-copy: the guest runs on the target before all of its memory has arrived. This needs `/dev/userfaultfd`, which
//! only root has, and a pod that was given the device.

use super::splice::Splice;
use super::*;

/// Memory is sent for some seconds after the hand-over.
pub(super) fn in_post_copy() -> Limits {
    let usual =
        Limits { completion: Some(Duration::from_millis(500)), may_pause: true, post_copy: true, ..slow() };
    Limits { bandwidth: Some(64 << 10), ..usual }
}

/// Whether this user can use post-copy on this machine.
fn has_userfaultfd() -> bool {
    let found = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    if let Err(error) = &found {
        eprintln!("not tested: /dev/userfaultfd: {error}");
    }
    found.is_ok()
}

/// Runs a test of post-copy, where this user can use it.
pub(super) fn local_in_post_copy(test: impl Future<Output = ()>) {
    if has_userfaultfd() {
        local(test);
    }
}

/// Returns a guest that runs on the target without all of its memory, and the last count at the source.
async fn handed_over() -> (Pair, u32) {
    // The connection goes on without its handle.
    let (ours, theirs, _) = Splice::new(true);
    handed_over_by((ours, theirs), async || {}).await
}

/// The same over this connection. `handed` is awaited as soon as the guest has left the source.
pub(super) async fn handed_over_by(
    connection: (OwnedFd, OwnedFd),
    handed: impl AsyncFnOnce(),
) -> (Pair, u32) {
    let directory = tempfile::tempdir().unwrap();
    counter::writing_disk(directory.path());
    let mut pair = Pair::start_in(directory).await;
    pair.target
        .until("offers post-copy", |status| {
            status.migration.as_ref().is_some_and(|told| told.offers_post_copy)
        })
        .await;
    while pair.source.count().await < 5 {}
    pair.begin_over(connection, in_post_copy(), [7, 7]).await;
    let sent = pair.source.reaches(State::Sent).await;
    assert!(sent.post_copy && !sent.paused, "{sent:?}");
    handed().await;
    // An abort has no effect any more.
    pair.source.order(MigrationOrder::Abort).await.unwrap();
    assert!(pair.target.reaches(State::Received).await.post_copy);
    assert_eq!(pair.target.status.borrow().stage, Stage::Starting, "it was not ordered to run");
    let mut last = 5;
    while let Ok(count) =
        timeout(Duration::from_millis(200), counter::next_count(&mut pair.source.serial)).await
    {
        last = count;
    }
    pair.target.order(MigrationOrder::Go { hold: false }).await.unwrap();
    pair.target.until("running", |status| status.stage == Stage::Running).await;
    let told = pair.target.status.borrow().migration.clone().unwrap();
    assert_eq!(told.state, State::Received, "some memory is still missing: {told:?}");
    (pair, last)
}

#[test]
fn in_post_copy_a_guest_runs_before_its_memory_is_there() {
    local_in_post_copy(async {
        let (pair, last) = handed_over().await;
        let Pair { mut source, mut target, _directory } = pair;
        // Both ends may print what the serial port had not printed yet: at most three lines.
        let first = target.count().await;
        assert!(first + 3 >= last, "{last}, then {first}");
        while target.count().await <= last {}
        assert!(target.reaches(State::Arrived).await.post_copy);
        assert!(!source.status.borrow().migration.as_ref().unwrap().aborted);
        assert!(timeout(Duration::from_millis(500), counter::next_count(&mut source.serial)).await.is_err());
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        assert_eq!(source.end().await.reason, "Migrated");
        let first = target.count().await;
        assert!(target.count().await > first);
    });
}

#[test]
fn a_source_that_dies_in_post_copy_takes_the_guest_with_it() {
    local_in_post_copy(async {
        let (pair, _) = handed_over().await;
        let Pair { source, mut target, _directory } = pair;
        source.kill();
        target.until("broken", recovery::is_broken).await;
        // The handler says so when the pod has ended.
        target.order(MigrationOrder::SourceEnded).await.unwrap();
        let end = target.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (false, "PostCopyFailed"), "{end:?}");
    });
}

#[test]
fn after_post_copy_a_guest_never_goes_on_at_the_source() {
    local_in_post_copy(async {
        let (pair, _) = handed_over().await;
        let Pair { source, target, _directory } = pair;
        target.kill();
        target.end().await;
        source.order(MigrationOrder::Result(Location::Source)).await.unwrap();
        let end = source.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (false, "PostCopyFailed"), "{end:?}");
        assert!(end.message.contains("lost in post-copy"), "{end:?}");
    });
}

#[test]
fn a_disk_moves_with_a_guest_that_runs_before_all_memory_has_arrived() {
    if has_userfaultfd() {
        a_disk_goes_along(false, 0, Some(in_post_copy()));
    }
}
