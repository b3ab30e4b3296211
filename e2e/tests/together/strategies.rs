//! Run strategies: when a machine is started again, its status meanwhile, and the revision that it was
//! started from.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::time::Duration;

const FAIL_FAST: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn condition(object: &Value, name: &str) -> Option<Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name).cloned()
}

fn is_set(object: &Value, name: &str) -> bool {
    condition(object, name).is_some_and(|condition| condition["status"] == "True")
}

fn patch(namespace: &Namespace, patch: &Value) -> Result<()> {
    namespace.merge("vm", "vm", patch)
}

/// Makes the guest shut itself down.
fn power_off(namespace: &Namespace) -> Result<()> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    console.send("poweroff\n")?;
    console.expect("Power down", SHUTDOWN).map(drop)
}

fn kill_qemu(namespace: &Namespace) -> Result<()> {
    let launcher = namespace.launcher("vm")?;
    Node::of(&launcher)?.kill(&launcher, "qemu-system-x86_64", "KILL")
}

/// Checks that nothing changes for longer than the controller would need.
fn stays(namespace: &Namespace, status: &str, instance: bool) -> Result<()> {
    std::thread::sleep(Duration::from_secs(8));
    let vm = namespace.need("vm", "vm")?;
    ensure!(vm["status"]["printableStatus"] == status, "{}", vm["status"]);
    ensure!(namespace.get("vmi", "vm")?.is_some() == instance, "the instance {instance}");
    Ok(())
}

#[test]
fn rerun_on_failure_starts_again_after_a_failure() {
    in_namespace("rerunfail", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "RerunOnFailure")))?;
        let first = uid(&namespace.wait_phase("vm", "Running", RUNNING)?);
        kill_qemu(namespace)?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != first && vmi["status"]["phase"] == "Running"
        })?;
        namespace.wait("vm", "vm", "to have no request left", SOON, |vm| {
            vm["status"]["stateChangeRequests"].is_null() && vm["spec"]["runStrategy"] == "RerunOnFailure"
        })?;
        Ok(())
    });
}

#[test]
fn rerun_on_failure_leaves_a_guest_that_shut_down_stopped_until_it_is_started() {
    in_namespace("reruncalm", |namespace| {
        namespace.apply(&guest::machine("vm", "RerunOnFailure"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        power_off(namespace)?;
        namespace.wait_gone("vmi", "vm", SOON)?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        stays(namespace, "Stopped", false)?;
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait_status("vm", "Running", RUNNING)?;
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_gone("vmi", "vm", SHUTDOWN)?;
        let vm = namespace.wait_status("vm", "Stopped", SOON)?;
        ensure!(vm["spec"]["runStrategy"] == "RerunOnFailure", "a stop leaves the strategy alone");
        stays(namespace, "Stopped", false)
    });
}

#[test]
fn once_is_started_once() {
    in_namespace("once", |namespace| {
        namespace.apply(&guest::machine("vm", "Once"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        power_off(namespace)?;
        namespace.wait_phase("vm", "Succeeded", SOON)?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        stays(namespace, "Stopped", true)?;
        for (call, why) in
            [("start", "Once does not support manual start requests"), ("restart", "restart requests")]
        {
            let output = namespace.try_virtctl(&[call, "vm"])?;
            ensure!(output.code != 0 && output.text().contains(why), "{}", output.text());
        }
        Ok(())
    });
}

#[test]
fn a_receiver_waits_until_its_strategy_changes() {
    in_namespace("receiver", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "WaitAsReceiver")))?;
        namespace.wait_status("vm", "WaitingForReceiver", SOON)?;
        let waiting = namespace.wait_phase("vm", "WaitingForSync", SOON)?;
        let output = namespace.try_virtctl(&["start", "vm"])?;
        let why = "WaitAsReceiver does not support manual start requests";
        ensure!(output.code != 0 && output.text().contains(why), "{}", output.text());
        let pods = namespace.kubectl(&["get", "pods", "-o", "name"])?;
        ensure!(pods.trim().is_empty(), "it has a pod: {pods}");
        patch(namespace, &json!({"spec": {"runStrategy": "Always"}}))?;
        namespace.wait_status("vm", "Running", RUNNING)?;
        ensure!(uid(&namespace.need("vmi", "vm")?) != uid(&waiting), "the one that waited runs");
        patch(namespace, &json!({"spec": {"runStrategy": "WaitAsReceiver"}}))?;
        namespace.wait("vm", "vm", "to say that it cannot wait", SOON, |vm| {
            is_set(vm, "Failure") && vm["status"]["printableStatus"] == "Running"
        })?;
        Ok(())
    });
}

#[test]
fn a_launcher_that_always_fails_is_tried_less_and_less_often_until_it_does_not() {
    in_namespace("crashloop", |namespace| {
        let mut manifest = guest::without_system(guest::machine("vm", "Always"));
        manifest["spec"]["template"]["metadata"]["annotations"] = json!({ FAIL_FAST: "" });
        namespace.apply(&manifest)?;
        let vm = namespace.wait_status("vm", "CrashLoopBackOff", RUNNING)?;
        let failure = &vm["status"]["startFailure"];
        ensure!(failure["retryAfterTimestamp"].is_string(), "{failure}");
        patch(namespace, &json!({"spec": {"template": {"metadata": {"annotations": {FAIL_FAST: null}}}}}))?;
        let vm = namespace.wait_status("vm", "Running", Duration::from_secs(150) + RUNNING)?;
        ensure!(vm["status"]["startFailure"].is_null(), "{}", vm["status"]["startFailure"]);
        Ok(())
    });
}

#[test]
fn a_crash_loop_can_be_stopped() {
    in_namespace("crashstop", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        manifest["spec"]["template"]["metadata"]["annotations"] = json!({ FAIL_FAST: "" });
        namespace.apply(&manifest)?;
        namespace.wait_status("vm", "CrashLoopBackOff", RUNNING)?;
        namespace.virtctl(&["stop", "vm"])?;
        let vm = namespace.wait_status("vm", "Stopped", SOON)?;
        ensure!(vm["status"]["startFailure"].is_null(), "{}", vm["status"]["startFailure"]);
        stays(namespace, "Stopped", false)
    });
}

#[test]
fn a_guest_that_fits_on_no_node_stays_unschedulable() {
    in_namespace("unschedulable", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        let domain = &mut guest::spec_of(&mut manifest)["domain"];
        domain["memory"] = json!(null);
        domain["resources"] = json!({ "requests": { "cpu": "1M", "memory": "1Ei" } });
        namespace.apply(&manifest)?;
        let vm = namespace.wait_status("vm", "ErrorUnschedulable", SOON)?;
        let scheduled = condition(&vm, "PodScheduled").unwrap_or_default();
        ensure!(scheduled["reason"] == "Unschedulable", "{scheduled}");
        Ok(())
    });
}

#[test]
fn a_machine_reports_a_missing_image() {
    in_namespace("noimage", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        guest::spec_of(&mut manifest)["volumes"][0]["containerDisk"]["image"] =
            json!("localhost/no-such-image:1");
        namespace.apply(&manifest)?;
        namespace.wait("vm", "vm", "to miss its image", RUNNING, |vm| {
            matches!(vm["status"]["printableStatus"].as_str(), Some("ErrImagePull" | "ImagePullBackOff"))
        })?;
        Ok(())
    });
}

#[test]
fn only_the_latest_start_revision_is_kept() {
    in_namespace("revision", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Halted")))?;
        let started = || {
            namespace.virtctl(&["start", "vm"])?;
            let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
            let vm = namespace.need("vm", "vm")?;
            let name = format!("revision-start-vm-{}-{}", uid(&vm), vm["metadata"]["generation"]);
            ensure!(vmi["status"]["virtualMachineRevisionName"] == name, "{}", vmi["status"]);
            let revision = namespace.need("controllerrevision", &name)?;
            ensure!(revision["data"]["spec"] == vm["spec"], "{} {}", revision["data"], vm["spec"]);
            ensure!(revision["revision"] == vm["metadata"]["generation"]);
            Ok::<_, anyhow::Error>(name)
        };
        let first = started()?;
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_gone("vmi", "vm", SHUTDOWN)?;
        patch(namespace, &json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}}))?;
        let second = started()?;
        ensure!(first != second);
        ensure!(namespace.get("controllerrevision", &first)?.is_none(), "{first} is still there");
        Ok(())
    });
}

#[test]
fn a_changed_template_requires_a_restart() {
    in_namespace("restartreq", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        // A change that does not affect the guest.
        patch(namespace, &json!({"spec": {"runStrategy": "Manual"}}))?;
        let noted = |object: &Value| object["metadata"]["annotations"]["kubevirt.io/vm-generation"].clone();
        let generation = namespace.need("vm", "vm")?["metadata"]["generation"].to_string();
        namespace.wait("vmi", "vm", "to be of the new generation", SOON, |vmi| {
            noted(vmi) == generation.as_str()
        })?;
        ensure!(!is_set(&namespace.need("vm", "vm")?, "RestartRequired"));

        patch(namespace, &json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}}))?;
        let vm =
            namespace.wait("vm", "vm", "to ask for a restart", SOON, |vm| is_set(vm, "RestartRequired"))?;
        ensure!(vm["status"]["observedGeneration"] != vm["status"]["desiredGeneration"], "{}", vm["status"]);
        ensure!(uid(&namespace.need("vmi", "vm")?) == uid(&vmi), "the guest runs on");
        namespace.virtctl(&["restart", "vm"])?;
        let other = namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |next| {
            uid(next) != uid(&vmi) && next["status"]["phase"] == "Running"
        })?;
        ensure!(other["spec"]["domain"]["cpu"]["cores"] == 2);
        namespace.wait("vm", "vm", "to be content", SOON, |vm| {
            condition(vm, "RestartRequired").is_none()
                && vm["status"]["observedGeneration"] == vm["status"]["desiredGeneration"]
        })?;
        Ok(())
    });
}

#[test]
fn evictions_of_what_cannot_move_follow_the_strategy() {
    in_namespace("evictions", |namespace| {
        let with = |name: &str, strategy: &str| {
            let mut manifest = guest::without_system(guest::instance(name));
            let spec = guest::spec_of(&mut manifest);
            spec["evictionStrategy"] = json!(strategy);
            // A guest with slots for USB devices of clients cannot move.
            spec["domain"]["devices"]["clientPassthrough"] = json!({});
            manifest
        };
        let evict = |name: &str| {
            let pod = namespace.launcher(name)?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            pods::evict(namespace, &pod)
        };
        for (name, strategy) in
            [("live", "LiveMigrate"), ("maybe", "LiveMigrateIfPossible"), ("external", "External")]
        {
            namespace.apply(&with(name, strategy))?;
        }
        for name in ["live", "maybe", "external"] {
            namespace.wait_phase(name, "Running", RUNNING * 2)?;
        }
        let migratable = condition(&namespace.need("vmi", "live")?, "LiveMigratable").unwrap_or_default();
        ensure!(migratable["status"] == "False" && migratable["reason"].is_string(), "{migratable}");

        let denied = evict("live")?;
        let words = "VMI live is configured with an eviction strategy but is not live-migratable";
        ensure!(denied.code != 0 && denied.text().contains(words), "{}", denied.text());
        let marked = evict("external")?;
        let words = format!("Eviction triggered evacuation of VMI \\\"{}/external\\\"", namespace.name());
        let text = marked.text();
        ensure!(marked.code != 0 && text.replace('\\', "").contains(&words.replace('\\', "")), "{text}");
        let vmi = namespace.need("vmi", "external")?;
        ensure!(vmi["status"]["evacuationNodeName"] == vmi["status"]["nodeName"], "{}", vmi["status"]);
        ensure!(evict("external")?.text().contains("Evacuation in progress"));
        let stays = namespace.virtctl(&["evacuate-cancel", "vmi", "external"])?;
        ensure!(stays == format!("VMI {}/external was canceled evacuation\n", namespace.name()), "{stays}");
        let vmi = namespace.need("vmi", "external")?;
        ensure!(vmi["status"]["evacuationNodeName"].is_null(), "{}", vmi["status"]);
        // Cancelling when there is nothing to cancel succeeds.
        namespace.virtctl(&["evacuate-cancel", "vmi", "external"])?;
        ensure!(evict("external")?.text().contains("Eviction triggered evacuation"));
        let passed = evict("maybe")?;
        ensure!(passed.code == 0, "{}", passed.text());
        wait::until_true("the guest that may be shut down to be", SHUTDOWN, || {
            let vmi = namespace.need("vmi", "maybe")?;
            Ok(matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
        })?;
        for name in ["live", "external"] {
            ensure!(namespace.need("vmi", name)?["status"]["phase"] == "Running", "{name}");
        }
        Ok(())
    });
}
