//! Two hundred imports, whose programs are killed now and then: each claim has the image, and nothing is left behind.

use super::imports::{FILLED, SERVER, data_volume, digest_of_tiny, filled, host, publish, tiny, without_cdi};
use anyhow::{Context, Result, anyhow, ensure};
use barevirt_e2e::cdi::DATA_VOLUMES;
use barevirt_e2e::command::objects;
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, Node, local_volume, pods};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;

const ROUNDS: u64 = 20;
const NODES: [&str; 2] = ["node01", "node02"];
/// Imports at one time.
const AT_ONCE: u64 = 10;
/// Size of the small guest's disk, in bytes.
pub(crate) const IMAGE: u64 = 128 << 20;
/// Where the test bed's storage class keeps the claims of a node.
const CLAIMS: &str = "/var/lib/kubelet/local-volumes";

/// Volumes of claims of that namespace in the cluster.
pub(crate) fn volumes(namespace: &Namespace) -> Result<Vec<Value>> {
    let mut volumes = objects(&["pv"])?;
    volumes.retain(|volume| volume["spec"]["claimRef"]["namespace"] == namespace.name());
    Ok(volumes)
}

/// Folders of claims of that namespace, on all nodes.
fn folders(namespace: &Namespace) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for node in objects(&["node"])? {
        let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
        let said = node.sh(&format!("ls -d {CLAIMS}/*_{}_* 2>/dev/null || true", namespace.name()))?;
        found.extend(said.lines().map(str::to_owned));
    }
    Ok(found)
}

/// Kills an importer's program on a node, some moments after it began; it runs for less time than its pod's status takes to say so.
/// Returns whether there was one. The program is named by itself: importers of other tests are killed as well, and begin again.
pub(crate) fn kill_one(node: &str, number: u64) -> Result<bool> {
    let script = format!(
        "for try in $(seq 300); do \
           p=$(pgrep -x virt-importer | head -n 1); \
           if [ -n \"$p\" ]; then sleep 0.{:02}; kill -KILL $p 2>/dev/null && echo killed; exit 0; fi; \
           sleep 0.05; \
         done",
        number * 7 % 30
    );
    Ok(Node::named(node).sh(&script)?.contains("killed"))
}

/// Folders of claims of that namespace, by the node that has them.
pub(crate) fn places(namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
    let mut of_node = BTreeMap::<String, Vec<String>>::new();
    for volume in volumes(namespace)? {
        let (node, folder) = (local_volume::node(&volume)?, local_volume::folder(&volume)?);
        of_node.entry(node.to_owned()).or_default().push(folder.to_owned());
    }
    Ok(of_node)
}

/// Checks that each claim has the small guest's disk, on its node.
pub(crate) fn have_the_image(namespace: &Namespace, digest: &str) -> Result<()> {
    have_contents(namespace, IMAGE, digest)
}

/// Checks the first bytes of each claim on its node.
pub(crate) fn have_contents(namespace: &Namespace, length: u64, digest: &str) -> Result<()> {
    for (node, paths) in places(namespace)? {
        for path in paths {
            let said = Node::named(&node).sh(&format!("head -c {length} {path}/disk.img | sha256sum"))?;
            ensure!(said.starts_with(digest), "{path} of {node} has other contents: {said}");
        }
    }
    Ok(())
}

/// Imports some at once, kills one on each node, checks all and deletes them. Returns how many were killed at work.
fn round(namespace: &Namespace, number: u64, source: &Value, digest: &str) -> Result<usize> {
    let names: Vec<_> = (0..AT_ONCE).map(|one| format!("import-{number}-{one}")).collect();
    for name in &names {
        namespace.apply(&data_volume(name, source, "160Mi"))?;
    }
    let killers = NODES.map(|node| thread::spawn(move || kill_one(node, number)));
    for name in &names {
        filled(namespace, name, FILLED)?;
    }
    let mut killed = 0;
    for killer in killers {
        let one = killer.join().map_err(|_| anyhow!("the killer of importers panicked"))??;
        killed += usize::from(one);
    }
    have_the_image(namespace, digest)?;
    namespace.kubectl(&["delete", DATA_VOLUMES, "--all", "--wait=false"])?;
    for name in &names {
        namespace.wait_gone(DATA_VOLUMES, name, SOON)?;
    }
    Ok(killed)
}

#[test]
fn two_hundred_imports_leave_no_pod_claim_or_space_behind() {
    without_cdi("importsrow", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        publish(namespace, "tiny.qcow2", &tiny())?;
        let digest = digest_of_tiny()?;
        let source = json!({ "http": { "url": format!("http://{}/tiny.qcow2", host(namespace)) } });
        let mut killed = 0;
        for number in 0..ROUNDS {
            killed += round(namespace, number, &source, &digest)?;
        }
        ensure!(killed >= 10, "only {killed} imports were killed at work");
        wait::until_true("no claim, volume, pod or folder to be left", SOON * 2, || {
            let pods = namespace.list("pod")?;
            let others = pods.iter().filter(|pod| pod["metadata"]["name"] != SERVER).count();
            Ok(others == 0
                && namespace.list("pvc")?.is_empty()
                && volumes(namespace)?.is_empty()
                && folders(namespace)?.is_empty())
        })
    });
}
