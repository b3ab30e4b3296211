//! Directories by virtiofs: the guest mounts them, and sees changes while it runs. The guest's system is the
//! initial file system, with Debian's kernel, which has virtiofs.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};

/// A guest with these volumes as directories.
fn with_directories(name: &str, volumes: &[(&str, Value)]) -> Value {
    let mut manifest = guest::with_debians_kernel(guest::instance(name));
    let spec = guest::spec_of(&mut manifest);
    for (name, source) in volumes {
        guest::push(&mut spec["domain"]["devices"]["filesystems"], json!({ "name": name, "virtiofs": {} }));
        let mut volume = source.clone();
        volume["name"] = json!(name);
        guest::push(&mut spec["volumes"], volume);
    }
    manifest
}

/// Starts it, and mounts its directories beneath /mnt.
fn boot(namespace: &Namespace, manifest: &Value, directories: &[&str]) -> Result<Console> {
    let name = manifest["metadata"]["name"].as_str().context("a name")?;
    namespace.apply(manifest)?;
    namespace.wait_phase(name, "Running", RUNNING)?;
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    for directory in directories {
        console.ok(
            &format!("mkdir -p /mnt/{directory} && mount -t virtiofs {directory} /mnt/{directory}"),
            SOON,
        )?;
    }
    Ok(console)
}

/// Two guests, one after the other. Each step is a behaviour of its own.
#[test]
fn guests_share_a_claim_one_after_the_other_and_read_objects_that_change() {
    in_namespace("virtiofs", |namespace| {
        namespace.claim("data")?;
        let data = ("data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
        let first = with_directories("first", std::slice::from_ref(&data));
        let mut console = boot(namespace, &first, &["data"])?;
        console.ok(
            "mkdir /mnt/data/d && echo kept >/mnt/data/d/file && mv /mnt/data/d/file /mnt/data/moved",
            SOON,
        )?;
        console.ok("dd if=/dev/zero of=/mnt/data/zeros bs=64k count=64 && sync", SOON)?;
        console.leave()?;
        namespace.delete("vmi", "first")?;

        let mut volumes = objects(namespace)?;
        volumes.push(data);
        let directories: Vec<&str> = volumes.iter().map(|(name, _)| *name).collect();
        let mut console = boot(namespace, &with_directories("second", &volumes), &directories)?;
        let found = console.ok("cat /mnt/data/moved; wc -c </mnt/data/zeros", SOON)?;
        ensure!(found.contains("kept") && found.contains("4194304"), "{found}");
        reads_objects_and_sees_them_change(namespace, &mut console)?;
        console.leave()?;
        objects_are_in_no_container_of_the_guest(namespace)?;
        reports_the_end_of_a_virtiofsd(namespace)
    });
}

/// Objects of four kinds, as volumes.
fn objects(namespace: &Namespace) -> Result<Vec<(&'static str, Value)>> {
    namespace.kubectl(&["create", "configmap", "settings", "--from-literal=color=blue"])?;
    namespace.kubectl(&["create", "secret", "generic", "key", "--from-literal=password=sesame"])?;
    namespace.kubectl(&["create", "serviceaccount", "robot"])?;
    let guest = json!([{ "path": "guest", "fieldRef": { "fieldPath": "metadata.labels['guest']" } }]);
    Ok(vec![
        ("settings", json!({ "configMap": { "name": "settings" } })),
        ("key", json!({ "secret": { "secretName": "key" } })),
        ("robot", json!({ "serviceAccount": { "serviceAccountName": "robot" } })),
        ("me", json!({ "downwardAPI": { "fields": guest } })),
    ])
}

fn reads_objects_and_sees_them_change(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let read =
        "cd /mnt; cat settings/color; echo; cat key/password; echo; cat robot/namespace; echo; cat me/guest";
    let found = console.ok(read, SOON)?;
    let wanted = format!("blue\nsesame\n{}\nsecond", namespace.name());
    ensure!(found.trim() == wanted, "{found:?} is not {wanted:?}");
    let token = console.ok("wc -c </mnt/robot/token", SOON)?;
    ensure!(token.trim().parse::<usize>()? > 100, "{token}");
    let (said, code) = console.run("echo x >/mnt/settings/new", SOON)?;
    ensure!(code != 0, "it was written: {said}");

    namespace.kubectl(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"red"}}"#])?;
    namespace.wait_mounted("the guest to see the change", "second", || {
        Ok(console.ok("cat /mnt/settings/color", SOON)?.trim() == "red")
    })
}

/// Neither QEMU nor the launcher has these volumes.
fn objects_are_in_no_container_of_the_guest(namespace: &Namespace) -> Result<()> {
    let pod = namespace.launcher("second")?;
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let compute = containers.iter().find(|container| container["name"] == "compute");
    let mounts = compute.context("no compute container")?["volumeMounts"].to_string();
    ensure!(!mounts.contains("object-"), "{mounts}");
    Ok(())
}

/// The virtiofsd of the claim dies: the condition says so, and the guest goes on.
fn reports_the_end_of_a_virtiofsd(namespace: &Namespace) -> Result<()> {
    let pod = namespace.launcher("second")?;
    let node = Node::of(&pod)?;
    let mut killed = 0;
    for process in node.processes(&pod, "virtiofsd")? {
        let line = node.sh(&format!("tr '\\0' ' ' </proc/{process}/cmdline"))?;
        if line.contains("/data ") {
            node.sh(&format!("kill -KILL {process}"))?;
            killed += 1;
        }
    }
    ensure!(killed > 0, "no virtiofsd serves the claim");
    let vmi = namespace.wait("vmi", "second", "to tell of it", SOON, |vmi| {
        vmi["status"]["conditions"].to_string().contains("FilesystemEnded")
    })?;
    let conditions = vmi["status"]["conditions"].to_string();
    ensure!(conditions.contains("volume data is not shared any more"), "{conditions}");
    ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
    namespace.wait_event("second", "FilesystemEnded").map(drop)
}
