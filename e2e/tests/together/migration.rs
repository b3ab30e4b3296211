//! Live migration: a running guest moves to another node and notices nothing, stays when the migration is
//! cancelled, and the instance says why if it cannot move. Most of the guests have no disk: their system is
//! the initial file system, in their memory.

use anyhow::{Context, ensure};
use barevirt_e2e::command::try_virtctl;
use barevirt_e2e::moving_guest::{COMMAND, Guest, machine, migration, node, stays};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, condition, guest, in_namespace, pods};
use serde_json::{Value, json};

/// A disk on a claim.
fn with_claim(mut manifest: Value, claim: &str) -> Value {
    let spec = guest::spec_of(&mut manifest);
    let disk = json!({ "name": "data", "serial": "DATA", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
    guest::push(&mut spec["volumes"], volume);
    manifest
}

#[test]
fn a_guest_moves_and_notices_nothing() {
    in_namespace("migrate", |namespace| {
        let guest = Guest::start(namespace, &machine("vm"), "vm")?;
        let (home, before) = (node(&guest.vmi()?), guest.count()?);
        let [(source, _)] = &guest.pods()?[..] else { anyhow::bail!("one pod was expected") };
        let output = namespace.virtctl(&["migrate", "vm"])?;
        ensure!(output == "VM vm was scheduled to migrate\n", "{output}");
        let migration = guest.wait_migration("Succeeded")?;
        let name = migration["metadata"]["name"].as_str().unwrap_or_default();
        ensure!(name.starts_with("kubevirt-migrate-vm-"), "{name}");
        ensure!(migration["metadata"]["labels"]["kubevirt.io/vmi-name"] == "vm", "{migration}");

        let vmi = guest.vmi()?;
        let away = node(&vmi);
        ensure!(!away.is_empty() && away != home, "it was on {home} and is on {away}");
        ensure!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"] == away.as_str(), "{}", vmi["metadata"]);
        let state = &vmi["status"]["migrationState"];
        for (field, value) in [
            ("sourceNode", json!(home)),
            ("targetNode", json!(away)),
            ("completed", json!(true)),
            ("migrationUid", migration["metadata"]["uid"].clone()),
            ("mode", json!("PreCopy")),
        ] {
            ensure!(state[field] == value, "{field}: {state}");
        }
        for time in ["startTimestamp", "endTimestamp", "targetNodeDomainReadyTimestamp"] {
            ensure!(state[time].is_string(), "{time}: {state}");
        }
        ensure!(state["failed"] != true, "{state}");
        guest.goes_on(before)?;
        guest.wait_alone_on(&away)?;
        let [(target, _)] = &guest.pods()?[..] else { anyhow::bail!("one pod was expected") };
        ensure!(target != source, "it is in the same pod");
        // People can read the source's log.
        namespace
            .wait("pod", source, "to stay as completed", SOON, |pod| pod["status"]["phase"] == "Succeeded")?;
        namespace.wait("vmi", "vm", "to have one active pod", SOON, |vmi| {
            vmi["status"]["activePods"].as_object().is_some_and(|pods| pods.len() == 1)
                && vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_null()
        })?;

        // And back, to check that nothing of the first migration blocks the next.
        namespace.delete_all("vmim")?;
        let before = guest.count()?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        namespace.virtctl(&[
            "migrate",
            "vm",
            &format!("--addedNodeSelector=kubernetes.io/hostname={home}"),
        ])?;
        guest.wait_migration("Succeeded")?;
        ensure!(node(&guest.vmi()?) == home);
        // A console that is open stays open on the target.
        console.expect(&format!("vm has moved to node {home}."), SOON)?;
        console.expect("Connected to vm console again.", SOON)?;
        console.ok("true", SOON)?;
        console.leave()?;
        guest.goes_on(before)?;
        guest.wait_alone_on(&home)
    });
}

/// The disk of its image, an empty disk, and the disk with its user data.
#[test]
fn disk_contents_move_with_the_guest() {
    in_namespace("migratedisks", |namespace| {
        let mut manifest = guest::with_user_data(guest::machine("vm", "Always"), "#!/bin/sh\ntrue\n");
        let spec = guest::spec_of(&mut manifest);
        let disk = json!({ "name": "empty", "serial": "EMPTY", "disk": { "bus": "virtio" } });
        guest::push(&mut spec["domain"]["devices"]["disks"], disk);
        guest::push(&mut spec["volumes"], json!({ "name": "empty", "emptyDisk": { "capacity": "32Mi" } }));
        let guest = Guest::start(namespace, &manifest, "vm")?;
        let vmi = guest.vmi()?;
        let home = node(&vmi);
        ensure!(vmi["status"]["migrationMethod"] == "BlockMigration", "{}", vmi["status"]);
        let empty = "disk=/dev/$(basename $(dirname $(grep -lx EMPTY /sys/block/*/serial)))";
        let fill = format!(
            "{empty}; dd if=/dev/urandom of=$disk bs=1M count=8 conv=fsync 2>/dev/null; \
             dd if=/dev/urandom of=/root/mine bs=64k count=16 2>/dev/null; sync"
        );
        let sums = format!(
            "{empty}; echo 3 >/proc/sys/vm/drop_caches; md5sum < $disk; md5sum < /root/mine; \
             for each in /sys/block/vd*; do dd if=/dev/$(basename $each) bs=1M count=4 2>/dev/null | wc -c; done"
        );
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        console.ok(&fill, COMMAND)?;
        let before = console.ok(&sums, COMMAND)?;
        console.leave()?;
        for _ in 0..2 {
            let count = guest.count()?;
            namespace.delete_all("vmim")?;
            namespace.virtctl(&["migrate", "vm"])?;
            guest.wait_migration("Succeeded")?;
            guest.goes_on(count)?;
            let mut console = Console::open(namespace, "vm")?;
            console.login(SOON)?;
            let after = console.ok(&sums, COMMAND)?;
            ensure!(after == before, "the disks were {before} and are {after}");
            // Data that is written on the target moves back with it.
            console.ok("echo more >>/root/written && sync", COMMAND)?;
            console.leave()?;
        }
        ensure!(node(&guest.vmi()?) == home);
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        let written = console.ok("cat /root/written | wc -l", COMMAND)?;
        ensure!(written.trim() == "2", "{written}");
        console.leave().map(drop)
    });
}

#[test]
fn writes_during_a_migration_are_on_the_shared_disk() {
    in_namespace("migraterwx", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": {
                "storageClassName": "rwx", "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "16Mi" } },
            },
        }))?;
        let guest = Guest::start(namespace, &with_claim(machine("vm"), "data"), "vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        // Numbered lines of 512 bytes, each synced to the disk before the next.
        let disk = "disk=/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";
        let write = format!(
            "({disk}; i=0; while [ ! -e /tmp/stop ]; do printf '%0511d\\n' $i | \
             dd of=$disk bs=512 seek=$i conv=notrunc,fsync; echo $i >/tmp/written; i=$((i+1)); sleep 0.2; done; \
             touch /tmp/stopped) >/dev/null 2>&1 &"
        );
        console.ok(&format!("{{ {write} }}"), COMMAND)?;
        console.leave()?;
        namespace.virtctl(&["migrate", "vm"])?;
        guest.wait_migration("Succeeded")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        let stop = "touch /tmp/stop; while [ ! -e /tmp/stopped ]; do sleep 1; done; sync; echo 3 >/proc/sys/vm/drop_caches";
        console.ok(stop, COMMAND)?;
        let lines = console.ok("cat /tmp/written", COMMAND)?;
        let lines: u64 = lines.trim().parse().with_context(|| format!("{lines:?} is not a number"))?;
        ensure!(lines > 10, "it has written {lines} lines");
        let read = format!("{disk}; head -n {} $disk | sed 's/^0*//' | md5sum", lines + 1);
        let wanted = format!("seq 0 {lines} | sed 's/^0$//' | md5sum");
        let (found, wanted) = (console.ok(&read, COMMAND)?, console.ok(&wanted, COMMAND)?);
        ensure!(found == wanted, "what it wrote is not what is there: {found}, not {wanted}");
        console.leave().map(drop)
    });
}

#[test]
fn an_instance_has_one_migration_at_a_time_and_must_exist() {
    in_namespace("migratetwice", |namespace| {
        let guest = Guest::start(namespace, &machine("vm"), "vm")?;
        let refusal = namespace.refusal(&migration("lost", "nobody"))?;
        let words = format!("the VMI \"{}/nobody\" does not exist", namespace.name());
        ensure!(refusal.replace('\\', "").contains(&words), "{refusal}");
        let output = namespace.try_virtctl(&["migrate", "nobody"])?;
        ensure!(output.code == 1 && output.text().contains("not found"), "{output:?}");
        let output = namespace.try_virtctl(&["migrate-cancel", "vm"])?;
        ensure!(
            output.code == 1 && output.text().contains("Found no migration to cancel for vm"),
            "{output:?}"
        );
        let output = try_virtctl(&["migrate", "-n", namespace.name(), "vm", "--dry-run"])?;
        ensure!(output.code == 0, "{output:?}");
        ensure!(namespace.list("vmim")?.is_empty(), "a dry run makes a migration");

        namespace.apply(&migration("first", "vm"))?;
        let refusal = namespace.refusal(&migration("second", "vm"))?;
        ensure!(refusal.contains("in-flight migration detected"), "{refusal}");
        let output = namespace.try_virtctl(&["migrate", "vm"])?;
        ensure!(output.code == 1 && output.text().contains("in-flight migration detected"), "{output:?}");
        guest.wait_migration("Succeeded")?;
        // The next migration may begin.
        namespace.virtctl(&["migrate", "vm", "--dry-run"]).map(drop)
    });
}

#[test]
fn a_guest_whose_migration_is_cancelled_runs_on_where_it_is() {
    in_namespace("migratecancel", |namespace| {
        let guest = Guest::start(namespace, &machine("vm"), "vm")?;
        let home = node(&guest.vmi()?);
        // Cancel before anything of the guest is sent.
        let before = guest.count()?;
        namespace.virtctl(&["migrate", "vm"])?;
        let output = namespace.virtctl(&["migrate-cancel", "vm"])?;
        ensure!(output == "VM vm was scheduled to migrate-cancel\n", "{output}");
        stays(&guest, &home, before)?;

        // And cancel while it runs, so slowly that it does not end by itself.
        let policy = json!({
            "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
            "metadata": { "name": namespace.name() },
            "spec": {
                "bandwidthPerMigration": "1Mi",
                "selectors": { "namespaceSelector": { "kubernetes.io/metadata.name": namespace.name() } },
            },
        });
        namespace.apply(&policy)?;
        let before = guest.count()?;
        let moving = namespace.virtctl(&["migrate", "vm"]).and_then(|_| guest.wait_migration("Running"));
        let explained = moving.as_ref().map(|migration| {
            let name = migration["metadata"]["name"].as_str().unwrap_or_default();
            wait::until_true("figures of what limits the migration", SOON, || {
                let text = namespace.virtctl(&["explain", "vmim", name])?;
                Ok(text.contains(&format!("from {home} to ")) && text.contains(" MiB/s"))
            })
        });
        let cancelled = namespace.kubectl(&["delete", "vmim", "--all", "--timeout=100s"]);
        barevirt_e2e::command::kubectl(&["delete", "migrationpolicy", namespace.name()])?;
        if let Ok(explained) = explained {
            explained?;
        }
        let (migration, _) = (moving?, cancelled?);
        ensure!(migration["metadata"]["finalizers"].is_array(), "nothing holds it until it is ended");
        let state = guest.vmi()?["status"]["migrationState"].clone();
        ensure!(state["abortRequested"] == true && state["abortStatus"] == "Succeeded", "{state}");
        ensure!(state["completed"] == true && state["migrationPolicyName"] == namespace.name(), "{state}");
        stays(&guest, &home, before)
    });
}

#[test]
fn a_guest_that_cannot_move_says_why() {
    in_namespace("migratenot", |namespace| {
        namespace.claim("data")?;
        // Nobody looks into it.
        namespace.apply(&with_claim(guest::without_system(guest::machine("vm", "Always")), "data"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let vmi = namespace.wait("vmi", "vm", "to say whether it can move", SOON, |vmi| {
            condition(vmi, "LiveMigratable").is_object()
        })?;
        let told = condition(&vmi, "LiveMigratable");
        ensure!(told["status"] == "False" && told["reason"] == "DisksNotLiveMigratable", "{told}");
        ensure!(told["message"].as_str().unwrap_or_default().contains("PVC data is not shared"), "{told}");
        // Without regard to disks it could move.
        let told = condition(&vmi, "StorageLiveMigratable");
        ensure!(told["status"] == "True", "{told}");
        let refusal = namespace.refusal(&migration("move", "vm"))?;
        ensure!(refusal.contains("Cannot migrate VMI, Reason: DisksNotLiveMigratable"), "{refusal}");
        let output = namespace.try_virtctl(&["migrate", "vm"])?;
        ensure!(output.code == 1 && output.text().contains("DisksNotLiveMigratable"), "{output:?}");
        Ok(())
    });
}

#[test]
fn an_eviction_moves_a_guest_that_can_move() {
    in_namespace("migrateevict", |namespace| {
        let guest = Guest::start(namespace, &machine("vm"), "vm")?;
        let (home, before) = (node(&guest.vmi()?), guest.count()?);
        let [(pod, _)] = &guest.pods()?[..] else { anyhow::bail!("one pod was expected") };
        let answer = pods::evict(namespace, pod)?;
        let words = format!("Eviction triggered evacuation of VMI \"{}/vm\"", namespace.name());
        ensure!(answer.code != 0 && answer.text().replace('\\', "").contains(&words), "{}", answer.text());
        guest.wait_migration("Succeeded")?;
        let away = node(&guest.vmi()?);
        ensure!(away != home, "it is still on {home}");
        guest.goes_on(before)?;
        guest.wait_alone_on(&away)?;
        namespace.wait("vmi", "vm", "to have left the node", SOON, |vmi| {
            vmi["status"]["evacuationNodeName"].as_str().unwrap_or_default().is_empty()
        })?;
        Ok(())
    });
}
