//! The time until a running guest has a further card or disk: from the change of its machine, against the bare commands at the
//! monitor of a QEMU that was started by hand with the command line of such a guest.
//!
//! Both guests look for the device twenty times in a second. On the cluster the test bed's own program attaches the pod to the
//! network (`cluster-up/go/networks`), and the kubelet starts a pod that holds the disk's claim: both are part of the time.

use super::launch::{self, start};
use super::raw::{Control, Raw};
use super::{Figure, Figures};
use crate::command::repository;
use crate::namespace::Namespace;
use crate::wait::{self, BOOT, RUNNING, SOON};
use crate::{Console, guest, networks};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The machine whose guest gets card and disk.
const MACHINE: &str = "bench";
/// Name of the card's network, and of its definition.
const NETWORK: &str = "plugged";
/// The disk's claim, and the serial number by which the guest knows it.
const DISK: &str = "plugged";
/// As large as the claim.
const DISK_BYTES: u64 = 16 << 20;
/// Time until the guest has it, or has lost it. The first disk waits for its claim's volume, on a busy machine.
const PLUGGED: Duration = Duration::from_secs(180);
/// What is true in a guest that has it.
const HAS_CARD: &str = "[ -e /sys/class/net/eth1 ]";
const HAS_DISK: &str = "grep -qsx plugged /sys/block/*/serial";
/// A root port without a device, of the small guest.
const FREE_PORT: &str = "rp15";

/// Measures `card_plug` and `disk_plug`.
pub fn measure(namespace: &Namespace, launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    networks::define(namespace, NETWORK, &json!({}))?;
    namespace.claim(DISK)?;
    namespace.apply(&guest::machine(MACHINE, "Always"))?;
    let raw = Raw::of(&start(launcher, &repository().join(launch::MANIFEST))?.0)?;
    let (mut command, control) = raw.command(true)?;
    let mut by_hand = Console::start(&mut command)?;
    drop(command);
    control.go()?;
    by_hand.login(BOOT)?;
    namespace.wait_phase(MACHINE, "Running", RUNNING)?;
    let mut launched = Console::open(namespace, MACHINE)?;
    launched.login(BOOT)?;
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(until_there(&mut launched, HAS_CARD, || plug_card(namespace))?);
        unplug_card(namespace)?;
        raws.push(until_there(&mut by_hand, HAS_CARD, || plug_card_by_hand(&control, round))?);
        unplug_card_by_hand(&control, round, &mut by_hand)?;
    }
    figures.insert("card_plug".to_owned(), Figure::compared(&ours, &raws, "ms"));

    // The first one is not counted: the claim gets its volume then.
    until_there(&mut launched, HAS_DISK, || plug_disk(namespace))?;
    unplug_disk(namespace)?;
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(DISK_BYTES)?;
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(until_there(&mut launched, HAS_DISK, || plug_disk(namespace))?);
        unplug_disk(namespace)?;
        raws.push(until_there(&mut by_hand, HAS_DISK, || plug_disk_by_hand(&control, round, file.path()))?);
        unplug_disk_by_hand(&control, round)?;
    }
    launched.leave()?;
    figures.insert("disk_plug".to_owned(), Figure::compared(&ours, &raws, "ms"));
    Ok(())
}

/// Milliseconds from the beginning of `act` until that holds in the guest.
fn until_there(console: &mut Console, has_it: &str, act: impl FnOnce() -> Result<()>) -> Result<f64> {
    // The shell echoes the line; the quotes keep the mark from being found there.
    console.send(&format!("echo be'gun'; until {has_it}; do sleep 0.05; done; echo it' 'has\n"))?;
    console.expect("begun", SOON)?;
    let begun = Instant::now();
    act()?;
    console.expect("it has", PLUGGED)?;
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

fn plug_card(namespace: &Namespace) -> Result<()> {
    networks::plug(namespace, MACHINE, (NETWORK, NETWORK), None)
}

/// Takes the card away, and waits until nothing of it is left in machine and instance.
fn unplug_card(namespace: &Namespace) -> Result<()> {
    networks::set_state(namespace, MACHINE, 1, "absent")?;
    let cards = |list: &Value| list.as_array().map_or(0, Vec::len);
    namespace.wait("vm", MACHINE, "to have one card", PLUGGED, |vm| {
        cards(&vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]) == 1
    })?;
    namespace
        .wait("vmi", MACHINE, "to have one card", PLUGGED, |vmi| {
            cards(&vmi["status"]["interfaces"]) == 1
                && cards(&vmi["spec"]["domain"]["devices"]["interfaces"]) == 1
        })
        .map(drop)
}

fn plug_card_by_hand(control: &Control, round: usize) -> Result<()> {
    let (netdev, nic) = ids(round);
    control.execute(
        &json!({ "execute": "netdev_add", "arguments": { "type": "user", "id": netdev, "restrict": true } }),
    )?;
    control.execute(&json!({ "execute": "device_add", "arguments": {
        "driver": "virtio-net-pci", "id": nic, "netdev": netdev, "bus": FREE_PORT,
    } }))
}

fn unplug_card_by_hand(control: &Control, round: usize, console: &mut Console) -> Result<()> {
    let (netdev, nic) = ids(round);
    remove(control, &nic)?;
    console.ok("until [ ! -e /sys/class/net/eth1 ]; do sleep 0.05; done", SOON)?;
    forgotten(control, &nic)?;
    control.execute(&json!({ "execute": "netdev_del", "arguments": { "id": netdev } }))
}

/// Ids of backend and card.
fn ids(round: usize) -> (String, String) {
    (format!("plugged-netdev{round}"), format!("plugged-nic{round}"))
}

fn plug_disk(namespace: &Namespace) -> Result<()> {
    let volume = format!("--volume-name={DISK}");
    namespace.virtctl(&["addvolume", MACHINE, &volume, "--bus=virtio"]).map(drop)
}

/// Takes the disk away, and waits until nothing of it is left in the instance.
fn unplug_disk(namespace: &Namespace) -> Result<()> {
    namespace.virtctl(&["removevolume", MACHINE, &format!("--volume-name={DISK}")])?;
    namespace
        .wait("vmi", MACHINE, "to have lost its disk", PLUGGED, |vmi| {
            let all = vmi["status"]["volumeStatus"].as_array().into_iter().flatten();
            all.into_iter().all(|volume| volume["name"] != DISK)
        })
        .map(drop)
}

fn plug_disk_by_hand(control: &Control, round: usize, file: &Path) -> Result<()> {
    let (node, disk) = (format!("plugged-node{round}"), format!("plugged-disk{round}"));
    control.execute(&json!({ "execute": "blockdev-add", "arguments": {
        "driver": "raw", "node-name": node, "file": { "driver": "file", "filename": file },
    } }))?;
    control.execute(&json!({ "execute": "device_add", "arguments": {
        "driver": "virtio-blk-pci", "id": disk, "drive": node, "serial": DISK, "bus": FREE_PORT,
    } }))
}

fn unplug_disk_by_hand(control: &Control, round: usize) -> Result<()> {
    let disk = format!("plugged-disk{round}");
    remove(control, &disk)?;
    forgotten(control, &disk)?;
    let node = format!("plugged-node{round}");
    let delete = json!({ "execute": "blockdev-del", "arguments": { "node-name": node } });
    // A device is still there for a moment after QEMU has forgotten its id.
    wait::until_true(&format!("QEMU to let {node} go"), SOON, || match control.execute(&delete) {
        Err(refusal) if refusal.to_string().contains("is in use") => Ok(false),
        done => done.map(|()| true),
    })
}

fn remove(control: &Control, device: &str) -> Result<()> {
    control.execute(&json!({ "execute": "device_del", "arguments": { "id": device } }))
}

/// Waits until a device is gone. While the guest releases it, QEMU refuses to remove it again; afterwards it does not know it
/// any more.
fn forgotten(control: &Control, device: &str) -> Result<()> {
    wait::until_true(&format!("QEMU to forget {device}"), SOON, || {
        Ok(remove(control, device).is_err_and(|refusal| refusal.to_string().contains("not found")))
    })
}
