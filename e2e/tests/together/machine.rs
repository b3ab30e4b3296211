//! VirtualMachines: when an instance is made, restarted and removed.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Waits for a running instance that is not the one with that UID.
fn wait_for_another(namespace: &Namespace, before: &str, within: Duration) -> Result<Value> {
    namespace.wait("vmi", "vm", "to be another, and Running", within, |vmi| {
        uid(vmi) != before && vmi["status"]["phase"] == "Running"
    })
}

#[test]
fn a_machine_that_always_runs_gets_a_deleted_instance_back_and_starts_again_when_its_qemu_is_killed() {
    in_namespace("always", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
        let first = uid(&namespace.wait_phase("vm", "Running", RUNNING)?);
        namespace.wait_status("vm", "Running", SOON)?;
        namespace.begin_delete("vmi", "vm")?;
        let second = uid(&wait_for_another(namespace, &first, RUNNING)?);
        namespace.wait_status("vm", "Running", SOON)?;
        let launcher = namespace.launcher("vm")?;
        Node::of(&launcher)?.kill(&launcher, "qemu-system-x86_64", "KILL")?;
        // After a crash there is a pause of a little more than ten seconds.
        wait_for_another(namespace, &second, RUNNING + SOON).map(drop)
    });
}

/// Two runs of a machine. Each step is a behaviour of its own.
#[test]
fn a_machine_that_always_runs_starts_again_after_its_guest_powers_off_and_stop_shuts_it_down_by_acpi() {
    in_namespace("stop", |namespace| {
        namespace.apply(&guest::with_grace(guest::machine("vm", "Always"), 120))?;
        let first = uid(&namespace.wait_phase("vm", "Running", RUNNING)?);
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.send("poweroff\n")?;
        wait_for_another(namespace, &first, RUNNING + SHUTDOWN)?;
        drop(console);
        stop_shuts_it_down_within_its_grace_period(namespace)
    });
}

fn stop_shuts_it_down_within_its_grace_period(namespace: &Namespace) -> Result<()> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    let asked = Instant::now();
    namespace.virtctl(&["stop", "vm"])?;
    console.expect("power button, shutting down", SHUTDOWN)?;
    console.expect("Power down", SHUTDOWN)?;
    namespace.wait_gone("vmi", "vm", SHUTDOWN)?;
    ensure!(asked.elapsed() < Duration::from_secs(100), "the grace period had to end it");
    let vm = namespace.wait_status("vm", "Stopped", SOON)?;
    ensure!(vm["spec"]["runStrategy"] == "Halted", "stop halts a machine that always runs");
    Ok(())
}

#[test]
fn stop_with_force_ends_the_guest_at_once() {
    in_namespace("force", |namespace| {
        namespace.apply(&guest::with_grace(guest::machine("vm", "Always"), 300))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let asked = Instant::now();
        namespace.virtctl(&["stop", "vm", "--force", "--grace-period=0"])?;
        namespace.wait_gone("vmi", "vm", SOON)?;
        ensure!(asked.elapsed() < Duration::from_secs(30), "it took {:?}", asked.elapsed());
        ensure!(!console.output().contains("Power down"), "the guest was asked");
        namespace.wait_status("vm", "Stopped", SOON).map(drop)
    });
}

#[test]
fn start_and_restart_make_new_instances_and_commands_that_make_no_sense_are_refused() {
    in_namespace("restart", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Halted")))?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        ensure!(namespace.get("vmi", "vm")?.is_none(), "a halted machine has no instance");
        for (command, words) in [("stop", "not running"), ("restart", "")] {
            let output = namespace.try_virtctl(&[command, "vm"])?;
            ensure!(output.code != 0 && output.text().contains(words), "{command}: {}", output.text());
        }
        let output = namespace.try_virtctl(&["start", "nobody"])?;
        ensure!(output.code != 0 && output.text().contains("not found"), "{}", output.text());
        namespace.virtctl(&["start", "vm"])?;
        let first = uid(&namespace.wait_phase("vm", "Running", RUNNING)?);
        let output = namespace.try_virtctl(&["start", "vm"])?;
        ensure!(output.code != 0 && output.text().contains("already"), "{}", output.text());
        namespace.virtctl(&["restart", "vm"])?;
        wait_for_another(namespace, &first, RUNNING)?;
        namespace.wait_status("vm", "Running", SOON).map(drop)
    });
}

/// The PCI bus of the device with that id, behind its root port.
fn bus_of(devices: &Value, id: &str) -> Option<Value> {
    match devices {
        Value::Array(items) => items.iter().find_map(|item| bus_of(item, id)),
        Value::Object(fields) if fields.get("qdev_id").is_some_and(|found| found == id) => {
            fields.get("bus").cloned()
        }
        Value::Object(fields) => fields.values().find_map(|value| bus_of(value, id)),
        _ => None,
    }
}

#[test]
fn the_other_disks_keep_their_addresses_when_one_is_removed() {
    in_namespace("pci", |namespace| {
        let mut manifest = guest::without_system(guest::machine("vm", "Manual"));
        for name in ["first", "second"] {
            let spec = guest::spec_of(&mut manifest);
            let disk = json!({"name": name, "disk": {"bus": "virtio"}});
            guest::push(&mut spec["domain"]["devices"]["disks"], disk);
            guest::push(&mut spec["volumes"], json!({"name": name, "emptyDisk": {"capacity": "16Mi"}}));
        }
        namespace.apply(&manifest)?;
        let bus_of_second = || -> Result<Value> {
            namespace.virtctl(&["start", "vm"])?;
            namespace.wait_phase("vm", "Running", RUNNING)?;
            // Until the firmware has numbered a bus, QEMU lists no device on it.
            let bus = wait::until("the firmware to reach disk-second", SOON, || {
                let devices = serde_json::from_str(&namespace.virtctl(&["qmp", "vm", "query-pci"])?)?;
                Ok(bus_of(&devices, "disk-second"))
            })?;
            namespace.virtctl(&["stop", "vm", "--force", "--grace-period=0"])?;
            namespace.wait_status("vm", "Stopped", SOON)?;
            Ok(bus)
        };
        let before = bus_of_second()?;
        let patch = json!([
            {"op": "remove", "path": "/spec/template/spec/domain/devices/disks/1"},
            {"op": "remove", "path": "/spec/template/spec/volumes/1"},
        ]);
        namespace.change("vm", "vm", &patch)?;
        let after = bus_of_second()?;
        ensure!(before == after, "it moved from bus {before} to {after}");
        Ok(())
    });
}

#[test]
fn a_manual_machine_starts_and_stops_only_on_request() {
    in_namespace("manual", |namespace| {
        namespace.apply(&guest::machine("vm", "Manual"))?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.send("poweroff\n")?;
        namespace.wait_status("vm", "Stopped", SHUTDOWN)?;
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait_status("vm", "Running", RUNNING)?;
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        let vm = namespace.need("vm", "vm")?;
        ensure!(vm["spec"]["runStrategy"] == "Manual");
        Ok(())
    });
}

#[test]
fn a_guest_bigger_than_any_node_is_reported_as_unschedulable() {
    in_namespace("huge", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        guest::spec_of(&mut manifest)["domain"]["memory"]["guest"] = json!("4Ti");
        namespace.apply(&manifest)?;
        namespace.wait_status("vm", "ErrorUnschedulable", SOON)?;
        let vmi = namespace.wait("vmi", "vm", "to say why", SOON, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "PodScheduled"
                    && condition["status"] == "False"
                    && condition["message"].as_str().unwrap_or_default().contains("memory")
            })
        })?;
        ensure!(vmi["status"]["phase"] == "Scheduling", "{}", vmi["status"]["phase"]);
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_status("vm", "Stopped", SOON).map(drop)
    });
}

#[test]
fn an_image_that_does_not_exist_is_reported() {
    in_namespace("noimage", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        guest::spec_of(&mut manifest)["volumes"][0]["containerDisk"]["image"] =
            json!("localhost/no/such-image:devel");
        namespace.apply(&manifest)?;
        namespace.wait("vm", "vm", "to say that its image is missing", SOON, |vm| {
            matches!(vm["status"]["printableStatus"].as_str(), Some("ErrImagePull" | "ImagePullBackOff"))
        })?;
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(vmi["status"]["conditions"].to_string().contains("such-image"), "{}", vmi["status"]);
        Ok(())
    });
}

#[test]
fn nothing_is_written_while_nothing_happens() {
    in_namespace("quiet", |namespace| {
        namespace.apply(&guest::machine("vm", "Always"))?;
        namespace.wait_status("vm", "Running", RUNNING)?;
        let versions = || -> Result<_> {
            let version = |kind| {
                Ok::<_, anyhow::Error>(namespace.need(kind, "vm")?["metadata"]["resourceVersion"].clone())
            };
            Ok((version("vm")?, version("vmi")?))
        };
        std::thread::sleep(Duration::from_secs(5));
        let before = versions()?;
        std::thread::sleep(Duration::from_secs(20));
        ensure!(versions()? == before, "an idle machine's objects were written");
        Ok(())
    });
}

#[test]
fn the_monitor_answers_people_who_cannot_write_an_instances_status() {
    in_namespace("qmp", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let status: Value = serde_json::from_str(&namespace.virtctl(&["qmp", "vm", "query-status"])?)?;
        ensure!(status["running"] == true, "{status}");
        let name: Value = serde_json::from_str(&namespace.virtctl(&["qmp", "vm", "query-name"])?)?;
        ensure!(name["name"] == format!("{}_vm", namespace.name()), "{name}");
        let refused = namespace.try_virtctl(&["qmp", "vm", "screendump", "filename=/tmp/x"])?;
        ensure!(refused.code != 0, "what writes files is open to nobody: {}", refused.text());
        let patch = r#"{"status":{"phase":"Failed","nodeName":"elsewhere"}}"#;
        // Refused or without effect, either is fine.
        namespace.try_kubectl(&["patch", "vmi", "vm", "--type=merge", "-p", patch])?;
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(vmi["status"]["phase"] == "Running" && vmi["status"]["nodeName"] != "elsewhere");
        Ok(())
    });
}
