//! A guest moves with a disk that only its node has, to another claim and back; and stays on the former claim
//! when the move is cancelled. Or its volumes are on claims that every node has.

use crate::claims::write_disk;
use crate::imports::data_volume;
use crate::migration_plugged::shared_claim;
use anyhow::{Context as _, Result, ensure};
use barevirt_e2e::moving_volume::{
    begin, boot, claim_in_status, claim_of, fill, has_written, machine, moves, name_claim, sum, write_on,
};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, in_namespace};
use serde_json::{Value, json};

#[test]
fn a_disk_moves_with_its_guest_to_another_claim_and_back() {
    in_namespace("movevolume", |namespace| {
        namespace.claim("data")?;
        // Its claim waits for a consumer, which is the target's pod, and is filled before the guest goes there.
        let mut other = data_volume("other", &json!({ "blank": {} }), "16Mi");
        other["metadata"]["annotations"] = json!({});
        namespace.apply(&other)?;
        namespace.apply(&machine("data"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let first = namespace.need("vmi", "vm")?;
        let booted = boot(namespace)?;
        let before = fill(namespace)?;
        write_on(namespace)?;
        let away = moves(namespace, "other")?;
        ensure!(namespace.need("dv", "other")?["status"]["phase"] == "Succeeded");
        has_written(namespace)?;
        ensure!(sum(namespace)? == before, "the disk on {away} is another one");

        // Data that is written there comes back with it, and overwrites the former claim.
        let after = fill(namespace)?;
        ensure!(after != before, "the guest writes nothing");
        let back = moves(namespace, "data")?;
        ensure!(back == first["status"]["nodeName"].as_str().unwrap_or_default(), "it is on {back}");
        ensure!(sum(namespace)? == after, "the disk on {back} is another one");
        ensure!(boot(namespace)? == booted, "it has booted again");
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == first["metadata"]["uid"]);
        Ok(())
    });
}

#[test]
fn a_plugged_disk_moves_with_its_guest_to_another_claim_and_is_unplugged_there() {
    in_namespace("moveplugged", |namespace| {
        namespace.claim("data")?;
        // Its claim waits for a consumer: a pod on the target's node, before the one that has the disk.
        let mut other = data_volume("other", &json!({ "blank": {} }), "16Mi");
        other["metadata"]["annotations"] = json!({});
        namespace.apply(&other)?;
        let mut machine = machine("data");
        let volumes = guest::spec_of(&mut machine)["volumes"].as_array_mut().context("it has no volumes")?;
        let volume = volumes.iter_mut().find(|volume| volume["name"] == "data").context("it has no claim")?;
        volume["persistentVolumeClaim"]["hotpluggable"] = json!(true);
        namespace.apply(&machine)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let entry = |vmi: &Value| {
            let mut all = vmi["status"]["volumeStatus"].as_array().into_iter().flatten();
            all.find(|entry| entry["name"] == "data").cloned().unwrap_or_default()
        };
        namespace.wait("vmi", "vm", "to have the disk", RUNNING, |vmi| entry(vmi)["phase"] == "Ready")?;
        let booted = boot(namespace)?;
        let before = fill(namespace)?;
        write_on(namespace)?;
        let away = moves(namespace, "other")?;
        has_written(namespace)?;
        ensure!(sum(namespace)? == before, "the disk on {away} is another one");
        ensure!(boot(namespace)? == booted, "it has booted again");
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(entry(&vmi)["phase"] == "Ready", "{}", vmi["status"]);
        let pod = entry(&vmi)["hotplugVolume"]["attachPodName"].as_str().unwrap_or_default().to_owned();
        let pod = namespace.need("pod", &pod)?;
        ensure!(pod["metadata"]["annotations"]["barevirt.dev/claim"] == "other", "{}", pod["metadata"]);
        namespace.virtctl(&["removevolume", "vm", "--volume-name=data"])?;
        namespace.wait("vmi", "vm", "to have lost the disk", SOON, |vmi| entry(vmi).is_null())?;
        Ok(())
    });
}

#[test]
fn a_volume_stays_where_it_is_when_its_claim_is_named_again() {
    in_namespace("movevolumenot", |namespace| {
        namespace.claim("data")?;
        namespace.apply(&machine("data"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let booted = boot(namespace)?;
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
        ensure!(claim_in_status(&vmi) == "data" && boot(namespace)? == booted);
        Ok(())
    });
}

/// A machine with an overlay over the claim `base`, with the claim `device`, and with the config map `settings` as a directory.
fn with_shared_volumes() -> Value {
    // Only this kernel has virtiofs.
    let mut manifest = guest::with_debians_kernel(guest::machine("vm", "Always"));
    let spec = guest::spec_of(&mut manifest);
    for (name, source) in [
        ("base", json!({ "ephemeral": { "persistentVolumeClaim": { "claimName": "base" } } })),
        ("device", json!({ "persistentVolumeClaim": { "claimName": "device" } })),
    ] {
        let disk = json!({ "name": name, "serial": name, "disk": { "bus": "virtio" } });
        guest::push(&mut spec["domain"]["devices"]["disks"], disk);
        let mut volume = source;
        volume["name"] = json!(name);
        guest::push(&mut spec["volumes"], volume);
    }
    let directory = json!({ "name": "settings", "virtiofs": {} });
    guest::push(&mut spec["domain"]["devices"]["filesystems"], directory);
    guest::push(&mut spec["volumes"], json!({ "name": "settings", "configMap": { "name": "settings" } }));
    manifest
}

/// Shell code that sets `base` and `device` to the guest's disks.
const DISKS: &str = "disk() { echo /dev/$(basename $(dirname $(grep -lx $1 /sys/block/*/serial))); }; \
                     base=$(disk base); device=$(disk device)";

/// Writes to both disks. The overlay keeps its beginning from the claim.
fn write_both(console: &mut Console) -> Result<()> {
    let to = |disk: &str| {
        format!("dd if=/dev/urandom of={disk} bs=1M seek=4 count=4 conv=fsync,notrunc 2>/dev/null")
    };
    console.ok(&format!("{DISKS}; {}; {}", to("$base"), to("$device")), BOOT).map(drop)
}

/// Checksums of both disks and of the file in the directory, and the boot.
fn sums(console: &mut Console) -> Result<String> {
    let read = "md5sum <$base; md5sum <$device; md5sum </mnt/color; cat /proc/sys/kernel/random/boot_id";
    console.ok(&format!("{DISKS}; echo 3 >/proc/sys/vm/drop_caches; {read}"), BOOT)
}

#[test]
fn an_overlay_a_device_and_a_directory_move_with_their_guest() {
    in_namespace("moveshared", |namespace| {
        shared_claim(namespace, "base")?;
        write_disk(namespace, "base", "16M")?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "device" },
            "spec": {
                "storageClassName": "block", "volumeMode": "Block", "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "16Mi" } },
            },
        }))?;
        namespace.kubectl(&["create", "configmap", "settings", "--from-literal=color=blue"])?;
        let mut console = Console::boot(namespace, &with_shared_volumes())?;
        console.ok("mount -t virtiofs settings /mnt", SOON)?;
        let golden = console.ok(&format!("{DISKS}; head -n 1 $base"), SOON)?;
        ensure!(golden == "golden", "the overlay is over another disk: {golden}");
        let method = namespace.need("vmi", "vm")?["status"]["migrationMethod"].clone();
        ensure!(method == "BlockMigration", "{method}");
        for _ in 0..2 {
            write_both(&mut console)?;
            let before = sums(&mut console)?;
            console.leave()?;
            namespace.migrate("vm")?;
            console = open(namespace)?;
            let after = sums(&mut console)?;
            ensure!(after == before, "it had {before} and has {after}");
        }
        console.leave().map(drop)
    });
}

fn open(namespace: &Namespace) -> Result<Console> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    Ok(console)
}
