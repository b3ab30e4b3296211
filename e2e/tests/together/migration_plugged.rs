//! A guest moves with volumes, processors and memory that were plugged while it ran.

use crate::hotplug_volumes::{open, volume_status, wait_disk, wait_ready, wait_unreported};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::json;
use std::time::Duration;

/// How long a command of the guest may take.
const COMMAND: Duration = Duration::from_secs(60);
/// Time until the kubelet resizes a pod, and a guest plugs memory.
const CHANGE: Duration = Duration::from_secs(120);

/// A claim that every node reaches.
pub(crate) fn shared_claim(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "storageClassName": "rwx", "accessModes": ["ReadWriteMany"],
            "resources": { "requests": { "storage": "16Mi" } },
        },
    }))
}

#[test]
fn plugged_disks_move_with_their_guest() {
    in_namespace("moveplugged", |namespace| {
        for name in ["first", "data", "fast"] {
            shared_claim(namespace, name)?;
        }
        namespace.apply(&guest::machine("vm", "Always"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = open(namespace)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)?;
        for (claim, bus) in [("first", "scsi"), ("data", "scsi"), ("fast", "virtio")] {
            let (volume, serial) = (format!("--volume-name={claim}"), format!("--serial=PLUGGED-{claim}"));
            namespace.virtctl(&["addvolume", "vm", &volume, &serial, &format!("--bus={bus}")])?;
            wait_ready(namespace, claim)?;
        }
        // The other disks keep their addresses.
        namespace.virtctl(&["removevolume", "vm", "--volume-name=first"])?;
        wait_unreported(namespace, "first")?;
        let name = wait_disk(&mut console, "PLUGGED-data", true)?;
        wait_disk(&mut console, "PLUGGED-fast", true)?;
        let fill = format!("dd if=/dev/urandom of=/dev/{name} bs=1M count=4 conv=fsync 2>/dev/null");
        console.ok(&fill, COMMAND)?;
        let sum = |name: &str| {
            format!("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/{name} bs=1M count=4 2>/dev/null | md5sum")
        };
        let before = console.ok(&sum(&name), COMMAND)?;
        console.leave()?;
        let former = volume_status(&namespace.need("vmi", "vm")?, "data").context("no such volume")?;
        namespace.migrate("vm")?;
        let vmi = namespace.wait("vmi", "vm", "to have its volumes there", SOON, |vmi| {
            ["data", "fast"].iter().all(|name| {
                volume_status(vmi, name).is_some_and(|volume| {
                    let pod = &volume["hotplugVolume"]["attachPodName"];
                    volume["phase"] == "Ready" && *pod != former["hotplugVolume"]["attachPodName"]
                })
            })
        })?;
        // There is an attachment pod on its node for each of its disks, and no other.
        let pods = namespace.list("pod")?;
        let pods = pods.iter().filter(|pod| pod["metadata"]["labels"]["kubevirt.io"] == "hotplug-disk");
        let here = pods.filter(|pod| pod["spec"]["nodeName"] == vmi["status"]["nodeName"]).count();
        ensure!(here == 2, "{here} pods offer disks");
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        ensure!(console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)? == boot, "it has booted again");
        ensure!(wait_disk(&mut console, "PLUGGED-data", true)? == name, "the disk is another one");
        let after = console.ok(&sum(&name), COMMAND)?;
        ensure!(after == before, "the disk was {before} and is {after}");
        console
            .ok(&format!("dd if=/dev/zero of=/dev/{name} bs=1M count=4 conv=fsync 2>/dev/null"), COMMAND)?;
        console.leave()?;

        // It moves back, and its disks are unplugged there.
        namespace.migrate("vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let read = format!("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/{name} bs=1M count=4 2>/dev/null");
        let left = console.ok(&format!("{read} | tr -d '\\000' | wc -c"), COMMAND)?;
        ensure!(left.trim() == "0", "{left} bytes are not what was written on the other node");
        for volume in ["data", "fast"] {
            namespace.virtctl(&["removevolume", "vm", &format!("--volume-name={volume}")])?;
            wait_disk(&mut console, &format!("PLUGGED-{volume}"), false)?;
            wait_unreported(namespace, volume)?;
        }
        console.leave().map(drop)
    });
}

#[test]
fn a_guest_that_got_cpus_and_memory_moves_and_gets_more() {
    in_namespace("movegrown", |namespace| {
        let mut machine = guest::machine("vm", "Always");
        let domain = &mut guest::spec_of(&mut machine)["domain"];
        domain["cpu"] = json!({ "sockets": 1 });
        domain["memory"] = json!({ "guest": "1Gi" });
        domain["devices"]["networkInterfaceMultiqueue"] = json!(true);
        namespace.apply(&machine)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)?;
        console.leave()?;
        grow(namespace, 2, "1280Mi")?;
        namespace.migrate("vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        ensure!(console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)? == boot, "it has booted again");
        let said = console.ok("grep MemTotal /proc/meminfo", COMMAND)?;
        let total: u64 = said.split_whitespace().find_map(|word| word.parse().ok()).context(said.clone())?;
        ensure!(total > 1100 << 10, "it has {total} KiB");
        console.ok("dd if=/dev/urandom of=/root/written bs=1M count=2 2>/dev/null && sync", COMMAND)?;
        console.leave()?;
        answers_all(namespace)?;
        grow(namespace, 3, "1536Mi")?;
        namespace.migrate("vm")?;
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(vmi["status"]["currentCPUTopology"]["sockets"] == 3, "{}", vmi["status"]);
        Ok(())
    });
}

/// Checks that the guest answers each of many connections, by the one queue with which it was started. The kernel spreads
/// connections over all queues that are open, and some would get lost in one that nobody reads.
fn answers_all(namespace: &Namespace) -> Result<()> {
    let client = pods::client(namespace, "client")?;
    wait::until_true("each of twenty connections to be answered", SOON, || {
        let url = format!("http://{}/hostname", pods::host(&namespace.address("vm")?));
        let ask = format!("timeout 5 wget -qO- {url} >/dev/null || exit 1");
        Ok(client.sh(&format!("for i in $(seq 20); do {ask}; done"))?.code == 0)
    })?;
    let vmi = namespace.need("vmi", "vm")?;
    let card = &vmi["status"]["interfaces"][0];
    ensure!(card["queueCount"] == 1, "{card}");
    Ok(())
}

/// Gives the guest that many sockets and that much memory, and waits until it has both.
fn grow(namespace: &Namespace, sockets: u32, memory: &str) -> Result<()> {
    let domain = json!({ "cpu": { "sockets": sockets }, "memory": { "guest": memory } });
    let patch = json!({ "spec": { "template": { "spec": { "domain": domain } } } });
    namespace.merge("vm", "vm", &patch)?;
    namespace.wait("vmi", "vm", &format!("to have {sockets} sockets and {memory}"), CHANGE, |vmi| {
        let status = &vmi["status"];
        let conditions = status["conditions"].as_array();
        let changes = conditions
            .into_iter()
            .flatten()
            .any(|one| matches!(one["type"].as_str(), Some("HotVCPUChange" | "HotMemoryChange")));
        let spec = &vmi["spec"]["domain"];
        spec["cpu"]["sockets"] == sockets
            && spec["memory"]["guest"] == memory
            && status["currentCPUTopology"]["sockets"] == sockets
            && status["memory"]["guestCurrent"] == status["memory"]["guestRequested"]
            && !changes
    })?;
    Ok(())
}
