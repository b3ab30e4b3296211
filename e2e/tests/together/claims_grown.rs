//! Claims that grow while guests use them. The cluster's own storage cannot grow: these tests need the test bed's.

use crate::hotplug_volumes::{open, volume_status, wait_disk, wait_ready};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until a volume has grown, and the guest knows.
const CHANGE: Duration = Duration::from_secs(120);

/// A claim of 16 MiB.
fn claim(namespace: &Namespace, name: &str, class: &str, mode: &str) -> Result<()> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
            "resources": { "requests": { "storage": "16Mi" } },
        },
    }))
}

/// Has a claim grow to 64 MiB.
fn grow(namespace: &Namespace, name: &str) -> Result<()> {
    let patch = json!({ "spec": { "resources": { "requests": { "storage": "64Mi" } } } });
    namespace.merge("pvc", name, &patch)
}

/// A machine with a disk on the claim `data`.
fn machine() -> Value {
    let mut machine = guest::machine("vm", "Always");
    let spec = guest::spec_of(&mut machine);
    let disk = json!({ "name": "data", "serial": "DATA", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    guest::push(&mut spec["volumes"], volume);
    machine
}

/// The size that the guest sees, in MiB.
fn size(console: &mut Console, disk: &str) -> Result<u64> {
    let sectors = console.ok(&format!("cat /sys/block/{disk}/size"), SOON)?;
    let sectors: u64 = sectors.trim().parse().with_context(|| format!("{sectors:?} is not a number"))?;
    Ok(sectors >> 11)
}

fn wait_size(console: &mut Console, disk: &str, mib: u64) -> Result<()> {
    wait::until_true(&format!("{disk} to have {mib} MiB"), CHANGE, || Ok(size(console, disk)? == mib))
}

/// Fills the first 8 MiB; returns their checksum.
fn fill(console: &mut Console, disk: &str) -> Result<String> {
    console.ok(&format!("dd if=/dev/urandom of=/dev/{disk} bs=1M count=8 conv=fsync 2>/dev/null"), BOOT)?;
    sum(console, disk)
}

fn sum(console: &mut Console, disk: &str) -> Result<String> {
    let read = format!("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/{disk} bs=1M count=8 2>/dev/null");
    console.ok(&format!("{read} | md5sum"), BOOT)
}

/// Writes the last MiB of a disk and reads it.
fn uses_its_end(console: &mut Console, disk: &str, mib: u64) -> Result<()> {
    let last = mib - 1;
    console.ok(&format!("echo grown | dd of=/dev/{disk} bs=1M seek={last} conv=fsync 2>/dev/null"), BOOT)?;
    let read = format!("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/{disk} bs=1M skip={last} 2>/dev/null");
    let found = console.ok(&format!("{read} | head -n 1"), BOOT)?;
    ensure!(found == "grown", "{found:?}");
    Ok(())
}

#[test]
fn a_disk_grows_with_its_claim_while_its_guest_runs() {
    in_namespace("claimgrows", |namespace| {
        for name in ["data", "more"] {
            claim(namespace, name, "rwx", "Filesystem")?;
        }
        namespace.apply(&machine())?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = open(namespace)?;
        namespace.virtctl(&["addvolume", "vm", "--volume-name=more", "--serial=PLUGGED"])?;
        wait_ready(namespace, "more")?;
        let plugged = wait_disk(&mut console, "PLUGGED", true)?;
        let data = wait_disk(&mut console, "DATA", true)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        let disks = [data, plugged];
        let before = [fill(&mut console, &disks[0])?, fill(&mut console, &disks[1])?];
        for (disk, claim) in disks.iter().zip(["data", "more"]) {
            ensure!(size(&mut console, disk)? == 16, "a new disk has all of its claim");
            grow(namespace, claim)?;
            // 6 % are left to the file system.
            wait_size(&mut console, disk, 60)?;
            uses_its_end(&mut console, disk, 60)?;
            let vmi = namespace.need("vmi", "vm")?;
            let told = volume_status(&vmi, claim).context("no such volume")?;
            ensure!(told["persistentVolumeClaimInfo"]["capacity"]["storage"] == "64Mi", "{told}");
            ensure!(told["reason"] != "DiskNotGrown", "{told}");
        }
        for (disk, before) in disks.iter().zip(&before) {
            ensure!(sum(&mut console, disk)? == *before, "{disk} has other contents");
        }
        ensure!(console.ok("cat /proc/sys/kernel/random/boot_id", SOON)? == boot, "it has booted again");
        console.leave()?;

        // It keeps its size.
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING, |vmi| {
            vmi["metadata"]["uid"] != uid && vmi["status"]["phase"] == "Running"
        })?;
        let mut console = open(namespace)?;
        let data = wait_disk(&mut console, "DATA", true)?;
        ensure!(size(&mut console, &data)? == 60 && sum(&mut console, &data)? == before[0]);
        console.leave().map(drop)
    });
}

#[test]
fn a_device_grows_with_its_claim_while_its_guest_runs() {
    in_namespace("devicegrows", |namespace| {
        claim(namespace, "data", "block", "Block")?;
        namespace.apply(&machine())?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = open(namespace)?;
        let disk = wait_disk(&mut console, "DATA", true)?;
        let before = fill(&mut console, &disk)?;
        grow(namespace, "data")?;
        wait_size(&mut console, &disk, 64)?;
        uses_its_end(&mut console, &disk, 64)?;
        ensure!(sum(&mut console, &disk)? == before, "the contents are others");
        console.leave().map(drop)
    });
}
