//! Processes killed with signal 9: the daemons', which no guest may notice, and those of a machine itself.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, alone, guest, in_namespace};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn is_final(vmi: &Value) -> bool {
    matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Kills a component's process in all of its pods.
fn kill_component(name: &str) -> Result<()> {
    let selector = format!("kubevirt.io={name}");
    let pods = objects(&["pod", "-n", "kubevirt", "-l", &selector])?;
    let running: Vec<_> = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").collect();
    ensure!(!running.is_empty(), "no {name} runs");
    for pod in running {
        Node::of(pod)?.kill(pod, name, "KILL")?;
    }
    Ok(())
}

fn component_is_ready(name: &str) -> Result<()> {
    wait::until_true(&format!("{name} to be ready again"), Duration::from_secs(120), || {
        let pods = objects(&["pod", "-n", "kubevirt", "-l", &format!("kubevirt.io={name}")])?;
        let ready = |pod: &Value| {
            let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            !containers.is_empty() && containers.iter().all(|container| container["ready"] == true)
        };
        Ok(!pods.is_empty() && pods.iter().all(ready))
    })
}

/// Kubernetes' own API server, on this machine; the cluster starts it again.
fn kill_kubernetes_api() -> Result<()> {
    let output = Command::new("pgrep").args(["-x", "kube-apiserver"]).output()?;
    let processes = String::from_utf8_lossy(&output.stdout).into_owned();
    let process = processes.split_whitespace().next().context("no kube-apiserver on this machine")?;
    let status = Command::new("kill").args(["-KILL", process]).status()?;
    ensure!(status.success(), "kube-apiserver cannot be killed");
    wait::until_true("the API server to answer again", SOON, || {
        let answer = barevirt_e2e::command::try_kubectl(&["get", "--raw", "/readyz"])?;
        Ok(answer.code == 0)
    })
}

/// The numbers and boot ids that the guest has counted with.
fn ticks(log: &str) -> Vec<(u64, String)> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    // The login prompt ends without a line's end, so a tick may follow it.
    let tick = |line: &str| {
        let (_, rest) = line.trim().rsplit_once("tick ")?;
        let (number, boot) = rest.split_once(' ')?;
        Some((number.parse().ok()?, boot.to_owned()))
    };
    whole.lines().filter_map(tick).collect()
}

/// Has the guest count while something is killed; the count goes on without a gap, in one boot.
fn guest_counts_through(namespace: &Namespace, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    namespace.apply(&guest::with_user_data(guest::instance("vm"), guest::COUNTING))?;
    let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
    let launcher = namespace.launcher("vm")?;
    let node = Node::of(&launcher)?;
    let count = || Ok::<_, anyhow::Error>(ticks(&node.serial_log(&launcher)?));
    wait::until_true("the guest to count", BOOT, || Ok(count()?.len() > 3))?;
    disturb()?;
    let then = count()?.len();
    wait::until_true("the guest to count on", SOON, || Ok(count()?.len() > then + 5))?;
    let ticks = count()?;
    let first = ticks.first().cloned().context("no tick")?;
    for ((number, boot), expected) in ticks.iter().zip(first.0..) {
        ensure!(*number == expected, "after tick {} came {number}", expected - 1);
        ensure!(*boot == first.1, "the guest has booted again");
    }
    let after = namespace.need("vmi", "vm")?;
    ensure!(uid(&after) == uid(&vmi) && after["status"]["phase"] == "Running", "{}", after["status"]);
    // And it is still ours: there is a console, and it ends when it is asked to.
    Console::open(namespace, "vm")?.expect("tick ", SOON)?;
    namespace.kubectl(&["delete", "vmi", "vm", "--wait=false"])?;
    namespace.wait_gone("vmi", "vm", SOON)
}

#[test]
fn a_guest_does_not_notice_the_death_of_the_handler() {
    let _alone = alone();
    in_namespace("killhandler", |namespace| {
        guest_counts_through(namespace, || {
            kill_component("virt-handler")?;
            component_is_ready("virt-handler")
        })
    });
}

#[test]
fn a_guest_does_not_notice_the_death_of_controllers_and_apis() {
    let _alone = alone();
    in_namespace("killcontrol", |namespace| {
        guest_counts_through(namespace, || {
            kill_component("virt-controller")?;
            kill_component("virt-api")?;
            kill_kubernetes_api()?;
            component_is_ready("virt-controller")?;
            component_is_ready("virt-api")
        })
    });
}

#[test]
fn an_instance_whose_qemu_is_killed_fails_and_says_by_what() {
    let _alone = alone();
    in_namespace("killqemu", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
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
fn a_machine_whose_qemu_is_killed_starts_again() {
    let _alone = alone();
    in_namespace("killqemuvm", |namespace| {
        namespace.apply(&guest::machine("vm", "Always"))?;
        let first = uid(&namespace.wait_phase("vm", "Running", RUNNING)?);
        let launcher = namespace.launcher("vm")?;
        Node::of(&launcher)?.kill(&launcher, "qemu-system-x86_64", "KILL")?;
        // A crash is followed by a pause of ten seconds and some.
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != first && vmi["status"]["phase"] == "Running"
        })?;
        Ok(())
    });
}

#[test]
fn qemu_does_not_outlive_its_launcher() {
    let _alone = alone();
    in_namespace("killlauncher", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
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
