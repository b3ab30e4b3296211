//! A guest whose card is on a network that the test bed's own delegate attaches in place of Multus moves, and its card is put on
//! another network. The machine names no MAC address, and both networks drop packets from other MAC addresses than those that a
//! pod asks for (`macspoofchk`).

use anyhow::{Result, ensure};
use barevirt_e2e::moving_guest::{COMMAND, machine};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, in_namespace, networks};
use serde_json::{Value, json};

const CARD: &str = "lan";

/// Defines a network with this one, and one of the same addresses for the pod that answers there. Each node has a list of its own
/// of the addresses in use, so guest and pod each get one from their own part of the range.
fn define(namespace: &Namespace, name: &str, subnet: &str, [guests, peers]: [&str; 2]) -> Result<()> {
    let of = |range: Value| json!({ "ipam": { "type": "host-local", "ranges": [[range]] } });
    networks::define(namespace, name, &of(json!({ "subnet": subnet, "rangeStart": guests })))?;
    let peer = of(json!({ "subnet": subnet, "rangeEnd": peers }));
    networks::define(namespace, &format!("{name}-peer"), &peer)
}

/// Asks the pod at that address, from the guest.
fn reaches(console: &mut Console, peer: &str) -> Result<()> {
    let answer = console.ok(&format!("timeout 20 wget -qO- http://{peer}:8080/"), COMMAND)?;
    ensure!(answer == "neighbour", "{peer} answers {answer}");
    Ok(())
}

/// Makes the guest ask for an address on its second card. It gets the one that the card's status shows, which begins so.
fn takes_an_address(namespace: &Namespace, console: &mut Console, beginning: &str) -> Result<()> {
    let address = wait::until(&format!("an address {beginning} in the card's status"), SOON, || {
        let shown = networks::card_status(namespace, "vm", CARD)?;
        let address = shown["ipAddress"].as_str().filter(|address| address.starts_with(beginning));
        Ok(address.map(str::to_owned))
    })?;
    console.ok("ip link set eth1 up && udhcpc -i eth1 -q -n -t 10 -T 1 -s /etc/udhcpc.script", COMMAND)?;
    let inside = console.ok("ip -4 -o address show dev eth1", COMMAND)?;
    ensure!(inside.contains(&format!("inet {address}/24")), "not {address}: {inside}");
    Ok(())
}

fn console(namespace: &Namespace) -> Result<Console> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    Ok(console)
}

#[test]
fn a_card_without_a_mac_address_moves_and_comes_to_another_network_that_the_test_beds_delegate_attaches() {
    in_namespace("nad-changes", |namespace| {
        define(namespace, "old", "10.85.0.0/24", ["10.85.0.100", "10.85.0.50"])?;
        define(namespace, "new", "10.86.0.0/24", ["10.86.0.100", "10.86.0.50"])?;
        let old_peer = networks::neighbour(namespace, "old-peer,new-peer")?;
        let new_peer = networks::address(&namespace.need("pod", "neighbour")?, 2)?;
        let mut machine = machine("vm");
        let spec = guest::spec_of(&mut machine);
        guest::push(&mut spec["domain"]["devices"]["interfaces"], json!({ "name": CARD, "bridge": {} }));
        guest::push(&mut spec["networks"], json!({ "name": CARD, "multus": { "networkName": "old" } }));
        let mut first = Console::boot(namespace, &machine)?;
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        takes_an_address(namespace, &mut first, "10.85.0.")?;
        reaches(&mut first, &old_peer)?;
        first.leave()?;

        namespace.migrate("vm")?;
        // The next pod asks for the guest's MAC address, or the network would take no packet of it.
        let spec = namespace.need("vm", "vm")?["spec"]["template"]["spec"].clone();
        let card = &spec["domain"]["devices"]["interfaces"][1];
        ensure!(card["name"] == CARD && card["macAddress"].is_null(), "{card}");
        let mut moved = console(namespace)?;
        reaches(&mut moved, &old_peer)?;
        moved.leave()?;

        changes_its_network(namespace)?;
        let mut changed = console(namespace)?;
        takes_an_address(namespace, &mut changed, "10.86.0.")?;
        reaches(&mut changed, &new_peer)?;
        changed.leave()?;
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == uid, "another instance");
        Ok(())
    });
}

/// Names another network for the running guest's card: that takes a migration, after which nothing more is required.
fn changes_its_network(namespace: &Namespace) -> Result<()> {
    let path = "/spec/template/spec/networks/1/multus/networkName";
    namespace.change("vm", "vm", &json!([{ "op": "replace", "path": path, "value": "new" }]))?;
    let vmi = namespace.wait("vmi", "vm", "to ask for a migration", SOON, |vmi| {
        condition(vmi, "MigrationRequired")["status"] == "True"
    })?;
    let required = condition(&vmi, "MigrationRequired");
    let attached =
        format!("network {CARD} is new now, and the launcher pod is attached to {}/old", namespace.name());
    ensure!(required["message"].as_str().is_some_and(|said| said.contains(&attached)), "{required}");
    namespace.migrate("vm")?;
    namespace.wait("vmi", "vm", "to ask for no migration", SOON, |vmi| {
        condition(vmi, "MigrationRequired").is_null()
    })?;
    let definition = format!("{}/new", namespace.name());
    wait::until_true("the new pod to be noted as attached to the new network", SOON, || {
        let pod = namespace.launcher("vm")?;
        let noted = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str();
        Ok(noted.is_some_and(|noted| noted.contains(&definition)))
    })
}
