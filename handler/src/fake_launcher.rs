//! A launcher for tests: another process, in real control groups and its own network namespace, that speaks
//! the real protocol on real sockets. It starts no QEMU.
//!
//! The process is this test binary, started again with an environment variable that makes it the launcher. It
//! is put into `/kubepods/burstable/pod<uid>/<container>` beneath a group made for the test, in hierarchies
//! of cgroup v1 or in v2. Where that is not permitted, tests print this and pass.
//!
//! It can also behave like a launcher that its guest has taken over ([`hostile`]).

pub(crate) mod hostile;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barevirt_api::networks;
use barevirt_api::v1::{Interface, VirtualMachineInstance};
use barevirt_protocol::descriptors::{self, Call};
use barevirt_protocol::message::{Give, Request, Take};
use barevirt_protocol::names::{DESCRIPTOR_SOCKET, GRPC_SOCKET, SOCKETS_VOLUME};
use barevirt_protocol::seqpacket::PacketListener;
use barevirt_protocol::v1::launcher_server::Launcher;
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{
    Card, Control, ControlRequest, ControlResponse, DebugRequest, DebugResponse, GuestRequest, GuestResponse,
    HelloRequest, HelloResponse, LauncherStatus, MigrateRequest, MigrateResponse, MigrationGo,
    MigrationResult, MigrationState, MigrationStatus, Pause, Phase, ProcessStats, QmpRequest, QmpResponse,
    RealTimeRequest, RealTimeResponse, ScreenshotRequest, ScreenshotResponse, ShutdownRequest,
    ShutdownResponse, StatsRequest, StatsResponse, SyncRequest, SyncResponse, WatchRequest,
};
use barevirt_protocol::{grpc, seqpacket};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Response, Status};

use self::hostile::Behaviour;
use crate::launchers::cgroup::Container;

const CGROUPS: &str = "/sys/fs/cgroup";
const DIRECTORY: &str = "BAREVIRT_FAKE_LAUNCHER";
const BEHAVIOUR: &str = "BAREVIRT_FAKE_LAUNCHER_BEHAVIOUR";
/// A file in the launcher's root that gets a byte for each connection.
const HELLOS: &str = "hellos";
const STARTUP: Duration = Duration::from_secs(10);
/// Hierarchies of cgroup v1 into which the launcher is put.
const HIERARCHIES: [&str; 3] = ["pids", "cpu", "memory"];
/// A QMP command to which the launcher answers that QEMU was killed.
pub(crate) const KILLED: &[u8] = b"killed";

/// A running fake launcher.
pub(crate) struct FakeLauncher {
    child: Child,
    groups: Vec<PathBuf>,
    /// Stands for the kubelet's pods directory.
    pub(crate) pods: tempfile::TempDir,
    /// The launcher's container.
    pub(crate) container: Container,
}

impl FakeLauncher {
    /// Starts one; `None` where the machine does not permit it.
    pub(crate) fn start() -> Option<Self> {
        Self::start_that(Behaviour::Good)
    }

    /// Starts one with this behaviour.
    pub(crate) fn start_that(behaviour: Behaviour) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let container = Container {
            pod_uid: format!("0a4f6f0e-9a35-4f3c-8f0e-{:06x}{number:06x}", std::process::id()),
            id: format!("{:056x}{number:08x}", std::process::id()),
        };
        let pods = tempfile::tempdir().unwrap();
        let pod = pods.path().join(&container.pod_uid);
        fs::create_dir_all(pod.join(SOCKETS_VOLUME)).unwrap();
        fs::create_dir_all(pod.join("root/etc")).unwrap();
        fs::write(pod.join("root/etc/resolv.conf"), "nameserver 10.96.0.10\nsearch cluster.local\n").unwrap();

        let groups = match groups(&container) {
            Ok(groups) => groups,
            Err(error) => {
                eprintln!("skipped: cannot make a control group: {error}");
                return None;
            }
        };
        // A pod's processes have their own network namespace from the start. `unshare` replaces itself with
        // the program.
        let child = Command::new("unshare")
            .arg("--net")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "fake_launcher::be_the_launcher", "--nocapture"])
            .env(DIRECTORY, &pod)
            .env(BEHAVIOUR, behaviour.as_str())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let fake = Self { child, groups, pods, container };
        fake.take_in(fake.child.id());
        let socket = pod.join(SOCKETS_VOLUME).join(DESCRIPTOR_SOCKET);
        let started = std::time::Instant::now();
        while !socket.exists() {
            assert!(started.elapsed() < STARTUP, "the fake launcher did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(fake)
    }

    /// Moves a process into its container.
    pub(crate) fn take_in(&self, process: u32) {
        for group in self.groups.iter().filter(|group| group.ends_with(&self.container.id)) {
            fs::write(group.join("cgroup.procs"), process.to_string()).unwrap();
        }
    }

    /// Its network namespace.
    pub(crate) fn network_namespace(&self) -> OwnedFd {
        fs::File::open(format!("/proc/{}/ns/net", self.child.id())).unwrap().into()
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> u64 {
        let file = self.pods.path().join(&self.container.pod_uid).join("root").join(HELLOS);
        fs::metadata(file).map_or(0, |file| file.len())
    }

    /// Its process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Its control group in this hierarchy of cgroup v1.
    pub(crate) fn group(&self, hierarchy: &str) -> Option<&Path> {
        let root = Path::new(CGROUPS).join(hierarchy);
        let own = |group: &&PathBuf| group.starts_with(&root) && group.ends_with(&self.container.id);
        self.groups.iter().find(own).map(PathBuf::as_path)
    }

    /// The memory limit that [`Self::run_out_of_memory`] sets.
    pub(crate) const LIMIT: u64 = 64 << 20;

    /// Limits the memory of its container and starts a process there that uses more, until the kernel has
    /// killed that process. The launcher must have a group in the memory hierarchy.
    pub(crate) fn run_out_of_memory(&self) {
        let group = self.group("memory").unwrap();
        fs::write(group.join("memory.limit_in_bytes"), Self::LIMIT.to_string()).unwrap();
        // The shell keeps the last line in memory, and that line never ends. Without a limit it would end by
        // itself.
        let script =
            format!("echo $$ > {}/cgroup.procs && ulimit -v 400000 && exec tail /dev/zero", group.display());
        let status = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    }

    /// Kills it with SIGKILL, as the kernel would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for FakeLauncher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for group in self.groups.iter().rev() {
            // Groups that other tests share stay until the last test removes them.
            let _ = fs::remove_dir(group);
        }
    }
}

/// Creates the groups from the top down.
fn groups(container: &Container) -> std::io::Result<Vec<PathBuf>> {
    let root = Path::new(CGROUPS);
    let mut hierarchies: Vec<PathBuf> =
        HIERARCHIES.iter().map(|name| root.join(name)).filter(|path| path.is_dir()).collect();
    if hierarchies.is_empty() {
        hierarchies.push(root.to_owned());
    }
    let mut groups = Vec::new();
    for mut group in hierarchies {
        for part in [
            "barevirt-test",
            "kubepods",
            "burstable",
            &format!("pod{}", container.pod_uid),
            container.id.as_str(),
        ] {
            group.push(part);
            match fs::create_dir(&group) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                _ => groups.push(group.clone()),
            }
        }
    }
    Ok(groups)
}

/// Not a test: the entry point of the launcher process.
#[test]
fn be_the_launcher() {
    let Ok(pod) = std::env::var(DIRECTORY).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sockets = pod.join(SOCKETS_VOLUME);
        let (status, _) =
            watch::channel(LauncherStatus { phase: Phase::Waiting.into(), ..Default::default() });
        let grpc_listener = grpc::listen_at(&sockets.join(GRPC_SOCKET)).unwrap();
        let packet_listener: PacketListener =
            seqpacket::PacketListener::bind(&sockets.join(DESCRIPTOR_SOCKET)).unwrap();
        std::os::unix::fs::chroot(pod.join("root")).unwrap();
        let (calls, received) = mpsc::channel(16);
        tokio::spawn(descriptors::serve(packet_listener, vec![0], calls));
        let held = Held::default();
        tokio::spawn(hold(received, status.clone(), Arc::clone(&held)));
        let behaviour = Behaviour::of(&std::env::var(BEHAVIOUR).unwrap_or_default());
        let fake = Fake { status, behaviour, held };
        if behaviour == Behaviour::KeepsBodies {
            return hostile::serve_heads(grpc_listener, fake).await;
        }
        grpc::serve(grpc_listener, vec![0], fake, std::future::pending()).await.unwrap();
    });
}

/// The descriptors that the launcher holds, by name.
type Held = Arc<Mutex<BTreeMap<String, Vec<OwnedFd>>>>;

/// Holds the descriptors that it gets, and provides an echo for `serial0`.
async fn hold(mut calls: mpsc::Receiver<Call>, status: watch::Sender<LauncherStatus>, held: Held) {
    while let Some(Call { request, descriptors, reply }) = calls.recv().await {
        let mut held = held.lock().unwrap();
        let answer = match request {
            // A connection of a migration replaces one that broke.
            Request::Give(Give { name, .. })
                if held.contains_key(&name) && !name.starts_with("migration/") =>
            {
                Err(format!("{name} is held already"))
            }
            Request::Give(Give { name, .. }) => {
                held.insert(name, descriptors);
                status.send_modify(|status| status.descriptors = held.keys().cloned().collect());
                Ok(Vec::new())
            }
            Request::Take(Take { stream }) if stream == "serial0" => {
                let (mine, theirs) = UnixStream::pair().unwrap();
                std::thread::spawn(move || echo(mine));
                Ok(vec![theirs.into()])
            }
            // The end of a connection that it holds, for tests to look at.
            Request::Take(Take { stream }) if held.contains_key(&stream) => {
                Ok(held[&stream].iter().map(|end| end.try_clone().unwrap()).collect())
            }
            Request::Take(Take { stream }) => Err(format!("there is no stream {stream}")),
        };
        let _ = reply.send(answer);
    }
}

/// Sends back what it receives. It ends after the word `bye`.
fn echo(mut stream: UnixStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if &buffer[..length] == b"bye" || stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

struct Fake {
    status: watch::Sender<LauncherStatus>,
    behaviour: Behaviour,
    held: Held,
}

impl Fake {
    /// Its guest has a network interface for each held tap, and releases those that are absent at once.
    fn plug(&self, wanted: &SyncRequest) {
        let vmi: VirtualMachineInstance = serde_json::from_slice(&wanted.vmi).unwrap();
        let (absent, there): (Vec<_>, Vec<_>) =
            vmi.spec.domain.devices.interfaces.into_iter().partition(networks::is_absent);
        let mut held = self.held.lock().unwrap();
        held.retain(|name, _| !absent.iter().any(|card| name.starts_with(&format!("net/{}/", card.name))));
        let has = |card: &&Interface| held.contains_key(&format!("net/{}/tap", card.name));
        let card = |card: &Interface| {
            let down = networks::state(card) == networks::DOWN;
            Card { name: card.name.clone(), plugged: true, down, ..Card::default() }
        };
        let cards = there.iter().filter(has).map(card).collect();
        self.status.send_modify(|status| {
            status.descriptors = held.keys().cloned().collect();
            status.cards = cards;
        });
    }
}

#[tonic::async_trait]
impl Launcher for Fake {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<LauncherStatus, Status>> + Send>>;

    async fn hello(&self, _: tonic::Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let file = fs::File::options().append(true).create(true).open(Path::new("/").join(HELLOS));
        file.and_then(|mut file| file.write_all(b".")).unwrap();
        Ok(Response::new(HelloResponse {
            lowest_version: 1,
            highest_version: 1,
            pod_uid: "a lie".to_owned(),
        }))
    }

    async fn sync(&self, request: tonic::Request<SyncRequest>) -> Result<Response<SyncResponse>, Status> {
        let wanted = request.into_inner();
        if wanted.revision < self.status.borrow().observed_revision {
            return Err(Status::failed_precondition("an older revision"));
        }
        self.plug(&wanted);
        let needed: Vec<String> = wanted
            .facts
            .iter()
            .flat_map(|facts| &facts.interfaces)
            .map(|one| format!("net/{}/tap", one.network))
            .collect();
        self.status.send_modify(|status| {
            status.observed_revision = wanted.revision;
            if !wanted.incoming_migration.is_empty() {
                let uid = wanted.incoming_migration.clone();
                let awaited = MigrationState::Awaited.into();
                status.migration = Some(MigrationStatus { uid, state: awaited, ..Default::default() });
                status.set_phase(Phase::Starting);
                status.ready = true;
                status.machine_type = "pc-q35-10.0".to_owned();
            } else if status.migration.is_some() {
                // The guest arrives or leaves by a migration and is not started.
            } else if needed.iter().all(|name| status.descriptors.contains(name)) {
                status.set_phase(Phase::Running);
                status.ready = true;
                status.running_since_unix_ms = 1;
                status.machine_type = "pc-q35-10.0".to_owned();
            }
        });
        Ok(Response::new(SyncResponse { accepted_revision: wanted.revision }))
    }

    async fn watch(&self, _: tonic::Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if let Some(statuses) = hostile::statuses(self.behaviour) {
            return Ok(Response::new(statuses));
        }
        Ok(Response::new(Box::pin(WatchStream::new(self.status.subscribe()).map(Ok))))
    }

    async fn shutdown(
        &self,
        request: tonic::Request<ShutdownRequest>,
    ) -> Result<Response<ShutdownResponse>, Status> {
        let grace = request.into_inner().grace_period_seconds;
        self.status.send_modify(|status| {
            status.set_phase(Phase::Succeeded);
            status.reason = "GuestShutdown".to_owned();
            status.message = format!("within {grace} s");
        });
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn control(
        &self,
        request: tonic::Request<ControlRequest>,
    ) -> Result<Response<ControlResponse>, Status> {
        let request = request.into_inner();
        match request.control() {
            Control::Pause => self.status.send_modify(|status| {
                status.set_phase(Phase::Paused);
                status.set_pause(Pause::User);
            }),
            Control::Freeze if request.unfreeze_after_ms == 90_000 => {}
            Control::Unpause
            | Control::Reset
            | Control::SoftReboot
            | Control::Freeze
            | Control::Unfreeze
            | Control::Unspecified => return Err(Status::failed_precondition("VMI is not running")),
        }
        Ok(Response::new(ControlResponse {}))
    }

    async fn guest(&self, _: tonic::Request<GuestRequest>) -> Result<Response<GuestResponse>, Status> {
        let users: Vec<String> = (0..12).map(|n| format!(r#"{{"userName":"user{n}"}}"#)).collect();
        let info = format!(r#"{{"hostname":"web","userList":[{}]}}"#, users.join(",")).into_bytes();
        Ok(Response::new(GuestResponse { info }))
    }

    async fn screenshot(
        &self,
        request: tonic::Request<ScreenshotRequest>,
    ) -> Result<Response<ScreenshotResponse>, Status> {
        let png = if request.into_inner().move_cursor { vec![1; 6 << 20] } else { vec![0] };
        Ok(Response::new(ScreenshotResponse { png }))
    }

    async fn stats(&self, _: tonic::Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        // A paused guest stands for one whose monitor hangs.
        let process = ProcessStats { user_ns: 2_000_000_000, system_ns: 0, resident_bytes: 1 << 20 };
        match self.status.borrow().phase() {
            Phase::Paused => Err(Status::unavailable("it hangs")),
            _ => Ok(Response::new(StatsResponse { process: Some(process), ..StatsResponse::default() })),
        }
    }

    async fn real_time(
        &self,
        request: tonic::Request<RealTimeRequest>,
    ) -> Result<Response<RealTimeResponse>, Status> {
        let RealTimeRequest { qemu_pid, refusal } = request.into_inner();
        self.status.send_modify(|status| status.message = format!("{qemu_pid} is not: {refusal}"));
        Ok(Response::new(RealTimeResponse {}))
    }

    async fn migrate(
        &self,
        request: tonic::Request<MigrateRequest>,
    ) -> Result<Response<MigrateResponse>, Status> {
        let MigrateRequest { uid, order } = request.into_inner();
        let (connection, order) =
            (format!("migration/{uid}/memory"), order.ok_or(Status::invalid_argument("no order"))?);
        let has_connection = self.status.borrow().descriptors.contains(&connection);
        let mut told = MigrationStatus { uid, ..Default::default() };
        told.aborted = matches!(order, Order::Abort(_));
        let state = match order {
            Order::Receive(_) | Order::Send(_) | Order::Rejoin(_) if !has_connection => {
                return Err(Status::failed_precondition("the migration has no connection"));
            }
            // Nothing is transferred: a word on the connection stands for the guest.
            Order::Receive(_) => MigrationState::Received,
            Order::Rejoin(_) => {
                told.post_copy = true;
                self.status.borrow().migration.as_ref().map(MigrationStatus::state).unwrap_or_default()
            }
            Order::Send(_) => MigrationState::Sent,
            Order::Go(MigrationGo { .. }) => MigrationState::Arrived,
            Order::Result(MigrationResult { went: true, .. }) => MigrationState::Left,
            Order::Result(MigrationResult { went: false, .. }) | Order::Abort(_) | Order::SourceEnded(_) => {
                MigrationState::Over
            }
        };
        told.set_state(state);
        self.status.send_modify(|status| {
            status.migration = Some(told);
            match state {
                MigrationState::Arrived => status.set_phase(Phase::Running),
                MigrationState::Left => status.set_phase(Phase::Succeeded),
                _ => {}
            }
        });
        Ok(Response::new(MigrateResponse {}))
    }

    async fn debug(&self, _: tonic::Request<DebugRequest>) -> Result<Response<DebugResponse>, Status> {
        Ok(Response::new(DebugResponse { report: br#"{"pid":7}"#.to_vec() }))
    }

    async fn qmp(&self, request: tonic::Request<QmpRequest>) -> Result<Response<QmpResponse>, Status> {
        let command = request.into_inner().command;
        if command == KILLED {
            self.status.send_modify(|status| {
                status.set_phase(Phase::Failed);
                status.reason = "QemuKilled".to_owned();
                status.message = "QEMU was killed by signal 9 (SIGKILL)".to_owned();
            });
        }
        if command == br#"{"execute":"quit"}"# {
            return Err(Status::permission_denied("quit is not a command that only reads"));
        }
        Ok(Response::new(QmpResponse { answer: [br#"{"return":"#.as_slice(), &command, b"}"].concat() }))
    }
}
