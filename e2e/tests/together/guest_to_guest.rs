//! Guests of every binding on the pod network reach each other: on one node and across nodes, in both IP families.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node01", "node02"];
const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passt"];

/// A running guest.
struct Guest {
    name: String,
    addresses: Vec<String>,
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
        "passt" => json!([{ "name": "default", "passtBinding": {}, "ports": [{ "port": 80 }] }]),
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
        let launcher = namespace.launcher(&name)?;
        let addresses = launcher["status"]["podIPs"].as_array().cloned().unwrap_or_default();
        let addresses: Vec<_> =
            addresses.iter().filter_map(|one| one["ip"].as_str()).map(str::to_owned).collect();
        ensure!(addresses.len() == 2, "the pod of {name} has the addresses {addresses:?}");
        let boot = console.ok("cat /www/boot-id", SOON)?.trim().to_owned();
        guests.push(Guest { name, addresses, boot, console });
    }
    Ok(guests)
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
                    let line = format!("timeout 5 wget -qO- http://{}/boot-id", pods::host(address));
                    let ask =
                        format!("for n in 1 2 3; do [ \"$({line})\" != {boot} ] || exit 0; done; exit 1");
                    if guest.console.run(&format!("({ask})"), SOON)?.1 != 0 {
                        silent.push(format!("{} to {name}: {line}", guest.name));
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
