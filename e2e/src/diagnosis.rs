//! The output for a failed test: enough to understand the failure without the cluster.

use crate::command::{Output, objects, try_kubectl, try_virtctl};
use anyhow::Result;
use std::process::Command;

/// How much of a guest's serial console is shown, in characters.
const CONSOLE: usize = 3000;

/// Everything about a namespace, and the components' logs since that time (RFC 3339).
pub fn print(namespace: &str, since: &str) {
    let questions: [&[&str]; 5] = [
        &["get", "vm,vmi,pod,svc", "-n", namespace, "-o", "wide"],
        &["get", "events", "-n", namespace, "--sort-by=.lastTimestamp"],
        &["describe", "vm,vmi,pod", "-n", namespace],
        &["get", "pod", "-n", "kubevirt", "-o", "wide"],
        &["get", "nodes"],
    ];
    for arguments in questions {
        show(arguments);
    }
    show(&[
        "get",
        "kubevirt",
        "-A",
        "-o",
        r#"jsonpath={range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}"#,
    ]);
    for selector in [
        "kubevirt.io=virt-operator",
        "kubevirt.io=virt-controller",
        "kubevirt.io=virt-handler",
        "kubevirt.io=virt-api",
    ] {
        show(&["logs", "-n", "kubevirt", "-l", selector, "--tail=60", "--prefix", "--since-time", since]);
    }
    show(&[
        "logs",
        "-n",
        namespace,
        "-l",
        "kubevirt.io=virt-launcher",
        "--all-containers",
        "--prefix",
        "--tail=80",
    ]);
    guests(namespace);
}

/// For a guest that hangs: what its firmware and kernel said, whether QEMU answers, and whether its processors run.
fn guests(namespace: &str) {
    for vmi in objects(&["vmi", "-n", namespace]).unwrap_or_default() {
        let name = vmi["metadata"]["name"].as_str().unwrap_or_default();
        if vmi["status"]["phase"] != "Running" {
            continue;
        }
        let uid = vmi["metadata"]["uid"].as_str().unwrap_or_default();
        let launchers = format!("kubevirt.io/created-by={uid}");
        for pod in objects(&["pod", "-n", namespace, "-l", &launchers]).unwrap_or_default() {
            let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
            let log = try_kubectl(&[
                "exec",
                "-n",
                namespace,
                pod,
                "-c",
                "compute",
                "--",
                "/usr/bin/virt-launcher",
                "serial-log",
            ]);
            show_end(&format!("the serial console of {pod}"), log);
        }
        for command in ["query-status", "query-cpus-fast"] {
            show_end(&format!("{name}: {command}"), try_virtctl(&["qmp", "-n", namespace, name, command]));
        }
    }
}

/// The end of what a command has printed.
fn show_end(what: &str, output: Result<Output>) {
    eprintln!("--- {what}");
    match output {
        Ok(output) => {
            let text = output.text();
            let skipped = text.chars().count().saturating_sub(CONSOLE);
            eprintln!("{}", text.chars().skip(skipped).collect::<String>());
        }
        Err(error) => eprintln!("{error:#}"),
    }
}

/// For a test that hangs: where each thread of the tests waits, and which processes they have started.
pub fn threads() -> String {
    let question = "for task in /proc/$PPID/task/*; do
            echo \"$(basename $task) $(cat $task/comm): $(cat $task/syscall 2>/dev/null)\"; cat $task/stack 2>/dev/null
        done
        ps -eo pid,ppid,stat,wchan:32,etimes,args --forest | cut -c1-200";
    match Command::new("sh").args(["-c", question]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("sh: {error}"),
    }
}

fn show(arguments: &[&str]) {
    eprintln!("--- kubectl {}", arguments.join(" "));
    match try_kubectl(arguments) {
        Ok(Output { stdout, stderr, .. }) => eprint!("{stdout}{stderr}"),
        Err(error) => eprintln!("{error:#}"),
    }
}
