//! Hotplug of volumes.

use anyhow::{Context, Result, bail, ensure};
use barevirt_e2e::command::try_kubectl_with;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

use crate::imports::{data_volume, without_cdi};

/// Time until a claim is filled, a pod holds it, and the guest gets or loses a disk.
const CHANGE: Duration = Duration::from_secs(120);

/// A running guest, and its console.
fn boot(namespace: &Namespace, manifest: &Value) -> Result<Console> {
    namespace.apply(manifest)?;
    namespace.wait_phase("vm", "Running", RUNNING)?;
    open(namespace)
}

/// Its console, with the drivers that a guest with udev would load by itself.
pub(crate) fn open(namespace: &Namespace) -> Result<Console> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    console.ok("modprobe -a virtio_scsi sd_mod", SOON)?;
    Ok(console)
}

/// The guest's name of the disk with that serial number; empty if there is none.
fn disk(console: &mut Console, serial: &str) -> Result<String> {
    let line = format!(
        "for d in /sys/block/*; do cat $d/serial $d/device/vpd_pg80 2>/dev/null | tr -d '\\000' | grep -q '{serial}$' && basename $d; done; true"
    );
    console.ok(&line, SOON)
}

pub(crate) fn wait_disk(console: &mut Console, serial: &str, there: bool) -> Result<String> {
    let what = if there { "to have a disk" } else { "to lose its disk" };
    wait::until(&format!("the guest {what} {serial}"), CHANGE, || {
        let found = disk(console, serial)?;
        Ok((found.is_empty() != there).then_some(found))
    })
}

/// The instance's status of a volume.
pub(crate) fn volume_status(vmi: &Value, name: &str) -> Option<Value> {
    vmi["status"]["volumeStatus"].as_array()?.iter().find(|volume| volume["name"] == name).cloned()
}

/// Waits until the volume is in the guest, and nothing in it needs a restart.
pub(crate) fn wait_ready(namespace: &Namespace, name: &str) -> Result<()> {
    let vmi = namespace.wait("vmi", "vm", &format!("to have the volume {name}"), CHANGE, |vmi| {
        volume_status(vmi, name).is_some_and(|volume| volume["phase"] == "Ready")
    })?;
    let volume = volume_status(&vmi, name).context("no such volume")?;
    ensure!(volume["hotplugVolume"]["attachPodName"].is_string(), "{volume}");
    Ok(())
}

pub(crate) fn wait_unreported(namespace: &Namespace, name: &str) -> Result<()> {
    let gone = format!("to have lost the volume {name}");
    namespace.wait("vmi", "vm", &gone, CHANGE, |vmi| volume_status(vmi, name).is_none()).map(drop)
}

/// Names of the volumes of a stored object.
fn volumes(namespace: &Namespace, kind: &str) -> Result<Vec<String>> {
    let mut object = namespace.need(kind, "vm")?;
    let spec = if kind == "vm" { object["spec"]["template"]["spec"].take() } else { object["spec"].take() };
    let names = spec["volumes"].as_array().context("a list of volumes")?.iter();
    Ok(names.filter_map(|volume| volume["name"].as_str().map(str::to_owned)).collect())
}

fn needs_no_restart(namespace: &Namespace) -> Result<()> {
    let vm = namespace.need("vm", "vm")?;
    ensure!(condition(&vm, "RestartRequired").is_null(), "{}", vm["status"]["conditions"]);
    Ok(())
}

/// Clients of KubeVirt take the newest pod with the label for the launcher, and pods that it owns for those with its disks.
fn only_the_launcher_has_its_label(namespace: &Namespace, uid: &Value) -> Result<()> {
    let pods = namespace.list("pod")?;
    let labelled = pods.iter().filter(|pod| pod["metadata"]["labels"]["kubevirt.io/created-by"] == *uid);
    let labelled: Vec<&Value> = labelled.collect();
    let [launcher] = labelled.as_slice() else { bail!("{} pods look like the launcher", labelled.len()) };
    let owner = &launcher["metadata"]["uid"];
    let owned = pods.iter().filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == *owner).count();
    ensure!(owned == 1, "the launcher owns {owned} pods");
    Ok(())
}

/// Two guests, one after the other. Each step is a behaviour of its own.
#[test]
fn a_machine_s_volume_comes_stays_over_a_restart_and_goes_and_so_do_those_of_a_changed_template() {
    in_namespace("plug-vm", |namespace| {
        namespace.claim("data")?;
        let mut console = boot(namespace, &guest::machine("vm", "Always"))?;
        let vmi = namespace.need("vmi", "vm")?;
        let (uid, node) = (vmi["metadata"]["uid"].clone(), vmi["status"]["nodeName"].clone());
        let add = ["addvolume", "vm", "--volume-name=data", "--serial=PLUGGED-WHILE-IT-RUNS-1"];
        let output = namespace.virtctl(&add)?;
        ensure!(
            output.contains("Successfully submitted add volume request to VM vm for volume data"),
            "{output}"
        );
        wait_ready(namespace, "data")?;
        let name = wait_disk(&mut console, "PLUGGED-WHILE-IT-RUNS-1", true)?;
        console.ok(&format!("echo what was written >/dev/{name} && sync"), SOON)?;
        ensure!(volumes(namespace, "vm")? == ["root", "data"], "it is in the template");
        needs_no_restart(namespace)?;
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == uid, "another instance");
        only_the_launcher_has_its_label(namespace, &uid)?;
        console.leave()?;

        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING, |vmi| {
            vmi["metadata"]["uid"] != uid && vmi["status"]["phase"] == "Running"
        })?;
        // Each of the cluster's claims is on one node.
        let placed = namespace.need("vmi", "vm")?["status"]["nodeName"].clone();
        ensure!(placed == node, "{placed} is not where its volume is");
        let mut console = open(namespace)?;
        let name = wait_disk(&mut console, "PLUGGED-WHILE-IT-RUNS-1", true)?;
        let kept = console.ok(&format!("head -n 1 /dev/{name}"), SOON)?;
        ensure!(kept == "what was written", "{kept}");

        let output = namespace.virtctl(&["removevolume", "vm", "--volume-name=data"])?;
        ensure!(
            output.contains("Successfully submitted remove volume request to VM vm for volume data"),
            "{output}"
        );
        wait_disk(&mut console, "PLUGGED-WHILE-IT-RUNS-1", false)?;
        wait_unreported(namespace, "data")?;
        ensure!(volumes(namespace, "vm")? == ["root"] && volumes(namespace, "vmi")? == ["root"]);
        needs_no_restart(namespace)?;
        a_changed_template_brings_volumes_and_takes_them(namespace, &mut console)
    });
}

#[test]
fn an_ownerless_instance_gets_a_volume_on_virtio() {
    in_namespace("plug-vmi", |namespace| {
        namespace.claim("data")?;
        let mut console = boot(namespace, &guest::instance("vm"))?;
        namespace.virtctl(&[
            "addvolume",
            "vm",
            "--volume-name=data",
            "--disk-name=scratch",
            "--bus=virtio",
            "--cache=none",
        ])?;
        wait_ready(namespace, "scratch")?;
        let name = wait_disk(&mut console, "scratch", true)?;
        ensure!(name.starts_with("vd"), "{name} is not on virtio");
        // By the name of its claim, too.
        namespace.virtctl(&["removevolume", "vm", "--volume-name=data"])?;
        wait_disk(&mut console, "scratch", false)?;
        wait_unreported(namespace, "scratch")
    });
}

fn a_changed_template_brings_volumes_and_takes_them(
    namespace: &Namespace,
    console: &mut Console,
) -> Result<()> {
    for name in ["one", "two"] {
        namespace.claim(name)?;
    }
    let bare = guest::machine("vm", "Always");
    let mut machine = bare.clone();
    let spec = guest::spec_of(&mut machine);
    for name in ["one", "two"] {
        let source = json!({ "claimName": name, "hotpluggable": true });
        guest::push(&mut spec["volumes"], json!({ "name": name, "persistentVolumeClaim": source }));
        let disk = json!({ "name": name, "serial": name, "disk": { "bus": "scsi" } });
        guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    }
    namespace.apply(&machine)?;
    for name in ["one", "two"] {
        wait_ready(namespace, name)?;
        wait_disk(console, name, true)?;
    }
    needs_no_restart(namespace)?;
    // `apply` removes what it added.
    namespace.apply(&bare)?;
    for name in ["one", "two"] {
        wait_disk(console, name, false)?;
        wait_unreported(namespace, name)?;
    }
    needs_no_restart(namespace)
}

/// Bytes on the disc in the guest's CD drive, as it counts them; "none" without a disc.
fn on_disc(console: &mut Console, expected: &str) -> Result<()> {
    wait::until_true(&format!("the guest to have {expected} bytes on a disc"), SOON, || {
        Ok(console.ok("{ wc -c </dev/sr0; } 2>/dev/null || echo none", SOON)?.trim() == expected)
    })
}

#[test]
fn a_disc_is_inserted_exchanged_and_ejected_once_the_guest_unlocks_the_tray() {
    without_cdi("plug-disc", |namespace| {
        for (name, size) in [("first", "16Mi"), ("second", "24Mi")] {
            let mut volume = data_volume(name, &json!({ "blank": {} }), size);
            // It is bound where its guest is.
            volume["metadata"]["annotations"] = Value::Null;
            namespace.apply(&volume)?;
        }
        let bare = guest::machine("vm", "Always");
        let mut empty = bare.clone();
        let drive = json!({ "name": "cd", "cdrom": { "bus": "sata" } });
        guest::push(&mut guest::spec_of(&mut empty)["domain"]["devices"]["disks"], drive);
        let insert = |disc: &str| {
            let mut machine = empty.clone();
            let source = json!({ "name": disc, "hotpluggable": true });
            let volume = json!({ "name": "cd", "dataVolume": source });
            guest::push(&mut guest::spec_of(&mut machine)["volumes"], volume);
            namespace.apply(&machine)?;
            namespace.wait("vmi", "vm", &format!("to have the disc {disc}"), CHANGE, |vmi| {
                volume_status(vmi, "cd").is_some_and(|volume| {
                    volume["phase"] == "Ready" && volume["persistentVolumeClaimInfo"]["claimName"] == disc
                })
            })
        };
        let mut console = boot(namespace, &empty)?;
        on_disc(&mut console, "none")?;
        insert("first")?;
        on_disc(&mut console, "16777216")?;
        insert("second")?;
        on_disc(&mut console, "25165824")?;
        // A guest that has it open keeps the tray shut.
        console.ok("exec 3</dev/sr0", SOON)?;
        namespace.apply(&empty)?;
        let leaves = |vmi: &Value| volume_status(vmi, "cd").is_some_and(|disc| disc["phase"] == "Detaching");
        namespace.wait("vmi", "vm", "to be asked for its disc", CHANGE, leaves)?;
        ensure!(console.ok("dd if=/dev/sr0 bs=2k count=1 2>/dev/null | wc -c", SOON)?.trim() == "2048");
        console.ok("exec 3<&-", SOON)?;
        wait_unreported(namespace, "cd")?;
        on_disc(&mut console, "none")?;
        needs_no_restart(namespace)?;
        namespace.apply(&bare)?;
        namespace
            .wait("vm", "vm", "to need a restart without its drive", SOON, |vm| {
                !condition(vm, "RestartRequired").is_null()
            })
            .map(drop)
    });
}

#[test]
fn a_dry_run_of_a_volume_changes_nothing() {
    in_namespace("plug-dry", |namespace| {
        namespace.claim("data")?;
        namespace.apply(&guest::machine("vm", "Halted"))?;
        // virt-controller may write the object at any time, for other reasons.
        let asked = || -> Result<(Value, Value)> {
            let vm = namespace.need("vm", "vm")?;
            Ok((vm["spec"].clone(), vm["status"]["volumeRequests"].clone()))
        };
        let before = asked()?;
        let add = ["addvolume", "vm", "--volume-name=data"];
        let output = namespace.virtctl(&[&add[..], &["--dry-run"]].concat())?;
        ensure!(output.starts_with("Dry Run execution") && output.contains("Successfully"), "{output}");
        ensure!(asked()? == before);

        // A stopped machine keeps it for its next start.
        namespace.virtctl(&add)?;
        ensure!(volumes(namespace, "vm")? == ["root", "data"]);
        let before = asked()?;
        namespace.virtctl(&["removevolume", "vm", "--volume-name=data", "--dry-run"])?;
        ensure!(asked()? == before);
        Ok(())
    });
}

#[test]
fn impossible_volume_changes_are_refused_with_the_reason() {
    in_namespace("plug-refused", |namespace| {
        namespace.claim("data")?;
        namespace.claim("other")?;
        namespace.apply(&guest::without_system(guest::machine("vm", "Halted")))?;
        namespace.virtctl(&["addvolume", "vm", "--volume-name=data"])?;
        let conflict = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\"";
        for (words, why) in [
            (
                &["addvolume", "vm", "--volume-name=none"][..],
                "error adding volume, Volume none is not a DataVolume or PersistentVolumeClaim".to_owned(),
            ),
            (
                &["addvolume", "vm", "--volume-name=other", "--disk-name=root"],
                format!(
                    "error adding volume, {conflict}: Unable to add volume [root] because volume with that name already exists"
                ),
            ),
            (
                &["addvolume", "vm", "--volume-name=data", "--disk-name=again"],
                format!(
                    "error adding volume, {conflict}: Unable to add volume source [data] because it already exists"
                ),
            ),
            (
                &["removevolume", "vm", "--volume-name=root"],
                format!(
                    "error removing volume, {conflict}: Unable to remove volume [root] because it is not hotpluggable"
                ),
            ),
            (
                &["removevolume", "vm", "--volume-name=none"],
                format!(
                    "error removing volume, {conflict}: Unable to remove volume [none] because it does not exist"
                ),
            ),
            (
                &["addvolume", "vm", "--volume-name=other", "--bus=sata"],
                "Invalid bus type 'sata' for disk. Only 'scsi' and 'virtio' are supported.".to_owned(),
            ),
            (
                &["addvolume", "nobody", "--volume-name=other"],
                "virtualmachineinstances.kubevirt.io \"nobody\" not found".to_owned(),
            ),
        ] {
            let output = namespace.try_virtctl(words)?;
            ensure!(output.code == 1 && output.text().contains(&why), "{words:?}: {output:?}");
        }
        ensure!(volumes(namespace, "vm")? == ["root", "data"]);

        // An instance cannot be edited, and an instance of a machine cannot be changed separately.
        let base = format!("/apis/subresources.kubevirt.io/v1/namespaces/{}", namespace.name());
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let body = json!({ "name": "data" }).to_string();
        let path = format!("{base}/virtualmachineinstances/vm/removevolume");
        let output = replace(&path, &body)?;
        ensure!(output.contains("is owned by a VM"), "{output}");
        Ok(())
    });
}

/// A guest without a system that has the claim `data` as a disk from its start.
fn with_device(name: &str, reads: bool) -> Value {
    let mut manifest = guest::without_system(guest::instance(name));
    let spec = guest::spec_of(&mut manifest);
    let disk = json!({ "name": "data", "disk": { "bus": "virtio", "readonly": reads } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let source = json!({ "claimName": "data" });
    guest::push(&mut spec["volumes"], json!({ "name": "data", "persistentVolumeClaim": source }));
    manifest
}

#[test]
fn a_device_is_plugged_in_once_no_other_guest_writes_to_it() {
    in_namespace("plug-device", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
            "spec": {
                "storageClassName": "block", "volumeMode": "Block", "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "16Mi" } },
            },
        }))?;
        namespace.apply(&with_device("holder", false))?;
        namespace.wait_phase("holder", "Running", RUNNING)?;
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        namespace.virtctl(&["addvolume", "vm", "--volume-name=data"])?;
        let vmi = namespace.wait("vmi", "vm", "to wait for the device", SOON, |vmi| {
            volume_status(vmi, "data").is_some_and(|volume| volume["reason"] == "ClaimInUse")
        })?;
        let told = volume_status(&vmi, "data").context("no such volume")?;
        ensure!(told["message"].as_str().is_some_and(|text| text.contains("VMI holder")), "{told}");
        let is_attachment = |pod: &Value| pod["metadata"]["labels"]["kubevirt.io"] == "hotplug-disk";
        ensure!(!namespace.list("pod")?.iter().any(is_attachment), "it has a pod");
        let waits = |name: &str| {
            namespace.wait("vmi", name, "to wait for the device", SOON, |vmi| {
                vmi["status"]["conditions"].to_string().contains("ClaimInUse")
            })
        };
        // One that only reads waits, too.
        namespace.apply(&with_device("reader", true))?;
        waits("reader")?;
        namespace.delete("vmi", "reader")?;

        namespace.delete("vmi", "holder")?;
        wait_ready(namespace, "data")?;
        // The next guest waits until the disk is released.
        namespace.apply(&with_device("third", false))?;
        waits("third")?;
        namespace.virtctl(&["removevolume", "vm", "--volume-name=data"])?;
        wait_unreported(namespace, "data")?;
        namespace.wait_phase("third", "Running", RUNNING).map(drop)
    });
}

/// Makes a call of the subresource API that should be refused; returns the message.
fn replace(path: &str, body: &str) -> Result<String> {
    let output = try_kubectl_with(&["replace", "--raw", path, "-f", "-"], body)?;
    ensure!(output.code != 0, "{path} is not refused");
    Ok(output.text())
}
