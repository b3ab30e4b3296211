//! A guest boots, answers on its console, and matches its manifest.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::json;

/// Starts an instance and opens its console while it boots.
fn boot(namespace: &Namespace, manifest: &serde_json::Value) -> Result<Console> {
    namespace.apply(manifest)?;
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    namespace.wait_phase(name, "Running", RUNNING)?;
    Console::open(namespace, name)
}

/// The life of one guest. Each step is a behaviour of its own.
#[test]
fn one_guest_boots_reports_its_state_switches_consoles_reboots_and_powers_off() {
    in_namespace("boot", |namespace| {
        let mut console = boot(namespace, &guest::instance("vm"))?;
        says_where_and_what_it_is(namespace)?;
        has_a_launcher_pod_without_privilege(namespace)?;
        console.login(BOOT)?;
        ensure!(console.ok("uname -s", SOON)? == "Linux");
        ensure!(console.ok("nproc", SOON)? == "1");
        let mut console = second_console_takes_over(namespace, console)?;
        reboot_keeps_the_instance(namespace, &mut console)?;
        ensure!(console.leave()? == 0, "ctrl-] leaves the console in peace");
        power_off_is_success(namespace)
    });
}

fn says_where_and_what_it_is(namespace: &Namespace) -> Result<()> {
    let vmi = namespace.need("vmi", "vm")?;
    let launcher = namespace.launcher("vm")?;
    ensure!(vmi["status"]["nodeName"] == launcher["spec"]["nodeName"]);
    ensure!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"] == launcher["spec"]["nodeName"]);
    let interface = namespace.address("vm")?;
    ensure!(launcher["status"]["podIP"] == interface, "the interface has the pod's address, not {interface}");
    namespace.kubectl(&["wait", "vmi/vm", "--for=condition=Ready", "--timeout=60s"])?;
    let table = namespace.kubectl(&["get", "vmi", "vm"])?;
    for word in ["PHASE", "Running", &interface, "True"] {
        ensure!(table.contains(word), "`kubectl get vmi` does not show {word}: {table}");
    }
    Ok(())
}

fn has_a_launcher_pod_without_privilege(namespace: &Namespace) -> Result<()> {
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
}

/// Returns the second console; the first one has ended.
fn second_console_takes_over(namespace: &Namespace, mut first: Console) -> Result<Console> {
    let mut second = Console::open(namespace, "vm")?;
    second.login(SOON)?;
    ensure!(first.wait(SOON)? == 1, "{}", first.output());
    ensure!(first.output().contains("another user connected to it"), "{}", first.output());
    ensure!(second.ok("echo still here", SOON)? == "still here");
    Ok(second)
}

fn reboot_keeps_the_instance(namespace: &Namespace, console: &mut Console) -> Result<()> {
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
}

fn power_off_is_success(namespace: &Namespace) -> Result<()> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    console.send("poweroff\n")?;
    let vmi = namespace.wait("vmi", "vm", "to be final", BOOT, |vmi| {
        matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
    })?;
    ensure!(vmi["status"]["phase"] == "Succeeded", "{}", vmi["status"]);
    Ok(())
}

/// A guest with CPUs, memory, disks and cloud-init of its manifest.
#[test]
fn a_guest_has_what_its_manifest_and_its_cloud_init_say_and_ends_at_its_reboot_where_that_is_asked_for() {
    in_namespace("shape", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["cpu"] = json!({ "sockets": 1, "cores": 2, "threads": 1 });
        manifest["spec"]["domain"]["memory"]["guest"] = json!("192Mi");
        manifest["spec"]["domain"]["rebootPolicy"] = json!("Terminate");
        for (name, bus) in [("blank", "virtio"), ("slow", "sata")] {
            let disk = json!({ "name": name, "serial": format!("SERIAL-{name}"), "disk": { "bus": bus } });
            guest::push(&mut manifest["spec"]["domain"]["devices"]["disks"], disk);
            let volume = json!({ "name": name, "emptyDisk": { "capacity": "16Mi" } });
            guest::push(&mut manifest["spec"]["volumes"], volume);
        }
        let user_data = "#cloud-config\nhostname: seeded\nruncmd:\n  - echo seeds are sown >/root/proof\n";
        let mut manifest = guest::with_user_data(manifest, user_data);
        manifest["spec"]["volumes"][3]["cloudInitNoCloud"]["networkData"] = json!(
            "version: 2\nethernets:\n  eth0:\n    addresses: [10.0.2.2/24, 192.0.2.77/24]\n    gateway4: 10.0.2.1\n"
        );
        let mut console = boot(namespace, &manifest)?;
        console.login(BOOT)?;
        ensure!(console.ok("hostname", SOON)? == "seeded");
        has_cpus_and_memory(&mut console)?;
        has_disks_that_hold_what_is_written(&mut console)?;
        // The network and the commands of cloud-init.
        ensure!(console.ok("ip address show dev eth0", SOON)?.contains("192.0.2.77/24"));
        ensure!(console.ok("cat /root/proof", SOON)? == "seeds are sown");
        console.send("reboot -f\n")?;
        namespace.wait_phase("vm", "Succeeded", SHUTDOWN).map(drop)
    });
}

fn has_cpus_and_memory(console: &mut Console) -> Result<()> {
    ensure!(console.ok("nproc", SOON)? == "2");
    let kib: u64 = console.ok("awk '/MemTotal/ {print $2}' /proc/meminfo", SOON)?.parse()?;
    // The kernel reserves some memory.
    ensure!((140 * 1024..192 * 1024).contains(&kib), "the guest has {kib} KiB");
    Ok(())
}

fn has_disks_that_hold_what_is_written(console: &mut Console) -> Result<()> {
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
}

#[test]
fn a_console_of_a_missing_instance_is_refused_with_the_reason() {
    in_namespace("noconsole", |namespace| {
        let mut console = Console::open(namespace, "nobody")?;
        let code = console.wait(SOON)?;
        ensure!(code != 0 && console.output().contains("nobody"), "{}", console.output());
        Ok(())
    });
}
