//! DataVolumes without CDI whose claims are devices. The cluster's own storage has none: this test needs the test bed's.

use super::imports::{
    FILLED, SERVER, data_volume, device, digest_of_tiny, filled, host, publish, sha256, shell, tiny,
    without_cdi,
};
use super::imports_in_a_row::IMAGE;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::DATA_VOLUMES;
use barevirt_e2e::command::kubectl;
use barevirt_e2e::wait::{BOOT, SOON};
use barevirt_e2e::{Console, Namespace, guest, pods};
use serde_json::{Value, json};

/// A DataVolume on a device that every node has.
fn on_device(name: &str, source: &Value, size: &str) -> Value {
    let mut volume = data_volume(name, source, size);
    let storage = &mut volume["spec"]["storage"];
    storage["storageClassName"] = json!("block");
    storage["volumeMode"] = json!("Block");
    storage["accessModes"] = json!(["ReadWriteMany"]);
    volume
}

/// A device whose claim was deleted, with its contents. Once this is dropped, it goes with its next claim.
struct Used {
    volume: String,
}

impl Used {
    /// Deletes a DataVolume, and leaves its device to the next claim that names it.
    fn of(namespace: &Namespace, name: &str) -> Result<Self> {
        let claim = namespace.need("pvc", name)?;
        let volume = claim["spec"]["volumeName"].as_str().context("the claim has no volume")?.to_owned();
        let used = Used { volume };
        used.patch(&json!({ "persistentVolumeReclaimPolicy": "Retain" }))?;
        namespace.delete(DATA_VOLUMES, name)?;
        namespace.wait_gone("pvc", name, SOON)?;
        used.patch(&json!({ "claimRef": null }))?;
        Ok(used)
    }

    fn patch(&self, spec: &Value) -> Result<()> {
        let patch = json!({ "spec": spec }).to_string();
        kubectl(&["patch", "pv", &self.volume, "--type=merge", "-p", &patch]).map(drop)
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let _ = self.patch(&json!({ "persistentVolumeReclaimPolicy": "Delete" }));
    }
}

/// A machine with these DataVolumes as its disks. Its system is in its memory: a disk may have the label of the small guest's.
pub(crate) fn with_disks<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    let mut machine = guest::movable(guest::machine("vm", "Always"));
    let spec = guest::spec_of(&mut machine);
    for name in names {
        let disk = json!({ "name": name, "serial": name, "disk": { "bus": "virtio" } });
        guest::push(&mut spec["domain"]["devices"]["disks"], disk);
        guest::push(&mut spec["volumes"], json!({ "name": name, "dataVolume": { "name": name } }));
    }
    machine
}

/// Checks that a disk begins with so many MiB of that checksum, and has zeros from there to its end.
pub(crate) fn has(console: &mut Console, serial: &str, mib: u64, digest: &str) -> Result<()> {
    let read = format!("dd if={} bs=1M 2>/dev/null", device(serial));
    let found = console.ok(&format!("{read} count={mib} | sha256sum"), BOOT)?;
    ensure!(found.contains(digest), "{serial} has other contents: {found}");
    let rest = console.ok(&format!("{read} skip={mib} | wc -c"), BOOT)?;
    ensure!(rest.trim() != "0", "{serial} has nothing after its image");
    let rest = console.ok(&format!("{read} skip={mib} | tr -d '\\000' | wc -c"), BOOT)?;
    ensure!(rest.trim() == "0", "{rest} bytes after the image of {serial} are not zero");
    Ok(())
}

#[test]
fn devices_have_the_whole_image_and_nothing_of_their_former_contents() {
    without_cdi("importsblock", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        shell(work.path(), "head -c 16777216 /dev/urandom >former && head -c 1048576 /dev/urandom >data")?;
        let data = work.path().join("data");
        publish(namespace, "tiny.qcow2", &tiny())?;
        publish(namespace, "former", &work.path().join("former"))?;
        publish(namespace, "data", &data)?;
        let http = |path: &str| json!({ "http": { "url": format!("http://{}/{path}", host(namespace)) } });
        namespace.apply(&on_device("former", &http("former"), "16Mi"))?;
        namespace.apply(&on_device("image", &http("tiny.qcow2"), "160Mi"))?;
        let claim = json!({ "pvc": { "name": "image", "namespace": namespace.name() } });
        namespace.apply(&on_device("copy", &claim, "160Mi"))?;

        // The device of the first one is full of its contents, and is the next one's.
        filled(namespace, "former", FILLED)?;
        let used = Used::of(namespace, "former")?;
        let mut next = on_device("data", &http("data"), "16Mi");
        next["spec"]["storage"]["volumeName"] = json!(used.volume);
        namespace.apply(&next)?;
        for name in ["image", "copy", "data"] {
            filled(namespace, name, FILLED)?;
        }

        let mut console = Console::boot(namespace, &with_disks(["image", "copy", "data"]))?;
        let image = digest_of_tiny()?;
        for name in ["image", "copy"] {
            has(&mut console, name, IMAGE >> 20, &image)?;
        }
        has(&mut console, "data", 1, &sha256(&data)?)?;
        console.leave().map(drop)
    });
}
