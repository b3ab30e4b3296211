//! A guest boots, answers on its console, and matches its manifest.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::json;

/// Starts an instance and opens its console while it boots.
fn boot(namespace: &Namespace, manifest: &serde_json::Value) -> Result<Console> {
    namespace.apply(manifest)?;
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    namespace.wait_phase(name, "Running", RUNNING)?;
    Console::open(namespace, name)
}

#[test]
fn an_instance_boots_to_a_prompt_and_takes_commands() {
    in_namespace("boot", |namespace| {
        let mut console = boot(namespace, &guest::instance("vm"))?;
        console.login(BOOT)?;
        ensure!(console.ok("uname -s", SOON)? == "Linux");
        ensure!(console.ok("nproc", SOON)? == "1");
        ensure!(console.leave()? == 0, "ctrl-] leaves the console in peace");
        Ok(())
    });
}

#[test]
fn a_running_instance_says_where_and_what_it_is() {
    in_namespace("status", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        ensure!(vmi["status"]["nodeName"] == launcher["spec"]["nodeName"]);
        ensure!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"] == launcher["spec"]["nodeName"]);
        let interface = namespace.address("vm")?;
        ensure!(
            launcher["status"]["podIP"] == interface,
            "the interface has the pod's address, not {interface}"
        );
        namespace.kubectl(&["wait", "vmi/vm", "--for=condition=Ready", "--timeout=60s"])?;
        let table = namespace.kubectl(&["get", "vmi", "vm"])?;
        for word in ["PHASE", "Running", &interface, "True"] {
            ensure!(table.contains(word), "`kubectl get vmi` does not show {word}: {table}");
        }
        Ok(())
    });
}

#[test]
fn the_launcher_pod_has_no_privilege() {
    in_namespace("privilege", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let node = barevirt_e2e::Node::of(&launcher)?;
        let qemu = node.processes(&launcher, "qemu-system-x86_64")?;
        ensure!(qemu.len() == 1, "one QEMU runs in the pod, not {}", qemu.len());
        for process in qemu.iter().chain(&node.processes(&launcher, "virt-launcher")?) {
            let status = node.sh(&format!("cat /proc/{process}/status"))?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
            };
            ensure!(field("Uid:") == "107", "uid {}", field("Uid:"));
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                ensure!(field(set) == "0000000000000000", "capabilities {set} {}", field(set));
            }
            ensure!(field("NoNewPrivs:") == "1");
            ensure!(field("Seccomp:") == "2");
        }
        Ok(())
    });
}

#[test]
fn cpus_and_memory_are_those_of_the_manifest() {
    in_namespace("shape", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["cpu"] = json!({ "sockets": 1, "cores": 2, "threads": 1 });
        manifest["spec"]["domain"]["memory"]["guest"] = json!("192Mi");
        let mut console = boot(namespace, &manifest)?;
        console.login(BOOT)?;
        ensure!(console.ok("nproc", SOON)? == "2");
        let kib: u64 = console.ok("awk '/MemTotal/ {print $2}' /proc/meminfo", SOON)?.parse()?;
        // The kernel reserves some memory.
        ensure!((140 * 1024..192 * 1024).contains(&kib), "the guest has {kib} KiB");
        Ok(())
    });
}

#[test]
fn cloud_init_names_the_guest_and_runs_its_commands() {
    in_namespace("cloudinit", |namespace| {
        let user_data = "#cloud-config\nhostname: seeded\nruncmd:\n  - echo seeds are sown >/root/proof\n";
        let mut console = boot(namespace, &guest::with_user_data(guest::instance("vm"), user_data))?;
        console.expect("seeded login: ", BOOT)?;
        console.login(SOON)?;
        ensure!(console.ok("cat /root/proof", SOON)? == "seeds are sown");
        Ok(())
    });
}

#[test]
fn cloud_init_takes_user_data_from_a_secret() {
    in_namespace("cloudsecret", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "seed" },
            "stringData": { "userdata": "#!/bin/sh\necho 'the secret is' out\n" },
        }))?;
        let mut manifest = guest::with_user_data(guest::instance("vm"), "");
        manifest["spec"]["volumes"][1] =
            json!({ "name": "seed", "cloudInitNoCloud": { "secretRef": { "name": "seed" } } });
        let mut console = boot(namespace, &manifest)?;
        console.expect("the secret is out", BOOT)?;
        Ok(())
    });
}

#[test]
fn cloud_init_configures_the_network() {
    in_namespace("cloudnet", |namespace| {
        let mut manifest = guest::with_user_data(guest::instance("vm"), "#cloud-config\n{}\n");
        manifest["spec"]["volumes"][1]["cloudInitNoCloud"]["networkData"] = json!(
            "version: 2\nethernets:\n  eth0:\n    addresses: [10.0.2.2/24, 192.0.2.77/24]\n    gateway4: 10.0.2.1\n"
        );
        let mut console = boot(namespace, &manifest)?;
        console.login(BOOT)?;
        ensure!(console.ok("ip address show dev eth0", SOON)?.contains("192.0.2.77/24"));
        Ok(())
    });
}

#[test]
fn disks_on_every_bus_hold_what_is_written() {
    in_namespace("disks", |namespace| {
        let mut manifest = guest::instance("vm");
        for (name, target) in [
            ("blank", json!({ "disk": { "bus": "virtio" } })),
            ("slow", json!({ "disk": { "bus": "sata" } })),
        ] {
            let mut disk = json!({ "name": name, "serial": format!("SERIAL-{name}") });
            disk.as_object_mut().into_iter().for_each(|disk| {
                disk.extend(target.as_object().cloned().unwrap_or_default());
            });
            guest::push(&mut manifest["spec"]["domain"]["devices"]["disks"], disk);
            guest::push(
                &mut manifest["spec"]["volumes"],
                json!({ "name": name, "emptyDisk": { "capacity": "16Mi" } }),
            );
        }
        let mut console = boot(namespace, &manifest)?;
        console.login(BOOT)?;
        for device in ["vdb", "sda"] {
            ensure!(console.ok(&format!("blockdev --getsize64 /dev/{device}"), SOON)? == "16777216");
            console.ok(
                &format!("echo content of {device} | dd of=/dev/{device} bs=512 seek=9 conv=sync,fsync"),
                SOON,
            )?;
            console.ok("echo 3 >/proc/sys/vm/drop_caches", SOON)?;
            let read = format!("dd if=/dev/{device} bs=512 skip=9 count=1 2>/dev/null | head -n1");
            ensure!(console.ok(&read, SOON)? == format!("content of {device}"));
        }
        ensure!(console.ok("cat /sys/block/vdb/serial", SOON)? == "SERIAL-blank");
        Ok(())
    });
}

#[test]
fn a_reboot_inside_the_guest_keeps_the_instance() {
    in_namespace("reboot", |namespace| {
        let mut console = boot(namespace, &guest::instance("vm"))?;
        console.login(BOOT)?;
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        let before = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        console.send("reboot\n")?;
        console.expect("boot-id: ", BOOT)?;
        console.login(BOOT)?;
        let after = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        ensure!(before != after, "the guest did not boot again");
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(vmi["metadata"]["uid"] == uid && vmi["status"]["phase"] == "Running");
        Ok(())
    });
}

#[test]
fn a_guest_that_powers_off_has_succeeded() {
    in_namespace("poweroff", |namespace| {
        let mut console = boot(namespace, &guest::instance("vm"))?;
        console.login(BOOT)?;
        console.send("poweroff\n")?;
        let vmi = namespace.wait("vmi", "vm", "to be final", BOOT, |vmi| {
            matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        })?;
        ensure!(vmi["status"]["phase"] == "Succeeded", "{}", vmi["status"]);
        Ok(())
    });
}

#[test]
fn a_second_console_takes_over_from_the_first() {
    in_namespace("consoles", |namespace| {
        let mut first = boot(namespace, &guest::instance("vm"))?;
        first.login(BOOT)?;
        let mut second = Console::open(namespace, "vm")?;
        second.login(SOON)?;
        ensure!(first.wait(SOON)? == 1, "{}", first.output());
        ensure!(first.output().contains("another user connected to it"), "{}", first.output());
        ensure!(second.ok("echo still here", SOON)? == "still here");
        Ok(())
    });
}

#[test]
fn a_console_of_nothing_is_refused_with_a_reason() {
    in_namespace("noconsole", |namespace| {
        let mut console = Console::open(namespace, "nobody")?;
        let code = console.wait(SOON)?;
        ensure!(code != 0 && console.output().contains("nobody"), "{}", console.output());
        Ok(())
    });
}
