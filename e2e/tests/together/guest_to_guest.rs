//! Guests of every binding on the pod network reach each other: on one node and across nodes, in both IP families, by
//! connections, datagrams, and packets as large as the MTU.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node01", "node02"];
const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passt"];
/// Where the guests answer datagrams.
const ECHO: u16 = 7000;

/// A running guest.
struct Guest {
    name: String,
    addresses: [String; 2],
    /// What its web server says, and no other guest's.
    boot: String,
    console: Console,
}

fn instance(name: &str, binding: &str, node: &str) -> Value {
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    spec["domain"]["devices"]["interfaces"] = match binding {
        // passt opens a socket for each port that it forwards.
        "passt" => {
            let ports = json!([{ "port": 80 }, { "port": ECHO, "protocol": "UDP" }]);
            json!([{ "name": "default", "passtBinding": {}, "ports": ports }])
        }
        _ => json!([{ "name": "default", binding: {} }]),
    };
    manifest
}

/// Starts one guest of each binding on each node.
fn start(namespace: &Namespace) -> Result<Vec<Guest>> {
    let names: Vec<String> =
        NODES.iter().flat_map(|node| BINDINGS.map(|binding| format!("{binding}-{node}"))).collect();
    for name in &names {
        let (binding, node) = name.split_once('-').context("a name has two parts")?;
        namespace.apply(&instance(name, binding, node))?;
    }
    let mut guests = Vec::new();
    for name in names {
        namespace.wait_phase(&name, "Running", RUNNING)?;
        let mut console = Console::open(namespace, &name)?;
        console.login(BOOT * 2)?;
        let addresses = pods::both_addresses(&namespace.launcher(&name)?)?;
        let boot = console.ok("cat /www/boot-id", SOON)?.trim().to_owned();
        console.ok(&format!("{{ udp {ECHO} & }}"), SOON)?;
        guests.push(Guest { name, addresses, boot, console });
    }
    Ok(guests)
}

/// What a guest asks another one at that address, as commands that fail without an answer: a connection, a datagram and a ping
/// with packets as large as the MTU.
fn questions(address: &str, boot: &str) -> [String; 3] {
    let length = pods::largest_payload(address);
    let url = format!("http://{}/boot-id", pods::host(address));
    [
        format!("[ \"$(timeout 5 wget -qO- {url})\" = {boot} ]"),
        format!("udp {address} {ECHO} $(printf %0{length}d 7)"),
        format!("ping -c 1 -W 5 -s {length} {address} >/dev/null"),
    ]
}

#[test]
fn guests_of_all_bindings_reach_each_other_on_a_node_and_across_nodes() {
    in_namespace("pairs", |namespace| {
        let mut guests = start(namespace)?;
        let targets: Vec<_> = guests
            .iter()
            .map(|guest| (guest.name.clone(), guest.addresses.clone(), guest.boot.clone()))
            .collect();
        let mut silent = Vec::new();
        for guest in &mut guests {
            for (name, addresses, boot) in targets.iter().filter(|(name, ..)| *name != guest.name) {
                for address in addresses {
                    for line in questions(address, boot) {
                        let ask = format!("(for n in 1 2 3; do {line} && exit 0; done; exit 1)");
                        if guest.console.run(&ask, SOON)?.1 != 0 {
                            silent.push(format!("{} to {name}: {line}", guest.name));
                        }
                    }
                }
            }
        }
        ensure!(silent.is_empty(), "no answer:\n{}", silent.join("\n"));
        for guest in guests {
            guest.console.leave()?;
        }
        Ok(())
    });
}
