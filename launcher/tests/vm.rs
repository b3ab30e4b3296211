//! The supervisor with real QEMU, which has firmware and no guest here.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use barevirt_qmp::qapi::qmp::query_fdsets;
use barevirt_qmp::{Deadline, Options, Qmp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::{bare, eventually, is_alive};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use virt_launcher::guest_end::GuestEnd;
use virt_launcher::lifecycle::Control;
use virt_launcher::people;
use virt_launcher::screenshot;
use virt_launcher::status::{Paused, Stage, Status};
use virt_launcher::supervisor::{Launch, NotDone, Request, supervise};

struct Vm {
    requests: mpsc::Sender<Request>,
    status: watch::Receiver<Status>,
    end: JoinHandle<GuestEnd>,
}

impl Vm {
    fn start(launch: Launch) -> Self {
        let (requests, asked) = mpsc::channel(4);
        let sender = watch::Sender::new(Status::default());
        let status = sender.subscribe();
        let end = spawn_local(async move { supervise(std::future::ready(Ok(launch)), asked, &sender).await });
        Self { requests, status, end }
    }

    async fn running(launch: Launch) -> Self {
        let mut vm = Self::start(launch);
        vm.reaches(Stage::Running).await;
        vm
    }

    async fn reaches(&mut self, stage: Stage) -> Status {
        let reached = self.status.wait_for(|status| status.stage == stage);
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        reached.unwrap_or_else(|_| panic!("not {stage:?} in time")).unwrap().clone()
    }

    async fn stop(&self, seconds: u64) {
        let grace = Duration::from_secs(seconds);
        self.requests.send(Request::Stop { grace, why: "test".into() }).await.unwrap();
    }

    async fn control(&self, control: Control) -> Result<(), NotDone> {
        let (reply, replied) = tokio::sync::oneshot::channel();
        self.requests.send(Request::Control { control, reply }).await.unwrap();
        tokio::time::timeout(Duration::from_secs(30), replied).await.expect("no reply").unwrap()
    }

    async fn end(self) -> GuestEnd {
        tokio::time::timeout(Duration::from_secs(60), self.end).await.expect("the guest did not end").unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.status.borrow().qemu_pid.cast_signed())
    }
}

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn the_steps_of_a_stop_end_an_unresponsive_guest_within_its_grace_period() {
    local(async {
        let vm = Vm::running(bare(&[]).launch).await;
        let begun = Instant::now();
        vm.stop(2).await;
        let end = vm.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (false, "GracePeriodExpired"));
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(5), "{took:?}");
    });
}

#[test]
fn no_grace_is_at_once() {
    local(async {
        let mut vm = Vm::running(bare(&[]).launch).await;
        let status = vm.status.wait_for(|status| !status.machine_type.is_empty()).await.unwrap().clone();
        assert!(status.machine_type.starts_with("pc-q35-"), "{status:?}");
        assert!(status.ready && status.running_since.is_some() && !status.qemu_version.is_empty());
        let begun = Instant::now();
        vm.stop(0).await;
        let end = vm.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (true, "Stopped"));
        assert!(begun.elapsed() < Duration::from_secs(3));
    });
}

#[test]
fn a_qemu_that_hangs_is_killed_in_bounded_time() {
    local(async {
        let vm = Vm::running(bare(&[]).launch).await;
        kill(vm.pid(), Signal::SIGSTOP).unwrap();
        let begun = Instant::now();
        vm.stop(1).await;
        let end = vm.end().await;
        assert_eq!(end.reason, "GracePeriodExpired");
        assert!(begun.elapsed() < Duration::from_secs(12));
    });
}

#[test]
fn sigkill_and_sigterm_from_outside_have_different_reasons() {
    local(async {
        for (signal, reason, text) in
            [(Signal::SIGKILL, "QemuKilled", "SIGKILL"), (Signal::SIGTERM, "QemuTerminated", "signal")]
        {
            let vm = Vm::running(bare(&[]).launch).await;
            let mut status = vm.status.clone();
            kill(vm.pid(), signal).unwrap();
            let end = vm.end().await;
            assert_eq!((end.succeeded, end.reason.as_str()), (false, reason));
            assert!(end.message.contains(text), "{}", end.message);
            let last = status.wait_for(|status| status.stage == Stage::Failed).await.unwrap().clone();
            assert_eq!((last.reason.as_str(), last.qemu_pid, last.ready), (reason, 0, false));
        }
    });
}

#[test]
fn a_refusal_by_qemu_is_in_the_end_of_the_guest() {
    local(async {
        let end = Vm::start(bare(&["-device", "no-such-device"]).launch).end().await;
        assert_eq!(end.reason, "QemuFailed");
        assert!(end.message.contains("no-such-device"), "{}", end.message);

        let mut missing = bare(&[]).launch;
        missing.command.program = "/nowhere/qemu".into();
        let end = Vm::start(missing).end().await;
        assert_eq!(end.reason, "StartFailed");
        assert!(end.message.contains("/nowhere/qemu"), "{}", end.message);
    });
}

#[test]
fn a_monitor_that_never_answers_is_a_failed_start_and_leaves_nothing() {
    local(async {
        let mut silent = bare(&[]).launch;
        silent.command.program = "sleep".into();
        silent.command.arguments = vec!["600".into()];
        silent.answers_within = Duration::from_millis(400);
        let mut vm = Vm::start(silent);
        let pid = vm.reaches(Stage::Starting).await.qemu_pid;
        assert!(is_alive(pid));
        let end = vm.end().await;
        assert_eq!(end.reason, "StartFailed");
        assert!(!is_alive(pid));
    });
}

#[test]
fn a_stop_before_the_start_starts_nothing() {
    local(async {
        let (requests, asked) = mpsc::channel(4);
        let status = watch::Sender::new(Status::default());
        let never = std::future::pending::<Result<Launch, GuestEnd>>();
        let stop = Request::Stop { grace: Duration::from_secs(30), why: "test".into() };
        let (end, ()) = tokio::join!(supervise(never, asked, &status), async {
            requests.send(stop).await.unwrap();
        });
        assert_eq!((end.succeeded, end.reason.as_str()), (true, "StoppedBeforeStart"));
    });
}

/// A user at the monitor.
struct MonitorClient(BufReader<UnixStream>);

impl MonitorClient {
    async fn connect(socket: &std::path::Path) -> Self {
        let mut client = Self(BufReader::new(UnixStream::connect(socket).await.unwrap()));
        assert!(client.hear().await.get("QMP").is_some());
        let refused = client.ask(json!({"execute": "query-name", "id": 0})).await;
        assert_eq!(refused["error"]["class"], "CommandNotFound");
        assert_eq!(client.ask(json!({"execute": "qmp_capabilities"})).await, json!({"return": {}}));
        client
    }

    async fn say(&mut self, line: Value) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(30), self.0.read_line(&mut line)).await;
        assert!(read.expect("silence").unwrap() > 0, "the monitor has gone");
        serde_json::from_str(&line).unwrap()
    }

    async fn ask(&mut self, line: Value) -> Value {
        self.say(line).await;
        loop {
            let heard = self.hear().await;
            if heard.get("event").is_none() {
                return heard;
            }
        }
    }

    async fn event(&mut self, name: &str) -> Value {
        loop {
            let heard = self.hear().await;
            if heard["event"] == name {
                return heard;
            }
        }
    }
}

#[test]
fn people_share_a_monitor_and_what_they_do_is_seen() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("qmp.sock");
        let listener = people::listen(&socket).unwrap();
        let bare = bare(&[]);
        let (_sender, sent) = mpsc::channel(1);
        spawn_local(async move {
            let deadline = Deadline::after(Duration::from_secs(60));
            let (qmp, _) = Qmp::open(bare.people, Options::default(), deadline).await.unwrap();
            people::serve(qmp, Some(listener), sent).await;
        });
        let mut vm = Vm::running(bare.launch).await;
        let mut a = MonitorClient::connect(&socket).await;
        let mut b = MonitorClient::connect(&socket).await;

        // The same id in different commands: each gets its own answer.
        a.say(json!({"execute": "query-status", "id": "same"})).await;
        b.say(json!({"execute": "query-version", "id": "same"})).await;
        let (at_a, at_b) = (a.hear().await, b.hear().await);
        assert_eq!((&at_a["id"], &at_a["return"]["status"]), (&json!("same"), &json!("running")));
        assert!(at_b["return"]["qemu"]["major"].is_u64(), "{at_b}");

        // Answers keep the order of the commands, however long each takes.
        for n in 0..20 {
            let command = if n % 3 == 0 { "query-qmp-schema" } else { "query-status" };
            a.say(json!({"execute": command, "id": n})).await;
        }
        for n in 0..20 {
            assert_eq!(a.hear().await["id"], n);
        }

        // Invalid input affects no client.
        b.0.write_all(b"\x00\xff nonsense\n[]\n{\"execute\": 7}\n").await.unwrap();
        for _ in 0..3 {
            assert!(b.hear().await.get("error").is_some());
        }
        let mut rude = MonitorClient::connect(&socket).await;
        rude.0.write_all(b"{\"execute\": \"query-st").await.unwrap();
        drop(rude);

        // Both clients and the launcher see the effect of a command.
        assert_eq!(a.ask(json!({"execute": "stop", "id": 1})).await, json!({"return": {}, "id": 1}));
        b.event("STOP").await;
        vm.reaches(Stage::Paused).await;
        assert_eq!(b.ask(json!({"execute": "cont"})).await, json!({"return": {}}));
        a.event("RESUME").await;
        vm.reaches(Stage::Running).await;

        b.say(json!({"execute": "quit"})).await;
        assert_eq!(a.event("SHUTDOWN").await["data"]["reason"], "host-qmp-quit");
        assert_eq!(vm.end().await.reason, "QuitByMonitor");
    });
}

#[test]
fn a_monitor_client_that_does_not_read_does_not_delay_others() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("qmp.sock");
        let listener = people::listen(&socket).unwrap();
        let bare = bare(&[]);
        let (_sender, sent) = mpsc::channel(1);
        spawn_local(async move {
            let deadline = Deadline::after(Duration::from_secs(60));
            let (qmp, _) = Qmp::open(bare.people, Options::default(), deadline).await.unwrap();
            people::serve(qmp, Some(listener), sent).await;
        });
        let vm = Vm::running(bare.launch).await;
        let mut sleeper = MonitorClient::connect(&socket).await;
        for n in 0..50 {
            // 0.2 MB each, never read.
            sleeper.say(json!({"execute": "query-qmp-schema", "id": n})).await;
        }
        let mut other = MonitorClient::connect(&socket).await;
        let begun = Instant::now();
        for n in 0..20 {
            assert_eq!(other.ask(json!({"execute": "query-status", "id": n})).await["id"], n);
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        vm.stop(0).await;
        assert_eq!(vm.end().await.reason, "Stopped");
    });
}

#[test]
fn controls_of_the_real_qemu() {
    local(async {
        let mut launch = bare(&[]).launch;
        launch.paused = true;
        let mut vm = Vm::start(launch);
        let status = vm.reaches(Stage::Paused).await;
        assert_eq!((status.paused, status.running_since), (Some(Paused::ByUser), None));
        vm.control(Control::Unpause).await.unwrap();
        assert_eq!(vm.reaches(Stage::Running).await.paused, None);
        vm.control(Control::Pause).await.unwrap();
        vm.control(Control::Pause).await.unwrap();
        assert_eq!(vm.reaches(Stage::Paused).await.paused, Some(Paused::ByUser));
        let refused = vm.control(Control::SoftReboot).await.unwrap_err();
        assert_eq!(refused.to_string(), "VMI is paused");
        vm.control(Control::Reset).await.unwrap();
        vm.control(Control::Unpause).await.unwrap();
        assert_eq!(vm.reaches(Stage::Running).await.resumes, 1);
        // QEMU accepts the commands for it; the firmware ignores the button.
        vm.control(Control::SoftReboot).await.unwrap();
        vm.control(Control::Reset).await.unwrap();
        vm.stop(0).await;
        assert_eq!(vm.end().await.reason, "Stopped");
    });
}

/// A boot sector: sends `\x01` on the serial line, waits for the power button, powers off.
const BUTTON: [u8; 33] = [
    0xba, 0xf8, 0x03, 0xb0, 0x01, 0xee, // out 0x3f8, 1
    0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, // PM1 enable: power button
    0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xfa, // until PM1 status has it
    0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, // PM1 control: sleep, type 0
    0xf4, 0xeb, 0xfd, 0x90, // halt
];

#[test]
fn a_guest_that_hears_its_button_boots_again_for_a_soft_reboot_and_ends_without_one() {
    local(async {
        let mut sector = vec![0; 1 << 20];
        sector[..BUTTON.len()].copy_from_slice(&BUTTON);
        sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        let disk = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(disk.path(), sector).unwrap();
        let drive = format!("if=none,id=d,format=raw,file={}", disk.path().display());
        let bare = bare(&["-drive", &drive, "-device", "virtio-blk-pci,drive=d,bootindex=0"]);
        let (mut serial, launch) = (bare.serial, bare.launch);
        let mut vm = Vm::running(launch).await;
        let pid = vm.pid();
        let mut said = Vec::new();
        let mut boots = async |wanted: usize| {
            let counted = async {
                while said.iter().filter(|byte| **byte == 1).count() < wanted {
                    assert!(tokio::io::AsyncReadExt::read_buf(&mut serial, &mut said).await.unwrap() > 0);
                }
            };
            tokio::time::timeout(Duration::from_secs(60), counted)
                .await
                .unwrap_or_else(|_| panic!("it does not boot: {:?}", String::from_utf8_lossy(&said)));
        };
        boots(1).await;
        for boot in 2..4 {
            vm.control(Control::SoftReboot).await.unwrap();
            boots(boot).await;
            assert_eq!((vm.pid(), vm.reaches(Stage::Running).await.paused), (pid, None));
        }
        // A stop presses the same button, but QEMU then ends.
        vm.stop(30).await;
        let end = vm.end().await;
        assert_eq!((end.succeeded, end.reason.as_str()), (true, "GuestShutdown"));
    });
}

#[test]
fn a_disk_that_fails_once_pauses_the_guest_until_it_answers() {
    local(async {
        // QEMU itself reads once, and ignores the error. The firmware looks for something to boot: with
        // `stop`, a failed read is repeated later.
        let fault = json!({"event": "none", "iotype": "read", "errno": 5, "once": true});
        let disk = json!({"driver": "blkdebug", "node-name": "disk", "image": {"driver": "null-co", "size": 1 << 20},
            "inject-error": [fault, fault, fault]});
        let device = "virtio-blk-pci,drive=disk,rerror=stop,werror=stop,bootindex=0";
        let bare = bare(&["-blockdev", &disk.to_string(), "-device", device]);
        let mut vm = Vm::start(bare.launch);
        let failed = vm.status.wait_for(|status| status.paused == Some(Paused::ByIoError));
        tokio::time::timeout(Duration::from_secs(60), failed).await.expect("it never failed").unwrap();
        let again = vm.status.wait_for(|status| status.resumes == 1);
        let status = tokio::time::timeout(Duration::from_secs(60), again).await.expect("it stays paused");
        assert_eq!((status.as_ref().unwrap().stage, status.unwrap().paused), (Stage::Running, None));
        vm.stop(0).await;
        assert_eq!(vm.end().await.reason, "Stopped");
    });
}

#[test]
fn a_picture_of_the_display_is_a_png() {
    local(async {
        let bare = bare(&["-device", "VGA"]);
        let (people, launch) = (bare.people, bare.launch);
        let vm = Vm::running(launch).await;
        let deadline = Deadline::after(Duration::from_secs(60));
        let (qmp, _) = Qmp::open(people, Options::default(), deadline).await.unwrap();
        for move_cursor in [false, true] {
            let png = screenshot::take(&qmp, move_cursor).await.unwrap();
            let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
            assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
            assert!(
                (320..4096).contains(&side(16)) && (200..4096).contains(&side(20)),
                "{} {}",
                side(16),
                side(20)
            );
        }
        let sets = qmp.execute(query_fdsets {}, deadline).await.unwrap();
        assert!(sets.is_empty(), "nothing is left behind: {sets:?}");
        vm.stop(0).await;
        vm.end().await;
    });
}

#[test]
fn a_machine_without_a_display_has_no_picture() {
    local(async {
        let bare = bare(&[]);
        let (people, launch) = (bare.people, bare.launch);
        let vm = Vm::running(launch).await;
        let deadline = Deadline::after(Duration::from_secs(60));
        let (qmp, _) = Qmp::open(people, Options::default(), deadline).await.unwrap();
        let error = screenshot::take(&qmp, false).await.unwrap_err();
        assert!(matches!(error, screenshot::NoPicture::Monitor(_)), "{error}");
        vm.stop(0).await;
        vm.end().await;
    });
}

#[test]
fn the_descriptors_of_a_child_are_its_own_and_its_end_is_noticed_once() {
    local(async {
        let vm = Vm::running(bare(&[]).launch).await;
        let pid = vm.pid().as_raw().unsigned_abs();
        let open: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().collect();
        // The standard streams, three sockets, and QEMU's own event descriptors; none of this process.
        assert!(open.len() < 25, "{} descriptors", open.len());
        vm.stop(0).await;
        vm.end().await;
        eventually("QEMU is gone", Duration::from_secs(5), || !is_alive(pid)).await;
    });
}
