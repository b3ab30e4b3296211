//! A guest that moves between two supervisors, each with its own QEMU, over a connection on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "migration/channels.rs"]
mod channels;
#[path = "support/counter.rs"]
mod counter;
#[path = "migration/downtime.rs"]
mod downtime;
#[path = "migration/host_cards.rs"]
mod host_cards;
#[path = "migration/images.rs"]
mod images;
#[path = "migration/post_copy.rs"]
mod post_copy;
#[path = "migration/recovery.rs"]
mod recovery;
#[path = "migration/splice.rs"]
mod splice;
#[path = "migration/stuck.rs"]
mod stuck;
mod support;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use barevirt_confinement::{Calls, Domain, Plan};
use barevirt_qmp::qapi::qmp::{human_monitor_command, query_jobs};
use barevirt_qmp::{Deadline, Options, Qmp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::timeout;
use virt_launcher::guest_end::GuestEnd;
use virt_launcher::migration::disks::{Copyable, LocalDisk};
use virt_launcher::migration::host_cards::HostCards;
use virt_launcher::migration::qemu::{Key, Transport};
use virt_launcher::migration::{Limits, Location, MigrationReport, State};
use virt_launcher::status::{Stage, Status};
use virt_launcher::supervisor::{MigrationOrder, NotDone, Request, supervise};

const SOON: Duration = Duration::from_secs(60);
const UID: &str = "migration-1";

struct End {
    requests: mpsc::Sender<Request>,
    status: watch::Receiver<Status>,
    end: JoinHandle<GuestEnd>,
    serial: UnixStream,
    people: Option<UnixStream>,
    _keys: tempfile::TempDir,
}

impl End {
    fn start(directory: &std::path::Path, incoming: bool) -> Self {
        Self::start_with(directory, incoming, None)
    }

    /// With a disk in addition to the counter's, which no other node has.
    fn start_with(directory: &std::path::Path, incoming: bool, data: Option<&std::path::Path>) -> Self {
        Self::start_on(directory, incoming, data, false)
    }

    /// The same; the disk may be on a claim that moves.
    fn start_on(
        directory: &std::path::Path,
        incoming: bool,
        data: Option<&std::path::Path>,
        on_claim: bool,
    ) -> Self {
        Self::start_more(directory, incoming, data, on_claim, (&[], HostCards::default()))
    }

    /// The same, with further arguments for QEMU, and with cards of the node.
    fn start_more(
        directory: &std::path::Path,
        incoming: bool,
        data: Option<&std::path::Path>,
        on_claim: bool,
        (more, host_cards): (&[&str], HostCards),
    ) -> Self {
        let disk = counter::disk(directory);
        let file = format!("driver=file,node-name=file,read-only=on,filename={}", disk.display());
        let mut extra =
            vec!["-blockdev", &file, "-blockdev", "driver=raw,node-name=disk,file=file,read-only=on"];
        extra.extend(["-device", "virtio-blk-pci,drive=disk,bootindex=1"]);
        extra.extend(more);
        if incoming {
            extra.extend(["-incoming", "defer"]);
        }
        let data = data.map(|data| format!("driver=file,node-name=data-file,filename={}", data.display()));
        let disk_data;
        if let Some(data) = &data {
            // An overlay finds the image beneath it by itself.
            let format = if data.ends_with(".qcow2") { "qcow2" } else { "raw" };
            extra.extend(["-blockdev", data, "-blockdev"]);
            disk_data = format!("driver={format},node-name=disk-data,file=data-file");
            extra.push(&disk_data);
            extra.extend(["-device", "virtio-blk-pci,drive=disk-data,id=data"]);
        }
        let mut bare = support::bare(&extra);
        let keys = tempfile::tempdir().unwrap();
        // As in a pod, it connects to nothing but what it is offered.
        let plan = Plan { files: None, calls: Calls::Answered };
        bare.launch.command.domain = Some(Domain::new("QEMU", plan).unwrap());
        bare.launch.host_cards = host_cards;
        bare.launch.keys = keys.path().join("keys");
        bare.launch.disks.socket = keys.path().join("disks.sock");
        if data.is_some() {
            let (name, node) = ("data".to_owned(), "disk-data".to_owned());
            let disk = LocalDisk { name, node, on_claim, image: None };
            let (local, claims) = if on_claim { (vec![], vec![disk]) } else { (vec![disk], vec![]) };
            let awaited = claims.iter().filter(|_| incoming).map(|disk| disk.name.clone()).collect();
            let socket = bare.launch.disks.socket;
            bare.launch.disks = Copyable { local, claims, awaited, socket, ..Copyable::default() };
        }
        Self::supervised(bare, incoming, keys)
    }

    fn supervised(mut bare: support::Bare, incoming: bool, keys: tempfile::TempDir) -> Self {
        bare.launch.incoming = incoming.then(|| UID.to_owned());
        let (requests, asked) = mpsc::channel(4);
        let sender = watch::Sender::new(Status::default());
        let status = sender.subscribe();
        let launch = bare.launch;
        let end = spawn_local(async move { supervise(std::future::ready(Ok(launch)), asked, &sender).await });
        Self { requests, status, end, serial: bare.serial, people: Some(bare.people), _keys: keys }
    }

    async fn until(&mut self, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        let status = timeout(SOON, self.status.wait_for(|status| is(status))).await;
        status
            .unwrap_or_else(|_| panic!("never {what}"))
            .unwrap_or_else(|_| panic!("ended, never {what}"))
            .clone()
    }

    async fn reaches(&mut self, state: State) -> MigrationReport {
        let is = |status: &Status| status.migration.as_ref().is_some_and(|told| told.state == state);
        self.until(&format!("{state:?}"), is).await.migration.unwrap()
    }

    async fn order(&self, order: MigrationOrder) -> Result<(), NotDone> {
        self.order_as(UID, order).await
    }

    /// The same in the migration with this UID.
    async fn order_as(&self, uid: &str, order: MigrationOrder) -> Result<(), NotDone> {
        let (reply, replied) = oneshot::channel();
        self.requests.send(Request::Migrate { uid: uid.to_owned(), order, reply }).await.unwrap();
        timeout(SOON, replied).await.expect("no reply").unwrap()
    }

    async fn count(&mut self) -> u32 {
        counter::next_count(&mut self.serial).await
    }

    fn kill(&self) {
        let pid = Pid::from_raw(self.status.borrow().qemu_pid.cast_signed());
        kill(pid, Signal::SIGKILL).unwrap();
    }

    async fn end(self) -> GuestEnd {
        timeout(SOON, self.end).await.expect("the guest did not end").unwrap()
    }
}

/// Both ends; the source's guest counts, the target's QEMU is ready.
struct Pair {
    source: End,
    target: End,
    _directory: tempfile::TempDir,
}

impl Pair {
    async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    async fn start_in(directory: tempfile::TempDir) -> Self {
        let mut source = End::start(directory.path(), false);
        let mut target = End::start(directory.path(), true);
        source.until("running", |status| status.stage == Stage::Running).await;
        target.until("ready", |status| status.ready).await;
        target.reaches(State::Awaited).await;
        source.count().await;
        Self { source, target, _directory: directory }
    }

    async fn begin(&self, limits: Limits, keys: [u8; 2]) {
        self.begin_over(connection(), limits, keys).await;
    }

    async fn begin_over(&self, (ours, theirs): (OwnedFd, OwnedFd), limits: Limits, keys: [u8; 2]) {
        let transport = |memory, key| {
            Some(Transport {
                memory,
                channels: vec![],
                compression: false,
                key: Key::new(vec![key; 32]),
                disks: BTreeMap::new(),
            })
        };
        let receive = MigrationOrder::Receive { transport: transport(theirs, keys[1]) };
        self.target.order(receive).await.unwrap();
        let send = MigrationOrder::Send { transport: transport(ours, keys[0]), limits };
        self.source.order(send).await.unwrap();
    }

    /// The guest counts at the source.
    async fn is_at_source(&mut self) {
        // The socket still holds older output.
        for _ in 0..20 {
            self.source.count().await;
        }
        let first = self.source.count().await;
        assert!(self.source.count().await > first);
        assert_eq!(self.source.status.borrow().stage, Stage::Running);
    }
}

fn connection() -> (OwnedFd, OwnedFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours.into(), listener.accept().unwrap().0.into())
}

fn limits() -> Limits {
    Limits {
        bandwidth: None,
        downtime: Duration::from_millis(900),
        auto_converge: true,
        completion: Some(Duration::from_secs(60)),
        completion_per_gib: Duration::from_secs(60),
        progress: Some(Duration::from_secs(60)),
        may_pause: false,
        post_copy: false,
        tuning: None,
    }
}

/// A migration of some seconds, so that events can happen during it.
fn slow() -> Limits {
    Limits { bandwidth: Some(16 << 10), downtime: Duration::from_millis(1), ..limits() }
}

fn local<F: Future>(test: F) -> F::Output {
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn a_migrated_guest_runs_on_the_target_and_nowhere_else() {
    local(async {
        let mut pair = Pair::start().await;
        // A guest that restarts would count from a lower number.
        while pair.source.count().await < 5 {}
        pair.begin(limits(), [7, 7]).await;
        let Pair { mut source, mut target, _directory } = pair;
        let sent = source.reaches(State::Sent).await;
        assert!(!sent.hold && !sent.paused && sent.reason.is_empty(), "{sent:?}");
        target.reaches(State::Received).await;
        // No guest runs: the target got no order to run it, and the source never resumes by itself.
        assert_eq!(target.status.borrow().stage, Stage::Starting);
        let mut last = 5;
        while let Ok(count) =
            timeout(Duration::from_millis(500), counter::next_count(&mut source.serial)).await
        {
            last = count;
        }
        // A repeated order starts nothing again.
        source.order(MigrationOrder::Send { transport: None, limits: limits() }).await.unwrap();
        source.order(MigrationOrder::Abort).await.unwrap();
        assert_eq!(source.status.borrow().migration.as_ref().unwrap().state, State::Sent);

        target.order(MigrationOrder::Go { hold: false }).await.unwrap();
        target.reaches(State::Arrived).await;
        target.until("running", |status| status.stage == Stage::Running).await;
        let first = target.count().await;
        assert!(first > last, "{last}, then {first}");
        assert!(target.count().await > first);
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        let end = source.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (true, "Migrated"));
        target.count().await;
    });
}

#[test]
fn a_target_that_dies_on_the_way_leaves_the_guest_where_it_is() {
    local(async {
        let mut pair = Pair::start().await;
        pair.begin(slow(), [7, 7]).await;
        pair.source
            .until("sends", |status| {
                status.migration.as_ref().is_some_and(|told| told.progress.transferred > 0)
            })
            .await;
        pair.target.kill();
        let over = pair.source.reaches(State::Over).await;
        assert!(!over.reason.is_empty() && !over.aborted, "{over:?}");
        pair.is_at_source().await;
        assert_eq!(pair.target.end().await.reason, "QemuKilled");
    });
}

#[test]
fn a_target_that_dies_after_the_switch_is_known_to_have_before_the_guest_goes_on() {
    local(async {
        let mut pair = Pair::start().await;
        pair.begin(limits(), [7, 7]).await;
        pair.source.reaches(State::Sent).await;
        pair.target.kill();
        while timeout(Duration::from_millis(500), counter::next_count(&mut pair.source.serial)).await.is_ok()
        {
        }
        // A stop also waits for the result.
        pair.source.requests.send(Request::Stop { grace: SOON, why: "test".into() }).await.unwrap();
        pair.source.order(MigrationOrder::Result(Location::Source)).await.unwrap();
        pair.is_at_source().await;
        assert_eq!(pair.source.reaches(State::Over).await.reason, "the guest did not arrive");
    });
}

#[test]
fn an_abort_and_a_limit_leave_the_guest_where_it_is() {
    local(async {
        let mut pair = Pair::start().await;
        pair.begin(slow(), [7, 7]).await;
        pair.source.reaches(State::Sending).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        pair.source.order(MigrationOrder::Abort).await.unwrap();
        assert!(pair.source.reaches(State::Over).await.aborted);
        pair.is_at_source().await;

        let mut pair = Pair::start().await;
        pair.begin(Limits { completion: Some(Duration::from_secs(1)), ..slow() }, [7, 7]).await;
        let over = pair.source.reaches(State::Over).await;
        assert!(over.reason.contains("not completed after 1 seconds"), "{over:?}");
        pair.is_at_source().await;
    });
}

#[test]
fn where_the_guest_may_be_paused_it_still_arrives() {
    local(async {
        let mut pair = Pair::start().await;
        let limits = Limits { completion: Some(Duration::from_secs(1)), may_pause: true, ..slow() };
        pair.begin(Limits { bandwidth: Some(32 << 10), ..limits }, [7, 7]).await;
        let sent = pair.source.reaches(State::Sent).await;
        assert!(sent.paused && !sent.hold, "{sent:?}");
        pair.target.order(MigrationOrder::Go { hold: sent.hold }).await.unwrap();
        pair.target.until("running", |status| status.stage == Stage::Running).await;
        pair.target.count().await;
    });
}

#[test]
fn a_claim_that_is_to_be_filled_and_has_no_connection_lets_no_guest_in() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        std::fs::write(&data, vec![0; 1 << 20]).unwrap();
        let mut target = End::start_on(directory.path(), true, Some(&data), true);
        target.until("ready", |status| status.ready).await;
        let transport = Transport {
            memory: connection().0,
            channels: vec![],
            compression: false,
            key: None,
            disks: BTreeMap::new(),
        };
        target.order(MigrationOrder::Receive { transport: Some(transport) }).await.unwrap();
        let end = target.end().await;
        assert!(end.message.contains("disk data has no connection"), "{end:?}");
    });
}

#[test]
fn without_the_key_nothing_is_sent() {
    local(async {
        let mut pair = Pair::start().await;
        pair.begin(limits(), [7, 8]).await;
        let over = pair.source.reaches(State::Over).await;
        assert!(over.reason.contains("TLS"), "{over:?}");
        assert_eq!(over.progress.transferred, 0);
        pair.is_at_source().await;
    });
}

#[test]
fn disk_contents_and_concurrent_writes_move_with_the_guest() {
    a_disk_goes_along(false, 0, None);
}

#[test]
fn a_disk_moves_to_another_larger_claim_with_its_guest() {
    a_disk_goes_along(true, 0, None);
    a_disk_goes_along(true, 1 << 20, None);
}

/// A guest that runs with the first disk, and a target with the second that waits for it.
async fn with_disks([here, there]: [PathBuf; 2], on_claim: bool) -> (End, End) {
    let directory = here.parent().unwrap();
    let mut source = End::start_on(directory, false, Some(&here), on_claim);
    let mut target = End::start_on(directory, true, Some(&there), on_claim);
    source.until("running", |status| status.stage == Stage::Running).await;
    target.until("ready", |status| status.ready).await;
    (source, target)
}

async fn send_with_disk(source: &End, target: &End, limits: Limits) {
    send_with(source, target, "data", limits).await;
}

/// Sends the guest with the disk of this name.
async fn send_with(source: &End, target: &End, disk: &str, limits: Limits) {
    let ((ours, theirs), (our_disk, their_disk)) = (connection(), connection());
    let transport = |memory, connection| {
        let disks = BTreeMap::from([(disk.to_owned(), connection)]);
        Some(Transport { memory, channels: vec![], compression: false, key: Key::new(vec![7; 32]), disks })
    };
    target.order(MigrationOrder::Receive { transport: transport(theirs, their_disk) }).await.unwrap();
    source.order(MigrationOrder::Send { transport: transport(ours, our_disk), limits }).await.unwrap();
}

/// Writes 64 KiB of 0x55 to the guest's disk, at 64 KiB.
async fn write_to_disk(end: &mut End) {
    let people = end.people.take().unwrap();
    let deadline = || Deadline::after(SOON);
    let (people, _events) = Qmp::open(people, Options::default(), deadline()).await.unwrap();
    let command_line = "qemu-io -d data/virtio-backend \"write -P 0x55 64k 64k\"".to_owned();
    let write = human_monitor_command { command_line, cpu_index: None };
    let said = people.execute(write, deadline()).await.unwrap();
    assert_eq!(said, "");
}

#[test]
fn of_a_disk_over_an_image_only_the_written_part_is_copied() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let image: Vec<u8> = (0..8_u32 << 20).map(|at| (at / 4096 % 251) as u8).collect();
        std::fs::write(at("image"), &image).unwrap();
        let qemu_img = |arguments: &[&str]| {
            let mut program = std::process::Command::new("qemu-img");
            assert!(program.args(arguments).current_dir(directory.path()).status().unwrap().success());
        };
        for overlay in ["source.qcow2", "target.qcow2"] {
            qemu_img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "image", overlay]);
        }
        let (mut source, mut target) = with_disks([at("source.qcow2"), at("target.qcow2")], false).await;
        write_to_disk(&mut source).await;
        send_with_disk(&source, &target, limits()).await;
        source.reaches(State::Sent).await;
        target.order(MigrationOrder::Go { hold: false }).await.unwrap();
        target.reaches(State::Arrived).await;
        target.requests.send(Request::Stop { grace: Duration::ZERO, why: "test".into() }).await.unwrap();
        target.end().await;
        let written = std::fs::metadata(at("target.qcow2")).unwrap().len();
        assert!(written < 1 << 20, "the overlay has {written} bytes, so the image was copied into it");
        qemu_img(&["convert", "-O", "raw", "target.qcow2", "after"]);
        let mut expected = image;
        expected[64 << 10..128 << 10].fill(0x55);
        assert!(std::fs::read(at("after")).unwrap() == expected);
    });
}

/// `more` is the number of bytes by which the target's disk is larger. `other` replaces the usual limits.
fn a_disk_goes_along(on_claim: bool, more: usize, other: Option<Limits>) {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        if other.as_ref().is_some_and(|limits| limits.post_copy) {
            // Otherwise all of the memory is sent before post-copy is due.
            counter::writing_disk(directory.path());
        }
        let at = |name: &str| directory.path().join(name);
        let before: Vec<u8> = (0..256_u32 << 10).map(|at| (at / 4096 % 251) as u8).collect();
        std::fs::write(at("source"), &before).unwrap();
        std::fs::write(at("target"), vec![0; before.len() + more]).unwrap();
        let (mut source, mut target) = with_disks([at("source"), at("target")], on_claim).await;
        // The disk takes a second, and memory some more.
        let usual = Limits { bandwidth: Some(96 << 10), downtime: Duration::from_millis(1), ..limits() };
        let limits = other.unwrap_or(usual);
        send_with_disk(&source, &target, limits).await;
        let of_disk =
            |status: &Status| status.migration.as_ref().is_some_and(|told| told.state == State::Sending);
        source.until("it is begun", of_disk).await;
        write_to_disk(&mut source).await;
        let sent = source.reaches(State::Sent).await;
        assert_eq!(sent.post_copy, limits.post_copy);
        target.order(MigrationOrder::Go { hold: false }).await.unwrap();
        target.until("running", |status| status.stage == Stage::Running).await;
        target.count().await;
        target.reaches(State::Arrived).await;
        source.order(MigrationOrder::Result(Location::Target)).await.unwrap();
        assert_eq!(source.end().await.reason, "Migrated");
        let mut after = before.clone();
        after.resize(before.len() + more, 0);
        after[64 << 10..128 << 10].fill(0x55);
        target.requests.send(Request::Stop { grace: Duration::ZERO, why: "test".into() }).await.unwrap();
        target.end().await;
        assert!(std::fs::read(at("target")).unwrap() == after);
    });
}

#[test]
fn a_disk_that_is_not_copied_in_time_leaves_the_guest_where_it_is() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["source", "target"] {
            std::fs::write(at(name), vec![1; 8 << 20]).unwrap();
        }
        let (mut source, target) = with_disks([at("source"), at("target")], true).await;
        // The eight MiB have another second.
        let [completion, per_gib] = [1, 128].map(Duration::from_secs);
        let limits = Limits { completion: Some(completion), completion_per_gib: per_gib, ..slow() };
        send_with_disk(&source, &target, limits).await;
        let over = source.reaches(State::Over).await;
        assert!(over.reason.contains("not completed after 2 seconds"), "{over:?}");
        source.count().await;
    });
}

#[test]
fn a_disk_that_has_another_size_there_is_a_failure_that_says_so() {
    a_size_is_refused(false, 1 << 20, 2 << 20, "size");
    let smaller = "disk data cannot be copied to its new claim: ";
    a_size_is_refused(true, 2 << 20, 1 << 20, smaller);
}

fn a_size_is_refused(on_claim: bool, here: usize, there: usize, why: &str) {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("source"), vec![1; here]).unwrap();
        std::fs::write(at("target"), vec![0; there]).unwrap();
        let (mut source, target) = with_disks([at("source"), at("target")], on_claim).await;
        send_with_disk(&source, &target, limits()).await;
        let over = source.reaches(State::Over).await;
        assert!(over.reason.contains(why), "{over:?}");
        source.count().await;
        // The preparations are undone: the disk's node only belongs to the guest again.
        let people = source.people.take().unwrap();
        let (people, _events) = Qmp::open(people, Options::default(), Deadline::after(SOON)).await.unwrap();
        let is_clean = async {
            while !people.execute(query_jobs {}, Deadline::after(SOON)).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, is_clean).await.expect("a job is left");
    });
}
