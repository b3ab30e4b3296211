//! Disks of objects: a guest that moves keeps the bytes that it started with, whatever has become of the objects.

use anyhow::{Context as _, Result, ensure};
use barevirt_e2e::moving_guest::{Guest, machine};
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};

/// The disks, which are also their serial numbers.
const DISKS: [&str; 3] = ["settings", "key", "seed"];

fn with_disk(manifest: &mut Value, name: &str, mut volume: Value, read_only: bool) {
    let spec = guest::spec_of(manifest);
    let disk = json!({ "name": name, "serial": name, "disk": { "bus": "virtio", "readonly": read_only } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    volume["name"] = json!(name);
    guest::push(&mut spec["volumes"], volume);
}

/// Size in bytes and checksum of each disk as the guest reads it from the device, not from its memory.
fn disks(namespace: &Namespace) -> Result<Vec<(i64, String)>> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    console.ok("sync; echo 3 >/proc/sys/vm/drop_caches", SOON)?;
    let mut all = Vec::new();
    for name in DISKS {
        let find = format!("disk=$(basename $(dirname $(grep -lx {name} /sys/block/*/serial)))");
        let size = console.ok(&format!("{find}; cat /sys/block/$disk/size"), SOON)?;
        let sectors: i64 =
            size.trim().parse().with_context(|| format!("{name}: {size:?} is not a number"))?;
        let sum = console.ok(&format!("{find}; md5sum </dev/$disk"), SOON)?;
        all.push((sectors * 512, sum.trim().to_owned()));
    }
    console.leave()?;
    Ok(all)
}

/// Makes all objects different and larger.
fn change_objects(namespace: &Namespace) -> Result<()> {
    let large = "x".repeat(20_000);
    let patch = |kind: &str, name: &str, patch: Value| {
        namespace.kubectl(&["patch", kind, name, "-p", &patch.to_string()]).map(drop)
    };
    patch("configmap", "settings", json!({ "data": { "color": "green", "more": large } }))?;
    patch("secret", "key", json!({ "stringData": { "password": "other", "more": large } }))?;
    patch("secret", "user", json!({ "stringData": { "userdata": format!("#!/bin/sh\n# {large}\n") } }))
}

fn keeps_its_bytes(namespace: &Namespace, read_only: bool) -> Result<()> {
    namespace.kubectl(&["create", "configmap", "settings", "--from-literal=color=blue"])?;
    let secret = |name: &str, data: &str| {
        let data = format!("--from-literal={data}");
        namespace.kubectl(&["create", "secret", "generic", name, &data]).map(drop)
    };
    secret("key", "password=sesame")?;
    secret("user", "userdata=#!/bin/sh\ntrue\n")?;
    let sources = [
        json!({ "configMap": { "name": "settings" } }),
        json!({ "secret": { "secretName": "key" } }),
        json!({ "cloudInitNoCloud": { "secretRef": { "name": "user" } } }),
    ];
    let mut manifest = machine("vm");
    for (name, source) in DISKS.into_iter().zip(sources) {
        with_disk(&mut manifest, name, source, read_only);
    }
    let guest = Guest::start(namespace, &manifest, "vm")?;
    let vmi = guest.vmi()?;
    // As in KubeVirt, a disk that is only read counts, unless it is a CD.
    ensure!(vmi["status"]["migrationMethod"] == "BlockMigration", "{}", vmi["status"]);
    let before = disks(namespace)?;
    let told = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
    for (name, (size, _)) in DISKS.into_iter().zip(&before) {
        let told = told.iter().find(|told| told["name"] == name).with_context(|| format!("{told:?}"))?;
        ensure!(told["size"] == *size, "{name} has {size} bytes: {told}");
    }
    change_objects(namespace)?;
    // There, and from there to another node.
    for _ in 0..2 {
        namespace.migrate("vm")?;
        guest.count()?;
        let after = disks(namespace)?;
        ensure!(after == before, "the disks were {before:?} and are {after:?}");
    }
    Ok(())
}

#[test]
fn read_only_disks_of_objects_keep_their_contents_when_the_guest_moves() {
    in_namespace("moveobjects", |namespace| keeps_its_bytes(namespace, true));
}

#[test]
fn writable_disks_of_objects_keep_their_contents_when_the_guest_moves() {
    in_namespace("movewritable", |namespace| keeps_its_bytes(namespace, false));
}
