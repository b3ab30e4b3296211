//! The ways in which a launcher pod is removed, and what happens to the guest.

use anyhow::{Result, ensure};
use barevirt_e2e::command::try_kubectl_with;
use barevirt_e2e::wait::{SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, networks, sandboxes};
use serde_json::{Value, json};
use std::time::Duration;

fn is_final(vmi: &Value) -> bool {
    matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Removes the pod with `take_away`; the guest has to see its power button, and the instance has to succeed.
fn guest_is_shut_down_by(namespace: &Namespace, take_away: impl Fn(&str) -> Result<()>) -> Result<()> {
    let mut console = Console::boot(namespace, &guest::with_grace(guest::instance("vm"), 120))?;
    take_away(&name(&namespace.launcher("vm")?))?;
    console.expect("power button, shutting down", SHUTDOWN)?;
    console.expect("Power down", SHUTDOWN)?;
    let vmi = namespace.wait("vmi", "vm", "to be final", SOON, is_final)?;
    ensure!(vmi["status"]["phase"] == "Succeeded", "{}", vmi["status"]);
    Ok(())
}

#[test]
fn a_deleted_pod_shuts_its_guest_down() {
    in_namespace("poddel", |namespace| {
        guest_is_shut_down_by(namespace, |pod| namespace.begin_delete("pod", pod))
    });
}

#[test]
fn an_evicted_pod_shuts_its_guest_down() {
    in_namespace("evict", |namespace| {
        guest_is_shut_down_by(namespace, |pod| {
            let eviction = json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": pod, "namespace": namespace.name() },
            });
            let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", namespace.name());
            let output = try_kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())?;
            ensure!(output.code == 0, "{}", output.text());
            Ok(())
        })
    });
}

#[test]
fn a_guest_that_ignores_its_power_button_ends_with_its_grace_period() {
    in_namespace("deaf", |namespace| {
        let mut console = Console::boot(namespace, &guest::with_grace(guest::machine("vm", "Always"), 10))?;
        // Without the process that waits for the button, the guest ignores it.
        console.ok("for p in /proc/[0-9]*; do grep -qs event $p/cmdline && kill -STOP ${p#/proc/}; done; killall -q -STOP acpid; true", SOON)?;
        console.ok("for e in /sys/bus/acpi/drivers/button/*/; do echo -n $(basename $e) >/sys/bus/acpi/drivers/button/unbind; done 2>/dev/null; true", SOON)?;
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_gone("vmi", "vm", Duration::from_secs(45))?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        ensure!(!console.output().contains("Power down"), "the guest was not deaf");
        Ok(())
    });
}

/// The kubelet evicts a pod that writes more to its node than its limit. It does not wait, so the guest's
/// grace period makes no difference.
fn hard_eviction_is_a_failure(namespace: &Namespace, grace: u32) -> Result<()> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "storage" },
        "spec": { "limits": [{
            "type": "Container",
            "default": { "ephemeral-storage": "60Mi" },
            "defaultRequest": { "ephemeral-storage": "1Mi" },
        }] },
    }))?;
    let mut manifest = guest::with_grace(guest::instance("vm"), grace);
    let spec = guest::spec_of(&mut manifest);
    guest::push(
        &mut spec["domain"]["devices"]["disks"],
        json!({ "name": "blank", "disk": { "bus": "virtio" } }),
    );
    guest::push(&mut spec["volumes"], json!({ "name": "blank", "emptyDisk": { "capacity": "1Gi" } }));
    let mut console = Console::boot(namespace, &manifest)?;
    // The limit is 60 MiB for each of the pod's containers; this is more than their sum. QEMU allocates zeros, too.
    console.send("dd if=/dev/zero of=/dev/vdb bs=1M count=400\n")?;
    let vmi = namespace.wait("vmi", "vm", "to be final", Duration::from_secs(300), is_final)?;
    let status = &vmi["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
    Ok(())
}

#[test]
fn a_hard_eviction_ends_as_failed_with_that_reason() {
    in_namespace("hardevict", |namespace| hard_eviction_is_a_failure(namespace, 30));
}

#[test]
fn a_hard_eviction_without_grace_ends_as_failed_with_that_reason() {
    in_namespace("hardevict0", |namespace| hard_eviction_is_a_failure(namespace, 0));
}

/// The interface of a machine on the pod network, by the machine's name.
fn interface(binding: &str) -> Value {
    match binding {
        "masquerade" => json!({ "name": "default", "masquerade": {} }),
        "bridge" => json!({ "name": "default", "bridge": {} }),
        _ => json!({ "name": "default", "passtBinding": {}, "ports": [{ "port": 80 }] }),
    }
}

/// With these bindings, each beside a second card. Those of binding plugins are in `configuration/plugins.rs`.
#[test]
fn a_machine_whose_sandbox_ends_starts_in_another_with_its_card_that_the_test_beds_delegate_attaches() {
    in_namespace("sandbox", |namespace| {
        networks::define(namespace, "lan", &json!({}))?;
        let names = ["masquerade", "bridge", "passt"];
        for name in names {
            let mut machine = guest::without_system(guest::machine(name, "Always"));
            let spec = guest::spec_of(&mut machine);
            let second = json!({ "name": "lan", "bridge": {} });
            spec["domain"]["devices"]["interfaces"] = json!([interface(name), second]);
            guest::push(&mut spec["networks"], json!({ "name": "lan", "multus": { "networkName": "lan" } }));
            namespace.apply(&machine)?;
        }
        let mut ended = Vec::new();
        for machine in names {
            ended.push(sandboxes::end(namespace, machine, 2)?);
        }
        ended.iter().try_for_each(sandboxes::Ended::runs_in_another_pod)
    });
}
