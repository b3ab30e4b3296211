//! The output for a failed test: enough to understand the failure without the cluster.

use crate::command::{Output, try_kubectl};
use std::process::Command;

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
