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

/// Waits until the guest's web server answers.
fn booted(namespace: &Namespace) -> Result<()> {
    namespace.wait_phase("vm", "Running", RUNNING)?;
    Console::open(namespace, "vm")?.login(BOOT)
}

#[test]
fn a_guests_tcp_port_is_forwarded_to_many_clients_and_to_standard_output() {
    in_namespace("forward", |namespace| {
        namespace.apply(&guest::machine("vm", "Always"))?;
        booted(namespace)?;
        let forward = Forward::start(&mut port_forward(namespace, &["vm/vm", "0:80"]))?;
        for _ in 0..3 {
            let answer = forward.get("/hostname")?;
            ensure!(answer.contains(" 200 ") && answer.trim_end().ends_with("guest-tiny"), "{answer}");
        }
        // Another forward, which names the namespace in its target, for one connection only.
        let target = format!("vmi/vm/{}", namespace.name());
        let mut once = cluster_script("virtctl.sh");
        once.args(["port-forward", "--stdio=true", &target, "80"]);
        let output = run(&mut once, Some("GET /hostname HTTP/1.0\r\n\r\n"))?;
        ensure!(output.code == 0 && output.stdout.trim_end().ends_with("guest-tiny"), "{}", output.text());
        Ok(())
    });
}

#[test]
fn a_port_forward_that_cannot_be_says_why() {
    in_namespace("forwardrefused", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
        booted(namespace)?;
        let refusal = |arguments: &[&str]| -> Result<String> {
            let output = run(&mut port_forward(namespace, arguments), None)?;
            ensure!(output.code != 0, "{arguments:?} succeeded: {}", output.text());
            Ok(output.text())
        };
        for (target, message) in
            [("vm/vm", "not found"), ("vmi/other", "not found"), ("pod/vm", "unsupported")]
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
    });
}

#[test]
fn ssh_reaches_a_guest_and_ends_as_its_command_does() {
    in_namespace("ssh", |namespace| {
        let key = Key::make()?;
        let user_data = format!("#cloud-config\nssh_authorized_keys:\n- {}\n", key.public);
        namespace.apply(&guest::with_user_data(guest::instance("vm"), &user_data))?;
        booted(namespace)?;
        let options = key.options();
        let mut arguments = vec!["ssh", "root@vmi/vm", "-c", "hostname; exit 7"];
        arguments.extend(options.iter().map(String::as_str));
        let output = namespace.try_virtctl(&arguments)?;
        ensure!(output.code == 7 && output.stdout.trim() == "vm", "{output:?}");
        Ok(())
    });
}
