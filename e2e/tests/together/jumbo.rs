//! Packets as large as jumbo frames, on a network that is the pods' first one in place of the cluster's: the test bed's own
//! delegate attaches it where an annotation asks for it, as Multus does.
//!
//! ```text
//! guests behind masquerade and passt -- pods of node01 -- eth0 == lan0 == eth0 -- pod of node02
//! ```

use anyhow::{Result, ensure};
use barevirt_e2e::pods::{self, ECHO};
use barevirt_e2e::questions::{self, Answering};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, in_namespace, networks};
use serde_json::{Value, json};

/// MTU of the network, in bytes.
const JUMBO: usize = 9000;
/// The MTU that passt tells its guest, whatever that of the pod's link is.
const PASSTS: usize = 65520;
/// The addresses of every guest behind masquerade.
const TRANSLATED: [&str; 2] = ["10.0.2.2", "fd10:0:2::2"];
/// Names the definition of a pod's first network.
const FIRST_NETWORK: &str = "v1.multus-cni.io/default-network";

/// Defines the network under a name. `bound` limits the addresses that it gives, of both families: each node has a list of its own
/// of the addresses in use.
fn define(namespace: &Namespace, name: &str, bound: &str, [four, six]: [&str; 2]) -> Result<()> {
    let range = |subnet: &str, limit: &str| json!([{ "subnet": subnet, bound: limit }]);
    let ipam = json!({
        "type": "host-local", "ranges": [range("10.87.0.0/24", four), range("fd87::/64", six)],
        // passt gives its guest an address only if there is a router. There is none here, and nobody needs it.
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    networks::define(namespace, name, &json!({ "mtu": JUMBO, "ipam": ipam }))
}

/// The same guest or pod, whose pod's first network is the one of that definition.
fn first_on(namespace: &Namespace, definition: &str, mut manifest: Value) -> Value {
    let definition = format!("{}/{definition}", namespace.name());
    manifest["metadata"]["annotations"] = json!({ FIRST_NETWORK: definition });
    manifest
}

/// The running guest of that name: its card has that MTU, and it has its addresses.
fn booted(namespace: &Namespace, name: &str, mtu: usize) -> Result<(Answering, Console)> {
    namespace.wait_phase(name, "Running", RUNNING)?;
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT * 2)?;
    let addresses = pods::both_addresses(&namespace.launcher(name)?)?;
    ensure!(addresses[0].starts_with("10.87.0."), "the pod is on another network: {addresses:?}");
    let inside = if name == "passt" { addresses.clone() } else { TRANSLATED.map(str::to_owned) };
    networks::wait_inside(&mut console, &inside.map(|address| format!("{address}/")))?;
    let has = console.ok("cat /sys/class/net/eth0/mtu", SOON)?;
    ensure!(has == mtu.to_string(), "the MTU of {name} is {has}");
    Ok((Answering::begin(&mut console, name, addresses)?.with_mtu(JUMBO), console))
}

/// A packet that is one byte larger comes in fragments: so fragments of others would have been noticed.
fn larger_packets_are_fragmented(
    console: &mut Console,
    peer: &Answering,
    inside: &pods::Inside,
) -> Result<()> {
    let before = inside.fragments()?;
    let address = &peer.addresses[0];
    let length = pods::payload_within(address, JUMBO) + 1;
    let ask = format!("udp {address} {ECHO} $(printf %0{length}d 7)");
    wait::until_true("an answer to a larger packet", SOON, || Ok(console.run(&ask, SOON)?.1 == 0))?;
    ensure!(inside.fragments()? > before, "nothing is fragmented");
    Ok(())
}

#[test]
fn jumbo_frames_pass_masquerade_and_passt_whole_on_a_first_network_that_the_test_beds_delegate_attaches() {
    in_namespace("jumbo", |namespace| {
        define(namespace, "jumbo-guests", "rangeStart", ["10.87.0.100", "fd87::100"])?;
        define(namespace, "jumbo-peer", "rangeEnd", ["10.87.0.50", "fd87::50"])?;
        let cards = [("masquerade", JUMBO), ("passt", PASSTS)];
        for (binding, _) in cards {
            let manifest = questions::instance(binding, binding, "node01");
            namespace.apply(&first_on(namespace, "jumbo-guests", manifest))?;
        }
        let mut pod = pods::serving("peer", "peer");
        pod["spec"]["nodeName"] = json!("node02");
        let client = pods::start(namespace, "peer", &first_on(namespace, "jumbo-peer", pod))?;
        let inside = client.inside()?;
        let peer = Answering::pod("peer", client.addresses()?).with_mtu(JUMBO);
        let mut all = vec![peer.clone()];
        let mut consoles = Vec::new();
        for (name, mtu) in cards {
            let (guest, console) = booted(namespace, name, mtu)?;
            all.push(guest);
            consoles.push((name, console));
        }
        for (name, console) in &mut consoles {
            questions::ask_all(console, name, &all)?;
        }
        questions::ask_all_from(&client, "peer", &all)?;
        let fragments = inside.fragments()?;
        ensure!(fragments == 0, "the pod has seen {fragments} fragments");
        for (_, mut console) in consoles {
            larger_packets_are_fragmented(&mut console, &peer, &inside)?;
            console.leave()?;
        }
        Ok(())
    });
}
