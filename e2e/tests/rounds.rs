//! A hundred guests come and go, and handlers are killed meanwhile: nothing of the guests' networks stays on the nodes.
//!
//! It counts what each node has, so nothing else may run on the cluster.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::binding_plugins::{self, FIRST, MACVTAP, MANAGED};
use barevirt_e2e::command::objects;
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, guest, in_namespace, installation};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ROUNDS: usize = 15;
/// A handler that serves 50 guests may keep so many more descriptors than before, for connections to the API server.
const DESCRIPTORS: usize = 8;

const NODES: [&str; 2] = ["node01", "node02"];

/// The guests of a round, one for each way to a network, on the other node than in the round before. None waits for its guest to boot.
fn guests(number: usize) -> Vec<Value> {
    let with = |name: &str, interface: Value| {
        let mut manifest = guest::instance(name);
        manifest["spec"]["domain"]["devices"]["interfaces"] = json!([interface]);
        manifest
    };
    let mut second = guest::instance("second");
    let spec = guest::spec_of(&mut second);
    guest::push(&mut spec["domain"]["devices"]["interfaces"], json!({ "name": "lan", "bridge": {} }));
    guest::push(&mut spec["networks"], json!({ "name": "lan", "multus": { "networkName": "lan" } }));
    let mut guests = vec![
        with("masquerade", json!({ "name": "default", "masquerade": {} })),
        with("ports", json!({ "name": "default", "masquerade": {}, "ports": [{ "port": 80 }] })),
        with("bridge", json!({ "name": "default", "bridge": {} })),
        with("passt", json!({ "name": "default", "passtBinding": {}, "ports": [{ "port": 80 }] })),
        with(MANAGED, json!({ "name": "default", "binding": { "name": MANAGED } })),
        with(MACVTAP, json!({ "name": "default", "binding": { "name": MACVTAP } })),
        second,
    ];
    for (index, manifest) in guests.iter_mut().enumerate() {
        manifest["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": NODES[(number + index) % 2] });
    }
    guests
}

/// How much a node has of everything that a network is made of.
fn counts(node: &str) -> Result<BTreeMap<String, usize>> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node).context("the node has no handler")?;
    let node = Node::named(node);
    let handler = *node.processes(pod, "virt-handler")?.first().context("no handler runs")?;
    let script = format!(
        "echo links $(ip -o link | wc -l); \
         echo addresses $(ip -o address | wc -l); \
         echo routes $(ip route show table all | wc -l); \
         echo routes6 $(ip -6 route show table all | wc -l); \
         echo rules $(nft list ruleset | wc -l); \
         echo namespaces $(ls /run/netns | wc -l); \
         echo attachments $(ls /var/lib/cni/attached/results | wc -l); \
         echo processes $(for p in /proc/[0-9]*/exe; do readlink $p; done | grep -c -E '/(virt-launcher|qemu-system-.*|passt.*)$'); \
         echo descriptors $(ls /proc/{handler}/fd | wc -l); \
         echo threads $(ls /proc/{handler}/task | wc -l)"
    );
    let said = node.sh(&script)?;
    let pair = |line: &str| {
        line.split_once(' ').and_then(|(kind, count)| Some((kind.to_owned(), count.trim().parse().ok()?)))
    };
    Ok(said.lines().filter_map(pair).collect())
}

/// What the node has more of than before.
fn more(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) -> Vec<String> {
    let allowed = |kind: &str| if matches!(kind, "descriptors" | "threads") { DESCRIPTORS } else { 0 };
    let grown =
        after.iter().filter(|(kind, count)| **count > before.get(*kind).unwrap_or(&0) + allowed(kind));
    grown
        .map(|(kind, count)| format!("{kind}: {count} instead of {}", before.get(kind).unwrap_or(&0)))
        .collect()
}

/// One round. With `kill`, the handlers are killed while the pods are set up.
fn round(namespace: &Namespace, number: usize, kill: bool) -> Result<()> {
    let guests = guests(number);
    for manifest in &guests {
        namespace.apply(manifest)?;
    }
    if kill {
        installation::kill("virt-handler")?;
        component_is_ready("virt-handler")?;
    }
    binding_plugins::make_macvtap(namespace, MACVTAP, FIRST)?;
    let mut left = Vec::new();
    for manifest in &guests {
        let name = manifest["metadata"]["name"].as_str().context("no name")?;
        namespace.wait_phase(name, "Running", RUNNING)?;
        left.push(Left::of(&namespace.launcher(name)?)?);
    }
    ensure!(left.iter().all(|pod| !pod.links.is_empty()), "a pod without a link on its node");
    namespace.kubectl(&["delete", "vmi", "--all", "--wait=false"])?;
    for manifest in &guests {
        namespace.wait_gone("vmi", manifest["metadata"]["name"].as_str().context("no name")?, SOON)?;
    }
    for pod in &left {
        pod.wait_gone()?;
    }
    Ok(())
}

#[test]
fn a_hundred_guests_some_on_the_test_beds_delegates_network_leave_no_link_rule_descriptor_or_process() {
    in_namespace("rounds", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        networks::define(namespace, "lan", &json!({}))?;
        // Connections, caches and the tables of the nodes' own plugins stay, and belong to the state before.
        for number in 0..2 {
            round(namespace, number, false)?;
        }
        let before = NODES.map(counts);
        for number in 0..ROUNDS {
            round(namespace, number, number % 7 == 5)?;
        }
        for (node, before) in NODES.into_iter().zip(before) {
            let before = before?;
            ensure!(before.len() == 10, "not everything was counted on {node}: {before:?}");
            let mut found = Vec::new();
            wait::until_true(&format!("{node} to have what it had"), SOON, || {
                found = more(&before, &counts(node)?);
                Ok(found.is_empty())
            })
            .with_context(|| format!("{node} has {}", found.join(", ")))?;
        }
        Ok(())
    });
}
