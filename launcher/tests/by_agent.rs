//! Access credentials and probes through the guest agent; the test acts as the guest.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::path::Path;
use std::process::{Command, Output};
use std::rc::Rc;
use std::time::Duration;

use barevirt_qmp::{Agent, Options};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use virt_launcher::credentials::serve::{Outcome, serve};
use virt_launcher::guest_agent::Facts;
use virt_launcher::migration::{MigrationReport, Progress, State};
use virt_launcher::probe::serve::Guest;
use virt_launcher::status::{Stage, Status};
use virt_launcher::{people, probe};

/// A guest with one user, in which the command `hang` does not end.
#[derive(Default)]
struct Inside {
    told: Vec<(String, Value)>,
    hung: bool,
}

impl Inside {
    fn answer(&mut self, command: &str, arguments: &Value) -> Value {
        self.told.push((command.to_owned(), arguments.clone()));
        let refused = |why: &str| json!({"error": {"class": "GenericError", "desc": why}});
        let said = match command {
            "guest-sync-delimited" => arguments["id"].clone(),
            "guest-ping" => json!({}),
            "guest-ssh-add-authorized-keys" | "guest-set-user-password" => {
                if arguments["username"] != "debian" {
                    return refused("no such user\u{1b}[2J");
                }
                json!({})
            }
            "guest-exec" => {
                self.hung = arguments["path"] == "hang";
                json!({"pid": if arguments["path"] == "false" { 2 } else { 1 }})
            }
            "guest-exec-status" if self.hung => json!({"exited": false}),
            "guest-exec-status" if arguments["pid"] == 2 => json!({"exited": true, "exitcode": 1}),
            "guest-exec-status" => {
                json!({"exited": true, "exitcode": 0, "out-data": STANDARD.encode("fine\n")})
            }
            other => return refused(other),
        };
        json!({"return": said})
    }

    fn arguments_of(&self, command: &str) -> Vec<Value> {
        self.told.iter().filter(|(told, _)| told == command).map(|(_, arguments)| arguments.clone()).collect()
    }
}

async fn be_the_guest(stream: UnixStream, inside: Rc<RefCell<Inside>>) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let start = line.iter().position(|byte| *byte == b'{').unwrap();
        let command: Value = serde_json::from_slice(&line[start..]).unwrap();
        let name = command["execute"].as_str().unwrap();
        let mut answer = inside.borrow_mut().answer(name, &command["arguments"]);
        answer["id"] = command["id"].clone();
        let mut bytes = if name == "guest-sync-delimited" { vec![0xff] } else { Vec::new() };
        bytes.extend(format!("{answer}\n").into_bytes());
        if lines.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

fn guest() -> (Agent, Rc<RefCell<Inside>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let inside = Rc::<RefCell<Inside>>::default();
    spawn_local(be_the_guest(theirs, inside.clone()));
    (Agent::new(ours, Options::default()), inside)
}

fn status(connected: bool) -> watch::Sender<Status> {
    watch::Sender::new(Status { stage: Stage::Running, agent_connected: connected, ..Status::default() })
}

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

fn write(secrets: &Path, secret: &str, name: &str, value: &str) {
    let directory = secrets.join(format!("{secret}-access-cred"));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(name), value).unwrap();
}

async fn until(told: &mut watch::Receiver<Option<Outcome>>, message: &str) {
    let is = |outcome: &Option<Outcome>| outcome.as_ref().is_some_and(|one| one.message.starts_with(message));
    let reached = tokio::time::timeout(Duration::from_secs(30), told.wait_for(is)).await;
    reached.unwrap_or_else(|_| panic!("never told: {message}")).unwrap();
}

#[test]
fn credentials_are_put_into_effect_and_again_when_a_secret_changes() {
    local(async {
        let secrets = tempfile::tempdir().unwrap();
        write(secrets.path(), "keys", "a", "ssh-ed25519 A\n");
        write(secrets.path(), "passwords", "debian", "sesame");
        let credentials = serde_json::from_value(json!([
            {"sshPublicKey": {"source": {"secret": {"secretName": "keys"}},
                "propagationMethod": {"qemuGuestAgent": {"users": ["debian"]}}}},
            {"userPassword": {"source": {"secret": {"secretName": "passwords"}},
                "propagationMethod": {"qemuGuestAgent": {}}}},
        ]))
        .unwrap();
        let (agent, inside) = guest();
        let status = status(false);
        let facts = watch::Sender::<Option<Facts>>::new(None);
        let (tell, mut told) = watch::channel(None);
        let tell = move |outcome| drop(tell.send_replace(Some(outcome)));
        let directory = secrets.path().to_owned();
        spawn_local(serve(agent, credentials, directory, status.subscribe(), facts.subscribe(), tell));
        until(&mut told, "Guest agent is offline").await;
        assert!(inside.borrow().told.is_empty());

        status.send_modify(|status| status.agent_connected = true);
        let done = told.wait_for(|outcome| outcome.as_ref().is_some_and(|one| one.synchronized));
        tokio::time::timeout(Duration::from_secs(30), done).await.expect("never in effect").unwrap();
        let expected = json!({"username": "debian", "keys": ["ssh-ed25519 A"], "reset": true});
        assert_eq!(inside.borrow().arguments_of("guest-ssh-add-authorized-keys"), [expected]);
        let expected = json!({"username": "debian", "password": STANDARD.encode("sesame"), "crypted": false});
        assert_eq!(inside.borrow().arguments_of("guest-set-user-password"), [expected]);

        // A user is added that the guest does not have; the other user still gets the key.
        write(secrets.path(), "keys", "b", "ssh-ed25519 B");
        write(secrets.path(), "passwords", "nobody", "x");
        until(&mut told, "Error encountered setting password for user [nobody]: ").await;
        let message = told.borrow().as_ref().unwrap().message.clone();
        assert!(message.contains("no such user") && !message.contains('\u{1b}'), "{message}");
        let keys = inside.borrow().arguments_of("guest-ssh-add-authorized-keys");
        assert_eq!(keys.last().unwrap()["keys"], json!(["ssh-ed25519 A", "ssh-ed25519 B"]));
    });
}

struct Probed {
    directory: tempfile::TempDir,
    inside: Rc<RefCell<Inside>>,
    status: watch::Sender<Status>,
    facts: watch::Sender<Option<Facts>>,
    pings_paused: watch::Sender<bool>,
    failed_pings: watch::Sender<u64>,
}

impl Probed {
    fn begin() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (agent, inside) = guest();
        let (status, facts) = (status(true), watch::Sender::new(None));
        let listener = people::listen(&directory.path().join(probe::SOCKET)).unwrap();
        let (pings_paused, failed_pings) = (watch::Sender::new(false), watch::Sender::new(0));
        let asked = Guest {
            agent,
            status: status.subscribe(),
            facts: facts.subscribe(),
            pings_paused: pings_paused.subscribe(),
            failed_pings: failed_pings.clone(),
        };
        spawn_local(probe::serve::serve(listener, asked));
        Self { directory, inside, status, facts, pings_paused, failed_pings }
    }

    /// Runs the probe like the kubelet.
    async fn probe(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_virt-launcher"));
        command.arg("probe").arg("--socket").arg(self.directory.path().join(probe::SOCKET)).args(arguments);
        spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

#[test]
fn a_probe_has_the_exit_code_and_the_output_of_its_command() {
    local(async {
        let probed = Probed::begin();
        let fine = probed.probe(&["--", "cat", "--all", "/a b"]).await;
        assert_eq!((fine.status.code(), fine.stdout.as_slice()), (Some(0), &b"fine\n"[..]));
        let expected = json!({"path": "cat", "arg": ["--all", "/a b"], "capture-output": true});
        assert_eq!(probed.inside.borrow().arguments_of("guest-exec"), [expected]);
        assert_eq!(probed.probe(&["--", "false"]).await.status.code(), Some(1));
        assert_eq!(probed.probe(&[]).await.status.code(), Some(0));
        assert_eq!(probed.inside.borrow().arguments_of("guest-ping").len(), 1);
    });
}

#[test]
fn a_command_that_hangs_fails_in_time_and_is_not_begun_again() {
    local(async {
        let probed = Probed::begin();
        let late = probed.probe(&["--timeout-seconds", "1", "--", "hang"]).await;
        assert_eq!(late.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&late.stderr).contains("not ended in time"), "{late:?}");
        let still = probed.probe(&["--timeout-seconds", "1", "--", "hang"]).await;
        assert!(String::from_utf8_lossy(&still.stderr).contains("has not ended yet"), "{still:?}");
        assert_eq!(probed.inside.borrow().arguments_of("guest-exec").len(), 1);
        probed.inside.borrow_mut().hung = false;
        probed.probe(&["--timeout-seconds", "1", "--", "hang"]).await;
        assert_eq!(probed.inside.borrow().arguments_of("guest-exec").len(), 2);
    });
}

#[test]
fn a_paused_guest_is_alive_and_not_ready_and_a_frozen_one_is_both() {
    local(async {
        let probed = Probed::begin();
        probed.facts.send_replace(Some(Facts { frozen: true, ..Facts::default() }));
        assert_eq!(probed.probe(&["--", "false"]).await.status.code(), Some(0));
        assert!(probed.inside.borrow().arguments_of("guest-exec").is_empty());
        probed.status.send_modify(|status| status.stage = Stage::Paused);
        assert_eq!(probed.probe(&["--alive"]).await.status.code(), Some(0));
        let unready = probed.probe(&[]).await;
        assert_eq!(unready.status.code(), Some(1));
        assert_eq!(unready.stderr, b"the guest is paused\n");
        probed.status.send_modify(|status| {
            status.stage = Stage::Running;
            status.agent_connected = false;
        });
        assert_eq!(probed.probe(&["--alive"]).await.stderr, b"the guest agent is not connected\n");
    });
}

#[test]
fn a_guest_that_does_not_run_yet_or_moves_is_alive_and_not_ready() {
    local(async {
        let probed = Probed::begin();
        for stage in [Stage::Waiting, Stage::Starting] {
            probed.status.send_modify(|status| status.stage = stage);
            assert_eq!(probed.probe(&["--alive"]).await.status.code(), Some(0));
            assert_eq!(probed.probe(&[]).await.stderr, b"the guest does not run\n");
        }
        let moves = |state, paused| {
            let report = MigrationReport {
                uid: "m".to_owned(),
                state,
                progress: Progress::default(),
                reason: String::new(),
                bottleneck: None,
                slow: None,
                paused,
                aborted: false,
                hold: false,
                post_copy: false,
                offers_post_copy: false,
                recovery: None,
            };
            probed.status.send_modify(|status| {
                (status.stage, status.agent_connected) = (Stage::Running, false);
                status.migration = Some(report);
            });
        };
        let alive = async || probed.probe(&["--alive"]).await.status.code();
        let still = [State::Received, State::Switching, State::Sent, State::Left];
        for (state, paused) in still.map(|state| (state, false)).into_iter().chain([(State::Sending, true)]) {
            moves(state, paused);
            assert_eq!(alive().await, Some(0), "{state:?}");
        }
        assert_eq!(probed.probe(&[]).await.status.code(), Some(1));
        assert_eq!(*probed.failed_pings.borrow(), 0);
        for state in [State::Sending, State::Arrived, State::Over] {
            moves(state, false);
            assert_eq!(alive().await, Some(1), "{state:?}");
        }
        assert_eq!(*probed.failed_pings.borrow(), 1);
    });
}

#[test]
fn pings_that_are_paused_succeed_unasked_and_of_failures_in_a_row_the_first_counts() {
    local(async {
        let probed = Probed::begin();
        let failed = || *probed.failed_pings.borrow();
        assert_eq!((probed.probe(&[]).await.status.code(), failed()), (Some(0), 0));
        probed.status.send_modify(|status| status.agent_connected = false);
        for _ in 0..2 {
            assert_eq!((probed.probe(&["--alive"]).await.status.code(), failed()), (Some(1), 1));
        }
        probed.pings_paused.send_replace(true);
        assert_eq!((probed.probe(&["--alive"]).await.status.code(), failed()), (Some(0), 1));
        assert_eq!(probed.inside.borrow().arguments_of("guest-ping").len(), 1);
        // A command does not count as a ping.
        assert_eq!((probed.probe(&["--", "cat"]).await.status.code(), failed()), (Some(1), 1));
        probed.pings_paused.send_replace(false);
        assert_eq!((probed.probe(&[]).await.status.code(), failed()), (Some(1), 1));
        probed.status.send_modify(|status| status.agent_connected = true);
        assert_eq!((probed.probe(&[]).await.status.code(), failed()), (Some(0), 1));
        probed.status.send_modify(|status| status.agent_connected = false);
        assert_eq!((probed.probe(&[]).await.status.code(), failed()), (Some(1), 2));
        // A paused guest is not a failure of the agent.
        probed.status.send_modify(|status| status.agent_connected = true);
        probed.probe(&[]).await;
        probed.status.send_modify(|status| status.stage = Stage::Paused);
        assert_eq!((probed.probe(&[]).await.status.code(), failed()), (Some(1), 2));
    });
}

#[test]
fn without_a_launcher_a_probe_fails() {
    let program = env!("CARGO_BIN_EXE_virt-launcher");
    let output =
        Command::new(program).args(["probe", "--socket", "/nonexistent/probe.sock"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("the launcher cannot be queried: "));
    // A launcher that waits for its guest has no socket yet.
    let alive = ["probe", "--alive", "--socket", "/nonexistent/probe.sock"];
    assert_eq!(Command::new(program).args(alive).output().unwrap().status.code(), Some(0));
}
