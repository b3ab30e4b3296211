//! DataVolumes without CDI whose pods are killed at work: an importer of a registry's image, and both pods of a copy from
//! another namespace. `imports_servers` has those of a web server.

use super::copies::traces;
use super::imports::{
    FILLED, data_volume, digest_of_tiny, filled, host_of, publish_image, tiny, without_cdi,
};
use super::imports_in_a_row::have_the_image;
use super::imports_servers::{NGINX, WEB, certificates, is_under_way, percent, serve};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

/// The program of both kinds of pods.
const PROGRAM: &str = "virt-importer";
/// Time until virt-controller has asked an importer for its progress.
const ASKED: Duration = Duration::from_secs(5);

/// Sends a signal to the program of a pod.
fn signal(namespace: &Namespace, pod: &str, signal: &str) -> Result<()> {
    let pod = namespace.need("pod", pod)?;
    Node::of(&pod)?.kill(&pod, PROGRAM, signal)
}

fn has_begun_again(volume: &Value) -> bool {
    volume["status"]["restartCount"].as_u64() >= Some(1)
}

/// Lets a stopped sender go on for moments, until the DataVolume `copy` has a part of its disk.
fn sends_a_part(namespace: &Namespace, golden: &Namespace, sender: &str) -> Result<()> {
    let pod = golden.need("pod", sender)?;
    let node = Node::of(&pod)?;
    let programs = node.processes(&pod, PROGRAM)?;
    let program = programs.first().context("the sender does not run")?;
    wait::until_true("a part of the copy to arrive", FILLED, || {
        node.sh(&format!("kill -CONT {program}; sleep 0.1; kill -STOP {program}"))?;
        thread::sleep(ASKED);
        Ok(percent(&namespace.need(DATA_VOLUMES, "copy")?) > 5.0)
    })?;
    let volume = namespace.need(DATA_VOLUMES, "copy")?;
    ensure!(percent(&volume) < 99.0, "it was copied at once: {}", volume["status"]);
    Ok(())
}

#[test]
fn an_image_of_a_registry_arrives_though_its_importer_is_killed() {
    without_cdi("killedimage", |namespace| {
        certificates(namespace)?;
        serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
        let work = tempfile::tempdir()?;
        publish_image(namespace, work.path(), &tiny())?;
        let url = format!("docker://{}/images/data:1", host_of(namespace, WEB));
        let source = json!({ "registry": { "url": url, "certConfigMap": "authority" } });
        namespace.apply(&data_volume("disk", &source, "160Mi"))?;
        is_under_way(namespace, "disk")?;
        signal(namespace, "importer-disk", "KILL")?;
        let ended = filled(namespace, "disk", FILLED * 2)?;
        ensure!(has_begun_again(&ended), "{}", ended["status"]);
        have_the_image(namespace, &digest_of_tiny()?)
    });
}

#[test]
fn a_copy_of_another_namespace_goes_on_after_its_pods_were_killed_in_turns() {
    in_namespace("killedimages", |golden| {
        let golden = golden.clone();
        in_namespace("killedcopies", move |namespace| {
            let _absent = Absent::prepare()?;
            let image = json!({ "registry": { "url": format!("docker://{}", guest::tiny_image()), "pullMethod": "node" } });
            golden.apply(&data_volume("tiny", &image, "160Mi"))?;
            filled(&golden, "tiny", FILLED)?;
            let source = json!({ "pvc": { "name": "tiny", "namespace": golden.name() } });
            namespace.apply(&data_volume("copy", &source, "160Mi"))?;
            let volume = namespace.need(DATA_VOLUMES, "copy")?;
            let uid = volume["metadata"]["uid"].as_str().context("a DataVolume without a UID")?;
            let sender = format!("{uid}-source-pod");
            golden.wait("pod", &sender, "to run", FILLED, |pod| {
                pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
            })?;
            // Its importer is made only now. Stopped, it cannot send everything at once.
            signal(&golden, &sender, "STOP")?;
            sends_a_part(namespace, &golden, &sender)?;
            signal(namespace, "importer-copy", "KILL")?;
            namespace.wait(DATA_VOLUMES, "copy", "to be copied again", FILLED, has_begun_again)?;
            sends_a_part(namespace, &golden, &sender)?;
            // The next one of this pod has the same key, and is not stopped.
            signal(&golden, &sender, "KILL")?;
            filled(namespace, "copy", FILLED * 2)?;
            let digest = digest_of_tiny()?;
            for namespace in [namespace, &golden] {
                have_the_image(namespace, &digest)?;
                wait::until_true("nothing of the copy to be left", SOON, || {
                    Ok(traces(namespace)?.is_empty())
                })?;
            }
            Ok(())
        });
        Ok(())
    });
}
