//! The guest agent's task; the test acts as the guest.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use barevirt_qmp::{Agent, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::credentials::Kinds;
use virt_launcher::guest_agent::{self, Ask, Facts, NotDone};
use virt_launcher::lifecycle::{Control, Phase, Vm, judge};
use virt_launcher::pod::reboot::{NotRebooted, soft_reboot};
use virt_launcher::status::{Stage, Status};
use virt_launcher::supervisor::Request;

/// The guest's state, and the commands that it received.
#[derive(Default)]
struct Guest {
    frozen: bool,
    /// Whether it accepts commands without answering.
    silent: bool,
    /// Whether its `shutdown` fails.
    cannot_shut_down: bool,
    told: Vec<String>,
}

impl Guest {
    fn answer(&mut self, command: &str, arguments: &Value) -> Option<Value> {
        self.told.push(command.to_owned());
        if self.silent {
            return None;
        }
        let refused =
            json!({"error": {"class": "GenericError", "desc": "disabled: file systems are frozen\u{1b}[2J"}});
        let said = match command {
            "guest-sync-delimited" => arguments["id"].clone(),
            "guest-fsfreeze-status" => json!(if self.frozen { "frozen" } else { "thawed" }),
            "guest-fsfreeze-thaw" => {
                self.frozen = false;
                json!(1)
            }
            "guest-ping" => json!({}),
            _ if self.frozen => return Some(refused),
            "guest-fsfreeze-freeze" => {
                self.frozen = true;
                json!(1)
            }
            "guest-get-osinfo" => json!({"name": "Debian", "id": "debian"}),
            "guest-network-get-interfaces" => {
                json!([{"name": "eth0", "hardware-address": "02:00:00:00:00:01",
                "ip-addresses": [{"ip-address": "10.0.2.2", "ip-address-type": "ipv4", "prefix": 24}]}])
            }
            "guest-get-host-name" => json!({"host-name": "web"}),
            "guest-get-timezone" => json!({"zone": "UTC", "offset": 0}),
            "guest-info" => {
                json!({"version": "10.0.2", "supported_commands": [
                    {"name": "guest-ping", "enabled": true, "success-response": true}]})
            }
            "guest-get-users" => json!([{"user": "debian", "login-time": 5}]),
            "guest-get-fsinfo" => json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "disk": []}]),
            "guest-set-time" => json!({}),
            "guest-get-load" => json!({"load1m": 0.5, "load5m": 0.25, "load15m": 0.0}),
            "guest-shutdown" if self.cannot_shut_down => {
                let desc = "child process has terminated abnormally";
                return Some(json!({"error": {"class": "GenericError", "desc": desc}}));
            }
            // A successful shutdown has no answer.
            "guest-shutdown" => return None,
            other => panic!("{other} is not asked of a guest"),
        };
        Some(json!({"return": said}))
    }

    fn count(&self, command: &str) -> usize {
        self.told.iter().filter(|told| *told == command).count()
    }
}

async fn be_the_guest(stream: UnixStream, guest: Rc<RefCell<Guest>>) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let start = line.iter().position(|byte| *byte == b'{').unwrap();
        let command: Value = serde_json::from_slice(&line[start..]).unwrap();
        let name = command["execute"].as_str().unwrap();
        let Some(mut answer) = guest.borrow_mut().answer(name, &command["arguments"]) else { continue };
        answer["id"] = command["id"].clone();
        let mut bytes = if name == "guest-sync-delimited" { vec![0xff] } else { Vec::new() };
        bytes.extend(format!("{answer}\n").into_bytes());
        if lines.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

struct Scene {
    guest: Rc<RefCell<Guest>>,
    status: watch::Sender<Status>,
    facts: watch::Receiver<Option<Facts>>,
    asks: mpsc::Sender<Ask>,
}

impl Scene {
    fn begin() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let guest = Rc::<RefCell<Guest>>::default();
        spawn_local(be_the_guest(theirs, guest.clone()));
        let status =
            watch::Sender::new(Status { stage: Stage::Running, agent_connected: true, ..Status::default() });
        let (facts, told) = watch::channel(None);
        let (asks, asked) = mpsc::channel(4);
        let agent = Agent::new(ours, Options::default());
        spawn_local(guest_agent::serve(agent, status.subscribe(), asked, facts, Kinds::default()));
        Self { guest, status, facts: told, asks }
    }

    async fn ask<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, NotDone>>) -> Ask,
    ) -> Result<T, NotDone> {
        let (reply, replied) = oneshot::channel();
        self.asks.send(ask(reply)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(30), replied).await.expect("no reply").unwrap()
    }

    async fn freeze(&self, thaw_after: Duration) -> Result<(), NotDone> {
        self.ask(|reply| Ask::Freeze { thaw_after, reply }).await
    }

    async fn until(&mut self, what: &str, is: impl FnMut(&Option<Facts>) -> bool) -> Option<Facts> {
        let reached = tokio::time::timeout(Duration::from_secs(20), self.facts.wait_for(is)).await;
        reached.unwrap_or_else(|_| panic!("facts never: {what}")).unwrap().clone()
    }
}

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn an_agent_that_comes_is_asked_and_what_it_said_goes_with_it() {
    local(async {
        let mut scene = Scene::begin();
        let facts = scene.until("told", Option::is_some).await.unwrap();
        assert_eq!((facts.os.name.as_deref(), facts.interfaces[0].name.as_str()), (Some("Debian"), "eth0"));
        let info = scene.ask(|reply| Ask::Info { reply }).await.unwrap();
        assert_eq!((info.hostname.as_deref(), info.timezone.as_deref()), (Some("web"), Some("UTC, 0")));
        assert_eq!((info.user_list.len(), info.fs_info.unwrap().disks.len()), (1, 1));
        assert_eq!(
            (info.guest_agent_version.as_deref(), info.fs_freeze_status.as_deref()),
            (Some("10.0.2"), Some("thawed"))
        );
        scene.status.send_modify(|status| status.agent_connected = false);
        scene.until("forgotten", Option::is_none).await;
        let gone = scene.ask(|reply| Ask::Info { reply }).await.unwrap_err();
        assert_eq!(gone.to_string(), "QEMU guest agent is not connected");
    });
}

#[test]
fn an_agent_is_asked_for_its_interfaces_when_the_cards_have_changed() {
    local(async {
        let mut scene = Scene::begin();
        scene.until("told", Option::is_some).await;
        scene.asks.send(Ask::Cards).await.unwrap();
        let again = async {
            while scene.guest.borrow().count("guest-network-get-interfaces") < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // Its next regular turn comes after ten seconds.
        tokio::time::timeout(Duration::from_secs(6), again).await.expect("it was not asked");
    });
}

#[test]
fn frozen_file_systems_are_thawed_at_the_timeout() {
    local(async {
        let mut scene = Scene::begin();
        scene.freeze(Duration::from_secs(2)).await.unwrap();
        assert!(scene.guest.borrow().frozen);
        scene.until("frozen", |facts| facts.as_ref().is_some_and(|facts| facts.frozen)).await;
        // A repeated request neither freezes a second time nor extends the time.
        scene.freeze(Duration::from_secs(3600)).await.unwrap();
        assert_eq!(scene.guest.borrow().count("guest-fsfreeze-freeze"), 1);
        // No client requests the thaw; the agent cannot be reached for a while, and is not contacted then.
        scene.status.send_modify(|status| status.agent_connected = false);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(scene.guest.borrow().frozen);
        scene.status.send_modify(|status| status.agent_connected = true);
        scene.until("thawed", |facts| facts.as_ref().is_some_and(|facts| !facts.frozen)).await;
        assert!(!scene.guest.borrow().frozen);
        assert_eq!(scene.guest.borrow().count("guest-fsfreeze-thaw"), 1);
    });
}

#[test]
fn a_thaw_by_hand_leaves_nothing_to_the_timer() {
    local(async {
        let scene = Scene::begin();
        scene.freeze(Duration::from_secs(2)).await.unwrap();
        scene.ask(|reply| Ask::Thaw { reply }).await.unwrap();
        scene.ask(|reply| Ask::Thaw { reply }).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let guest = scene.guest.borrow();
        assert_eq!((guest.frozen, guest.count("guest-fsfreeze-thaw")), (false, 1));
    });
}

#[test]
fn a_freeze_whose_answer_is_lost_is_thawed_at_once() {
    local(async {
        let mut scene = Scene::begin();
        scene.until("told", Option::is_some).await;
        // The guest is frozen, but the launcher does not know it.
        scene.guest.borrow_mut().frozen = true;
        scene.guest.borrow_mut().silent = true;
        assert!(scene.freeze(Duration::from_secs(3600)).await.is_err());
        // It answers again, and the regular query finds its status; from then on there is a timer.
        scene.guest.borrow_mut().silent = false;
        scene.until("frozen", |facts| facts.as_ref().is_some_and(|facts| facts.frozen)).await;
        scene.ask(|reply| Ask::Thaw { reply }).await.unwrap();
        assert!(!scene.guest.borrow().frozen);
    });
}

#[test]
fn the_agent_of_a_paused_guest_is_not_called_and_the_clock_is_set_afterwards() {
    local(async {
        let mut scene = Scene::begin();
        scene.until("told", Option::is_some).await;
        scene.status.send_modify(|status| status.stage = Stage::Paused);
        assert_eq!(scene.freeze(Duration::ZERO).await.unwrap_err().to_string(), "VMI is paused");
        // Its earlier answers are still known.
        assert!(scene.ask(|reply| Ask::Info { reply }).await.unwrap().hostname.is_some());
        let before = scene.guest.borrow().told.len();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(scene.guest.borrow().told.len(), before);
        scene.status.send_modify(|status| {
            status.stage = Stage::Running;
            status.resumes += 1;
        });
        let set = async {
            while scene.guest.borrow().count("guest-set-time") == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), set).await.expect("the clock was not set");
    });
}

#[test]
fn a_reboot_needs_an_agent_that_answers() {
    local(async {
        let scene = Scene::begin();
        scene.ask(|reply| Ask::Reboot { reply }).await.unwrap();
        assert_eq!(scene.guest.borrow().count("guest-shutdown"), 1);
        scene.guest.borrow_mut().cannot_shut_down = true;
        let refused = scene.ask(|reply| Ask::Reboot { reply }).await.unwrap_err();
        assert!(matches!(refused, NotDone::Agent(_)), "{refused}");
        scene.freeze(Duration::ZERO).await.unwrap();
        let frozen = scene.ask(|reply| Ask::Reboot { reply }).await.unwrap_err();
        assert!(matches!(frozen, NotDone::Frozen(_)), "{frozen}");
        scene.guest.borrow_mut().silent = true;
        let silent = scene.ask(|reply| Ask::Reboot { reply }).await.unwrap_err();
        assert!(matches!(silent, NotDone::Silent), "{silent}");
    });
}

/// A machine whose power button counts how often it was pressed; without ACPI it has none.
fn machine(acpi: bool) -> (mpsc::Sender<Request>, Rc<Cell<u32>>) {
    let (requests, mut asked) = mpsc::channel(1);
    let pressed = Rc::<Cell<u32>>::default();
    let count = pressed.clone();
    spawn_local(async move {
        let vm = Vm { phase: Phase::Running, acpi, ..Vm::new() };
        while let Some(Request::Control { control: Control::SoftReboot, reply }) = asked.recv().await {
            let judged = judge(&vm, Control::SoftReboot);
            count.set(count.get() + u32::from(judged.is_ok()));
            reply.send(judged.map_err(Into::into)).unwrap();
        }
    });
    (requests, pressed)
}

#[test]
fn a_guest_whose_agent_cannot_reboot_it_is_rebooted_by_its_power_button() {
    local(async {
        let scene = Scene::begin();
        let (machine_with, pressed) = machine(true);
        let (machine_without, _) = machine(false);
        soft_reboot(&scene.asks, &machine_with).await.unwrap();
        assert_eq!((scene.guest.borrow().count("guest-shutdown"), pressed.get()), (1, 0));

        scene.guest.borrow_mut().cannot_shut_down = true;
        soft_reboot(&scene.asks, &machine_with).await.unwrap();
        assert_eq!((scene.guest.borrow().count("guest-shutdown"), pressed.get()), (2, 1));
        let error = soft_reboot(&scene.asks, &machine_without).await.unwrap_err();
        assert!(matches!(error, NotRebooted::ByAgent(NotDone::Agent(_))), "{error}");
        assert!(error.to_string().contains("terminated abnormally"), "{error}");

        // It would shut down only after the thaw.
        scene.freeze(Duration::ZERO).await.unwrap();
        let error = soft_reboot(&scene.asks, &machine_with).await.unwrap_err();
        assert!(matches!(error, NotRebooted::ByAgent(NotDone::Frozen(_))), "{error}");
        assert_eq!(pressed.get(), 1);

        scene.status.send_modify(|status| status.agent_connected = false);
        soft_reboot(&scene.asks, &machine_with).await.unwrap();
        assert_eq!(pressed.get(), 2);
        let error = soft_reboot(&scene.asks, &machine_without).await.unwrap_err();
        assert!(matches!(error, NotRebooted::ByButton(_)), "{error}");
    });
}
