//! The monitor for users in front of real QEMU: decisions, refusals, and a QEMU that hangs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use barevirt_api::monitor;
use barevirt_qmp::{Deadline, Options, Qmp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::bare;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::people::{self, Guest};
use virt_launcher::process::Process;
use virt_launcher::status::Status;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A running QEMU, connections of users, and its process.
struct Vm {
    qmp: Qmp,
    process: Process,
    sender: mpsc::Sender<UnixStream>,
    // QEMU ends when its own monitor is closed.
    _ends: (UnixStream, UnixStream),
}

impl Vm {
    async fn start(command_timeout: Duration) -> Self {
        let bare = bare(&[]);
        let process = Process::spawn(bare.launch.command).unwrap();
        let (qmp, _) = Qmp::open(bare.people, Options::default(), soon()).await.unwrap();
        let status = Status { qemu_pid: process.pid(), ..Status::default() };
        let (_, status) = watch::channel(status);
        let guest = Guest { qmp: qmp.clone(), status: Some(status), command_timeout };
        let (sender, sent) = mpsc::channel(1);
        spawn_local(people::serve_guest(guest, None, sent));
        Self { qmp, process, sender, _ends: (bare.launch.monitor, bare.serial) }
    }

    async fn client(&self) -> MonitorClient {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.sender.send(theirs).await.unwrap();
        let mut client = MonitorClient(BufReader::new(ours));
        assert!(client.hear().await.get("QMP").is_some());
        assert_eq!(client.ask(&json!({"execute": "qmp_capabilities"})).await, json!({"return": {}}));
        client
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.pid().cast_signed()), signal).unwrap();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

struct MonitorClient(BufReader<UnixStream>);

impl MonitorClient {
    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(20), self.0.read_line(&mut line)).await;
        assert!(read.expect("silence").unwrap() > 0, "the monitor has gone");
        serde_json::from_str(&line).unwrap()
    }

    async fn ask(&mut self, line: &Value) -> Value {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        loop {
            let heard = self.hear().await;
            if heard.get("event").is_none() {
                return heard;
            }
        }
    }
}

/// A new QEMU brings new commands: each needs a decision in api/src/monitor/commands.txt.
#[test]
fn every_command_of_this_qemu_is_decided() {
    local(async {
        let vm = Vm::start(people::COMMAND).await;
        let schema = vm.qmp.execute_raw("query-qmp-schema", Value::Null, soon()).await.unwrap();
        let commands = schema.as_array().unwrap().iter().filter(|entry| entry["meta-type"] == "command");
        let names: Vec<&str> = commands.map(|command| command["name"].as_str().unwrap()).collect();
        assert!(names.len() > 200, "{}", names.len());
        let undecided: Vec<_> = names.iter().filter(|name| !monitor::decided(name)).collect();
        assert!(undecided.is_empty(), "no decision on {undecided:?}");
    });
}

#[test]
fn monitor_users_cannot_reach_beyond_the_guest() {
    local(async {
        let vm = Vm::start(people::COMMAND).await;
        let mut client = vm.client().await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("screen");
        let dump = json!({"execute": "pmemsave", "arguments": {"val": 0, "size": 4096, "filename": file}});
        let refused = client.ask(&dump).await;
        assert!(refused["error"]["desc"].as_str().unwrap().contains("files outside the guest"), "{refused}");
        assert!(!file.exists());
        // QEMU itself would have carried it out.
        vm.qmp.execute_raw("pmemsave", dump["arguments"].clone(), soon()).await.unwrap();
        assert!(file.exists());
        // Many clients send garbage at once, and the next one is still served.
        for seed in 0..8_u8 {
            let mut rude = vm.client().await;
            let garbage: Vec<u8> =
                (0..20_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[1] ^ seed).collect();
            let _ = rude.0.write_all(&garbage).await;
            let _ = rude.0.write_all(b"{\"execute\":{}}\n{\"execute\":\"quit\",\"x\":1}\n").await;
        }
        let status = client.ask(&json!({"execute": "query-status", "id": 1})).await;
        assert_eq!(status["return"]["status"], "prelaunch", "{status}");
    });
}

#[test]
fn a_hanging_qemu_is_reported_with_its_threads() {
    local(async {
        let command_timeout = Duration::from_secs(1);
        let (stopped, other) = (Vm::start(command_timeout).await, Vm::start(command_timeout).await);
        let (mut at_stopped, mut at_other) = (stopped.client().await, other.client().await);
        stopped.signal(Signal::SIGSTOP);
        let begun = Instant::now();
        let status = json!({"execute": "query-status"});
        let (late, soon) = tokio::join!(at_stopped.ask(&status), async {
            let answer = at_other.ask(&status).await;
            (answer, begun.elapsed())
        });
        assert_eq!(soon.0["return"]["status"], "prelaunch");
        assert!(soon.1 < command_timeout, "{:?}", soon.1);
        let text = late["error"]["desc"].as_str().unwrap();
        for wanted in ["has not answered query-status within 1 s", "is stopped (state T)", "T, stopped"] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        // QEMU continues, and its late answer affects no client.
        stopped.signal(Signal::SIGCONT);
        let name = at_stopped.ask(&json!({"execute": "query-name", "id": 2})).await;
        assert_eq!(name, json!({"return": {}, "id": 2}));
    });
}
