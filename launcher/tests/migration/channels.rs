//! A guest whose memory moves over several connections.

use std::os::fd::AsRawFd as _;

use barevirt_protocol::names::MOST_MEMORY_CHANNELS;
use barevirt_qmp::qapi::qmp::{MultiFDCompression, query_migrate, query_migrate_parameters};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use super::splice::Splice;
use super::*;

/// The source's and the target's ends of some connections.
type Ends = Vec<(OwnedFd, OwnedFd)>;

fn two() -> Ends {
    vec![connection(), connection()]
}

/// Starts the migration with this UID, over a connection and these further ones.
async fn begin(source: &End, target: &End, uid: &str, channels: Ends, limits: Limits) {
    begin_with(source, target, uid, (channels, false), limits).await;
}

/// The same, with or without compression.
async fn begin_with(
    source: &End,
    target: &End,
    uid: &str,
    (channels, compression): (Ends, bool),
    limits: Limits,
) {
    let (ours, theirs) = connection();
    let (our_channels, their_channels) = channels.into_iter().unzip();
    let transport = |memory, channels| {
        let (key, disks) = (Key::new(vec![7; 32]), BTreeMap::new());
        Some(Transport { memory, channels, compression, key, disks })
    };
    let receive = MigrationOrder::Receive { transport: transport(theirs, their_channels) };
    target.order(receive).await.unwrap();
    let send = MigrationOrder::Send { transport: transport(ours, our_channels), limits };
    source.order_as(uid, send).await.unwrap();
}

/// Waits until some of the guest was sent.
async fn is_sent(source: &mut End) {
    let sends = |status: &Status| {
        let told = status.migration.as_ref();
        told.is_some_and(|told| told.state == State::Sending && told.progress.transferred > 0)
    };
    source.until("sends", sends).await;
}

/// Waits until the guest has left, and lets it run on the target.
async fn arrives(source: &mut End, target: &mut End) {
    source.reaches(State::Sent).await;
    target.order(MigrationOrder::Go { hold: false }).await.unwrap();
    target.until("running", |status| status.stage == Stage::Running).await;
    target.reaches(State::Arrived).await;
    target.count().await;
}

/// How much of the source's memory went over the further connections.
async fn over_channels(source: &mut End) -> u64 {
    let people = source.people.take().unwrap();
    let (people, _events) = Qmp::open(people, Options::default(), Deadline::after(SOON)).await.unwrap();
    sent_over_channels(&people).await
}

async fn sent_over_channels(people: &Qmp) -> u64 {
    let told = people.execute(query_migrate {}, Deadline::after(SOON)).await.unwrap();
    told.ram.unwrap().multifd_bytes
}

/// How QEMU compresses memory on the further connections.
async fn compression(people: &Qmp) -> MultiFDCompression {
    let told = people.execute(query_migrate_parameters {}, Deadline::after(SOON)).await.unwrap();
    told.multifd_compression.unwrap()
}

/// Whether nothing comes over this connection any more. Takes what has come.
fn has_ended(end: &OwnedFd) -> bool {
    let come = recv(end.as_raw_fd(), &mut [0; 512], MsgFlags::MSG_DONTWAIT);
    matches!(come, Ok(0) | Err(Errno::ECONNRESET))
}

#[test]
fn a_guest_moves_over_several_connections_and_nothing_of_them_is_left() {
    local(async {
        let Pair { mut source, mut target, _directory } = Pair::start().await;
        assert_eq!(source.status.borrow().memory_channels, MOST_MEMORY_CHANNELS);
        while source.count().await < 5 {}
        let channels = two();
        let kept: Vec<_> = channels.iter().map(|(_, theirs)| theirs.try_clone().unwrap()).collect();
        begin(&source, &target, UID, channels, limits()).await;
        arrives(&mut source, &mut target).await;
        assert!(target.count().await > 5, "the guest has started again");
        assert!(over_channels(&mut source).await > 0);
        support::eventually("QEMU closes both", SOON, || kept.iter().all(has_ended)).await;
        assert!(!target._keys.path().join("memory.sock").exists());
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        assert_eq!(source.end().await.reason, "Migrated");
        target.count().await;
    });
}

#[test]
fn a_guest_moves_with_compression_and_then_on_without_it() {
    local(async {
        let Pair { mut source, mut target, _directory } = Pair::start().await;
        let open =
            |end: &mut End| Qmp::open(end.people.take().unwrap(), Options::default(), Deadline::after(SOON));
        let (at_source, _source_events) = open(&mut source).await.unwrap();
        let (at_target, _target_events) = open(&mut target).await.unwrap();
        while source.count().await < 5 {}
        begin_with(&source, &target, UID, (two(), true), limits()).await;
        arrives(&mut source, &mut target).await;
        assert!(target.count().await > 5, "the guest has started again");
        assert!(sent_over_channels(&at_source).await > 0);
        for end in [&at_source, &at_target] {
            assert_eq!(compression(end).await, MultiFDCompression::zstd);
        }
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        assert_eq!(source.end().await.reason, "Migrated");

        let mut next = End::start(_directory.path(), true);
        next.until("ready", |status| status.ready).await;
        next.reaches(State::Awaited).await;
        let (at_next, _next_events) = open(&mut next).await.unwrap();
        begin(&target, &next, "migration-2", two(), limits()).await;
        arrives(&mut target, &mut next).await;
        assert!(sent_over_channels(&at_target).await > 0);
        for end in [&at_target, &at_next] {
            assert_eq!(compression(end).await, MultiFDCompression::none);
        }
    });
}

#[test]
fn after_a_cancelled_migration_each_next_one_has_its_own_number_of_connections() {
    local(async {
        let mut pair = Pair::start().await;
        for (uid, channels) in [("migration-1", two()), ("migration-2", vec![])] {
            begin(&pair.source, &pair.target, uid, channels, slow()).await;
            is_sent(&mut pair.source).await;
            pair.source.order_as(uid, MigrationOrder::Abort).await.unwrap();
            assert!(pair.source.reaches(State::Over).await.aborted);
            pair.is_at_source().await;
            pair.target = End::start(pair._directory.path(), true);
            pair.target.until("ready", |status| status.ready).await;
            pair.target.reaches(State::Awaited).await;
        }
        let Pair { mut source, mut target, _directory } = pair;
        begin(&source, &target, "migration-3", two(), limits()).await;
        arrives(&mut source, &mut target).await;
        assert!(over_channels(&mut source).await > 0);
    });
}

#[test]
fn one_connection_that_breaks_ends_the_migration_and_the_guest_goes_on_where_it_is() {
    local(async {
        let mut pair = Pair::start().await;
        let (ours, theirs, splice) = Splice::new(false);
        begin(&pair.source, &pair.target, UID, vec![connection(), (ours, theirs)], slow()).await;
        is_sent(&mut pair.source).await;
        splice.cut();
        let over = pair.source.reaches(State::Over).await;
        assert!(!over.reason.is_empty() && !over.aborted, "{over:?}");
        pair.is_at_source().await;
    });
}

/// QEMU's main loop, which receives the disk, waits for the first bytes of a connection that it accepts without encryption.
#[test]
fn without_encryption_disks_are_copied_before_memory_comes_over_several_connections() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("source"), vec![7; 256 << 10]).unwrap();
        std::fs::write(at("target"), vec![0; 256 << 10]).unwrap();
        let (mut source, mut target) = with_disks([at("source"), at("target")], false).await;
        let ((ours, theirs), (our_disk, their_disk)) = (connection(), connection());
        let (our_channels, their_channels) = two().into_iter().unzip();
        let transport = |memory, channels, disk| {
            Some(Transport {
                memory,
                channels,
                compression: false,
                key: None,
                disks: BTreeMap::from([("data".to_owned(), disk)]),
            })
        };
        let receive = MigrationOrder::Receive { transport: transport(theirs, their_channels, their_disk) };
        target.order(receive).await.unwrap();
        let send =
            MigrationOrder::Send { transport: transport(ours, our_channels, our_disk), limits: limits() };
        source.order(send).await.unwrap();
        arrives(&mut source, &mut target).await;
        assert!(over_channels(&mut source).await > 0);
        target.requests.send(Request::Stop { grace: Duration::ZERO, why: "test".into() }).await.unwrap();
        target.end().await;
        assert!(std::fs::read(at("target")).unwrap() == vec![7; 256 << 10]);
    });
}
