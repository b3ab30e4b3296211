//! Processes killed with signal 9: the daemons', which no guest may notice, and those of a machine itself.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::counting::Counting;
use barevirt_e2e::wait::{self, RUNNING, SOON};
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

/// A daemon of the node itself, in no pod; the node starts it again.
fn kill_daemon(node: &Node, program: &str) -> Result<()> {
    let script = format!(
        "for p in /proc/[0-9]*; do \
           [ \"$(readlink $p/exe 2>/dev/null | sed 's|.*/||')\" = '{program}' ] && echo ${{p#/proc/}}; \
         done; true"
    );
    let processes = || -> Result<Vec<String>> { Ok(node.sh(&script)?.lines().map(str::to_owned).collect()) };
    let before = processes()?;
    ensure!(!before.is_empty(), "no {program} runs on {}", node.name());
    node.sh(&format!("kill -KILL {}", before.join(" ")))?;
    wait::until_true(&format!("{program} to run again on {}", node.name()), SOON, || {
        Ok(processes()?.iter().any(|process| !before.contains(process)))
    })
}

/// Has the guest count while something is killed; the count goes on without a gap, in one boot.
fn guest_counts_through(namespace: &Namespace, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    namespace.apply(&guest::with_user_data(guest::instance("vm"), guest::COUNTING))?;
    let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
    let counting = Counting::of(namespace, "vm")?;
    disturb()?;
    counting.goes_on()?;
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
fn a_paused_guest_stays_paused_over_the_death_of_the_handler() {
    let _alone = alone();
    in_namespace("pausehandler", |namespace| {
        namespace.apply(&guest::with_user_data(guest::instance("vm"), guest::COUNTING))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let counting = Counting::of(namespace, "vm")?;
        namespace.virtctl(&["pause", "vmi", "vm"])?;
        let paused = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Paused" && one["reason"] == "PausedByUser")
        };
        namespace.wait("vmi", "vm", "to be paused", SOON, paused)?;
        kill_component("virt-handler")?;
        component_is_ready("virt-handler")?;
        counting.stands_still()?;
        ensure!(paused(&namespace.need("vmi", "vm")?), "it is not said to be paused any more");
        // The new handler lets it go when it is told to.
        wait::until_true("the new handler to know the guest", SOON, || {
            Ok(namespace.try_virtctl(&["unpause", "vmi", "vm"])?.code == 0)
        })?;
        counting.goes_on()
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
fn a_guest_does_not_notice_the_death_of_kubelet_and_containerd() {
    let _alone = alone();
    in_namespace("killnode", |namespace| {
        guest_counts_through(namespace, || {
            for node in objects(&["node"])? {
                let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
                kill_daemon(&node, "containerd")?;
                kill_daemon(&node, "kubelet")?;
            }
            component_is_ready("virt-handler")
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
