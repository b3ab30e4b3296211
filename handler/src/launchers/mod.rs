//! Finds launchers, and talks to them only after it has verified that they are launchers.
//!
//! A launcher is in the pod whose UID the controller recorded in the VMI's `status.activePods`. [`find`]
//! opens its sockets ([`pods_dir`]), connects, and checks the process that listens there ([`peer`]): it has
//! to be in that pod's `compute` container ([`cgroup`]). Labels, owner references and names can be written by
//! the tenant and prove nothing. [`counters`] reads the kernel's counters for that container.
//!
//! A guest may have taken over its launcher. So every answer is limited: in size before it is decoded, and in
//! content by [`sanitize`], the one place for all answers. Every wait for a launcher has a deadline.

pub mod attachment;
pub mod cgroup;
pub mod counters;
pub mod peer;
pub mod pods_dir;
mod sanitize;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use barevirt_protocol::descriptors::{CallError, Client};
use barevirt_protocol::directory::{ConnectError, SocketsDirectory};
use barevirt_protocol::grpc::{self, GrpcError};
use barevirt_protocol::names::VERSION;
use barevirt_protocol::pace::Bucket;
use barevirt_protocol::v1::launcher_client::LauncherClient;
use barevirt_protocol::v1::{
    Control, ControlRequest, DebugRequest, GuestRequest, HelloRequest, LauncherStatus, MigrateRequest,
    QmpRequest, RealTimeRequest, ScreenshotRequest, ShutdownRequest, StatsRequest, StatsResponse,
    SyncRequest, WatchRequest,
};
use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use self::cgroup::Container;
use self::counters::Counters;
use self::peer::{Peer, PeerError};
use self::pods_dir::{PodsDir, PodsDirError};
use self::sanitize::Sanitize;

/// Longest time to connect to a launcher.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest time that a launcher may take to answer a call that only changes its configuration.
const ANSWER: Duration = Duration::from_secs(10);
/// Time that a QMP call may take in addition to its caller's deadline.
const QMP_MARGIN: Duration = Duration::from_secs(2);
/// Time that a complete answer may take beyond the deadline for its headers. The channel enforces that
/// deadline with a better error message.
const MARGIN: Duration = Duration::from_millis(500);
/// How many statuses are accepted at once, and then one in each interval. A guest does not change its state
/// more often.
const STATUSES_AT_ONCE: u32 = 64;
const STATUS_EVERY: Duration = Duration::from_millis(50);

/// Why a launcher could not be reached, or did not carry out a call.
#[derive(Debug, Error)]
pub enum LauncherError {
    /// There are no sockets.
    #[error(transparent)]
    PodsDir(#[from] PodsDirError),
    /// Nothing answers at the sockets.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The process that answers is not the launcher.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// It does not speak gRPC.
    #[error(transparent)]
    Grpc(#[from] GrpcError),
    /// It refused a call, or did not answer in time.
    #[error("{call}: launcher says {}: {}", .status.code(), line(.status))]
    Call {
        /// Which call.
        call: &'static str,
        /// What it said.
        status: Box<Status>,
    },
    /// Its protocol version range does not overlap with ours.
    #[error("launcher speaks versions {lowest} to {highest}, this handler {VERSION}")]
    Version {
        /// Lowest version that it serves.
        lowest: u32,
        /// Highest version that it serves.
        highest: u32,
    },
    /// A descriptor could not be passed to it or received from it.
    #[error(transparent)]
    Descriptor(CallError),
}

impl From<CallError> for LauncherError {
    fn from(error: CallError) -> Self {
        Self::Descriptor(sanitize::sanitized(error))
    }
}

/// A launcher whose peer process was verified. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Launcher {
    client: LauncherClient<Channel>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    container: Container,
    sockets: SocketsDirectory,
    peer: Peer,
    counters: Counters,
}

/// Connects to the launcher in `container`. A failure changes nothing: the launcher may simply not be up yet.
pub async fn find(pods: &PodsDir, container: &Container) -> Result<Launcher, LauncherError> {
    let sockets = pods.sockets(&container.pod_uid)?;
    let stream = sockets.connect_grpc(CONNECT).await?;
    let (peer, counters) = Peer::verify_with_counters(&stream, container)?;
    let client = grpc::client(stream).await?;
    let shared = Shared { container: container.clone(), sockets, peer, counters };
    let mut launcher = Launcher { client, shared: Arc::new(shared) };
    launcher.hello().await?;
    Ok(launcher)
}

impl Launcher {
    async fn hello(&mut self) -> Result<(), LauncherError> {
        let request = grpc::request(HelloRequest { version: VERSION }, ANSWER);
        let hello = answer("hello", ANSWER, self.client.hello(request)).await?;
        let (lowest, highest) = (hello.lowest_version, hello.highest_version);
        if lowest > VERSION || highest < VERSION {
            return Err(LauncherError::Version { lowest, highest });
        }
        Ok(())
    }

    /// The verified process.
    pub fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// The container in which it was found.
    pub fn container(&self) -> &Container {
        &self.shared.container
    }

    /// The kernel's counters for that container.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Subscribes to its status. Returns with the first status, which every launcher sends at once.
    pub async fn watch(&self) -> Result<(LauncherStatus, Statuses), LauncherError> {
        let mut client = self.client.clone();
        // The stream stays open for as long as the launcher lives: its beginning has a deadline, and the rest
        // is checked by the connection's own keep-alive.
        let begin = async {
            let stream = client.watch(WatchRequest {}).await?.into_inner();
            let mut statuses = Statuses { stream, pace: Bucket::new(STATUSES_AT_ONCE, STATUS_EVERY) };
            let first = statuses.next().await?.ok_or_else(|| Status::unavailable("it sends no status"))?;
            Ok::<_, Status>((first, statuses))
        };
        let begun = timeout(ANSWER, begin).await.unwrap_or_else(|_| Err(silent()));
        begun.map_err(failed("watch"))
    }

    /// Tells it what should run.
    pub async fn sync(&self, wanted: SyncRequest) -> Result<i64, LauncherError> {
        let mut client = self.client.clone();
        let said = answer("sync", ANSWER, client.sync(grpc::request(wanted, ANSWER))).await?;
        Ok(said.accepted_revision)
    }

    /// Tells it to shut the guest down, with force after the grace period.
    pub async fn shutdown(&self, grace_period_seconds: u32, reason: &str) -> Result<(), LauncherError> {
        let request = ShutdownRequest { grace_period_seconds, reason: reason.to_owned() };
        let mut client = self.client.clone();
        answer("shutdown", ANSWER, client.shutdown(grpc::request(request, ANSWER))).await?;
        Ok(())
    }

    /// Tells it that the virtual CPUs of this QEMU process have realtime scheduling, or why they do not.
    pub async fn real_time(&self, qemu_pid: u32, refusal: String) -> Result<(), LauncherError> {
        let mut client = self.client.clone();
        let request = grpc::request(RealTimeRequest { qemu_pid, refusal }, ANSWER);
        match answer("real-time", ANSWER, client.real_time(request)).await {
            // A launcher of the previous version does not wait for it.
            Err(LauncherError::Call { status, .. }) if status.code() == Code::Unimplemented => Ok(()),
            said => said.map(drop),
        }
    }

    /// Sends an order about a migration.
    pub async fn migrate(&self, request: MigrateRequest) -> Result<(), LauncherError> {
        let mut client = self.client.clone();
        answer("migrate", ANSWER, client.migrate(grpc::request(request, ANSWER))).await?;
        Ok(())
    }

    /// Runs one QMP command on behalf of a user.
    pub async fn qmp(&self, command: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, LauncherError> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let request = QmpRequest { command, deadline_ms };
        let mut client = self.client.clone().max_decoding_message_size(grpc::LARGEST_QMP_ANSWER);
        let within = deadline + QMP_MARGIN;
        Ok(answer("qmp", within, client.qmp(grpc::request(request, within))).await?.answer)
    }

    /// Its debugging information about QEMU, as JSON.
    pub async fn debug(&self, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone();
        Ok(answer("debug", within, client.debug(grpc::request(DebugRequest {}, within))).await?.report)
    }

    /// Changes the state of the guest. `unfreeze_after` applies to a freeze.
    pub async fn control(
        &self,
        control: Control,
        unfreeze_after: Duration,
        within: Duration,
    ) -> Result<(), LauncherError> {
        let unfreeze_after_ms = u64::try_from(unfreeze_after.as_millis()).unwrap_or(u64::MAX);
        let request = ControlRequest { control: control.into(), unfreeze_after_ms };
        let mut client = self.client.clone();
        answer("control", within, client.control(grpc::request(request, within))).await?;
        Ok(())
    }

    /// The guest agent's report, as JSON.
    pub async fn guest(&self, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone();
        Ok(answer("guest", within, client.guest(grpc::request(GuestRequest {}, within))).await?.info)
    }

    /// What the display shows, as a PNG.
    pub async fn screenshot(&self, move_cursor: bool, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone().max_decoding_message_size(grpc::LARGEST_PICTURE);
        let request = grpc::request(ScreenshotRequest { move_cursor }, within);
        Ok(answer("screenshot", within, client.screenshot(request)).await?.png)
    }

    /// Statistics for monitoring.
    pub async fn stats(&self, within: Duration) -> Result<StatsResponse, LauncherError> {
        let mut client = self.client.clone();
        answer("stats", within, client.stats(grpc::request(StatsRequest {}, within))).await
    }

    /// Hands over descriptors, each with its name. The launcher holds them when this returns.
    pub async fn give(&self, revision: i64, descriptors: &[(String, OwnedFd)]) -> Result<(), LauncherError> {
        if descriptors.is_empty() {
            return Ok(());
        }
        let mut client = self.descriptors().await?;
        for (name, descriptor) in descriptors {
            client.give(revision, name, &[descriptor.as_fd()], ANSWER).await?;
        }
        Ok(())
    }

    /// A connection to one of the guest's streams, `serial0` or `vnc`.
    pub async fn take(&self, stream: &str) -> Result<OwnedFd, LauncherError> {
        Ok(self.descriptors().await?.take(stream, ANSWER).await?)
    }

    /// A new connection to the descriptor socket, its peer verified like the first one's.
    async fn descriptors(&self) -> Result<Client, LauncherError> {
        let socket = self.shared.sockets.connect_descriptors(CONNECT).await?;
        Peer::verify(&socket, &self.shared.container)?;
        Ok(Client::new(socket))
    }
}

/// Statuses of a launcher, read at a limited rate: statuses that come faster wait at the launcher's end.
#[derive(Debug)]
pub struct Statuses {
    stream: Streaming<LauncherStatus>,
    pace: Bucket,
}

impl Statuses {
    /// The next status; `None` at the end of the stream. Cancelling loses nothing.
    pub async fn next(&mut self) -> Result<Option<LauncherStatus>, Status> {
        if let Some(until) = self.pace.until(Instant::now()) {
            sleep_until(until).await;
        }
        let status = self.stream.message().await.map_err(sanitize::sanitized)?;
        self.pace.take(Instant::now());
        Ok(status.map(sanitize::sanitized))
    }
}

/// Awaits an answer of a launcher, with a deadline, and limits its content. The headers of an answer alone
/// meet the channel's own deadline: without this one, the wait for a body that never comes would not end.
async fn answer<T: Sanitize>(
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, LauncherError> {
    let answer = timeout(within + MARGIN, answer).await.unwrap_or_else(|_| Err(silent()));
    answer.map(|answer| sanitize::sanitized(answer.into_inner())).map_err(failed(call))
}

fn silent() -> Status {
    Status::deadline_exceeded("it does not answer in time")
}

fn failed(call: &'static str) -> impl FnOnce(Status) -> LauncherError {
    move |status| LauncherError::Call { call, status: Box::new(sanitize::sanitized(status)) }
}

/// The launcher's message, for a log line or error of the handler.
fn line(status: &Status) -> String {
    status.message().replace('\n', " ")
}
