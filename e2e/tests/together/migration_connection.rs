//! On a network of all nodes, a connection to a guest that moves goes on, and a guest that says nothing is found where it is.

use anyhow::{Context, ensure};
use barevirt_e2e::frames::{Own, Watch};
use barevirt_e2e::moving_guest::{Guest, machine, node};
use barevirt_e2e::networks::Left;
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::{self, MOVED, SOON};
use barevirt_e2e::{Console, handlers, held_connection, in_namespace, networks, pods};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn a_pods_connection_to_a_guest_that_moves_loses_nothing_on_a_network_that_the_test_beds_delegate_attaches() {
    in_namespace("moveconnection", |namespace| {
        let mut manifest = machine("vm");
        held_connection::with_card(namespace, &mut manifest)?;
        let mut console = Console::boot(namespace, &manifest)?;
        held_connection::begin(namespace, &mut console)?;
        console.leave()?;
        namespace.migrate("vm")?;
        held_connection::goes_on(namespace, held_connection::POD)?;
        let received = held_connection::received(namespace)?;
        println!("the longest gap while the guest moved: {:?}", received.longest_gap);
        received.has_no_long_gap()
    });
}

/// The card of the guest that says nothing, its address, and the range of the pod's.
const MAC: &str = "02:00:00:89:00:10";
const ADDRESS: &str = "10.89.0.200";
const RANGE: &str = "10.89.0.0/24";
const LAST: &str = "10.89.0.99";
/// How long its answer may take, on a busy machine. A switch forgets after minutes where an address was.
const ANSWERED: Duration = Duration::from_secs(15);

#[test]
fn a_guest_that_says_nothing_is_found_by_a_pod_of_the_node_that_it_has_moved_to() {
    in_namespace("moveannounced", |namespace| {
        let mut manifest = machine("vm");
        networks::with_card(namespace, &mut manifest, "lan", MAC)?;
        let guest = Guest::start(namespace, &manifest, "vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        // With IPv6 it would look for routers.
        let is_silent = "echo 1 >/proc/sys/net/ipv6/conf/eth1/disable_ipv6";
        let is_up = format!("ip addr add {ADDRESS}/24 dev eth1 && ip link set eth1 up");
        console.ok(&format!("{is_silent} && {is_up}"), SOON)?;
        console.leave()?;
        let home = node(&guest.vmi()?);
        let (away, _) = handlers::pods()?
            .into_iter()
            .find(|(node, _)| *node != home)
            .context("there is one node only")?;
        let range = json!([[{ "subnet": RANGE, "rangeEnd": LAST }]]);
        networks::define(namespace, "peer", &json!({ "ipam": { "type": "host-local", "ranges": range } }))?;
        let peer = pods::client_beside(namespace, "peer", &away, "peer")?;
        // It never asks the network for the guest: that would be heard everywhere, and answered.
        peer.inside()?.knows(ADDRESS, MAC)?;
        let url = format!("http://{ADDRESS}/hostname");
        // With this answer, the switches have the guest on its first node.
        peer.wait_answer(&url, Some("guest-tiny"), SOON)?;

        let slow = SlowMoves::begin(namespace, "2Mi")?;
        namespace.virtctl(&["migrate", "vm"])?;
        let vmi = namespace.wait("vmi", "vm", "to be on its way", MOVED, |vmi| {
            vmi["status"]["migrationState"]["startTimestamp"].is_string()
        })?;
        let target = vmi["status"]["migrationState"]["targetPod"].as_str().context("there is no target")?;
        let target = namespace.need("pod", target)?;
        let card = networks::card_status(namespace, "vm", "lan")?;
        let link = card["podInterfaceName"].as_str().context("the card has no link")?;
        let digits = link.strip_prefix("pod").context("the link has another name")?;
        let own = Own { mac: MAC, ipv4: ADDRESS, ipv6: None };
        let watch = Watch::pod(&Left::of(&target)?, &format!("{digits}-nic"), &own)?;
        guest.wait_migration("Succeeded")?;
        drop(slow);
        ensure!(node(&guest.vmi()?) == away, "it is not on {away}");
        wait::until_true("the guest to be announced", ANSWERED, || {
            let counted = watch.counted()?;
            Ok(counted.of("all")? > counted.of("mac")?)
        })?;
        let begun = Instant::now();
        wait::until_true("the guest to answer", ANSWERED, || Ok(peer.fetch(&url)?.trim() == "guest-tiny"))?;
        println!("the guest has answered after {:?}", begun.elapsed());
        Ok(())
    });
}
