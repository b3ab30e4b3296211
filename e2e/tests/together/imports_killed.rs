//! DataVolumes without CDI whose pods are killed at work: an importer of a registry's image, both pods of a copy from another
//! namespace, and importers and servers of every source at random moments. `IMPORTS_SEED` repeats those of another run; the
//! tests print it. `imports_servers` has a web server's.

use super::copies::traces;
use super::imports::{
    FILLED, SERVER, data_volume, digest_of_tiny, filled, host, host_of, publish, publish_image, publish_on,
    tiny, without_cdi,
};
use super::imports_in_a_row::{have_contents, have_the_image};
use super::imports_s3::{OBJECT, SLOW, serve_objects, source as object};
use super::imports_servers::{NGINX, OBJECTS, WEB, certificates, is_under_way, kill_server, percent, serve};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::container::Container;
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, Node, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The program of both kinds of pods.
const PROGRAM: &str = "virt-importer";
/// Time until virt-controller has asked an importer for its progress.
const ASKED: Duration = Duration::from_secs(5);

/// Pause between two looks at a node for a program that is about to start.
const LOOK: Duration = Duration::from_millis(10);
/// The latest moment of a kill after the importer has begun, in milliseconds. Slow servers send for longer than that.
const LATEST: u64 = 6000;
/// The same for a copy within a node, and the length in bytes of a disk for which that takes longer.
const LATEST_OF_COPY: u64 = 700;
const LARGE: u64 = 512 << 20;
/// Copies of that disk, one after the other.
const COPIES: u32 = 3;

/// The moments of kills.
pub(crate) fn moments() -> fastrand::Rng {
    let given = std::env::var("IMPORTS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| jiff::Timestamp::now().as_millisecond().unsigned_abs());
    println!("IMPORTS_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// The pod of that name, as soon as its program has begun.
fn begun(namespace: &Namespace, name: &str) -> Result<Value> {
    let placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
    let pod = namespace.wait("pod", name, "to have a node", FILLED, placed)?;
    let node = Node::of(&pod)?;
    let deadline = Instant::now() + FILLED;
    while node.processes(&pod, PROGRAM)?.is_empty() {
        ensure!(Instant::now() < deadline, "waited {} s for {name} to begin", FILLED.as_secs());
        thread::sleep(LOOK);
    }
    Ok(pod)
}

/// Sends a signal to the program of a pod.
pub(crate) fn signal(namespace: &Namespace, pod: &str, signal: &str) -> Result<()> {
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

#[test]
fn an_import_of_any_source_arrives_though_importer_or_server_is_killed_at_a_random_moment() {
    without_cdi("killedanytime", |namespace| {
        certificates(namespace)?;
        serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
        serve_objects(namespace, SLOW)?;
        let work = tempfile::tempdir()?;
        publish(namespace, "disk", &tiny())?;
        publish_image(namespace, work.path(), &tiny())?;
        publish_on(namespace, OBJECTS, OBJECT, &tiny())?;
        let at = host_of(namespace, WEB);
        let http = json!({ "url": format!("https://{at}/slow/disk"), "certConfigMap": "authority" });
        let registry = json!({ "url": format!("docker://{at}/images/data:1"), "certConfigMap": "authority" });
        let sources = [
            ("http", WEB, "nginx", json!({ "http": http })),
            ("registry", WEB, "nginx", json!({ "registry": registry })),
            ("s3", OBJECTS, "s3", object(namespace, OBJECT, Some("keys"))),
        ];
        let mut moments = moments();
        for (kind, server, program, source) in &sources {
            for victim in ["importer", "server"] {
                let name = format!("{kind}-{victim}");
                namespace.apply(&data_volume(&name, source, "160Mi"))?;
                let pod = begun(namespace, &format!("importer-{name}"))?;
                thread::sleep(Duration::from_millis(moments.u64(..LATEST)));
                if victim == "server" {
                    kill_server(namespace, server, program)?;
                } else {
                    Node::of(&pod)?.kill(&pod, PROGRAM, "KILL")?;
                }
                let ended = filled(namespace, &name, FILLED * 2)?;
                ensure!(victim == "server" || has_begun_again(&ended), "{name}: {}", ended["status"]);
            }
        }
        have_the_image(namespace, &digest_of_tiny()?)
    });
}

#[test]
fn a_copy_within_a_namespace_is_whole_though_its_importer_is_killed_at_a_random_moment() {
    without_cdi("killedcopy", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let make = format!("head -c {LARGE} /dev/urandom >/tmp/www/disk && sha256sum /tmp/www/disk");
        let made = Container::of(&namespace.need("pod", SERVER)?)?.sh(&make)?;
        ensure!(made.code == 0, "{made:?}");
        let digest = made.stdout.split(' ').next().unwrap_or_default();
        let source = json!({ "http": { "url": format!("http://{}/disk", host(namespace)) } });
        namespace.apply(&data_volume("golden", &source, "640Mi"))?;
        filled(namespace, "golden", FILLED)?;

        let claim = json!({ "pvc": { "name": "golden", "namespace": namespace.name() } });
        let (mut moments, mut interrupted) = (moments(), 0);
        for number in 0..COPIES {
            let name = format!("copy-{number}");
            namespace.apply(&data_volume(&name, &claim, "640Mi"))?;
            let pod = begun(namespace, &format!("importer-{name}"))?;
            thread::sleep(Duration::from_millis(moments.u64(..LATEST_OF_COPY)));
            // Some may be done by then.
            let _ = Node::of(&pod)?.kill(&pod, PROGRAM, "KILL");
            interrupted += u32::from(has_begun_again(&filled(namespace, &name, FILLED)?));
        }
        ensure!(interrupted > 0, "no copy was interrupted");
        have_contents(namespace, LARGE, digest)
    });
}
