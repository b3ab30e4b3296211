//! Bad input: every mistake gets a message that names the field or the object, and nothing hangs.

use anyhow::{Result, ensure};
use barevirt_e2e::command::{succeed, try_kubectl_with};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, image, in_namespace, in_no_namespace};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::OnceLock;

/// Admission refuses the manifest for both kinds, and names the field with its path in each.
fn refused(namespace: &Namespace, change: impl Fn(&mut Value), field: &str, words: &str) -> Result<()> {
    for (manifest, prefix) in
        [(guest::instance("bad"), "spec"), (guest::machine("bad", "Halted"), "spec.template.spec")]
    {
        let mut manifest = manifest;
        change(guest::spec_of(&mut manifest));
        let message = namespace.refusal(&manifest)?;
        let field = format!("{prefix}.{field}");
        ensure!(message.contains(&field), "the message does not name {field}: {message}");
        ensure!(message.contains(words), "the message does not say {words:?}: {message}");
    }
    Ok(())
}

#[test]
fn an_unknown_field_is_named() {
    in_no_namespace(|namespace| {
        refused(namespace, |spec| spec["domain"]["turbo"] = json!(true), "domain.turbo", "unknown field")
    });
}

#[test]
fn an_unknown_bus_is_named() {
    in_no_namespace(|namespace| {
        let change =
            |spec: &mut Value| spec["domain"]["devices"]["disks"][0]["disk"]["bus"] = json!("punched-tape");
        refused(namespace, change, "domain.devices.disks[0].disk.bus", "punched-tape")
    });
}

#[test]
fn an_unknown_network_card_is_named() {
    in_no_namespace(|namespace| {
        let change =
            |spec: &mut Value| spec["domain"]["devices"]["interfaces"][0]["model"] = json!("token-ring");
        refused(namespace, change, "domain.devices.interfaces[0].model", "token-ring")
    });
}

#[test]
fn an_unknown_run_strategy_is_named() {
    in_no_namespace(|namespace| {
        let message = namespace.refusal(&guest::machine("bad", "Sometimes"))?;
        ensure!(message.contains("spec.runStrategy") && message.contains("Sometimes"), "{message}");
        Ok(())
    });
}

#[test]
fn running_and_run_strategy_exclude_each_other() {
    in_no_namespace(|namespace| {
        let mut manifest = guest::machine("bad", "Halted");
        manifest["spec"]["running"] = json!(true);
        let message = namespace.refusal(&manifest)?;
        ensure!(message.contains("spec.running") || message.contains("mutually exclusive"), "{message}");
        Ok(())
    });
}

#[test]
fn two_disks_of_one_name_are_refused() {
    in_no_namespace(|namespace| {
        let change = |spec: &mut Value| {
            let disk = spec["domain"]["devices"]["disks"][0].clone();
            guest::push(&mut spec["domain"]["devices"]["disks"], disk);
        };
        refused(namespace, change, "domain.devices.disks[1].name", "same Name")
    });
}

#[test]
fn a_disk_without_a_volume_is_refused() {
    in_no_namespace(|namespace| {
        let change = |spec: &mut Value| {
            guest::push(&mut spec["domain"]["devices"]["disks"], json!({ "name": "lost", "disk": {} }));
        };
        refused(namespace, change, "domain.devices.disks[1].name", "lost")
    });
}

#[test]
fn a_volume_that_no_disk_names_gets_one() {
    in_no_namespace(|namespace| {
        let mut manifest = guest::instance("vm");
        guest::push(
            &mut manifest["spec"]["volumes"],
            json!({ "name": "spare", "emptyDisk": { "capacity": "1Mi" } }),
        );
        let words = ["create", "-n", namespace.name(), "--dry-run=server", "-o", "json", "-f", "-"];
        let taken = try_kubectl_with(&words, &manifest.to_string())?;
        ensure!(taken.code == 0, "{}", taken.text());
        let taken: Value = serde_json::from_str(&taken.stdout)?;
        let disks = &taken["spec"]["domain"]["devices"]["disks"];
        ensure!(disks[1]["name"] == "spare" && disks[1]["disk"]["bus"].is_string(), "{disks}");
        // A typo in a volume's name is a disk without a volume, which is refused.
        let mut typo = guest::instance("typo");
        typo["spec"]["domain"]["devices"]["disks"][0]["name"] = json!("rooot");
        let message = namespace.refusal(&typo)?;
        ensure!(message.contains("rooot"), "{message}");
        Ok(())
    });
}

#[test]
fn cloud_init_beyond_its_limit_is_refused() {
    in_no_namespace(|namespace| {
        let change = |spec: &mut Value| {
            guest::push(&mut spec["domain"]["devices"]["disks"], json!({ "name": "seed", "disk": {} }));
            let data = "#".repeat(2049);
            guest::push(
                &mut spec["volumes"],
                json!({ "name": "seed", "cloudInitNoCloud": { "userData": data } }),
            );
        };
        refused(namespace, change, "volumes[1].cloudInitNoCloud", "2048")
    });
}

#[test]
fn a_path_that_leaves_the_image_is_refused() {
    in_no_namespace(|namespace| {
        let change =
            |spec: &mut Value| spec["volumes"][0]["containerDisk"]["path"] = json!("../../etc/shadow");
        refused(namespace, change, "volumes[0].containerDisk", "without relative components")
    });
}

#[test]
fn memory_is_demanded_of_an_instance() {
    in_namespace("bad-memory", |namespace| {
        let without = |mut manifest: Value| {
            guest::spec_of(&mut manifest)["domain"]["memory"] = json!({});
            manifest
        };
        let message = namespace.refusal(&without(guest::instance("bad")))?;
        ensure!(message.contains("spec.domain.memory.guest"), "{message}");
        // A machine may wait for the object, and says so when it is started.
        namespace.apply(&without(guest::machine("vm", "Always")))?;
        let says = |vm: &Value| vm["status"]["conditions"].to_string().contains("no memory requested");
        namespace.wait("vm", "vm", "to say why it does not start", SOON, says).map(drop)
    });
}

/// An image with malicious disks.
fn odd_image() -> Result<&'static str> {
    const NAME: &str = "localhost/barevirt-e2e/odd-disks:devel";
    static MADE: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let made = MADE.get_or_init(|| make_odd_image(NAME).map_err(|error| format!("{error:#}")));
    made.as_ref().map_err(|error| anyhow::anyhow!("no image with odd disks: {error}"))?;
    Ok(NAME)
}

fn make_odd_image(name: &str) -> Result<()> {
    let root = tempfile::tempdir()?;
    let odd = root.path().join("odd");
    fs::create_dir(&odd)?;
    fs::create_dir(root.path().join("etc"))?;
    fs::write(root.path().join("etc/shadow"), "root:secret:1:0:99999:7:::\n")?;
    symlink("/etc/shadow", odd.join("absolute.img"))?;
    symlink("../etc/shadow", odd.join("relative.img"))?;
    fs::write(odd.join("text.img"), "this is no disk")?;
    let backed = odd.join("backed.qcow2");
    let mut command = Command::new("qemu-img");
    command
        .args(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/shadow"])
        .arg(&backed)
        .arg("1M");
    succeed(&mut command, None)?;
    image::load(name, root.path())
}

/// What each of these images leads to is reported, in a condition of the instance or its end, and in an event. None of the
/// instances runs.
#[test]
fn images_without_the_disk_and_with_malicious_ones_are_reported() {
    in_namespace("odd-disks", |namespace| {
        let odd = odd_image()?;
        let empty = "localhost/barevirt-cluster/busybox:devel";
        let all = [
            ("no-disk", json!({ "image": empty }), ["root", "/disk"]),
            ("no-path", json!({ "image": odd, "path": "/odd/missing.img" }), ["root", "odd/missing.img"]),
            // Symbolic links are not followed.
            ("link", json!({ "image": odd, "path": "/odd/absolute.img" }), ["root", "odd/absolute.img"]),
            ("relative", json!({ "image": odd, "path": "/odd/relative.img" }), ["root", "odd/relative.img"]),
            ("backed", json!({ "image": odd, "path": "/odd/backed.qcow2" }), ["root", "backing file"]),
        ];
        for (name, container_disk, _) in &all {
            let mut manifest = guest::instance(name);
            manifest["spec"]["volumes"][0]["containerDisk"] = container_disk.clone();
            namespace.apply(&manifest)?;
        }
        for (name, _, words) in &all {
            reported(namespace, name, words)?;
        }
        Ok(())
    });
}

fn reported(namespace: &Namespace, name: &str, words: &[&str]) -> Result<()> {
    let says = |text: &str| words.iter().all(|word| text.contains(word));
    namespace
        .wait("vmi", name, &format!("to say {words:?}"), RUNNING, |vmi| says(&vmi["status"].to_string()))?;
    wait::until_true(&format!("an event about {name} that says {words:?}"), SOON, || {
        let events = namespace.list("events")?;
        // An event of the instance, or of its pod.
        let about = |event: &Value| {
            event["involvedObject"]["name"].as_str().is_some_and(|object| object.contains(name))
        };
        Ok(events.iter().any(|event| about(event) && says(event["message"].as_str().unwrap_or_default())))
    })?;
    let vmi = namespace.need("vmi", name)?;
    ensure!(vmi["status"]["phase"] != "Running", "{name} runs");
    Ok(())
}
