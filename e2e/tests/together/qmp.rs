//! QEMU's monitor for users: rights for commands, the audit log, and a QEMU that does not answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use barevirt_e2e::command::{cluster_script, kubectl, run};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Namespace, Node, Running, guest, in_namespace};
use serde_json::{Value, json};

use crate::roles::bind_in;

/// Time until a guest runs, as in the other tests.
const RUNNING: Duration = Duration::from_secs(180);

/// Runs one command as a user; returns exit code and output.
fn say(namespace: &Namespace, user: &str, command: &Value) -> Result<(i32, String)> {
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/vm/qmp",
        namespace.name()
    );
    let mut kubectl = cluster_script("kubectl.sh");
    kubectl.args(["create", "--raw", &path, "-f", "-", &format!("--as={user}")]);
    kubectl.arg("--as-group=system:authenticated");
    let output = run(&mut kubectl, Some(&command.to_string()))?;
    Ok((output.code, output.text()))
}

#[test]
fn users_give_the_commands_of_their_role_and_each_is_logged() {
    in_namespace("qmproles", |namespace| {
        let people = bind_in(namespace)?;
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let as_role = |role: &str, command: Value| say(namespace, &format!("{people}:{role}"), &command);
        wait::until_true("view may look", SOON, || {
            let (code, text) = as_role("view", json!({"execute": "query-status"}))?;
            Ok(code == 0 && text.contains("running"))
        })?;
        let announce = json!({"execute": "announce-self", "arguments": {
            "initial": 50, "max": 50, "rounds": 1, "step": 10}});
        for (role, command, allowed) in [
            ("view", announce.clone(), false),
            ("edit", announce, true),
            ("view", json!({"execute": "quit"}), false),
            ("edit", json!({"execute": "quit"}), false),
            ("nobody", json!({"execute": "query-status"}), false),
            ("admin", json!({"execute": "system_reset"}), true),
            // Forbidden for everybody.
            ("admin", json!({"execute": "screendump", "arguments": {"filename": "/tmp/x"}}), false),
            (
                "admin",
                json!({"execute": "human-monitor-command", "arguments": {"command-line": "info"}}),
                false,
            ),
        ] {
            let (code, text) = as_role(role, command.clone())?;
            ensure!((code == 0) == allowed, "{role} {command}: {text}");
        }
        ensure!(namespace.need("vmi", "vm")?["status"]["phase"] == "Running");
        let event = namespace.wait_event("vm", "QmpCommand")?;
        ensure!(event.contains(&format!("{people}:admin")) && event.contains("system_reset"), "{event}");
        let log =
            kubectl(&["logs", "-n", "kubevirt", "-l", "kubevirt.io=virt-api", "--tail=-1", "--since=10m"])?;
        let line = |user: &str, execute: &str, class: &str| {
            let of = log.lines().filter(|line| line.contains("\"audit\":\"qmp\"") && line.contains(user));
            of.filter(|line| line.contains(&format!("\"execute\":\"{execute}\"")))
                .any(|line| line.contains(class))
        };
        ensure!(line(&format!("{people}:admin"), "system_reset", "disruptive"), "{log}");
        ensure!(line(&format!("{people}:edit"), "quit", "refused"), "no line of a refusal");
        ensure!(!log.contains("/tmp/x"), "values of arguments are in the log");
        Ok(())
    });
}

#[test]
fn a_user_has_a_shell_watches_events_and_shares_a_socket() {
    in_namespace("qmptalk", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let virtctl = || -> Command {
            let mut command = cluster_script("virtctl.sh");
            command.args(["-n", namespace.name(), "qmp", "vm"]);
            command
        };
        let events = tempfile::NamedTempFile::new()?;
        let watched = || -> Result<String> { Ok(std::fs::read_to_string(events.path())?) };
        let _watch = Running(
            virtctl().args(["--watch", "STOP", "--watch", "RESUM*"]).stdout(events.reopen()?).spawn()?,
        );
        // Events before the watch begins are not seen.
        wait::until_true("the watch to begin", SOON, || {
            for command in ["stop", "cont"] {
                namespace.virtctl(&["qmp", "vm", command])?;
            }
            Ok(watched()?.contains("RESUME"))
        })?;
        // A socket for other tools, which greets as QEMU does.
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("qmp");
        let _proxy = Running(virtctl().arg("--proxy").arg(&socket).stderr(Stdio::null()).spawn()?);
        wait::until_true("the socket to be there", SOON, || Ok(UnixStream::connect(&socket).is_ok()))?;
        let mut tool = BufReader::new(UnixStream::connect(&socket)?);
        tool.get_ref().set_read_timeout(Some(SOON))?;
        let mut heard = |line: &str| -> Result<Value> {
            tool.get_mut().write_all(line.as_bytes())?;
            loop {
                let mut answer = String::new();
                ensure!(tool.read_line(&mut answer)? > 0, "the socket was closed");
                let answer: Value = serde_json::from_str(&answer)?;
                if answer.get("event").is_none() {
                    return Ok(answer);
                }
            }
        };
        ensure!(heard("")?.get("QMP").is_some(), "no greeting");
        // QEMU's own qmp-shell sends no newlines.
        ensure!(
            heard("{\"execute\":\"qmp_capabilities\",\"arguments\":{\"enable\":[]}}")?["return"] == json!({})
        );
        ensure!(heard("{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"x\"},\"id\":1}\n")?["id"] == 1);
        // The shell on a terminal.
        let mut shell = Console::start(&mut virtctl())?;
        shell.expect("vm> ", SOON)?;
        let before = watched()?.len();
        shell.send("help query-stats\r")?;
        shell.expect("target=", SOON)?;
        shell.send("stop\r")?;
        shell.expect("STOP", SOON)?;
        ensure!(heard("{\"execute\":\"cont\"}\n")?["return"] == json!({}));
        shell.expect("RESUME", SOON)?;
        shell.send("\u{4}")?;
        ensure!(shell.wait(SOON)? == 0, "the shell ends well");
        wait::until_true("both events", SOON, || {
            let watched = watched()?;
            let (_, news) = watched.split_at(before);
            Ok(news.split_once("STOP").is_some_and(|(_, later)| later.contains("RESUME")))
        })
    });
}

#[test]
fn a_stopped_qemu_is_reported_in_time_and_a_bundle_has_no_secret() {
    in_namespace("qmphang", |namespace| {
        let secret = "planted-4711-in-cloud-init";
        let user_data = format!("#!/bin/sh\n# nothing\necho {secret}\n");
        namespace.apply(&guest::with_user_data(guest::without_system(guest::instance("vm")), &user_data))?;
        namespace.apply(&guest::without_system(guest::instance("other")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        namespace.wait_phase("other", "Running", RUNNING)?;
        let pod = namespace.launcher("vm")?;
        let node = Node::of(&pod)?;
        node.kill(&pod, "qemu-system-x86_64", "STOP")?;
        let begun = Instant::now();
        let late = namespace.try_virtctl(&["qmp", "vm", "query-status", "--timeout", "3"])?;
        let took = begun.elapsed();
        ensure!(late.code != 0 && took < Duration::from_secs(12), "{took:?}: {}", late.text());
        for wanted in ["has not answered query-status within 3 s", "stopped (state T)", "ressure"] {
            ensure!(late.text().contains(wanted), "{wanted} is not in {}", late.text());
        }
        let status: Value = serde_json::from_str(&namespace.virtctl(&["qmp", "other", "query-status"])?)?;
        ensure!(status["running"] == true, "{status}");
        // The bundle is made even while QEMU does not answer.
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("vm.tar");
        let bundled = namespace.try_virtctl(&["debug", "vm", "-o", &file.to_string_lossy()])?;
        node.kill(&pod, "qemu-system-x86_64", "CONT")?;
        ensure!(bundled.code == 0, "{}", bundled.text());
        let mut archive = Vec::new();
        std::fs::File::open(&file)?.read_to_end(&mut archive)?;
        let text = String::from_utf8_lossy(&archive);
        ensure!(!text.contains(secret), "the secret of cloud-init is in the bundle");
        for wanted in ["commandLine", "waitsIn", "launcher-0.log", "vm-debug/events.json"] {
            ensure!(text.contains(wanted), "{wanted} is not in the bundle");
        }
        wait::until_true("it answers again", SOON, || {
            Ok(namespace.try_virtctl(&["qmp", "vm", "query-name"])?.code == 0)
        })
    });
}
