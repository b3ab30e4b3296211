//! A launcher as in a pod. This program plays the handler, the kubelet and the container of the image.

use crate::running::Running;
use anyhow::{Context, Result, bail};
use barevirt_protocol::directory::SocketsDirectory;
use barevirt_protocol::seqpacket::PacketSocket;
use barevirt_protocol::v1::launcher_client::LauncherClient;
use barevirt_protocol::v1::{Facts, Interface, LauncherStatus, SyncRequest, WatchRequest};
use barevirt_protocol::{descriptors, grpc};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// Longest time for one step, on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(180);
/// Longest time that a launcher runs here.
const LONG: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(5);
/// The revision of what the launcher is sent, which does not change.
const REVISION: i64 = 1;
const SOCKETS: [&str; 3] = ["sockets/launcher-sock", "sockets/launcher-fds", "disks/launcher.sock"];

/// What the handler has made for the pod.
#[derive(Default)]
pub(super) struct Prepared<'m> {
    /// UID of the migration whose target the pod is: the launcher waits for the guest.
    pub(super) incoming: Option<&'m str>,
    /// The interfaces of the guest.
    pub(super) interfaces: Vec<Interface>,
    /// Their taps and sockets, by the names that the launcher knows.
    pub(super) descriptors: Vec<(String, OwnedFd)>,
}

/// One pod; its launcher ends with it.
pub(super) struct Pod {
    pub(super) launcher: Running,
    folder: tempfile::TempDir,
    _disk: PacketSocket,
}

impl Pod {
    /// Starts the launcher and tells it what to run: an instance with one volume `root`, which has that disk.
    pub(super) async fn start(
        program: &Path,
        instance: &Value,
        disk: &Path,
        prepared: Prepared<'_>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        for name in ["sockets", "private", "ephemeral", "disks"] {
            fs::create_dir(at(name))?;
        }
        fs::write(at("termination-log"), "")?;
        let uid = instance["metadata"]["uid"].as_str().context("an instance without a UID")?;
        let mut command = Command::new(program);
        command.args(["pod", "--name", "bench", "--namespace", "default", "--uid", uid]);
        command.args(["--grace-period-seconds", "0", "--allow-emulation", "--qemu", "qemu-system-x86_64"]);
        for (argument, place) in [
            ("--sockets", "sockets"),
            ("--private", "private"),
            ("--ephemeral-disks", "ephemeral"),
            ("--container-disks", "disks/launcher.sock"),
            ("--secrets", "secrets"),
            ("--termination-log", "termination-log"),
        ] {
            command.arg(argument).arg(at(place));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let launcher = Running(command.spawn().context("start the launcher")?);
        let begun = Instant::now();
        while !SOCKETS.iter().all(|name| at(name).exists()) {
            anyhow::ensure!(begun.elapsed() < SOON, "the launcher does not listen");
            tokio::time::sleep(POLL).await;
        }
        let request = SyncRequest {
            revision: REVISION,
            vmi: instance.to_string().into_bytes(),
            facts: Some(Facts { allow_emulation: true, interfaces: prepared.interfaces, ..Facts::default() }),
            incoming_migration: prepared.incoming.unwrap_or_default().to_owned(),
            ..SyncRequest::default()
        };
        let mut client = connected(folder.path()).await?;
        client.sync(grpc::request(request, SOON)).await.context("the launcher takes no instance")?;
        let disk = hand_over(&at("disks/launcher.sock"), disk).await?;
        let pod = Self { launcher, folder, _disk: disk };
        if !prepared.descriptors.is_empty() {
            let mut descriptors = pod.descriptors().await?;
            for (name, descriptor) in prepared.descriptors {
                descriptors.give(REVISION, &name, &[descriptor.as_fd()], SOON).await?;
            }
        }
        Ok(pod)
    }

    /// Where its files are.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The client that a handler uses for requests.
    pub(super) async fn client(&self) -> Result<LauncherClient<Channel>> {
        connected(self.folder.path()).await
    }

    /// The socket on which a handler exchanges descriptors.
    pub(super) async fn descriptors(&self) -> Result<descriptors::Client> {
        let sockets = SocketsDirectory::open(&self.folder.path().join("sockets"))?;
        Ok(descriptors::Client::new(sockets.connect_descriptors(SOON).await?))
    }

    /// Its status from now on.
    pub(super) async fn watch(&self) -> Result<Watch> {
        let watched = self.client().await?.watch(grpc::request(WatchRequest {}, LONG)).await?;
        Ok(Watch(watched.into_inner()))
    }
}

/// The status of a launcher as it changes.
pub(super) struct Watch(tonic::Streaming<LauncherStatus>);

impl Watch {
    /// Waits until the status meets the condition.
    pub(super) async fn until(
        &mut self,
        what: &str,
        is: impl Fn(&LauncherStatus) -> bool,
    ) -> Result<LauncherStatus> {
        let mut last = None;
        let search = async {
            while let Some(status) = self.0.message().await? {
                if is(&status) {
                    return Ok(status);
                }
                last = Some(status);
            }
            bail!("the launcher ended")
        };
        let found = tokio::time::timeout(SOON, search).await.unwrap_or_else(|late| Err(late.into()));
        found.with_context(|| format!("never {what}: {last:?}"))
    }
}

async fn connected(folder: &Path) -> Result<LauncherClient<Channel>> {
    let sockets = SocketsDirectory::open(&folder.join("sockets"))?;
    Ok(grpc::client(sockets.connect_grpc(SOON).await?).await?)
}

/// Does the part of the image's container.
async fn hand_over(at: &Path, disk: &Path) -> Result<PacketSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let helper = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(helper.as_raw_fd(), &UnixAddr::new(at)?)?;
    let (helper, file) = (PacketSocket::new(helper)?, File::open(disk)?);
    let message = json!({ "volume": "root", "path": "/disk/disk.img", "size": file.metadata()?.len() });
    helper.send(message.to_string().as_bytes(), &[file.as_fd()]).await?;
    Ok(helper)
}
