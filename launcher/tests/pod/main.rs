//! The launcher's own program in pod mode. The test acts as virt-handler, as the kubelet and as the helpers
//! in the containers of images. QEMU is real; its guest has a disk of zeroes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod blocks;
mod cards;
mod confine;
mod discs;
mod disks;
mod flush;
mod growth;
mod moves;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/usb_keyboard.rs"]
mod usb_keyboard;

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use barevirt_protocol::directory::SocketsDirectory;
use barevirt_protocol::seqpacket::PacketSocket;
use barevirt_protocol::v1::launcher_client::LauncherClient;
use barevirt_protocol::v1::{
    Control, ControlRequest, Facts, HelloRequest, LauncherStatus, Phase, QmpRequest, ShutdownRequest,
    SyncRequest, WatchRequest,
};
use barevirt_protocol::{descriptors, grpc};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::{eventually, is_alive};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tonic::transport::Channel;

const UID: &str = "6b8d0f2c-0000-4000-8000-000000000001";
const SOON: Duration = Duration::from_secs(30);

/// A pod with a running launcher.
struct Pod {
    directory: tempfile::TempDir,
    launcher: Child,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Pod {
    async fn start(extra: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["sockets", "private", "ephemeral", "disks"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let at = |name: &str| directory.path().join(name);
        // The kubelet makes this file.
        std::fs::write(at("termination-log"), "").unwrap();
        let launcher = Command::new(env!("CARGO_BIN_EXE_virt-launcher"))
            .args(["pod", "--name", "test", "--namespace", "default", "--uid", UID])
            .args(["--grace-period-seconds", "1", "--allow-emulation"])
            .arg("--sockets")
            .arg(at("sockets"))
            .arg("--private")
            .arg(at("private"))
            .arg("--ephemeral-disks")
            .arg(at("ephemeral"))
            .arg("--container-disks")
            .arg(at("disks/launcher.sock"))
            .arg("--secrets")
            .arg(at("secrets"))
            .arg("--termination-log")
            .arg(at("termination-log"))
            .args(if extra.contains(&"--qemu") { &[][..] } else { &["--qemu", "qemu-system-x86_64"] })
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pod = Self { directory, launcher };
        let ready = || {
            ["sockets/launcher-sock", "sockets/launcher-fds", "disks/launcher.sock", "private/qmp.sock"]
                .iter()
                .all(|name| pod.at(name).exists())
        };
        eventually("the launcher listens", SOON, ready).await;
        pod
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn handler(&self) -> LauncherClient<Channel> {
        let sockets = SocketsDirectory::open(&self.at("sockets")).unwrap();
        let stream = sockets.connect_grpc(SOON).await.unwrap();
        assert_eq!(stream.peer_cred().unwrap().pid(), Some(self.launcher.id().cast_signed()));
        grpc::client(stream).await.unwrap()
    }

    async fn descriptors(&self) -> descriptors::Client {
        let sockets = SocketsDirectory::open(&self.at("sockets")).unwrap();
        descriptors::Client::new(sockets.connect_descriptors(SOON).await.unwrap())
    }

    /// Acts as a helper in a volume's container.
    async fn container_disk(&self, message: Value, disk: Option<&Path>) -> PacketSocket {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let helper = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(helper.as_raw_fd(), &UnixAddr::new(&self.at("disks/launcher.sock")).unwrap()).unwrap();
        let helper = PacketSocket::new(helper).unwrap();
        let disk = disk.map(|path| std::fs::File::open(path).unwrap());
        let fds: Vec<_> = disk.iter().map(AsFd::as_fd).collect();
        helper.send(message.to_string().as_bytes(), &fds).await.unwrap();
        helper
    }

    async fn root_disk(&self) -> PacketSocket {
        let path = self.at("disk.img");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let message = json!({"volume": "root", "path": "/disk/disk.img", "size": 1 << 20});
        self.container_disk(message, Some(&path)).await
    }

    /// Waits for the end: exit code and termination message.
    async fn end(&mut self) -> (i32, Value) {
        let mut code = None;
        eventually("the launcher exits", SOON, || {
            code = self.launcher.try_wait().unwrap();
            code.is_some()
        })
        .await;
        let mut errors = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "");
        let word = std::fs::read_to_string(self.at("termination-log")).unwrap();
        (code.unwrap().code().unwrap(), serde_json::from_str(&word).unwrap())
    }
}

fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "test", "namespace": "default", "uid": UID},
        "spec": {
            "domain": {
                "memory": {"guest": "64Mi"},
                "firmware": {"bootloader": {"bios": {"useSerial": true}}},
                "devices": {
                    "autoattachPodInterface": false,
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}},
                              {"name": "seed", "disk": {"bus": "sata"}},
                              {"name": "scratch", "disk": {"bus": "virtio"}}],
                },
            },
            "volumes": [
                {"name": "root", "containerDisk": {"image": "x/y:z"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh\necho hello\n"}},
                {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            ],
        },
    })
}

fn sync(revision: i64) -> tonic::Request<SyncRequest> {
    let facts = Facts { allow_emulation: true, tells_images: true, ..Facts::default() };
    let vmi = vmi().to_string().into_bytes();
    let sync =
        SyncRequest { revision, spec_hash: "x".into(), vmi, facts: Some(facts), ..SyncRequest::default() };
    grpc::request(sync, SOON)
}

struct Watch(tonic::Streaming<LauncherStatus>);

impl Watch {
    async fn open(client: &mut LauncherClient<Channel>) -> Self {
        Self(client.watch(tonic::Request::new(WatchRequest {})).await.unwrap().into_inner())
    }

    async fn until(&mut self, what: &str, is: impl Fn(&LauncherStatus) -> bool) -> LauncherStatus {
        let mut last = None;
        let search = async {
            loop {
                let status = self.0.message().await.unwrap().expect("the watch ended");
                if is(&status) {
                    return status;
                }
                last = Some(status);
            }
        };
        let found = tokio::time::timeout(SOON, search).await;
        found.unwrap_or_else(|_| panic!("status never: {what}; the last one: {last:?}"))
    }

    async fn running(&mut self) -> LauncherStatus {
        self.until("running", |status| status.phase() == Phase::Running && !status.machine_type.is_empty())
            .await
    }
}

#[tokio::test]
async fn from_sync_to_shutdown_as_the_handler_sees_it() {
    let mut pod = Pod::start(&["--pod-uid", "pod-1"]).await;
    let mut client = pod.handler().await;
    let hello = client.hello(grpc::request(HelloRequest { version: 1 }, SOON)).await.unwrap().into_inner();
    assert_eq!((hello.pod_uid.as_str(), hello.lowest_version), ("pod-1", 1));
    let mut watch = Watch::open(&mut client).await;
    let first = watch.until("waiting", |_| true).await;
    assert_eq!((first.phase(), first.observed_revision), (Phase::Waiting, 0));

    // A console client that comes before the guest gets its first output.
    let console = pod.descriptors().await.take("serial0", SOON).await.unwrap();
    let accepted = client.sync(sync(7)).await.unwrap().into_inner();
    assert_eq!(accepted.accepted_revision, 7);
    watch.until("waits for the disk", |status| status.message.contains("container disks of root")).await;
    let helper = pod.root_disk().await;
    let running = watch.running().await;
    assert!(running.ready && running.qemu_pid > 0 && running.running_since_unix_ms > 0, "{running:?}");
    assert_eq!((running.observed_revision, running.accelerator.as_str()), (7, "tcg"));
    assert!(running.machine_type.starts_with("pc-q35-"));

    // Level-triggered: a repeated Sync is accepted, an older one is not, another VMI never.
    client.sync(sync(7)).await.unwrap();
    let outdated = client.sync(sync(6)).await.unwrap_err();
    assert_eq!(outdated.code(), tonic::Code::FailedPrecondition);
    let mut other = sync(8);
    let vmi = String::from_utf8(other.get_ref().vmi.clone()).unwrap();
    other.get_mut().vmi = vmi.replace(UID, "someone-else").into_bytes();
    assert_eq!(client.sync(other).await.unwrap_err().code(), tonic::Code::PermissionDenied);

    let console = std::os::unix::net::UnixStream::from(console);
    console.set_nonblocking(true).unwrap();
    let mut console = UnixStream::from_std(console).unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(SOON, async {
        while !String::from_utf8_lossy(&said).contains("SeaBIOS") {
            assert!(console.read_buf(&mut said).await.unwrap() > 0);
        }
    })
    .await
    .expect("no word of the firmware");
    let log = pod.at("private/serial0.log");
    eventually("the log has it", SOON, || std::fs::read_to_string(&log).unwrap().contains("SeaBIOS")).await;

    // QMP through the handler, and from a user in the pod.
    let ask = |command: &str| {
        let request = QmpRequest { command: command.as_bytes().to_vec(), deadline_ms: 5000 };
        let mut client = client.clone();
        async move {
            let answer = client.qmp(grpc::request(request, SOON)).await?.into_inner().answer;
            Ok::<Value, tonic::Status>(serde_json::from_slice(&answer).unwrap())
        }
    };
    let answer = ask(r#"{"execute": "query-status"}"#).await.unwrap();
    assert_eq!(answer["return"]["status"], "running");
    let answer = ask(r#"{"execute": "nothing"}"#).await.unwrap();
    assert_eq!(answer["error"]["class"], "CommandNotFound");
    assert_eq!(ask("nonsense").await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let mut person = BufReader::new(UnixStream::connect(pod.at("private/qmp.sock")).await.unwrap());
    let mut line = String::new();
    person.read_line(&mut line).await.unwrap();
    assert!(line.contains("QMP"));
    let mut taker = pod.descriptors().await;
    for stream in ["qmp", "vnc"] {
        let stream = std::os::unix::net::UnixStream::from(taker.take(stream, SOON).await.unwrap());
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut first = [0; 3];
        (&stream).read_exact(&mut first).unwrap();
        assert!(&first == b"{\"Q" || &first == b"RFB", "{first:?}");
    }
    assert!(taker.take("nonsense", SOON).await.is_err());

    // The sandbox is on, and the launcher is small.
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.qemu_pid)).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");

    let stop = ShutdownRequest { grace_period_seconds: 0, reason: "test".into() };
    client.shutdown(grpc::request(stop, SOON)).await.unwrap();
    let last = watch.until("the end", |status| status.phase() == Phase::Succeeded).await;
    assert_eq!((last.reason.as_str(), last.qemu_pid), ("Stopped", 0));
    drop((watch, client));
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["phase"], &word["reason"]), (0, &json!("Succeeded"), &json!("Stopped")));
    // The helper may end: its connection is closed.
    assert!(tokio::time::timeout(SOON, helper.receive()).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn a_disk_of_metrics_is_kept_current() {
    let pod = Pod::start(&["--node-name", "node-of-the-test"]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut object = vmi();
    object["spec"]["volumes"] = json!([{"name": "metrics", "downwardMetrics": {}}]);
    object["spec"]["domain"]["devices"]["disks"] = json!([{"name": "metrics", "disk": {"bus": "virtio"}}]);
    object["spec"]["domain"]["devices"]["downwardMetrics"] = json!({});
    let mut wanted = sync(1);
    wanted.get_mut().vmi = object.to_string().into_bytes();
    client.sync(wanted).await.unwrap();
    watch.running().await;
    let read = || std::fs::read(pod.at("ephemeral/metrics.vhostmd")).unwrap();
    let has = |text: &str| String::from_utf8_lossy(&read()).contains(text);
    eventually("an account", SOON, || has("<value>node-of-the-test</value>")).await;
    let first = read();
    assert!(first.starts_with(b"mvbd\0\0\0\0"), "a lock is left");
    assert!(has("<name>ResourceProcessorLimit</name>\n    <value>1</value>"));
    assert!(has("<value>qemu-") && has("<name>FreePhysicalMemory</name>"));
    eventually("a later one", SOON, || read() != first).await;
    // The guest has the port.
    let command = br#"{"execute": "qom-get", "arguments": {"path": "/machine/peripheral/downward-metrics0", "property": "name"}}"#;
    let request = QmpRequest { command: command.to_vec(), deadline_ms: 5000 };
    let answer = client.qmp(grpc::request(request, SOON)).await.unwrap().into_inner().answer;
    assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap()["return"], "org.github.vhostmd.1");
}

/// A blocking client of a slot for USB devices, with a time limit.
async fn usb_client(taker: &mut descriptors::Client) -> std::os::unix::net::UnixStream {
    let stream = std::os::unix::net::UnixStream::from(taker.take("usbredir", SOON).await.unwrap());
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

#[tokio::test]
async fn each_usb_client_gets_a_slot_until_all_are_taken() {
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut taker = pod.descriptors().await;
    let early = taker.take("usbredir", SOON).await.unwrap_err().to_string();
    assert!(early.contains("the USB slot cannot be connected to"), "{early}");
    let mut object = vmi();
    object["spec"]["volumes"] = json!([]);
    object["spec"]["domain"]["devices"]["disks"] = json!([]);
    object["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
    // The firmware looks for keyboards once, at its start: there must be one by then. Resetting the guest in
    // its first moments instead can leave it without a BIOS, because QEMU does not reset the distinction
    // between ROM and RAM there.
    object["spec"]["startStrategy"] = json!("Paused");
    let mut wanted = sync(1);
    wanted.get_mut().vmi = object.to_string().into_bytes();
    client.sync(wanted).await.unwrap();
    watch.until("a guest that waits", |status| status.phase() == Phase::Paused).await;

    // QEMU sends a hello to each: type 0, 68 bytes, no number; its name and version, and its capabilities.
    let greeted = |stream: &std::os::unix::net::UnixStream| {
        let mut hello = [0; 80];
        (&*stream).read_exact(&mut hello).unwrap();
        assert_eq!(hello[..12], [0, 0, 0, 0, 68, 0, 0, 0, 0, 0, 0, 0]);
        assert!(
            hello[12..].starts_with(b"qemu usb-redir guest "),
            "{}",
            String::from_utf8_lossy(&hello[12..])
        );
    };
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(usb_client(&mut taker).await);
    }
    let refused = taker.take("usbredir", SOON).await.unwrap_err().to_string();
    assert!(refused.contains("all 4 USB slots of the guest are in use"), "{refused}");

    // One client leaves, and the next gets its slot; the launcher takes a moment to notice.
    clients.remove(1);
    let begun = std::time::Instant::now();
    let again = loop {
        match taker.take("usbredir", SOON).await {
            Ok(stream) => break std::os::unix::net::UnixStream::from(stream),
            Err(error) => assert!(begun.elapsed() < SOON, "{error}"),
        }
    };
    again.set_read_timeout(Some(SOON)).unwrap();

    // QEMU sends data when the guest runs.
    usb_keyboard::plug_in(&again);
    let control = ControlRequest { control: Control::Unpause.into(), ..Default::default() };
    client.control(grpc::request(control, SOON)).await.unwrap();
    clients.iter().chain([&again]).for_each(greeted);
    assert_eq!(usb_keyboard::answer_until_configured(&again).unwrap(), 1);
}

async fn started(extra: &[&str]) -> (Pod, Watch, LauncherStatus, PacketSocket) {
    let pod = Pod::start(extra).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(sync(1)).await.unwrap();
    let helper = pod.root_disk().await;
    let status = watch.running().await;
    (pod, watch, status, helper)
}

#[tokio::test]
async fn a_killed_qemu_is_a_failure_that_names_the_signal() {
    let (mut pod, mut watch, status, _helper) = started(&[]).await;
    kill(Pid::from_raw(status.qemu_pid.cast_signed()), Signal::SIGKILL).unwrap();
    let last = watch.until("the end", |status| status.phase() == Phase::Failed).await;
    assert_eq!(last.reason, "QemuKilled");
    assert!(last.message.contains("SIGKILL"), "{}", last.message);
    drop(watch);
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["phase"], &word["reason"]), (1, &json!("Failed"), &json!("QemuKilled")));
}

#[tokio::test]
async fn qemu_does_not_outlive_a_killed_launcher() {
    let (mut pod, _watch, status, _helper) = started(&[]).await;
    assert!(is_alive(status.qemu_pid));
    pod.launcher.kill().unwrap();
    pod.launcher.wait().unwrap();
    eventually("QEMU is gone", SOON, || !is_alive(status.qemu_pid)).await;
}

#[tokio::test]
async fn sigterm_starts_the_steps_of_a_stop_and_the_pod_is_kept_until_qemu_ends() {
    let (mut pod, mut watch, status, _helper) = started(&[]).await;
    kill(Pid::from_raw(pod.launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
    watch.until("stopping", |status| status.phase() == Phase::Stopping).await;
    assert!(is_alive(status.qemu_pid));
    let last = watch.until("the end", |status| status.phase() == Phase::Failed).await;
    assert_eq!(last.reason, "GracePeriodExpired");
    drop(watch);
    assert_eq!(pod.end().await.0, 1);
}

#[tokio::test]
async fn a_handler_that_comes_back_finds_everything_as_it_was() {
    let (pod, watch, status, _helper) = started(&[]).await;
    drop(watch);
    let mut client = pod.handler().await;
    let again = Watch::open(&mut client).await.running().await;
    assert_eq!((again.qemu_pid, again.observed_revision), (status.qemu_pid, 1));
    assert!(is_alive(status.qemu_pid));
}

#[tokio::test]
async fn waiting_has_an_end_and_names_what_is_missing() {
    let mut pod = Pod::start(&["--start-deadline-seconds", "1"]).await;
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("NotSynced")));

    let mut pod = Pod::start(&["--start-deadline-seconds", "1"]).await;
    pod.handler().await.sync(sync(1)).await.unwrap();
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("ContainerDiskFailed")));
    assert!(word["message"].as_str().unwrap().contains("volume root"), "{word}");

    let mut pod = Pod::start(&["--start-deadline-seconds", "2"]).await;
    let mut with_network = sync(1);
    let mut object = vmi();
    object["spec"]["domain"]["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}}]);
    object["spec"]["networks"] = json!([{"name": "default", "pod": {}}]);
    with_network.get_mut().vmi = object.to_string().into_bytes();
    pod.handler().await.sync(with_network).await.unwrap();
    let _helper = pod.root_disk().await;
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("DescriptorsMissing")));
    assert!(word["message"].as_str().unwrap().contains("interface default"), "{word}");
}

#[tokio::test]
async fn an_image_without_a_disk_fails_with_its_message() {
    let mut pod = Pod::start(&[]).await;
    pod.handler().await.sync(sync(1)).await.unwrap();
    let message = json!({"volume": "root", "error": "image has no disk: looked in /disk"});
    let _helper = pod.container_disk(message, None).await;
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("ContainerDiskFailed")));
    assert!(word["message"].as_str().unwrap().contains("looked in /disk"), "{word}");
}

/// The header of a qcow2 file of a few bytes can declare a disk of terabytes, all of which a guest may write.
#[tokio::test]
async fn a_container_disk_above_the_installations_limit_is_refused() {
    let mut pod = Pod::start(&["--largest-image", "67108863"]).await;
    pod.handler().await.sync(sync(1)).await.unwrap();
    let disk = pod.at("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let message = json!({"volume": "root", "path": "/disk/disk.img", "size": 64 << 20});
    let _helper = pod.container_disk(message, Some(&disk)).await;
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("ContainerDiskFailed")));
    let said = word["message"].as_str().unwrap();
    assert!(said.contains("67108864 bytes, more than the 67108863 that this installation allows"), "{said}");
}

#[tokio::test]
async fn sigterm_before_the_start_is_a_clean_end() {
    let mut pod = Pod::start(&[]).await;
    kill(Pid::from_raw(pod.launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (0, &json!("StoppedBeforeStart")));
}

#[tokio::test]
async fn descriptors_are_held_under_their_names_and_strange_ones_refused() {
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut giver = pod.descriptors().await;
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    giver.give(1, "net/default/tap", &[file.as_fd()], SOON).await.unwrap();
    giver.give(1, "net/default/tap", &[file.as_fd()], SOON).await.unwrap();
    assert!(giver.give(1, "disk/root", &[file.as_fd()], SOON).await.is_err());
    let held = watch.until("held", |status| !status.descriptors.is_empty()).await;
    assert_eq!(held.descriptors, ["net/default/tap"]);
}

#[tokio::test]
async fn orphans_are_reaped_and_the_childs_exit_status_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("qemu");
    // It leaves an orphan, which ends while QEMU runs.
    std::fs::write(&script, "#!/bin/sh\n(sleep 600 &)\nexec qemu-system-x86_64 \"$@\"\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (mut pod, _watch, status, _helper) = started(&["--qemu", script.to_str().unwrap()]).await;
    let launcher = pod.launcher.id();
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
    let others = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
    let orphans: Vec<u32> = others.filter(|pid| *pid != status.qemu_pid).collect();
    assert!(!orphans.is_empty(), "{children}");
    for orphan in &orphans {
        kill(Pid::from_raw(orphan.cast_signed()), Signal::SIGKILL).unwrap();
    }
    let gone = || orphans.iter().all(|orphan| !Path::new(&format!("/proc/{orphan}")).exists());
    eventually("the orphan is reaped", SOON, gone).await;
    kill(Pid::from_raw(status.qemu_pid.cast_signed()), Signal::SIGKILL).unwrap();
    let (code, word) = pod.end().await;
    assert_eq!((code, &word["reason"]), (1, &json!("QemuKilled")));
}

#[tokio::test]
async fn it_is_small() {
    let (pod, _watch, _status, _helper) = started(&[]).await;
    let mut client = pod.handler().await;
    for _ in 0..20 {
        let command = br#"{"execute": "query-qmp-schema"}"#.to_vec();
        client.qmp(grpc::request(QmpRequest { command, deadline_ms: 0 }, SOON)).await.unwrap();
    }
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pod.launcher.id())).unwrap();
    let anonymous = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
    let kib: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
    // The shipped program is even smaller; this build is not optimised and uses another libc.
    assert!(kib < 16 << 10, "{kib} KiB");
}
