//! A guest that moves from one QEMU to another on this machine, by two launchers and by hand: with the same
//! command lines, parameters and encryption.
//!
//! This program does the handlers' part at once. The guest's serial port shows how long the guest is paused.

use super::filler::{self, FILLED_MIB};
use super::pod::{Pod, Prepared, SOON};
use super::raw::Raw;
use super::raw_move;
use super::{Figure, Figures};
use anyhow::{Context, Result, ensure};
use barevirt_protocol::grpc;
use barevirt_protocol::names::{MigrationChannel, MigrationStream, STREAM_SERIAL0};
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{
    LauncherStatus, MigrateRequest, MigrationGo, MigrationReceive, MigrationSend, MigrationState,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const UID: &str = "6b8d0f2c-0000-4000-8000-000000000002";
const MIGRATION: &str = "0b4f6f0e-9a35-4f3c-8f0e-000000000002";
/// The allowed downtime, the same on both sides.
pub(super) const DOWNTIME: Duration = Duration::from_millis(300);
/// Connections for memory in addition to the first one, as handlers make them.
pub(super) const CHANNELS: u8 = 4;
/// The key of both ends.
pub(super) const KEY: [u8; 32] = [7; 32];
const FILLED: Duration = Duration::from_secs(120);
const LEAST: f64 = 0.95;
const LONGER_MS: f64 = 50.0;

/// One guest that moved.
pub(super) struct Trip {
    /// From the first command to the source until everything was sent.
    pub(super) sent: Duration,
    /// From its last output on the source to its first on the target.
    pub(super) silent: Duration,
}

/// Measures `migration_rate` and `migration_downtime`.
pub fn measure(launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let disk = filler::disk(folder.path())?;
        let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let pair = Pair::start(launcher, &disk).await?;
            let (raw_source, raw_target) = pair.by_hand(&disk)?;
            ours.push(pair.go().await?);
            by_hand.push(raw_move::go(&raw_source, &raw_target).await?);
        }
        let rates = |trips: &[Trip]| -> Vec<f64> {
            trips.iter().map(|trip| f64::from(FILLED_MIB) / trip.sent.as_secs_f64()).collect()
        };
        let gaps = |trips: &[Trip]| -> Vec<f64> {
            trips.iter().map(|trip| trip.silent.as_secs_f64() * 1000.0).collect()
        };
        let figure = Figure::compared(&rates(&ours), &rates(&by_hand), "MiB/s");
        let figure = figure.within("at least 0.95 of raw", |f| f.ratio.is_some_and(|ratio| ratio >= LEAST));
        figures.insert("migration_rate".to_owned(), figure);
        let figure = Figure::compared(&gaps(&ours), &gaps(&by_hand), "ms");
        let figure = figure.within("at most 1.1 x raw plus 50 ms", |figure| {
            figure.raw.is_some_and(|raw| figure.value <= 1.1 * raw + LONGER_MS)
        });
        figures.insert("migration_downtime".to_owned(), figure);
        Ok(())
    })
}

/// A running guest, and its target.
pub(super) struct Pair {
    source: Pod,
    target: Pod,
    from: Serial,
}

impl Pair {
    /// Starts both, and waits until the guest has filled its memory.
    pub(super) async fn start(launcher: &Path, disk: &Path) -> Result<Self> {
        let mut instance = instance();
        let source = Pod::start(launcher, &instance, disk, Prepared::default()).await?;
        let mut watch = source.watch().await?;
        let running =
            watch.until("running", |status| !status.machine_type.is_empty() && status.ready).await?;
        let from = Serial::listen(source.descriptors().await?.take(STREAM_SERIAL0, SOON).await?);
        ensure!(running.local_disks.is_empty(), "a disk would be copied: {running:?}");
        instance["status"] = json!({ "machine": { "type": running.machine_type } });
        instance["metadata"]["annotations"] = json!({ "barevirt.dev/pci-layout": running.pci_layout });
        let prepared = Prepared { incoming: Some(MIGRATION), ..Prepared::default() };
        let target = Pod::start(launcher, &instance, disk, prepared).await?;
        let awaits = |status: &LauncherStatus| is(status, MigrationState::Awaited) && status.ready;
        target.watch().await?.until("awaits its guest", awaits).await?;
        from.filled().await?;
        Ok(Self { source, target, from })
    }

    /// The same two QEMUs, for starts by hand.
    pub(super) fn by_hand(&self, disk: &Path) -> Result<(Raw, Raw)> {
        let source = Raw::with(&self.source.launcher, &self.source.folder(), disk)?;
        Ok((source, Raw::with(&self.target.launcher, &self.target.folder(), disk)?))
    }

    async fn go(self) -> Result<Trip> {
        let Self { source, target, from } = self;
        let to = Serial::listen(target.descriptors().await?.take(STREAM_SERIAL0, SOON).await?);
        let (mut to_source, mut to_target) = (source.descriptors().await?, target.descriptors().await?);
        for stream in (1..=CHANNELS).map(MigrationStream::Channel).chain([MigrationStream::Memory]) {
            let (ours, theirs) = connection()?;
            let name = MigrationChannel { uid: MIGRATION.to_owned(), stream }.descriptor();
            to_source.give(1, &name, &[ours.as_fd()], SOON).await?;
            to_target.give(1, &name, &[theirs.as_fd()], SOON).await?;
        }
        let (mut at_source, mut at_target) = (source.client().await?, target.client().await?);
        let (mut source_watch, mut target_watch) = (source.watch().await?, target.watch().await?);
        at_target
            .migrate(order(Order::Receive(MigrationReceive { key: KEY.to_vec(), compression: false })))
            .await?;
        let send = MigrationSend {
            key: KEY.to_vec(),
            downtime_ms: u64::try_from(DOWNTIME.as_millis())?,
            ..MigrationSend::default()
        };
        let begun = Instant::now();
        at_source.migrate(order(Order::Send(send))).await?;
        let over =
            |status: &LauncherStatus| is(status, MigrationState::Sent) || is(status, MigrationState::Over);
        let arrived = async {
            target_watch.until("received", |status| is(status, MigrationState::Received)).await?;
            at_target.migrate(order(Order::Go(MigrationGo { hold: false }))).await?;
            anyhow::Ok(())
        };
        let sent = async {
            let status = source_watch.until("sent", over).await?;
            ensure!(is(&status, MigrationState::Sent), "the guest did not go: {status:?}");
            anyhow::Ok(begun.elapsed())
        };
        let (sent, ()) = tokio::try_join!(sent, arrived)?;
        Ok(Trip { sent, silent: gap(&from, &to).await? })
    }
}

/// A connection of this machine with itself.
pub(super) fn connection() -> Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    Ok((ours.into(), listener.accept()?.0.into()))
}

/// How long the guest was silent between its two places.
pub(super) async fn gap(from: &Serial, to: &Serial) -> Result<Duration> {
    let first = to.heard_within(SOON, |heard| heard.first).await.context("the guest does not arrive")?;
    let last = from.last().context("the guest wrote nothing to its serial port")?;
    Ok(first.saturating_duration_since(last))
}

fn order(order: Order) -> tonic::Request<MigrateRequest> {
    grpc::request(MigrateRequest { uid: MIGRATION.to_owned(), order: Some(order) }, SOON)
}

fn is(status: &LauncherStatus, state: MigrationState) -> bool {
    status.migration.as_ref().is_some_and(|told| told.state() == state)
}

/// The guest's manifest, with a read-only disk, so that no disk is copied.
fn instance() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "bench", "namespace": "default", "uid": UID },
        "spec": {
            "domain": {
                "memory": { "guest": format!("{}Mi", FILLED_MIB + 64) },
                "devices": {
                    "autoattachPodInterface": false,
                    "disks": [{ "name": "root", "disk": { "bus": "virtio", "readonly": true } }],
                },
            },
            "volumes": [{ "name": "root", "containerDisk": { "image": "bench/filler:devel" } }],
        },
    })
}

/// When a guest wrote to its serial port.
#[derive(Clone, Copy, Default)]
struct Heard {
    first: Option<Instant>,
    last: Option<Instant>,
    filled: Option<Instant>,
}

/// A guest's serial port, which is read all the time.
pub(super) struct Serial(Arc<Mutex<Heard>>);

impl Serial {
    /// Reads until it is closed.
    pub(super) fn listen(end: OwnedFd) -> Self {
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let noted = heard.clone();
        thread::spawn(move || {
            let mut end = File::from(end);
            let mut bytes = [0; 256];
            while let Ok(count @ 1..) = end.read(&mut bytes) {
                let now = Instant::now();
                let mut heard = noted.lock().unwrap_or_else(PoisonError::into_inner);
                heard.first.get_or_insert(now);
                heard.last = Some(now);
                if bytes[..count].contains(&b'!') {
                    heard.filled = Some(now);
                }
            }
        });
        Self(heard)
    }

    /// Waits until the guest has filled its memory.
    pub(super) async fn filled(&self) -> Result<()> {
        self.heard_within(FILLED, |heard| heard.filled)
            .await
            .context("the guest does not fill its memory")
            .map(drop)
    }

    fn last(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    async fn heard_within(&self, within: Duration, what: fn(&Heard) -> Option<Instant>) -> Option<Instant> {
        let deadline = Instant::now() + within;
        loop {
            let heard = what(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
            if heard.is_some() || Instant::now() > deadline {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
