//! A node loses power while a guest writes to storage with a write cache, the test bed's program `forgetful`. It dies with the
//! node, and with it all that was written and not synced.

use crate::{PowerCut, a_controller_is_elsewhere, has_two_nodes, node_of_api, uid};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, objects};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, alone, in_namespace, moving_volume};
use serde_json::json;

/// The program that serves the storage. Nodes see the files of this machine.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forgetful");
/// Folders of a node that outlive its first process.
const FOLDERS: &str = "/var/lib/kubelet";

/// The guest writes the blocks 1 to this one, and syncs after each fourth.
const SYNCED: u32 = 24;
/// It writes the blocks after those to this one, and never syncs again.
const LAST: u32 = 40;
/// A block of 4096 bytes, each of whose lines names it, is made by `block`, and written past the guest's own cache by `put`.
const COMMANDS: [&str; 3] = [
    "disk=/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))",
    "block() { yes \"block $1\" | head -c 4096; }",
    "put() { block $1 >/tmp/block && dd if=/tmp/block of=$disk bs=4096 seek=$1 oflag=direct $2 2>/dev/null; }",
];

/// Storage on a node, as the claim `data`. Removed when the value is dropped.
struct Storage<'a> {
    node: &'a Node,
    folder: String,
    volume: String,
}

impl<'a> Storage<'a> {
    fn prepare(node: &'a Node, namespace: &Namespace) -> Result<Self> {
        let volume = format!("forgetful-{}", namespace.name());
        let storage = Self { node, folder: format!("{FOLDERS}/{volume}"), volume };
        let Self { folder, volume, .. } = &storage;
        node.sh(&format!("mkdir -p {folder}/stored/claim {folder}/mounted"))?;
        storage.mount()?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": volume },
            "spec": {
                "capacity": { "storage": "16Mi" }, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": { "namespace": namespace.name(), "name": "data" },
                // Without the storage there is no such folder, and no pod starts.
                "hostPath": { "path": format!("{folder}/mounted/claim"), "type": "Directory" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [{
                    "key": "kubernetes.io/hostname", "operator": "In", "values": [node.name()],
                }] }] } },
            },
        }))?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
                "resources": { "requests": { "storage": "16Mi" } },
            },
        }))?;
        Ok(storage)
    }

    /// Starts the program, with an empty cache.
    fn mount(&self) -> Result<()> {
        let folder = &self.folder;
        self.node.sh(&format!(
            "setsid {PROGRAM} {folder}/stored {folder}/mounted >{folder}/log 2>&1 </dev/null &"
        ))?;
        wait::until_true("the storage to be mounted", SOON, || {
            let look = format!("test -d {folder}/mounted/claim && echo yes; cat {folder}/log 2>&1; true");
            let said = self.node.sh(&look)?;
            ensure!(!said.contains("Error"), "forgetful has ended: {said}");
            Ok(said.starts_with("yes"))
        })
    }

    /// The first line of a block of the disk, as it is `stored` or `mounted`; an empty one if nothing is there.
    fn line(&self, place: &str, block: u32) -> Result<String> {
        let disk = format!("{}/{place}/claim/disk.img", self.folder);
        let read =
            format!("dd if={disk} bs=4096 skip={block} count=1 2>/dev/null | tr -d '\\000' | head -n 1");
        Ok(self.node.sh(&read)?.trim().to_owned())
    }
}

impl Drop for Storage<'_> {
    fn drop(&mut self) {
        let folder = &self.folder;
        // A guest that still runs keeps the mounted storage, and the program, until it ends.
        let removed = self.node.sh(&format!("umount -l {folder}/mounted; rm -rf --one-file-system {folder}"));
        let deleted = kubectl(&["delete", "pv", &self.volume, "--wait=false", "--ignore-not-found"]);
        if let Err(error) = removed.and(deleted) {
            eprintln!("the storage on {} is not removed: {error:#}", self.node.name());
        }
    }
}

/// A node that may be switched off: without virt-api nothing could be written.
fn spare_node() -> Result<Node> {
    let stays = node_of_api()?;
    let nodes = objects(&["nodes"])?;
    let mut names = nodes.iter().filter_map(|node| node["metadata"]["name"].as_str());
    Ok(Node::named(names.find(|name| *name != stays).context("there is no other node")?))
}

fn prepared(mut guest: Console) -> Result<Console> {
    for command in COMMANDS {
        guest.ok(command, SOON)?;
    }
    Ok(guest)
}

/// The numbers of the lines that consist of that word and a number.
fn numbers(lines: &str, word: &str) -> Vec<u32> {
    lines.lines().filter_map(|line| line.trim().strip_prefix(word)?.trim().parse().ok()).collect()
}

#[test]
fn what_a_guest_has_synced_outlives_its_node_and_the_cache_of_its_storage() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("synced", |namespace| {
        let _alone = alone();
        let node = spare_node()?;
        a_controller_is_elsewhere(&node)?;
        let storage = Storage::prepare(&node, namespace)?;
        let mut guest = prepared(Console::boot(namespace, &moving_volume::machine("data"))?)?;
        let before = uid(&namespace.need("vmi", "vm")?);

        let write = format!(
            "for n in $(seq {SYNCED}); do if [ $((n % 4)) = 0 ]; then put $n conv=fsync && echo synced $n; else put $n; fi; done"
        );
        let synced = numbers(&guest.ok(&write, BOOT)?, "synced");
        ensure!(synced.last() == Some(&SYNCED), "the guest has synced after {synced:?}");
        let write = format!("for n in $(seq {} {LAST}); do put $n; done", SYNCED + 1);
        guest.ok(&write, BOOT)?;
        let (cached, stored) = (storage.line("mounted", LAST)?, storage.line("stored", LAST)?);
        ensure!(cached == format!("block {LAST}"), "the last block has not left the guest: {cached:?}");
        ensure!(stored.is_empty(), "the last block was stored without a sync: {stored:?}");
        let stored = storage.line("stored", SYNCED)?;
        ensure!(stored == format!("block {SYNCED}"), "a block that was synced is not stored: {stored:?}");
        // It goes on while the power fails.
        guest.ok(&format!("(while true; do {write}; done) >/dev/null 2>&1 & sleep 1"), SOON)?;
        drop(guest);

        let cut = PowerCut::of(&node)?;
        cut.end()?;
        let stored = storage.line("stored", LAST)?;
        ensure!(stored.is_empty(), "the last block was stored while the power failed: {stored:?}");
        storage.mount()?;
        namespace.wait("vmi", "vm", "to run again", RUNNING * 3, |vmi| {
            uid(vmi) != before && vmi["status"]["phase"] == "Running"
        })?;
        let mut guest = Console::open(namespace, "vm")?;
        guest.login(BOOT)?;
        let mut guest = prepared(guest)?;
        let look = format!(
            "for n in $(seq {LAST}); do \
               found=$(dd if=$disk bs=4096 skip=$n count=1 2>/dev/null | md5sum); \
               [ \"$found\" = \"$(block $n | md5sum)\" ] && echo kept $n || echo lost $n; \
             done"
        );
        let looked = guest.ok(&look, BOOT)?;
        guest.leave()?;
        let (kept, lost) = (numbers(&looked, "kept"), numbers(&looked, "lost"));
        ensure!(
            (1..=SYNCED).all(|block| kept.contains(&block)),
            "blocks that were synced are lost: {lost:?}"
        );
        ensure!(lost.contains(&LAST), "the storage has forgotten nothing, so this shows nothing: {kept:?}");
        Ok(())
    });
}
