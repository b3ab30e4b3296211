//! A guest with a disk on a claim that moves to another claim (`updateVolumesStrategy: Migration`).

use crate::condition;
use crate::console::Console;
use crate::guest;
use crate::namespace::Namespace;
use crate::wait::{BOOT, MOVED, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command of the guest may take.
const COMMAND: Duration = Duration::from_secs(60);
/// Shell code that sets `disk` to the claim's disk in the guest.
const DISK: &str = "disk=/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";
/// Shell code that prints the checksum of what [`fill`] wrote.
const SUM: &str = "echo 3 >/proc/sys/vm/drop_caches; dd if=$disk bs=1M count=8 2>/dev/null | md5sum";
/// The first sector of what [`write_on`] writes.
const FIRST: u64 = 16384;

/// A machine of a namespace. A namespace alone stands for its machine `vm`.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// The namespace.
    pub namespace: &'a Namespace,
    /// The name of the machine.
    pub name: &'a str,
}

impl<'a> From<&'a Namespace> for Machine<'a> {
    fn from(namespace: &'a Namespace) -> Self {
        Self { namespace, name: "vm" }
    }
}

/// The manifest of the machine `vm` with a disk on that claim, which moves with its guest.
pub fn machine(claim: &str) -> Value {
    let mut machine = guest::movable(guest::machine("vm", "Always"));
    machine["spec"]["updateVolumesStrategy"] = json!("Migration");
    let spec = guest::spec_of(&mut machine);
    let disk = json!({ "name": "data", "serial": "DATA", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
    guest::push(&mut spec["volumes"], volume);
    machine
}

/// The claim in a list of volumes.
pub fn claim_of(volumes: &Value) -> &str {
    let volume = volumes.as_array().into_iter().flatten().find(|volume| volume["name"] == "data");
    volume.and_then(|volume| volume["persistentVolumeClaim"]["claimName"].as_str()).unwrap_or_default()
}

/// The claim in the status.
pub fn claim_in_status(vmi: &Value) -> &str {
    let volumes = vmi["status"]["volumeStatus"].as_array();
    let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == "data");
    volume.and_then(|volume| volume["persistentVolumeClaimInfo"]["claimName"].as_str()).unwrap_or_default()
}

/// Changes the machine so that its disk is on that claim.
pub fn name_claim<'a>(machine: impl Into<Machine<'a>>, claim: &str) -> Result<()> {
    let Machine { namespace, name } = machine.into();
    let machine = namespace.need("vm", name)?;
    let volumes = machine["spec"]["template"]["spec"]["volumes"].as_array().context("it has no volumes")?;
    let index =
        volumes.iter().position(|volume| volume["name"] == "data").context("it has no such volume")?;
    let path = format!("/spec/template/spec/volumes/{index}/persistentVolumeClaim/claimName");
    let patch = json!([{ "op": "replace", "path": path, "value": claim }]);
    namespace.change("vm", name, &patch)
}

/// Waits until the instance is to move its disk to that claim, and asks for a migration if there is none.
pub fn begin<'a>(machine: impl Into<Machine<'a>>, claim: &str) -> Result<()> {
    let machine: Machine<'a> = machine.into();
    let Machine { namespace, name } = machine;
    let vmi = namespace.wait("vmi", name, "to be to move its volume", SOON, |vmi| {
        condition(vmi, "VolumesChange")["status"] == "True" && claim_of(&vmi["spec"]["volumes"]) == claim
    })?;
    let moved = &vmi["status"]["migratedVolumes"][0];
    ensure!(moved["volumeName"] == "data", "{moved}");
    ensure!(moved["destinationPVCInfo"]["claimName"] == claim, "{moved}");
    ensure!(moved["sourcePVCInfo"]["claimName"] == claim_in_status(&vmi), "{moved}");
    namespace.wait("vm", name, "to keep what moves", SOON, |vm| {
        vm["status"]["volumeUpdateState"]["volumeMigrationState"]["migratedVolumes"][0] == *moved
    })?;
    ask(machine)
}

/// Asks for a migration if there is none.
pub fn ask<'a>(machine: impl Into<Machine<'a>>) -> Result<()> {
    let Machine { namespace, name } = machine.into();
    let asked = namespace.try_virtctl(&["migrate", name])?;
    // With `LiveMigrate` among its workload update methods, the installation asks for one itself.
    ensure!(asked.code == 0 || asked.text().contains("in-flight migration detected"), "{asked:?}");
    Ok(())
}

/// Waits until the guest has moved with its disk to that claim. Returns the new node.
pub fn wait_moved<'a>(machine: impl Into<Machine<'a>>, home: &Value, claim: &str) -> Result<String> {
    let Machine { namespace, name } = machine.into();
    let vmi = namespace.wait("vmi", name, "to have moved", MOVED, |vmi| {
        let state = &vmi["status"]["migrationState"];
        state["completed"] == true && (state["failed"] == true || vmi["status"]["nodeName"] != *home)
    })?;
    ensure!(vmi["status"]["nodeName"] != *home, "{}", vmi["status"]);
    ensure!(vmi["status"]["migratedVolumes"].is_null(), "{}", vmi["status"]);
    ensure!(
        condition(&vmi, "VolumesChange").is_null() && claim_in_status(&vmi) == claim,
        "{}",
        vmi["status"]
    );
    namespace.wait("vm", name, "to need nothing", SOON, |vm| {
        ["RestartRequired", "VolumesChange", "ManualRecoveryRequired"]
            .iter()
            .all(|type_| condition(vm, type_).is_null())
    })?;
    Ok(vmi["status"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

/// Moves the guest with its disk to that claim. Returns the new node.
pub fn moves<'a>(machine: impl Into<Machine<'a>>, claim: &str) -> Result<String> {
    let machine: Machine<'a> = machine.into();
    let home = machine.namespace.need("vmi", machine.name)?["status"]["nodeName"].clone();
    machine.namespace.delete_all("vmim")?;
    name_claim(machine, claim)?;
    begin(machine, claim)?;
    wait_moved(machine, &home, claim)
}

/// Runs a command in the guest.
pub fn run<'a>(machine: impl Into<Machine<'a>>, command: &str) -> Result<String> {
    let Machine { namespace, name } = machine.into();
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    let said = console.ok(command, COMMAND)?;
    console.leave()?;
    Ok(said)
}

/// The guest's boot ID.
pub fn boot<'a>(machine: impl Into<Machine<'a>>) -> Result<String> {
    run(machine, "cat /proc/sys/kernel/random/boot_id")
}

/// Writes random bytes to the beginning of the disk, and returns their checksum.
pub fn fill<'a>(machine: impl Into<Machine<'a>>) -> Result<String> {
    run(machine, &format!("{DISK}; dd if=/dev/urandom of=$disk bs=1M count=8 conv=fsync 2>/dev/null; {SUM}"))
}

/// The checksum of the beginning of the disk.
pub fn sum<'a>(machine: impl Into<Machine<'a>>) -> Result<String> {
    run(machine, &format!("{DISK}; {SUM}"))
}

/// Makes the guest write numbered lines of 512 bytes, each synced to the disk before the next.
pub fn write_on<'a>(machine: impl Into<Machine<'a>>) -> Result<()> {
    let write = format!(
        "({DISK}; rm -f /tmp/stop /tmp/stopped; i=0; while [ ! -e /tmp/stop ]; do printf '%0511d\\n' $i | \
         dd of=$disk bs=512 seek=$(({FIRST}+i)) conv=notrunc,fsync; echo $i >/tmp/written; i=$((i+1)); sleep 0.2; done; \
         touch /tmp/stopped) >/dev/null 2>&1 &"
    );
    run(machine, &format!("{{ {write} }}")).map(drop)
}

/// Ends that, and checks that every line is on the disk.
pub fn has_written<'a>(machine: impl Into<Machine<'a>>) -> Result<()> {
    let Machine { namespace, name } = machine.into();
    let stop = "touch /tmp/stop; while [ ! -e /tmp/stopped ]; do sleep 1; done; sync; echo 3 >/proc/sys/vm/drop_caches";
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    console.ok(stop, COMMAND)?;
    let lines = console.ok("cat /tmp/written", COMMAND)?;
    let lines: u64 = lines.trim().parse().with_context(|| format!("{lines:?} is not a number"))?;
    ensure!(lines > 10, "it has written {lines} lines");
    let count = lines + 1;
    let read =
        format!("{DISK}; dd if=$disk bs=512 skip={FIRST} count={count} 2>/dev/null | sed 's/^0*//' | md5sum");
    let wanted = format!("seq 0 {lines} | sed 's/^0$//' | md5sum");
    let (found, wanted) = (console.ok(&read, COMMAND)?, console.ok(&wanted, COMMAND)?);
    console.leave()?;
    ensure!(found == wanted, "the disk has lost what the guest wrote during the move: {found}, not {wanted}");
    Ok(())
}
