//! Processes killed with signal 9: the daemons', which no guest may notice, and those of a machine itself.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::counting::Counting;
use barevirt_e2e::harm::{component_is_ready, kill_daemon, kill_kubernetes_api};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, alone, guest, in_namespace, installation};
use serde_json::Value;
use std::time::Duration;

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn is_final(vmi: &Value) -> bool {
    matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
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
            installation::kill("virt-handler")?;
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
        installation::kill("virt-handler")?;
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
            installation::kill("virt-controller")?;
            installation::kill("virt-api")?;
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
