//! Finding launchers, and talking to them only after it is proven that they are launchers.
//!
//! A launcher is the pod whose UID the controller recorded in the VMI's `status.activePods`. [`find`] opens its sockets
//! ([`pods_dir`]), connects, and looks at who listens there ([`peer`]): it has to be in that pod's `compute` container
//! ([`cgroup`]). Labels, owner references and names are the tenant's to write and prove nothing. What the kernel counts for
//! that container is read in [`counters`].

pub mod attachment;
pub mod cgroup;
pub mod counters;
pub mod peer;
pub mod pods_dir;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use barevirt_protocol::descriptors::{CallError, Client};
use barevirt_protocol::directory::{ConnectError, SocketsDirectory};
use barevirt_protocol::grpc::{self, GrpcError};
use barevirt_protocol::names::VERSION;
use barevirt_protocol::seqpacket::SocketError;
use barevirt_protocol::v1::launcher_client::LauncherClient;
use barevirt_protocol::v1::{
    Control, ControlRequest, DebugRequest, GuestRequest, HelloRequest, LauncherStatus, QmpRequest,
    RealTimeRequest, ScreenshotRequest, ShutdownRequest, StatsRequest, StatsResponse, SyncRequest,
    WatchRequest,
};
use thiserror::Error;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use self::cgroup::Container;
use self::counters::Counters;
use self::peer::{Peer, PeerError};
use self::pods_dir::{PodsDir, PodsDirError};

/// How long a connection to a launcher may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a launcher may take to answer a call that only changes what it knows.
const ANSWER: Duration = Duration::from_secs(10);
/// What a QMP call may take beyond the deadline that its caller gave.
const QMP_MARGIN: Duration = Duration::from_secs(2);

/// Why a launcher could not be reached, or did not carry out a call.
#[derive(Debug, Error)]
pub enum LauncherError {
    /// There are no sockets.
    #[error(transparent)]
    PodsDir(#[from] PodsDirError),
    /// Nobody answers at the sockets.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer is unknown.
    #[error("look at the peer of the launcher's socket")]
    Credentials(#[source] std::io::Error),
    /// The peer of the second socket is unknown.
    #[error("look at the peer of the launcher's descriptor socket")]
    DescriptorCredentials(#[source] SocketError),
    /// Another process answers there.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// It does not speak gRPC.
    #[error(transparent)]
    Grpc(#[from] GrpcError),
    /// It refused a call, or did not answer in time.
    #[error("{call}: launcher says {}: {}", .status.code(), .status.message())]
    Call {
        /// Which call.
        call: &'static str,
        /// What it said.
        status: Box<Status>,
    },
    /// Its protocol has no version in common with ours.
    #[error("launcher speaks versions {lowest} to {highest}, this handler {VERSION}")]
    Version {
        /// Lowest version it serves.
        lowest: u32,
        /// Highest version it serves.
        highest: u32,
    },
    /// It did not take or give a descriptor.
    #[error(transparent)]
    Descriptor(#[from] CallError),
}

/// A launcher whose peer was verified. Cheap to clone.
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

/// Connects to the launcher in `container`. An error leaves nothing behind; the launcher may simply not be up yet.
pub async fn find(pods: &PodsDir, container: &Container) -> Result<Launcher, LauncherError> {
    let sockets = pods.sockets(&container.pod_uid)?;
    let stream = sockets.connect_grpc(CONNECT).await?;
    let credentials = stream.peer_cred().map_err(LauncherError::Credentials)?;
    let (peer, counters) = Peer::verify_with_counters(credentials.pid().unwrap_or(0), container)?;
    let client = grpc::client(stream).await?;
    let shared = Shared { container: container.clone(), sockets, peer, counters };
    let mut launcher = Launcher { client, shared: Arc::new(shared) };
    launcher.hello().await?;
    Ok(launcher)
}

impl Launcher {
    async fn hello(&mut self) -> Result<(), LauncherError> {
        let request = grpc::request(HelloRequest { version: VERSION }, ANSWER);
        let hello = self.client.hello(request).await.map_err(failed("hello"))?.into_inner();
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

    /// The container it was found in.
    pub fn container(&self) -> &Container {
        &self.shared.container
    }

    /// What the kernel counts for that container.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Its status now and whenever it changes.
    pub async fn watch(&self) -> Result<Streaming<LauncherStatus>, LauncherError> {
        let mut client = self.client.clone();
        // The stream stays open for as long as the launcher lives: no deadline, the connection's own keep-alive instead.
        Ok(client.watch(WatchRequest {}).await.map_err(failed("watch"))?.into_inner())
    }

    /// Tells it what should run.
    pub async fn sync(&self, wanted: SyncRequest) -> Result<i64, LauncherError> {
        let mut client = self.client.clone();
        let answer = client.sync(grpc::request(wanted, ANSWER)).await.map_err(failed("sync"))?;
        Ok(answer.into_inner().accepted_revision)
    }

    /// Tells it to shut the guest down, by force after the grace period.
    pub async fn shutdown(&self, grace_period_seconds: u32, reason: &str) -> Result<(), LauncherError> {
        let request = ShutdownRequest { grace_period_seconds, reason: reason.to_owned() };
        let mut client = self.client.clone();
        client.shutdown(grpc::request(request, ANSWER)).await.map_err(failed("shutdown"))?;
        Ok(())
    }

    /// Tells it that the virtual CPUs of that QEMU are realtime, or why they are not.
    pub async fn real_time(&self, qemu_pid: u32, refusal: String) -> Result<(), LauncherError> {
        let mut client = self.client.clone();
        match client.real_time(grpc::request(RealTimeRequest { qemu_pid, refusal }, ANSWER)).await {
            // One of the previous version does not wait for it.
            Err(status) if status.code() == Code::Unimplemented => Ok(()),
            answer => answer.map(drop).map_err(failed("real-time")),
        }
    }

    /// Runs one QMP command on behalf of a person.
    pub async fn qmp(&self, command: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, LauncherError> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let request = QmpRequest { command, deadline_ms };
        let mut client = self.client.clone();
        let answer =
            client.qmp(grpc::request(request, deadline + QMP_MARGIN)).await.map_err(failed("qmp"))?;
        Ok(answer.into_inner().answer)
    }

    /// What it knows of QEMU, as JSON.
    pub async fn debug(&self, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone();
        let answer = client.debug(grpc::request(DebugRequest {}, within)).await.map_err(failed("debug"))?;
        Ok(answer.into_inner().report)
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
        client.control(grpc::request(request, within)).await.map_err(failed("control"))?;
        Ok(())
    }

    /// The guest agent's report, as JSON.
    pub async fn guest(&self, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone();
        let answer = client.guest(grpc::request(GuestRequest {}, within)).await.map_err(failed("guest"))?;
        Ok(answer.into_inner().info)
    }

    /// What the display shows, as a PNG.
    pub async fn screenshot(&self, move_cursor: bool, within: Duration) -> Result<Vec<u8>, LauncherError> {
        let mut client = self.client.clone();
        let request = grpc::request(ScreenshotRequest { move_cursor }, within);
        Ok(client.screenshot(request).await.map_err(failed("screenshot"))?.into_inner().png)
    }

    /// Numbers for monitoring.
    pub async fn stats(&self, within: Duration) -> Result<StatsResponse, LauncherError> {
        let mut client = self.client.clone();
        Ok(client.stats(grpc::request(StatsRequest {}, within)).await.map_err(failed("stats"))?.into_inner())
    }

    /// Hands over descriptors, each under its name; the launcher holds them when this returns.
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
        let peer = socket.peer().map_err(LauncherError::DescriptorCredentials)?;
        Peer::verify(peer.pid, &self.shared.container)?;
        Ok(Client::new(socket))
    }
}

fn failed(call: &'static str) -> impl FnOnce(Status) -> LauncherError {
    move |status| LauncherError::Call { call, status: Box::new(status) }
}
