//! Controls, with a test that acts as QEMU at the monitor, for behaviour that needs a guest: shutting down
//! after the power button, losing a disk.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use support::bare;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::lifecycle::Control;
use virt_launcher::migration::State;
use virt_launcher::migration::qemu::Transport;
use virt_launcher::status::{Paused, Stage, Status};
use virt_launcher::supervisor::{MigrationOrder, NotDone, Request, supervise};

/// QEMU's side of a monitor.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    async fn say(&mut self, line: Value) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn event(&mut self, name: &str, data: Value) {
        self.say(json!({"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 2}})).await;
    }

    /// The next command, which is not answered.
    async fn hear_silently(&mut self) -> Value {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(20), self.0.read_line(&mut line)).await;
        assert!(read.expect("no command").unwrap() > 0, "the launcher has gone");
        serde_json::from_str(&line).unwrap()
    }

    async fn answer(&mut self, command: &Value) {
        self.say(json!({"return": {}, "id": command["id"]})).await;
    }

    /// The next command, which is answered; irrelevant commands before it are answered as well.
    async fn hear(&mut self) -> Value {
        loop {
            let command = self.hear_silently().await;
            self.answer(&command).await;
            if !matches!(command["execute"].as_str().unwrap(), "qmp_capabilities" | "qom-get") {
                return command;
            }
        }
    }

    async fn expect(&mut self, name: &str) -> Value {
        let command = self.hear().await;
        assert_eq!(command["execute"], name, "{command}");
        command["arguments"].clone()
    }
}

struct Vm {
    monitor: Monitor,
    requests: mpsc::Sender<Request>,
    status: watch::Receiver<Status>,
}

impl Vm {
    /// A VM that has just opened its monitor, with an idle process as QEMU.
    async fn starting(incoming: Option<&str>) -> Self {
        let mut launch = bare(&[]).launch;
        launch.incoming = incoming.map(str::to_owned);
        let (ours, theirs) = UnixStream::pair().unwrap();
        launch.monitor = theirs;
        launch.command.program = "sleep".into();
        launch.command.arguments = vec!["600".into()];
        let (requests, asked) = mpsc::channel(4);
        let sender = watch::Sender::new(Status::default());
        let status = sender.subscribe();
        spawn_local(async move { supervise(std::future::ready(Ok(launch)), asked, &sender).await });
        let mut vm = Self { monitor: Monitor(BufReader::new(ours)), requests, status };
        let version = json!({"qemu": {"major": 10, "minor": 0, "micro": 2}});
        vm.monitor.say(json!({"QMP": {"version": version, "capabilities": []}})).await;
        vm
    }

    /// A running VM.
    async fn running() -> Self {
        let mut vm = Self::starting(None).await;
        vm.monitor.expect("cont").await;
        vm.monitor.event("RESUME", json!({})).await;
        vm.reaches(Stage::Running).await;
        vm
    }

    async fn reaches(&mut self, stage: Stage) -> Status {
        let reached = self.status.wait_for(|status| status.stage == stage);
        let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
        reached.unwrap_or_else(|_| panic!("not {stage:?} in time")).unwrap().clone()
    }

    async fn order(&self, order: MigrationOrder) {
        let (reply, replied) = oneshot::channel();
        self.requests.send(Request::Migrate { uid: UID.to_owned(), order, reply }).await.unwrap();
        replied.await.unwrap().unwrap();
    }

    async fn ask(&self, control: Control) -> oneshot::Receiver<Result<(), NotDone>> {
        let (reply, replied) = oneshot::channel();
        self.requests.send(Request::Control { control, reply }).await.unwrap();
        replied
    }
}

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn a_soft_reboot_resets_a_guest_that_shuts_down() {
    local(async {
        let mut vm = Vm::running().await;
        let reply = vm.ask(Control::SoftReboot).await;
        assert_eq!(vm.monitor.expect("set-action").await, json!({"shutdown": "pause"}));
        vm.monitor.expect("system_powerdown").await;
        reply.await.unwrap().unwrap();
        vm.monitor.event("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"})).await;
        vm.monitor.event("STOP", json!({})).await;
        vm.monitor.expect("system_reset").await;
        assert_eq!(vm.status.borrow().stage, Stage::Running);
        vm.monitor.event("RESET", json!({"guest": false, "reason": "host-qmp-system-reset"})).await;
        let (first, second) = (vm.monitor.hear().await, vm.monitor.hear().await);
        assert_eq!(
            (&first["execute"], &first["arguments"]),
            (&json!("set-action"), &json!({"shutdown": "poweroff"}))
        );
        assert_eq!(second["execute"], "cont");
        vm.monitor.event("RESUME", json!({})).await;
        vm.reaches(Stage::Running).await;
    });
}

#[test]
fn a_guest_whose_disk_failed_says_so_and_goes_on_by_itself() {
    local(async {
        let mut vm = Vm::running().await;
        let failed = json!({"device": "", "node-name": "disk-root", "qom-path": "/x", "operation": "write", "action": "stop",
            "nospace": true, "reason": "No space left on device"});
        // An error that is only reported to the guest changes nothing.
        let mut reported = failed.clone();
        reported["action"] = json!("report");
        vm.monitor.event("BLOCK_IO_ERROR", reported).await;
        vm.monitor.event("BLOCK_IO_ERROR", failed.clone()).await;
        vm.monitor.event("STOP", json!({})).await;
        assert_eq!(vm.reaches(Stage::Paused).await.paused, Some(Paused::ByIoError));
        // The attempt fails.
        vm.monitor.expect("cont").await;
        vm.monitor.event("RESUME", json!({})).await;
        vm.monitor.event("BLOCK_IO_ERROR", failed).await;
        vm.monitor.event("STOP", json!({})).await;
        vm.monitor.expect("cont").await;
        assert_eq!(vm.status.borrow().paused, Some(Paused::ByIoError));
        vm.monitor.event("RESUME", json!({})).await;
        let status = vm.reaches(Stage::Running).await;
        assert_eq!((status.paused, status.resumes), (None, 1));
    });
}

#[test]
fn a_pause_that_qemu_refuses_is_not_done() {
    local(async {
        let mut vm = Vm::running().await;
        let reply = vm.ask(Control::Pause).await;
        let mut line = String::new();
        vm.monitor.0.read_line(&mut line).await.unwrap();
        let command: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(command["execute"], "stop");
        let error = json!({"class": "GenericError", "desc": "not now"});
        vm.monitor.say(json!({"error": error, "id": command["id"]})).await;
        assert!(reply.await.unwrap().unwrap_err().to_string().contains("not now"));
        // The state of the vCPUs is queried.
        vm.monitor.expect("query-status").await;
        assert_eq!(vm.status.borrow().stage, Stage::Running);
    });
}

const UID: &str = "migration-1";

/// A guest that came in post-copy, whose QEMU was sent `cont` and waits for memory. Also the unanswered command.
async fn waits_for_memory() -> (Vm, Value) {
    let mut vm = Vm::starting(Some(UID)).await;
    // The start of the session, and the question for the machine type or for post-copy.
    for _ in 0..2 {
        let command = vm.monitor.hear_silently().await;
        vm.monitor.answer(&command).await;
    }
    let is_awaited = |status: &Status| status.migration.is_some();
    tokio::time::timeout(Duration::from_secs(20), vm.status.wait_for(is_awaited)).await.unwrap().unwrap();
    vm.order(MigrationOrder::Receive { transport: Some(transport()) }).await;
    while vm.monitor.hear().await["execute"] != "migrate-incoming" {}
    vm.monitor.event("MIGRATION", json!({"status": "postcopy-active"})).await;
    vm.monitor.event("MIGRATION", json!({"status": "postcopy-paused"})).await;
    let is_broken = |status: &Status| status.migration.as_ref().is_some_and(|told| told.recovery.is_some());
    tokio::time::timeout(Duration::from_secs(20), vm.status.wait_for(is_broken)).await.unwrap().unwrap();
    vm.order(MigrationOrder::Go { hold: false }).await;
    let command = vm.monitor.hear_silently().await;
    assert_eq!(command["execute"], "cont");
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(200)).await;
    tokio::time::resume();
    (vm, command)
}

fn transport() -> Transport {
    Transport {
        memory: UnixStream::pair().unwrap().0.into_std().unwrap().into(),
        channels: vec![],
        compression: false,
        key: None,
        disks: BTreeMap::new(),
    }
}

#[test]
fn a_guest_in_post_copy_whose_qemu_waits_for_memory_is_not_given_up() {
    local(async {
        let (mut vm, command) = waits_for_memory().await;
        assert_eq!(vm.status.borrow().stage, Stage::Starting, "{:?}", vm.status.borrow());
        // The connection was replaced, and QEMU carries out its commands.
        vm.monitor.event("MIGRATION", json!({"status": "postcopy-active"})).await;
        vm.monitor.event("RESUME", json!({})).await;
        vm.monitor.answer(&command).await;
        vm.reaches(Stage::Running).await;
        vm.monitor.event("MIGRATION", json!({"status": "completed"})).await;
        let has_arrived =
            |status: &Status| status.migration.as_ref().is_some_and(|told| told.state == State::Arrived);
        let arrived = vm.status.wait_for(has_arrived);
        tokio::time::timeout(Duration::from_secs(20), arrived).await.unwrap().unwrap();
    });
}

#[test]
fn a_guest_with_all_of_its_memory_has_to_run_in_time() {
    local(async {
        let (mut vm, _command) = waits_for_memory().await;
        vm.monitor.event("MIGRATION", json!({"status": "completed"})).await;
        vm.monitor.expect("object-del").await;
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(70)).await;
        tokio::time::resume();
        let status = vm.reaches(Stage::Failed).await;
        assert_eq!(status.reason, "StartFailed", "{status:?}");
    });
}
