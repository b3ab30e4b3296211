//! Features of the machine in its guest: a few machines with many features each.

use crate::firmware;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, in_no_namespace};
use serde_json::{Value, json};

/// Vendor and device of everything on the guest's PCI buses, such as `0x8086 0x25ab`.
fn pci_devices(console: &mut Console) -> Result<String> {
    console.ok("for d in /sys/bus/pci/devices/*; do echo $(cat $d/vendor $d/device); done", SOON)
}

#[test]
fn devices_sit_where_their_manifest_puts_them() {
    in_namespace("addresses", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        let spec = guest::spec_of(&mut manifest);
        let places = [("whole", "0000:00:10.0"), ("first", "0000:00:02.0"), ("second", "0000:00:02.1")];
        for (name, address) in places {
            let disk = json!({ "bus": "virtio", "pciAddress": address });
            let disk = json!({ "name": name, "serial": name, "disk": disk });
            guest::push(&mut spec["domain"]["devices"]["disks"], disk);
            guest::push(&mut spec["volumes"], json!({ "name": name, "emptyDisk": { "capacity": "1Mi" } }));
        }
        let devices = &mut spec["domain"]["devices"];
        devices["interfaces"][0]["pciAddress"] = json!("0000:05:00.0");
        devices["interfaces"][0]["acpiIndex"] = json!(7);
        let mut console = Console::boot(namespace, &manifest)?;
        for (name, address) in places {
            let disk = console.ok(&format!("dirname $(grep -lx {name} /sys/block/*/serial)"), SOON)?;
            let path = console.ok(&format!("readlink -f {}/device", disk.trim()), SOON)?;
            ensure!(path.contains(&format!("/pci0000:00/{address}/")), "{name} is at {path}");
        }
        let path = console.ok("readlink -f /sys/class/net/eth0/device", SOON)?;
        ensure!(path.contains("/0000:05:00.0/"), "the network card is at {path}");
        let index = console.ok("cat /sys/bus/pci/devices/0000:05:00.0/acpi_index", SOON)?;
        ensure!(index.trim() == "7", "{index}");

        let mut wrong = manifest.clone();
        wrong["metadata"]["name"] = json!("wrong");
        guest::spec_of(&mut wrong)["domain"]["devices"]["disks"][1]["disk"]["pciAddress"] =
            json!("0000:04:10.0");
        let refused = namespace.refusal(&wrong)?;
        let field = "spec.template.spec.domain.devices.disks[1].disk.pciAddress";
        ensure!(refused.contains(field) && refused.contains("Invalid PCI address 0000:04:10.0"), "{refused}");
        Ok(())
    });
}

#[test]
fn a_guest_of_older_devices_has_a_network_queue_for_each_cpu_and_fails_when_its_watchdog_is_not_fed() {
    in_namespace("older", |namespace| {
        let mut manifest = guest::instance("vm");
        let domain = &mut manifest["spec"]["domain"];
        domain["cpu"] = json!({ "cores": 2 });
        let devices = &mut domain["devices"];
        devices["useVirtioTransitional"] = json!(true);
        devices["networkInterfaceMultiqueue"] = json!(true);
        devices["rng"] = json!({});
        devices["inputs"] = json!([{ "name": "pen", "type": "tablet", "bus": "virtio" }]);
        devices["watchdog"] = json!({ "name": "dog", "i6300esb": { "action": "poweroff" } });
        guest::push(&mut devices["disks"], json!({ "name": "data", "disk": { "bus": "scsi" } }));
        for (name, tray) in [("in", "closed"), ("out", "open")] {
            let drive = json!({ "name": name, "cdrom": { "bus": "sata", "tray": tray } });
            guest::push(&mut devices["disks"], drive);
        }
        let volumes = &mut manifest["spec"]["volumes"];
        for name in ["data", "in", "out"] {
            guest::push(volumes, json!({ "name": name, "emptyDisk": { "capacity": "16Mi" } }));
        }
        let mut console = Console::boot(namespace, &manifest)?;

        let media =
            console.ok("for d in sr0 sr1; do head -c 1 /dev/$d >/dev/null 2>&1; echo $d=$?; done", SOON)?;
        let (full, empty) = (media.matches("=0").count(), media.matches("=1").count());
        ensure!((full, empty) == (1, 1), "one drive has its medium and one has not: {media}");
        let found = pci_devices(&mut console)?;
        for (what, device) in [
            ("network card", "0x1af4 0x1000"),
            ("disk", "0x1af4 0x1001"),
            ("balloon", "0x1af4 0x1002"),
            ("serial controller", "0x1af4 0x1003"),
            ("SCSI controller", "0x1af4 0x1004"),
            ("source of random numbers", "0x1af4 0x1005"),
            ("tablet, which has no older form,", "0x1af4 0x1052"),
        ] {
            ensure!(found.contains(device), "the {what} ({device}) is not among {found}");
        }
        let queues = console.ok("ls /sys/class/net/eth0/queues | grep -c rx-", SOON)?;
        ensure!(queues.trim() == "2", "the guest has {queues} queues");
        console.ok("ip -4 addr show eth0 | grep -F 10.0.2.2", SOON)?;
        let told = namespace.need("vmi", "vm")?["status"]["interfaces"][0]["queueCount"].clone();
        ensure!(told == 2, "the status tells of {told} queues");
        console.ok("modprobe i6300esb && [ -c /dev/watchdog ]", SOON)?;
        // The guest resets the watchdog once a minute, but it fires after four seconds.
        console.send("watchdog -t 60 -T 4 /dev/watchdog\n")?;
        namespace.wait_phase("vm", "Failed", SHUTDOWN).map(drop)
    });
}

/// One guest with many settings and devices. Each step is a behaviour of its own.
#[test]
fn a_guest_reads_its_case_its_clock_its_cpu_its_blocks_its_link_its_small_devices_and_a_table_of_a_secret() {
    in_namespace("board", |namespace| {
        let table = firmware::table();
        let mut manifest = firmware::with_table(namespace, guest::instance("vm"), &table)?;
        with_small_devices(&mut manifest["spec"]["domain"]["devices"]);
        let domain = &mut manifest["spec"]["domain"];
        domain["chassis"] = json!({ "manufacturer": "Acme, Inc.", "asset": "A-17", "serial": "C-1" });
        domain["clock"] =
            json!({ "utc": { "offsetSeconds": 86_400_000 }, "timer": { "hpet": { "present": false } } });
        domain["cpu"] = json!({ "features": [
            { "name": "sse4.2", "policy": "require" },
            { "name": "aes", "policy": "disable" },
        ]});
        domain["features"] = json!({ "hyperv": { "relaxed": {}, "synictimer": {} }, "pvspinlock": {} });
        domain["ioThreadsPolicy"] = json!("auto");
        domain["devices"]["blockMultiQueue"] = json!(true);
        domain["devices"]["disableHotplug"] = json!(true);
        domain["devices"]["interfaces"][0]["state"] = json!("down");
        guest::push(
            &mut domain["devices"]["disks"],
            json!({
                "name": "data", "serial": "DATA", "errorPolicy": "report", "dedicatedIOThread": true,
                "blockSize": { "custom": { "logical": 4096, "physical": 4096 } },
                "disk": { "bus": "virtio" },
            }),
        );
        guest::push(
            &mut domain["devices"]["disks"],
            json!({
                "name": "match", "serial": "MATCH", "blockSize": { "matchVolume": {} },
                "disk": { "bus": "virtio" },
            }),
        );
        let volumes = &mut manifest["spec"]["volumes"];
        for name in ["data", "match"] {
            guest::push(volumes, json!({ "name": name, "emptyDisk": { "capacity": "16Mi" } }));
        }
        let mut console = Console::boot(namespace, &manifest)?;

        ensure!(console.ok("cat /sys/class/dmi/id/chassis_vendor", SOON)? == "Acme, Inc.");
        ensure!(console.ok("cat /sys/class/dmi/id/chassis_asset_tag", SOON)? == "A-17");
        let shown = console.ok("cat /sys/class/rtc/rtc0/since_epoch", SOON)?;
        let shown: u64 = shown.trim().parse().with_context(|| format!("{shown} is not a time"))?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        ensure!(shown.abs_diff(now + 86_400_000) < 300, "the clock shows {shown}, it is {now}");
        let sources = "cat /sys/devices/system/clocksource/clocksource0/available_clocksource";
        ensure!(!console.ok(sources, SOON)?.contains("hpet"), "there is an HPET");
        let flags = console.ok("grep -m1 ^flags /proc/cpuinfo", SOON)?;
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        ensure!(has("sse4_2") && !has("aes"), "features do not follow: {flags}");
        let size = |serial: &str| {
            format!(
                "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = {serial} ] && cat $d/queue/logical_block_size; done; true"
            )
        };
        ensure!(console.ok(&size("DATA"), SOON)? == "4096");
        // The file systems of nodes have blocks of that size, or of a larger one.
        ensure!(console.ok(&size("MATCH"), SOON)? == "4096");
        // Required Hyper-V interfaces were added, although emulation has none of them.
        let hyperv = namespace.need("vmi", "vm")?["spec"]["domain"]["features"]["hyperv"].clone();
        ensure!(hyperv["synic"]["enabled"] == true && hyperv["vpindex"]["enabled"] == true, "{hyperv}");

        console.ok("ip link set eth0 up", SOON)?;
        let carrier = console.ok("cat /sys/class/net/eth0/carrier", SOON)?;
        ensure!(carrier.trim() == "0", "the link is {carrier}");
        let card = namespace.need("vmi", "vm")?["status"]["interfaces"][0].clone();
        ensure!(card["linkState"] == "down", "{card}");
        has_small_devices(namespace, &mut console)?;
        has_that_table(&mut console, &table)
    });
}

fn with_small_devices(devices: &mut Value) {
    devices["watchdog"] = json!({ "name": "dog" });
    devices["sound"] = json!({ "name": "noise" });
    devices["video"] = json!({ "type": "bochs" });
    devices["inputs"] = json!([
        { "name": "pen", "type": "tablet" },
        { "name": "touch", "type": "tablet", "bus": "virtio" },
    ]);
}

fn has_small_devices(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let found = pci_devices(console)?;
    for (what, device) in [
        ("the watchdog", "0x8086 0x25ab"),
        ("an ICH9 sound card", "0x8086 0x293e"),
        ("the display", "0x1234 0x1111"),
        ("a USB controller for the tablet", "0x1b36 0x000d"),
        ("a virtio tablet", "0x1af4 0x1052"),
    ] {
        ensure!(found.contains(device), "{what} ({device}) is not among {found}");
    }
    let vmi = namespace.need("vmi", "vm")?;
    let told = &vmi["spec"]["domain"]["devices"];
    ensure!(told["watchdog"]["i6300esb"]["action"] == "reset", "a watchdog resets: {}", told["watchdog"]);
    ensure!(told["inputs"][0]["bus"] == "usb", "a tablet is on USB: {}", told["inputs"]);
    Ok(())
}

fn has_that_table(console: &mut Console, table: &[u8]) -> Result<()> {
    let hex: String = table.iter().map(|byte| format!("{byte:02x}")).collect();
    let found = console.ok("hexdump -v -e '1/1 \"%02x\"' /sys/firmware/acpi/tables/MSDM; echo", SOON)?;
    ensure!(found.trim() == hex, "{found} is not {hex}");
    Ok(())
}

#[test]
fn a_feature_that_no_node_has_is_named_by_the_failed_instance() {
    in_namespace("nofeature", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["cpu"] =
            json!({ "features": [{ "name": "avx512-fp16", "policy": "require" }] });
        namespace.apply(&manifest)?;
        // If the nodes have feature labels, the pod stays pending; otherwise the launcher refuses the guest.
        namespace.wait("vmi", "vm", "to fail or to wait for a node", RUNNING, |vmi| {
            let text = vmi["status"].to_string();
            let refused = vmi["status"]["phase"] == "Failed" && text.contains("avx512-fp16");
            refused || text.contains("Unschedulable")
        })?;
        Ok(())
    });
}

#[test]
fn an_unsupported_field_is_refused_by_name() {
    in_no_namespace(|namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["clock"] = json!({"timer": {"hpet": {"tickPolicy": "delay"}}});
        let refusal = namespace.refusal(&manifest)?;
        ensure!(refusal.contains("hpet.tickPolicy is not supported yet"), "{refusal}");
        Ok(())
    });
}

#[test]
fn an_instance_with_huge_pages_that_no_node_has_is_not_scheduled() {
    in_namespace("pages", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["memory"] = json!({ "guest": "66Mi", "hugepages": { "pageSize": "3Mi" } });
        namespace.apply(&manifest)?;
        namespace.wait("vmi", "vm", "to miss its pages", RUNNING, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "PodScheduled"
                    && condition["reason"] == "Unschedulable"
                    && condition["message"].to_string().contains("Insufficient hugepages-3Mi")
            })
        })?;
        Ok(())
    });
}
