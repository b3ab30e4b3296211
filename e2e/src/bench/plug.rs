//! The time until a running guest has a further card: from the change of its machine, against `netdev_add` and `device_add`
//! at the monitor of a QEMU that was started by hand with the command line of such a guest.
//!
//! Both guests look for the card twenty times in a second. On the cluster the test bed's own program attaches the pod to the
//! network (`cluster-up/go/networks`), which is part of the time.

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
use std::time::Instant;

/// Name of the card's network, and of its definition.
const NETWORK: &str = "plugged";
/// A root port without a device, of the small guest.
const FREE_PORT: &str = "rp15";

/// Measures `card_plug`.
pub fn measure(namespace: &Namespace, launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    networks::define(namespace, NETWORK, &json!({}))?;
    namespace.apply(&guest::machine("bench", "Always"))?;
    let raw = Raw::of(&start(launcher, &repository().join(launch::MANIFEST))?.0)?;
    let (mut command, control) = raw.command(true)?;
    let mut by_hand = Console::start(&mut command)?;
    drop(command);
    control.go()?;
    by_hand.login(BOOT)?;
    namespace.wait_phase("bench", "Running", RUNNING)?;
    let mut launched = Console::open(namespace, "bench")?;
    launched.login(BOOT)?;
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(until_there(&mut launched, || plug(namespace))?);
        unplug(namespace)?;
        raws.push(until_there(&mut by_hand, || plug_by_hand(&control, round))?);
        unplug_by_hand(&control, round, &mut by_hand)?;
    }
    launched.leave()?;
    figures.insert("card_plug".to_owned(), Figure::compared(&ours, &raws, "ms"));
    Ok(())
}

/// Milliseconds from the beginning of `act` until the guest has a second card.
fn until_there(console: &mut Console, act: impl FnOnce() -> Result<()>) -> Result<f64> {
    // The shell echoes the line; the quotes keep the mark from being found there.
    console.send("echo be'gun'; until [ -e /sys/class/net/eth1 ]; do sleep 0.05; done; echo the' 'card\n")?;
    console.expect("begun", SOON)?;
    let begun = Instant::now();
    act()?;
    console.expect("the card", SOON)?;
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

fn change(namespace: &Namespace, operations: &Value) -> Result<()> {
    let patch = operations.to_string();
    namespace.kubectl(&["patch", "vm", "bench", "--type", "json", "-p", &patch]).map(drop)
}

fn plug(namespace: &Namespace) -> Result<()> {
    let template = "/spec/template/spec";
    change(
        namespace,
        &json!([
            { "op": "add", "path": format!("{template}/networks/-"),
              "value": { "name": NETWORK, "multus": { "networkName": NETWORK } } },
            { "op": "add", "path": format!("{template}/domain/devices/interfaces/-"),
              "value": { "name": NETWORK, "bridge": {} } },
        ]),
    )
}

/// Takes the card away, and waits until nothing of it is left in machine and instance.
fn unplug(namespace: &Namespace) -> Result<()> {
    let state = "/spec/template/spec/domain/devices/interfaces/1/state";
    change(namespace, &json!([{ "op": "add", "path": state, "value": "absent" }]))?;
    let cards = |list: &Value| list.as_array().map_or(0, Vec::len);
    namespace.wait("vm", "bench", "to have one card", SOON, |vm| {
        cards(&vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]) == 1
    })?;
    namespace
        .wait("vmi", "bench", "to have one card", SOON, |vmi| {
            cards(&vmi["status"]["interfaces"]) == 1
                && cards(&vmi["spec"]["domain"]["devices"]["interfaces"]) == 1
        })
        .map(drop)
}

fn plug_by_hand(control: &Control, round: usize) -> Result<()> {
    let (netdev, nic) = ids(round);
    control.execute(
        &json!({ "execute": "netdev_add", "arguments": { "type": "user", "id": netdev, "restrict": true } }),
    )?;
    control.execute(&json!({ "execute": "device_add", "arguments": {
        "driver": "virtio-net-pci", "id": nic, "netdev": netdev, "bus": FREE_PORT,
    } }))
}

fn unplug_by_hand(control: &Control, round: usize, console: &mut Console) -> Result<()> {
    let (netdev, nic) = ids(round);
    let remove = json!({ "execute": "device_del", "arguments": { "id": nic } });
    control.execute(&remove)?;
    console.ok("until [ ! -e /sys/class/net/eth1 ]; do sleep 0.05; done", SOON)?;
    // While the guest lets go of it, QEMU refuses to remove it again; afterwards it does not know it any more.
    wait::until_true("QEMU to forget the card", SOON, || {
        Ok(control.execute(&remove).is_err_and(|refusal| refusal.to_string().contains("not found")))
    })?;
    control.execute(&json!({ "execute": "netdev_del", "arguments": { "id": netdev } }))
}

/// Ids of backend and card.
fn ids(round: usize) -> (String, String) {
    (format!("plugged-netdev{round}"), format!("plugged-nic{round}"))
}
