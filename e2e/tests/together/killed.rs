//! Kills the processes of a machine with signal 9: what happens to the machine, and to the other process.

use anyhow::ensure;
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Node, guest, in_namespace};
use serde_json::Value;
use std::time::Duration;

fn is_final(vmi: &Value) -> bool {
    matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

#[test]
fn an_instance_whose_qemu_is_killed_fails_and_says_by_what() {
    in_namespace("killqemu", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        Node::of(&launcher)?.kill(&launcher, "qemu-system-x86_64", "KILL")?;
        let vmi = namespace.wait("vmi", "vm", "to be final", SOON, is_final)?;
        ensure!(vmi["status"]["phase"] == "Failed", "{}", vmi["status"]);
        ensure!(vmi["status"].to_string().contains("SIGKILL"), "the signal is not named: {}", vmi["status"]);
        Ok(())
    });
}

#[test]
fn qemu_does_not_outlive_its_launcher() {
    in_namespace("killlauncher", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let node = Node::of(&launcher)?;
        ensure!(node.processes(&launcher, "qemu-system-x86_64")?.len() == 1);
        node.kill(&launcher, "virt-launcher", "KILL")?;
        wait::until_true("QEMU to be gone", Duration::from_secs(10), || {
            Ok(node.processes(&launcher, "qemu-system-x86_64")?.is_empty())
        })?;
        let vmi = namespace.wait("vmi", "vm", "to be final", SOON, is_final)?;
        ensure!(vmi["status"]["phase"] == "Failed", "{}", vmi["status"]);
        Ok(())
    });
}
