//! A guest moves with a disk that only its node has, to another claim and back; and stays on the former claim
//! when the move is cancelled.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{BOOT, MOVED, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command of the guest may take.
const COMMAND: Duration = Duration::from_secs(60);
/// Shell code that sets `disk` to the claim's disk in the guest.
const DISK: &str = "disk=/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";

/// A machine with a disk on that claim, which moves with its guest.
fn machine(claim: &str) -> Value {
    let mut machine = guest::movable(guest::machine("vm", "Always"));
    machine["spec"]["updateVolumesStrategy"] = json!("Migration");
    let spec = guest::spec_of(&mut machine);
    let disk = json!({ "name": "data", "serial": "DATA", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
    guest::push(&mut spec["volumes"], volume);
    machine
}

fn claim_of(volumes: &Value) -> &str {
    let volume = volumes.as_array().into_iter().flatten().find(|volume| volume["name"] == "data");
    volume.and_then(|volume| volume["persistentVolumeClaim"]["claimName"].as_str()).unwrap_or_default()
}

/// The claim in the status.
fn claim_in_status(vmi: &Value) -> &str {
    let volumes = vmi["status"]["volumeStatus"].as_array();
    let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == "data");
    volume.and_then(|volume| volume["persistentVolumeClaimInfo"]["claimName"].as_str()).unwrap_or_default()
}

fn condition(object: &Value, wanted: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == wanted).unwrap_or_default()
}

/// Changes the machine so that its disk is on that claim.
fn name_claim(namespace: &Namespace, claim: &str) -> Result<()> {
    let machine = namespace.need("vm", "vm")?;
    let volumes = machine["spec"]["template"]["spec"]["volumes"].as_array().context("it has no volumes")?;
    let index =
        volumes.iter().position(|volume| volume["name"] == "data").context("it has no such volume")?;
    let path = format!("/spec/template/spec/volumes/{index}/persistentVolumeClaim/claimName");
    let patch = json!([{ "op": "replace", "path": path, "value": claim }]).to_string();
    namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch]).map(drop)
}

/// Waits until the instance is to move its disk to that claim, and asks for a migration if there is none.
fn begin(namespace: &Namespace, claim: &str) -> Result<()> {
    let vmi = namespace.wait("vmi", "vm", "to be to move its volume", SOON, |vmi| {
        condition(vmi, "VolumesChange")["status"] == "True" && claim_of(&vmi["spec"]["volumes"]) == claim
    })?;
    let moved = &vmi["status"]["migratedVolumes"][0];
    ensure!(moved["volumeName"] == "data", "{moved}");
    ensure!(moved["destinationPVCInfo"]["claimName"] == claim, "{moved}");
    ensure!(moved["sourcePVCInfo"]["claimName"] == claim_in_status(&vmi), "{moved}");
    namespace.wait("vm", "vm", "to keep what moves", SOON, |vm| {
        vm["status"]["volumeUpdateState"]["volumeMigrationState"]["migratedVolumes"][0] == *moved
    })?;
    let asked = namespace.try_virtctl(&["migrate", "vm"])?;
    // With `LiveMigrate` among its workload update methods, the installation asks for one itself.
    ensure!(asked.code == 0 || asked.text().contains("in-flight migration detected"), "{asked:?}");
    Ok(())
}

/// Moves the guest with its disk to that claim. Returns the new node.
fn moves(namespace: &Namespace, claim: &str) -> Result<String> {
    let home = namespace.need("vmi", "vm")?["status"]["nodeName"].clone();
    namespace.kubectl(&["delete", "vmim", "--all"])?;
    name_claim(namespace, claim)?;
    begin(namespace, claim)?;
    let vmi = namespace.wait("vmi", "vm", "to have moved", MOVED, |vmi| {
        let state = &vmi["status"]["migrationState"];
        state["completed"] == true && (state["failed"] == true || vmi["status"]["nodeName"] != home)
    })?;
    ensure!(vmi["status"]["nodeName"] != home, "{}", vmi["status"]);
    ensure!(vmi["status"]["migratedVolumes"].is_null(), "{}", vmi["status"]);
    ensure!(
        condition(&vmi, "VolumesChange").is_null() && claim_in_status(&vmi) == claim,
        "{}",
        vmi["status"]
    );
    namespace.wait("vm", "vm", "to need nothing", SOON, |vm| {
        ["RestartRequired", "VolumesChange", "ManualRecoveryRequired"]
            .iter()
            .all(|name| condition(vm, name).is_null())
    })?;
    Ok(vmi["status"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

fn run(namespace: &Namespace, command: &str) -> Result<String> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    let said = console.ok(command, COMMAND)?;
    console.leave()?;
    Ok(said)
}

#[test]
fn a_disk_of_one_node_goes_along_to_another_claim_and_back() {
    in_namespace("movevolume", |namespace| {
        namespace.claim("data")?;
        namespace.claim("other")?;
        namespace.apply(&machine("data"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let first = namespace.need("vmi", "vm")?;
        let boot = "cat /proc/sys/kernel/random/boot_id";
        let booted = run(namespace, boot)?;
        let fill = "dd if=/dev/urandom of=$disk bs=1M count=8 conv=fsync 2>/dev/null";
        let sum = "echo 3 >/proc/sys/vm/drop_caches; dd if=$disk bs=1M count=8 2>/dev/null | md5sum";
        let before = run(namespace, &format!("{DISK}; {fill}; {sum}"))?;
        // After that, numbered lines of 512 bytes, each synced to the disk before the next.
        let write = format!(
            "({DISK}; i=0; while [ ! -e /tmp/stop ]; do printf '%0511d\\n' $i | \
             dd of=$disk bs=512 seek=$((16384+i)) conv=notrunc,fsync; echo $i >/tmp/written; i=$((i+1)); sleep 0.2; done; \
             touch /tmp/stopped) >/dev/null 2>&1 &"
        );
        run(namespace, &format!("{{ {write} }}"))?;

        let away = moves(namespace, "other")?;
        let stop = "touch /tmp/stop; while [ ! -e /tmp/stopped ]; do sleep 1; done; sync; echo 3 >/proc/sys/vm/drop_caches";
        run(namespace, stop)?;
        let lines = run(namespace, "cat /tmp/written")?;
        let lines: u64 = lines.trim().parse().with_context(|| format!("{lines:?} is no number"))?;
        ensure!(lines > 10, "it has written {lines} lines");
        let read = format!(
            "{DISK}; dd if=$disk bs=512 skip=16384 count={} 2>/dev/null | sed 's/^0*//' | md5sum",
            lines + 1
        );
        let wanted = format!("seq 0 {lines} | sed 's/^0$//' | md5sum");
        let (found, wanted) = (run(namespace, &read)?, run(namespace, &wanted)?);
        ensure!(found == wanted, "what it wrote on the way is not what is there: {found}, not {wanted}");
        ensure!(run(namespace, &format!("{DISK}; {sum}"))? == before, "the disk on {away} is another one");

        // Data that is written there comes back with it, and overwrites the former claim.
        let after = run(namespace, &format!("{DISK}; {fill}; {sum}"))?;
        ensure!(after != before, "the guest writes nothing");
        let back = moves(namespace, "data")?;
        ensure!(back == first["status"]["nodeName"].as_str().unwrap_or_default(), "it is on {back}");
        ensure!(run(namespace, &format!("{DISK}; {sum}"))? == after, "the disk on {back} is another one");
        ensure!(run(namespace, boot)? == booted, "it has booted again");
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == first["metadata"]["uid"]);
        Ok(())
    });
}

#[test]
fn a_volume_stays_where_it_is_when_its_claim_is_named_again() {
    in_namespace("movevolumenot", |namespace| {
        namespace.claim("data")?;
        namespace.apply(&machine("data"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let boot = "cat /proc/sys/kernel/random/boot_id";
        let booted = run(namespace, boot)?;
        name_claim(namespace, "nowhere")?;
        namespace.wait("vmi", "vm", "to miss the claim", SOON, |vmi| {
            let told = condition(vmi, "VolumesChange");
            let message = "One of the destination volumes doesn't exist: the pvc nowhere doesn't exist";
            told["status"] == "False" && told["message"] == message
        })?;
        // The class has no provisioner, so the migration waits for its pod.
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "nowhere" },
            "spec": {
                "storageClassName": "dontexist", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "16Mi" } },
            },
        }))?;
        begin(namespace, "nowhere")?;
        let refused = namespace.try_virtctl(&["restart", "vm"])?;
        ensure!(refused.code != 0 && refused.text().contains("VM recovery required"), "{refused:?}");
        name_claim(namespace, "data")?;
        let vmi = namespace.wait("vmi", "vm", "to stay on its claim", SOON, |vmi| {
            claim_of(&vmi["spec"]["volumes"]) == "data" && vmi["status"]["migratedVolumes"].is_null()
        })?;
        let told_of = condition(&vmi, "VolumesChange");
        ensure!(
            told_of["status"] == "False" && told_of["reason"] == "VolumesChangeCancellation",
            "{told_of}"
        );
        barevirt_e2e::wait::until_true("no migration to be under way", SOON, || {
            let all = namespace.list("vmim")?;
            Ok(all.iter().all(|migration| migration["status"]["phase"] == "Failed"))
        })?;
        namespace.wait("vm", "vm", "to keep nothing of it", SOON, |vm| {
            vm["status"]["volumeUpdateState"].is_null() && condition(vm, "RestartRequired").is_null()
        })?;
        ensure!(claim_in_status(&vmi) == "data" && run(namespace, boot)? == booted);
        Ok(())
    });
}
