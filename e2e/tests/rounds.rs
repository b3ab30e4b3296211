//! A hundred guests come and go, and handlers are killed meanwhile: nothing of the guests' networks stays on the nodes.
//!
//! ```text
//!   rounds   first 2        the nodes are counted
//!            2 with kills   every handler is killed in each
//!            1              each handler has had a guest of each kind; the handlers are counted
//!            12             both are counted again
//! ```
//!
//! It counts what each node has, so nothing else may run on the cluster.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::binding_plugins::{self, FIRST, MACVTAP, MANAGED};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, guest, handlers, in_namespace, installation};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// Rounds after which everything is there that stays: connections, caches and the tables of the nodes' own plugins.
const FIRST_ROUNDS: usize = 2;
/// Rounds in which the handlers are killed.
const KILLING: usize = 2;
/// Rounds over which the handlers themselves are compared. In these, each node has six guests of each kind.
const ROUNDS: usize = 12;
/// How many more connections and threads a handler may have than before. Neither number stands still: the next watch begins
/// beside the one that ends, the API server closes a connection 90 seconds after its last request, and the runtime ends a thread
/// for blocking work ten seconds after its last work. If each guest of one kind left one, a node would have six more. Of all other
/// descriptors no more are allowed.
const MOVING: usize = 3;
/// After the last guest of the rounds, the threads for blocking work have ended.
const CALM: Duration = Duration::from_secs(12);
/// Until connections that are not used any more are closed.
const CLOSED: Duration = Duration::from_secs(120);

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

/// How many there are of each kind.
type Counts = BTreeMap<String, usize>;

/// Runs a script on the node that says a kind and a count on each line.
fn counted(node: &Node, script: &str, kinds: usize) -> Result<Counts> {
    let said = node.sh(script)?;
    let pair = |line: &str| {
        line.split_once(' ').and_then(|(kind, count)| Some((kind.to_owned(), count.trim().parse().ok()?)))
    };
    let counts: Counts = said.lines().filter_map(pair).collect();
    ensure!(counts.len() == kinds, "not everything was counted on {}: {said}", node.name());
    Ok(counts)
}

/// How much a node has of everything that a network is made of.
fn on_node(node: &str) -> Result<Counts> {
    let script = "echo links $(ip -o link | wc -l); \
         echo addresses $(ip -o address | wc -l); \
         echo routes $(ip route show table all | wc -l); \
         echo routes6 $(ip -6 route show table all | wc -l); \
         echo rules $(nft list ruleset | wc -l); \
         echo namespaces $(ls /run/netns | wc -l); \
         echo attachments $(ls /var/lib/cni/attached/results | wc -l); \
         echo processes $(for p in /proc/[0-9]*/exe; do readlink $p; done | grep -c -E '/(virt-launcher|qemu-system-.*|passt.*)$')";
    counted(&Node::named(node), script, 8)
}

/// A process of a node's handler, and how much it has open.
struct Handler {
    process: u32,
    open: Counts,
}

impl Handler {
    fn of(node: &str) -> Result<Self> {
        let node = Node::named(node);
        let process = handlers::process(&node)?;
        // A TCP socket is known by its number, the tenth field of the kernel's tables.
        let script = format!(
            "fds=$(ls -l /proc/{process}/fd | grep -e ' -> '); \
             tcp=$(awk 'FNR > 1 {{ printf \"%s|\", $10 }}' /proc/{process}/net/tcp /proc/{process}/net/tcp6); \
             echo connections $(echo \"$fds\" | grep -c -E \"socket:\\[(${{tcp}}none)\\]\"); \
             echo descriptors $(echo \"$fds\" | grep -v -c -E \"socket:\\[(${{tcp}}none)\\]\"); \
             echo threads $(ls /proc/{process}/task | wc -l)"
        );
        Ok(Self { process, open: counted(&node, &script, 3)? })
    }

    /// The least of each kind that the handler has within some seconds: files and connections are also opened for a moment.
    fn at_rest(node: &str) -> Result<Self> {
        let mut least = Self::of(node)?;
        for _ in 0..3 {
            thread::sleep(Duration::from_secs(1));
            for (kind, count) in least.again(node)? {
                least.open.entry(kind).and_modify(|had| *had = count.min(*had));
            }
        }
        Ok(least)
    }

    /// How much the same process has open now.
    fn again(&self, node: &str) -> Result<Counts> {
        let now = Self::of(node)?;
        ensure!(now.process == self.process, "the handler of {node} has started again");
        Ok(now.open)
    }
}

/// The same of both nodes, each with its name.
fn of_both<T>(of: impl Fn(&str) -> Result<T>) -> Result<Vec<(&'static str, T)>> {
    NODES.into_iter().map(|node| Ok((node, of(node)?))).collect()
}

/// What there is more of than before.
fn more(before: &Counts, after: &Counts) -> Vec<String> {
    let allowed = |kind: &str| if matches!(kind, "connections" | "threads") { MOVING } else { 0 };
    let grown =
        after.iter().filter(|(kind, count)| **count > before.get(*kind).unwrap_or(&0) + allowed(kind));
    grown
        .map(|(kind, count)| format!("{kind}: {count} instead of {}", before.get(kind).unwrap_or(&0)))
        .collect()
}

/// Waits until there is no more than before.
fn wait_no_more(
    who: &str,
    within: Duration,
    before: &Counts,
    now: impl Fn() -> Result<Counts>,
) -> Result<()> {
    let mut found = Vec::new();
    let is_as_before = wait::until_true(&format!("{who} to have what it had"), within, || {
        found = more(before, &now()?);
        Ok(found.is_empty())
    });
    is_as_before.with_context(|| format!("{who} has {}", found.join(", ")))
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
        let mut numbers = 0..;
        let mut rounds = |count: usize, kill: bool| {
            numbers.by_ref().take(count).try_for_each(|number| round(namespace, number, kill))
        };
        rounds(FIRST_ROUNDS, false)?;
        let nodes = of_both(on_node)?;
        rounds(KILLING, true)?;
        // In one round a node has half of the kinds of guests, and what a handler keeps may come with its first guest of a kind.
        rounds(1, false)?;
        thread::sleep(CALM);
        let handlers = of_both(Handler::at_rest)?;
        rounds(ROUNDS, false)?;
        for (node, before) in nodes {
            wait_no_more(node, SOON, &before, || on_node(node))?;
        }
        for (node, before) in handlers {
            let who = format!("the handler of {node}");
            wait_no_more(&who, CLOSED, &before.open, || before.again(node))?;
        }
        Ok(())
    });
}
