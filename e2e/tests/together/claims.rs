//! Disks on claims that the pod has from the start.

use crate::imports_in_a_row::places;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::running::Running;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// guest-tiny with a disk `data` on that source.
fn with_disk(mut manifest: Value, source: &Value) -> Value {
    let spec = guest::spec_of(&mut manifest);
    let disk = json!({ "name": "data", "serial": "DATA", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let mut volume = source.clone();
    volume["name"] = json!("data");
    guest::push(&mut spec["volumes"], volume);
    manifest
}

fn console(namespace: &Namespace) -> Result<Console> {
    namespace.wait_phase("vm", "Running", RUNNING)?;
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    Ok(console)
}

/// The disk's device in the guest.
const DISK: &str = "/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";

fn first_line(console: &mut Console) -> Result<String> {
    console.ok(&format!("head -c 100 {DISK} | head -n 1 | tr -d '\\000'"), SOON)
}

/// Two guests, one after the other. Each step is a behaviour of its own.
#[test]
fn a_claim_may_come_later_its_data_outlive_the_guest_and_are_synced_when_the_guest_syncs() {
    in_namespace("claim", |namespace| {
        let source = json!({ "persistentVolumeClaim": { "claimName": "data" } });
        namespace.apply(&with_disk(guest::machine("vm", "Always"), &source))?;
        namespace.wait("vm", "vm", "to miss its claim", SOON, |vm| {
            vm["status"]["printableStatus"] == "ErrorPvcNotFound"
        })?;
        namespace.claim("data")?;
        let mut guest = console(namespace)?;
        let size = guest.ok(&format!("blockdev --getsize64 {DISK} || cat /sys/block/vd?/size"), SOON)?;
        ensure!(size.contains("16777216"), "{size}");
        guest.ok(&format!("echo kept >{DISK} && sync"), SOON)?;
        guest.leave()?;
        let vmi = namespace.need("vmi", "vm")?;
        let told = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
        let told = told.iter().find(|volume| volume["name"] == "data").cloned().unwrap_or_default();
        ensure!(told["persistentVolumeClaimInfo"]["requests"]["storage"] == "16Mi", "{told}");

        namespace.virtctl(&["restart", "vm"])?;
        let uid = vmi["metadata"]["uid"].clone();
        namespace.wait("vmi", "vm", "to be another one", RUNNING, |vmi| vmi["metadata"]["uid"] != uid)?;
        let mut guest = console(namespace)?;
        let found = first_line(&mut guest)?;
        ensure!(found == "kept", "{found:?}");
        is_synced_when_the_guest_syncs(namespace, guest)
    });
}

/// A claim `data` with a [disk](write_disk) of that length.
fn golden_disk(namespace: &Namespace, length: &str) -> Result<()> {
    namespace.claim("data")?;
    write_disk(namespace, "data", length)
}

/// Makes a disk of that length on a claim. It begins with the line `golden`.
pub(crate) fn write_disk(namespace: &Namespace, claim: &str, length: &str) -> Result<()> {
    // A disk is a file of user 107 in its claim.
    let script = format!("echo golden >/data/disk.img && truncate -s {length} /data/disk.img");
    let mut pod = pods::pod("writer", &["sh", "-c", &script]);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["securityContext"]["runAsUser"] = json!(107);
    pod["spec"]["securityContext"]["runAsGroup"] = json!(107);
    pod["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    namespace.apply(&pod)?;
    namespace
        .wait("pod", "writer", "to have written", RUNNING, |pod| pod["status"]["phase"] == "Succeeded")?;
    namespace.delete("pod", "writer")
}

#[test]
fn a_disk_that_is_shorter_than_its_claim_grows_when_its_guest_starts() {
    in_namespace("claimshort", |namespace| {
        golden_disk(namespace, "2M")?;
        let source = json!({ "persistentVolumeClaim": { "claimName": "data" } });
        namespace.apply(&with_disk(guest::without_system(guest::instance("vm")), &source))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let disk = namespace.virtctl(&["qmp", "vm", "query-block"])?;
        // Of 16 MiB, 6 % are the file system's, in whole MiB.
        ensure!(disk.contains(&format!("\"virtual-size\": {}", 15 << 20)), "{disk}");
        let places = places(namespace)?;
        let (node, paths) = places.first_key_value().context("the claim has no volume")?;
        let path = paths.first().context("the claim has no folder")?;
        let said = Node::named(node).sh(&format!("stat -c %s {path}/disk.img; head -n 1 {path}/disk.img"))?;
        ensure!(said.lines().eq([(15 << 20).to_string().as_str(), "golden"]), "{said:?}");
        Ok(())
    });
}

#[test]
fn data_written_over_an_ephemeral_claim_is_lost() {
    in_namespace("ephemeral", |namespace| {
        golden_disk(namespace, "16M")?;
        let over = json!({ "ephemeral": { "persistentVolumeClaim": { "claimName": "data" } } });
        for _ in 0..2 {
            namespace.apply(&with_disk(guest::instance("vm"), &over))?;
            let mut guest = console(namespace)?;
            let found = first_line(&mut guest)?;
            ensure!(found == "golden", "{found:?}");
            guest.ok(&format!("echo dross >{DISK} && sync"), SOON)?;
            guest.leave()?;
            namespace.delete("vmi", "vm")?;
        }
        Ok(())
    });
}

#[test]
fn two_guests_do_not_write_to_one_disk() {
    in_namespace("claimtwice", |namespace| {
        namespace.claim("data")?;
        let source = json!({ "persistentVolumeClaim": { "claimName": "data" } });
        namespace.apply(&with_disk(guest::without_system(guest::instance("vm")), &source))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        namespace.apply(&with_disk(guest::without_system(guest::instance("second")), &source))?;
        let failed = namespace.wait_phase("second", "Failed", RUNNING)?;
        let conditions = failed["status"]["conditions"].to_string();
        ensure!(conditions.contains("lock"), "{conditions}");
        namespace.wait_phase("vm", "Running", SOON).map(drop)
    });
}

/// The process of a pod's QEMU as this machine sees it: the nodes are containers of this machine.
fn qemu(pod: &Value) -> Result<u32> {
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
    // systemd's layout has underscores in place of dashes.
    let names = [uid.to_owned(), uid.replace('-', "_")];
    let processes = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        // One that has ended meanwhile is not the one.
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let program = std::fs::read_link(entry.path().join("exe")).ok()?;
        let is_it = program.ends_with("qemu-system-x86_64") && names.iter().any(|name| groups.contains(name));
        is_it.then_some(process)
    });
    processes.last().context("no QEMU of that pod runs on this machine")
}

/// The calls by which QEMU makes the disk safe, in the words of strace.
fn syncs(trace: &Path) -> Result<usize> {
    let text = std::fs::read_to_string(trace)?;
    Ok(text.lines().filter(|line| line.contains("fdatasync(") && line.contains("/disk.img")).count())
}

/// Whether strace has every thread of a process: then it sees each call.
fn is_traced(process: u32) -> Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // One that has ended meanwhile calls nothing.
        let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) else { continue };
        if status.lines().any(|line| line == "TracerPid:\t0") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a guest syncs is synced on its claim.
fn is_synced_when_the_guest_syncs(namespace: &Namespace, mut guest: Console) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-y", "-e", "trace=fdatasync", "-o"]).arg(&trace);
    let qemu = qemu(&namespace.launcher("vm")?)?;
    strace.args(["-p", &qemu.to_string()]);
    let strace = Running(strace.spawn().context("start strace")?);
    wait::until_true("strace to see QEMU's calls", SOON, || is_traced(qemu))?;
    let write = |more: &str| format!("dd if=/dev/urandom of={DISK} bs=4k count=8 {more} 2>/dev/null");
    // Nothing is made safe that the guest does not ask for.
    guest.ok(&write("oflag=direct"), SOON)?;
    guest.ok("sleep 1", SOON)?;
    let before = syncs(&trace)?;
    guest.ok(&write("conv=fsync"), SOON)?;
    guest.leave()?;
    // The guest goes on only after the call, which strace may write a little later.
    wait::until_true("a call that makes the disk safe", SOON, || Ok(syncs(&trace)? > before))?;
    drop(strace);
    ensure!(before == 0, "{before} calls without a sync in the guest");
    Ok(())
}
