//! Guests of every binding on the pod network reach each other: on one node and across nodes, in both IP families, by
//! connections, datagrams, and packets as large as the MTU.

use anyhow::{Context, Result};
use barevirt_e2e::questions::{self, Answering};
use barevirt_e2e::wait::{BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, in_namespace, pods};

const NODES: [&str; 2] = ["node01", "node02"];
const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passt"];

/// Starts one guest of each binding on each node.
fn start(namespace: &Namespace) -> Result<Vec<(Answering, Console)>> {
    let names: Vec<String> =
        NODES.iter().flat_map(|node| BINDINGS.map(|binding| format!("{binding}-{node}"))).collect();
    for name in &names {
        let (binding, node) = name.split_once('-').context("a name has two parts")?;
        namespace.apply(&questions::instance(name, binding, node))?;
    }
    let mut guests = Vec::new();
    for name in names {
        namespace.wait_phase(&name, "Running", RUNNING)?;
        let mut console = Console::open(namespace, &name)?;
        console.login(BOOT * 2)?;
        let addresses = pods::both_addresses(&namespace.launcher(&name)?)?;
        guests.push((Answering::begin(&mut console, &name, addresses)?, console));
    }
    Ok(guests)
}

#[test]
fn guests_of_all_bindings_reach_each_other_on_a_node_and_across_nodes() {
    in_namespace("pairs", |namespace| questions::ask_each_other(start(namespace)?));
}
