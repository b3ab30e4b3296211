//! `make demo`: a virtual machine whose boot the user can watch. The cluster is up and Barevirt is installed
//! when this starts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use barevirt_e2e::Console;
use barevirt_e2e::command::{cluster_script, kubectl, try_virtctl};
use barevirt_e2e::wait::{self, BOOT, RUNNING};

const VM: &str = "testvm";
const NAMESPACE: &str = "default";

fn main() -> Result<()> {
    step("applying examples/vm-tiny.yaml");
    kubectl(&["-n", NAMESPACE, "apply", "-f", "examples/vm-tiny.yaml"])?;
    let started = Instant::now();
    // It may still run from an earlier demo.
    let said = try_virtctl(&["-n", NAMESPACE, "start", VM])?;
    step(said.text().trim());

    wait::until_true("the virtual machine to run", RUNNING, || {
        let status =
            kubectl(&["-n", NAMESPACE, "get", "vm", VM, "-o", "jsonpath={.status.printableStatus}"])?;
        Ok(status == "Running")
    })?;
    step(&format!("running after {:.1} s; on its serial console:", started.elapsed().as_secs_f64()));

    let mut console = Console::start(cluster_script("virtctl.sh").args(["-n", NAMESPACE, "console", VM]))?;
    console.login(BOOT).context("log in to the guest")?;
    for line in ["uname -sr", "hostname", "ip addr show eth0", "uptime"] {
        console.send(&format!("{line}\n"))?;
        console.expect(":~# ", Duration::from_secs(30))?;
    }
    for line in console.output().lines().map(printable).filter(|line| !line.is_empty()) {
        println!("  | {line}");
    }
    console.leave()?;

    println!("{}", kubectl(&["-n", NAMESPACE, "get", "vm,vmi", "-o", "wide"])?);
    println!(
        "It is yours. What to try next:\n\n\
         \x20 cluster-up/virtctl.sh console {VM}                  root, no password; ctrl-] leaves\n\
         \x20 cluster-up/virtctl.sh qmp {VM} query-status         ask QEMU itself\n\
         \x20 cluster-up/virtctl.sh expose vm {VM} --port=80 --name=web\n\
         \x20 cluster-up/virtctl.sh stop {VM}                     the guest sees its power button\n\
         \x20 cluster-up/kubectl.sh get vm,vmi,pods\n\
         \x20 make cluster-down                                  takes it all away\n"
    );
    Ok(())
}

fn step(text: &str) {
    println!("demo: {text}");
}

/// A console line without the terminal's control sequences.
fn printable(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.peek() == Some(&'[') => {
                for c in chars.by_ref().skip(1) {
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
            }
            c if c.is_control() => {}
            c => text.push(c),
        }
    }
    text.trim_end().to_owned()
}
