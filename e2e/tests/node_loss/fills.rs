//! A node loses power while a claim is copied there, and while an upload arrives there.

use crate::{PowerCut, away_from, filled, has_two_nodes, is_ready, node_of_api};
use anyhow::{Result, anyhow, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::command::sha256;
use barevirt_e2e::upload_proxy::{self, Sender};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, in_namespace, local_volume};
use serde_json::{Value, json};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are copied: enough for more than a moment.
const COPIED: u64 = 600 << 20;
/// Bytes that are uploaded, within eight seconds.
const UPLOADED: usize = 8 << 20;
const SLOWLY: [&str; 4] = ["--limit-rate", "1M", "--max-time", "30"];
/// Pause between two looks at a node for a program that is about to start.
const LOOK: Duration = Duration::from_millis(10);

fn data_volume(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {
            "name": name, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" },
        },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": "1Gi" } } } },
    })
}

fn is_off(node: &Node) -> Result<()> {
    wait::until_true("the node to be not ready", SOON, || Ok(is_ready(node.name())? == Some(false)))
}

/// Stops the importer of a DataVolume at work.
fn stop_importer(namespace: &Namespace, name: &str) -> Result<()> {
    let placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
    let pod = namespace.wait("pod", &format!("importer-{name}"), "to have a node", RUNNING, placed)?;
    let node = Node::of(&pod)?;
    let deadline = Instant::now() + RUNNING;
    while node.processes(&pod, "virt-importer")?.is_empty() {
        ensure!(Instant::now() < deadline, "the importer of {name} does not begin");
        thread::sleep(LOOK);
    }
    node.kill(&pod, "virt-importer", "STOP")
}

#[test]
fn a_copy_whose_node_was_off_is_completed_there() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("copyloss", |namespace| {
        let _alone = alone();
        let _absent = Absent::prepare()?;
        let stays = node_of_api()?;
        away_from(&stays, || {
            namespace.apply(&data_volume("golden", &json!({ "blank": {} })))?;
            filled(namespace, "golden")
        })?;
        let volume = local_volume::of_claim(namespace, "golden")?;
        let node = Node::named(local_volume::node(&volume)?);
        ensure!(node.name() != stays, "the claim is on the node that stays");
        let disk = format!("{}/disk.img", local_volume::folder(&volume)?);
        node.sh(&format!(
            "head -c {COPIED} /dev/urandom | dd of={disk} bs=1M conv=notrunc,fsync 2>/dev/null"
        ))?;
        let digest = local_volume::digest(namespace, "golden", COPIED)?;

        let claim = json!({ "pvc": { "name": "golden", "namespace": namespace.name() } });
        namespace.apply(&data_volume("copy", &claim))?;
        stop_importer(namespace, "copy")?;
        let cut = PowerCut::of(&node)?;
        is_off(&node)?;
        let volume = namespace.need(DATA_VOLUMES, "copy")?;
        ensure!(volume["status"]["phase"] != "Succeeded", "it was copied before: {}", volume["status"]);
        cut.end()?;
        filled(namespace, "copy")?;
        ensure!(local_volume::digest(namespace, "copy", COPIED)? == digest, "the copy has other contents");
        Ok(())
    });
}

#[test]
fn an_upload_whose_node_was_off_is_sent_again() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("uploadloss", |namespace| {
        let _alone = alone();
        let _absent = Absent::prepare()?;
        let stays = node_of_api()?;
        away_from(&stays, || {
            namespace.apply(&upload_proxy::data_volume("disk", "32Mi"))?;
            namespace.wait(DATA_VOLUMES, "disk", "to be ready", RUNNING, |volume| {
                volume["status"]["phase"] == "UploadReady"
            })
        })?;
        let node = Node::of(&namespace.need("pod", "cdi-upload-disk")?)?;
        ensure!(node.name() != stays, "the upload arrives on the node that stays");
        let image = tempfile::NamedTempFile::new()?;
        let mut bytes = vec![0_u8; UPLOADED];
        fastrand::fill(&mut bytes);
        fs::write(image.path(), &bytes)?;
        let (sender, path) = (Sender::into_claim(namespace, "disk")?, image.path());
        let (cut, broken) = thread::scope(|scope| {
            let sent = scope.spawn(|| sender.send_named(&SLOWLY, path));
            thread::sleep(Duration::from_secs(3));
            let cut = PowerCut::of(&node);
            let sent = sent.join().map_err(|_| anyhow!("the sender panicked"))?;
            anyhow::Ok((cut?, sent?))
        })?;
        ensure!(!broken.text().ends_with("200"), "it has arrived before: {broken:?}");
        is_off(&node)?;
        cut.end()?;

        let sender = Sender::into_claim(namespace, "disk")?;
        wait::until_true("the pod to take the image", RUNNING * 2, || {
            Ok(sender.send(&["--max-time", "60"], path)?.text().ends_with("200"))
        })?;
        filled(namespace, "disk")?;
        let found = local_volume::digest(namespace, "disk", UPLOADED as u64)?;
        ensure!(found == sha256(path)?, "the disk has other contents");
        Ok(())
    });
}
