//! `virtctl port-forward`: ports of this machine that lead to ports of a guest, through the API server.

use anyhow::{Result, ensure};
use barevirt_e2e::command::{cluster_script, run};
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::{BOOT, RUNNING};
use barevirt_e2e::{Console, Forward, Namespace, guest, in_namespace};
use std::process::Command;

fn port_forward(namespace: &Namespace, arguments: &[&str]) -> Command {
    let mut command = cluster_script("virtctl.sh");
    command.args(["port-forward", "-n", namespace.name()]).args(arguments);
    command
}

/// One guest whose ports are forwarded. Each step is a behaviour of its own.
#[test]
fn a_guests_ports_are_forwarded_or_it_is_said_why_not_and_ssh_reaches_it() {
    in_namespace("forward", |namespace| {
        let key = Key::make()?;
        let user_data = format!("#cloud-config\nssh_authorized_keys:\n- {}\n", key.public);
        namespace.apply(&guest::with_user_data(guest::machine("vm", "Always"), &user_data))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        Console::open(namespace, "vm")?.login(BOOT)?;
        is_forwarded_to_many_clients_and_to_standard_output(namespace)?;
        is_reached_by_ssh_which_ends_as_its_command_does(namespace, &key)?;
        is_not_forwarded_for_a_reason(namespace)
    });
}

fn is_forwarded_to_many_clients_and_to_standard_output(namespace: &Namespace) -> Result<()> {
    let forward = Forward::start(&mut port_forward(namespace, &["vm/vm", "0:80"]))?;
    for _ in 0..3 {
        let answer = forward.get("/hostname")?;
        ensure!(answer.contains(" 200 ") && answer.trim_end().ends_with("vm"), "{answer}");
    }
    // Another forward, which names the namespace in its target, for one connection only.
    let target = format!("vmi/vm/{}", namespace.name());
    let mut once = cluster_script("virtctl.sh");
    once.args(["port-forward", "--stdio=true", &target, "80"]);
    let output = run(&mut once, Some("GET /hostname HTTP/1.0\r\n\r\n"))?;
    ensure!(output.code == 0 && output.stdout.trim_end().ends_with("vm"), "{}", output.text());
    Ok(())
}

fn is_reached_by_ssh_which_ends_as_its_command_does(namespace: &Namespace, key: &Key) -> Result<()> {
    let options = key.options();
    let mut arguments = vec!["ssh", "root@vmi/vm", "-c", "hostname; exit 7"];
    arguments.extend(options.iter().map(String::as_str));
    let output = namespace.try_virtctl(&arguments)?;
    ensure!(output.code == 7 && output.stdout.trim() == "vm", "{output:?}");
    Ok(())
}

fn is_not_forwarded_for_a_reason(namespace: &Namespace) -> Result<()> {
    let refusal = |arguments: &[&str]| -> Result<String> {
        let output = run(&mut port_forward(namespace, arguments), None)?;
        ensure!(output.code != 0, "{arguments:?} succeeded: {}", output.text());
        Ok(output.text())
    };
    for (target, message) in
        [("vm/other", "not found"), ("vmi/other", "not found"), ("pod/vm", "unsupported")]
    {
        let text = refusal(&["--stdio=true", target, "80"])?;
        ensure!(text.contains(message), "{target}: {text}");
    }
    let text = refusal(&["--stdio=true", "vmi/vm", "81"])?;
    ensure!(text.contains("dialing VM"), "{text}");
    namespace.virtctl(&["pause", "vmi", "vm"])?;
    let text = refusal(&["--stdio=true", "vmi/vm", "80"])?;
    ensure!(text.contains("VMI is paused"), "{text}");
    Ok(())
}
