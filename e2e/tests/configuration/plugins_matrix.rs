//! Guests of binding plugins on the pods' network and guests of the other bindings reach each other: on one node and across nodes,
//! in both IP families, by connections, datagrams, and packets as large as the MTU.

use anyhow::Result;
use barevirt_e2e::binding_plugins::{self, FIRST, MACVTAP, MANAGED};
use barevirt_e2e::questions::{self, Answering};
use barevirt_e2e::wait::{BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, alone, in_namespace, pods};

const NODES: [&str; 2] = ["node01", "node02"];

/// Bindings and nodes of the guests. Those of the plugins are on both nodes, so each other guest has one of each plugin on its own
/// node and one on the other.
const GUESTS: [(&str, &str); 7] = [
    (MANAGED, NODES[0]),
    (MANAGED, NODES[1]),
    (MACVTAP, NODES[0]),
    (MACVTAP, NODES[1]),
    ("masquerade", NODES[0]),
    ("bridge", NODES[1]),
    ("passt", NODES[0]),
];

fn is_plugin(binding: &str) -> bool {
    [MANAGED, MACVTAP].contains(&binding)
}

fn name(binding: &str, node: &str) -> String {
    format!("{binding}-{node}")
}

/// Starts all guests. Their consoles are logged in, and those of the plugins have their pods' addresses.
fn start(namespace: &Namespace) -> Result<Vec<(Answering, Console)>> {
    for (binding, node) in GUESTS {
        let name = name(binding, node);
        let manifest = if is_plugin(binding) {
            binding_plugins::on_pod_network(&name, binding, node, "#!/bin/sh\n")
        } else {
            questions::instance(&name, binding, node)
        };
        namespace.apply(&manifest)?;
    }
    for node in NODES {
        binding_plugins::make_macvtap(namespace, &name(MACVTAP, node), FIRST)?;
    }
    let beside = [
        pods::client_on(namespace, "beside-node01", NODES[0])?,
        pods::client_on(namespace, "beside-node02", NODES[1])?,
    ];
    let mut guests = Vec::new();
    for (binding, node) in GUESTS {
        let name = name(binding, node);
        namespace.wait_phase(&name, "Running", RUNNING)?;
        let mut console = Console::open(namespace, &name)?;
        console.login(BOOT * 2)?;
        let addresses = pods::both_addresses(&namespace.launcher(&name)?)?;
        if is_plugin(binding) {
            let beside = &beside[usize::from(node != NODES[0])];
            binding_plugins::take_addresses(&mut console, &addresses, beside)?;
        }
        guests.push((Answering::begin(&mut console, &name, addresses)?, console));
    }
    Ok(guests)
}

#[test]
fn guests_of_binding_plugins_and_of_all_bindings_reach_each_other_on_a_node_and_across_nodes() {
    in_namespace("pluginpairs", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        questions::ask_each_other(start(namespace)?)
    });
}
