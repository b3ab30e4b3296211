//! A guest that sends what no well-behaved guest sends: forged addresses, advertisements of routers, answers of a DHCP server,
//! requests with wrong options, and floods. Where the binding or the network forbids them, they do not come out of its pod. Neither
//! another guest of its node nor a pod notices, and its own launcher goes on. The network beside that of the pods is attached by the
//! test bed's own delegate, in place of Multus.
//!
//! ```text
//! hostile -- eth0 behind masquerade -- pod -- node -- pod -- eth0 -- victim -- held connection to the pod "near"
//!        \-- eth1 with a bridge ----- network "lan" ------- eth1 --/      \-- held connection to the pod "beside"
//! ```
//!
//! The network `lan` drops other MAC addresses than a card's own (`macspoofchk`). On the pods' network itself, which checks nothing, a
//! guest with a bridge would disturb all other tests; there the docs promise nothing.

use anyhow::{Context, Result, bail, ensure};
use barevirt_e2e::frames::{Own, Watch, ensure_kept_in, ensure_none_of};
use barevirt_e2e::hostile::{self, Card, Guest, INSIDE, LAN, NODE, Peer, ROUTER, Seen};
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::sending::{self, ALL, ALL6, FORGED, ROUTERS6, SERVERS6};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Namespace, guest, held_connection, in_namespace, pods};
use serde_json::{Value, json};

/// Behind masquerade, nothing of the guest leaves the pod but packets with its own address, and these have the pod's.
fn behind_masquerade(namespace: &Namespace, hostile: &mut Guest, victim: &mut Guest) -> Result<Peer> {
    let address = victim.addresses[0].clone();
    let near = Peer::begin(namespace, "near", None, victim, &address)?;
    hostile.is_well(namespace, victim)?;
    let before = Seen::now(namespace, hostile, victim, &near)?;
    let own = hostile.macs[0].clone();
    let inside = Own { mac: &own, ipv4: INSIDE[0], ipv6: Some(INSIDE[1]) };
    let sent = Watch::guest(&hostile.pod, "tap0", &inside)?;
    let mac = hostile.pod.mac("eth0")?;
    let [four, six] = hostile.addresses.each_ref().map(String::as_str);
    let outside = Own { mac: &mac, ipv4: four, ipv6: Some(six) };
    let came_out = Watch::pod(&hostile.pod, "eth0", &outside)?;

    // A new lease makes the guest forget its neighbours.
    let table = hostile.console.ok(&format!("ping -c 1 -W 5 {ROUTER} >/dev/null; ip neigh show"), SOON)?;
    let router = hostile::neighbours("hostile", &table, &[ROUTER]);
    let router = router.first().and_then(|line| line.split(' ').nth(2)).context("no router is known")?;
    let [guest4, guest6] = INSIDE;
    let ([victim4, victim6], [near4, near6]) = (&victim.addresses, &near.addresses[..]) else {
        bail!("{} has not two addresses", near.name);
    };
    for frames in [
        format!("{FORGED} {router} udp {guest4} {near4}"),
        format!("{FORGED} {router} udp {guest6} {near6}"),
        format!("{own} {router} udp {victim4} {near4}"),
        format!("{own} {router} udp {victim6} {near6}"),
        format!("{own} {ALL} arp {victim4} {victim4}"),
        format!("{own} {ALL} arp {near4} {near4}"),
        format!("{own} {ALL6} neighbour {victim6} ff02::1"),
        format!("{own} {ALL6} router fe80::66 ff02::1"),
        format!("{own} {ALL} offer {guest4} 10.0.2.77"),
    ] {
        hostile.send("eth0", &frames)?;
    }
    let by_dhcp = format!("{own} {ALL} options 0.0.0.0 255.255.255.255");
    sending::ensure_few(sending::flood(&mut hostile.console, "eth0", &by_dhcp)?)?;
    let by_ipv6 = sending::flood_ipv6(&mut hostile.console, "eth0", &own, [SERVERS6, ROUTERS6])?;
    sending::ensure_few(by_ipv6)?;
    sending::flood(&mut hostile.console, "eth0", &format!("{own} {ALL} udp {guest4} 255.255.255.255"))?;

    let kinds = ["mac", "ipv4", "ipv6", "arp", "neighbour", "router", "offer", "broadcast"];
    ensure_kept_in(&kinds, &sent.counted()?, &came_out.counted()?)?;
    held_connection::goes_on(namespace, near.name)?;
    before.ensure_still(&Seen::now(namespace, hostile, victim, &near)?)?;
    hostile.is_well(namespace, victim)?;
    Ok(near)
}

#[test]
fn no_forged_frame_comes_out_also_where_the_test_beds_delegate_attaches_and_no_other_guest_notices() {
    in_namespace("hostile", |namespace| {
        let began = jiff::Timestamp::now();
        hostile::define_lan(namespace)?;
        for name in ["hostile", "victim"] {
            hostile::start(namespace, name, Card::Bridge)?;
        }
        let mut hostile = Guest::booted(namespace, "hostile", Card::Bridge)?;
        let mut victim = Guest::booted(namespace, "victim", Card::Bridge)?;
        let near = behind_masquerade(namespace, &mut hostile, &mut victim)?;
        let address = victim.lan.clone();
        let beside = Peer::begin(namespace, "beside", Some(LAN), &mut victim, &address)?;
        hostile::is_kept_in_on_lan(namespace, &mut hostile, &mut victim, &beside)?;
        // The first connection was held all the time.
        held_connection::goes_on(namespace, near.name)?;
        let flooded_from = hostile.macs.each_ref().map(String::as_str);
        hostile::nothing_has_failed(namespace, &hostile, began, &flooded_from)?;
        hostile.console.leave()?;
        victim.console.leave()?;
        Ok(())
    });
}

/// A guest behind passt, which is reached at its web server and where it sends numbers.
fn behind_passt(name: &str) -> Value {
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": NODE });
    let ports = json!([{ "port": 80 }, { "name": "numbers", "port": held_connection::PORT }]);
    spec["domain"]["devices"]["interfaces"] =
        json!([{ "name": "default", "passtBinding": {}, "ports": ports }]);
    manifest
}

/// The console of that guest and its launcher's pod, with that pod's addresses, once the guest has them.
fn booted_behind_passt(namespace: &Namespace, name: &str) -> Result<(Console, Value, [String; 2])> {
    let mut console = Console::booted(namespace, name)?;
    let launcher = namespace.launcher(name)?;
    let addresses = pods::both_addresses(&launcher)?;
    networks::wait_inside(&mut console, &addresses.each_ref().map(|address| format!("{address}/")))?;
    Ok((console, launcher, addresses))
}

/// passt sends what the guest sends by sockets of the pod, whatever the guest's frames name. It follows a guest to another address,
/// so the guest harms itself, until it sends from its own address again. It has no limit for its answers, and takes the time that
/// they need from its own pod.
#[test]
fn no_frame_that_a_guest_behind_passt_forges_comes_out_of_its_pod_and_no_other_guest_notices_its_floods() {
    in_namespace("hostile-passt", |namespace| {
        for name in ["hostile", "victim"] {
            namespace.apply(&behind_passt(name))?;
        }
        pods::server_on(namespace, "near", "hello from a pod", NODE)?;
        let near = pods::both_addresses(&namespace.need("pod", "near")?)?;
        let (mut console, launcher, addresses) = booted_behind_passt(namespace, "hostile")?;
        let (mut victim, _, of_victim) = booted_behind_passt(namespace, "victim")?;
        held_connection::begin_on(namespace, "held", (NODE, None), &mut victim, &of_victim[0])?;
        let pod = Left::of(&launcher)?;
        let mac = pod.mac("eth0")?;
        let [four, six] = addresses.each_ref().map(String::as_str);
        let came_out = Watch::pod(&pod, "eth0", &Own { mac: &mac, ipv4: four, ipv6: Some(six) })?;
        is_answered_by(&mut console, &near)?;

        let own = console.ok("cat /sys/class/net/eth0/address", SOON)?;
        let router = "ip neigh show dev eth0 | sed -n 's/.* lladdr \\([^ ]*\\).*/\\1/p' | head -n 1";
        let router = console.ok(router, SOON)?;
        ensure!(!router.is_empty(), "the guest knows no router");
        let [near4, near6] = &near;
        for frames in [
            format!("{FORGED} {router} udp {four} {near4}"),
            format!("{FORGED} {router} udp {six} {near6}"),
            format!("{own} {router} udp 192.0.2.66 {near4}"),
            format!("{own} {router} udp 2001:db8::66 {near6}"),
            format!("{own} {ALL} arp {near4} {near4}"),
            format!("{own} {ALL6} neighbour {near6} ff02::1"),
            format!("{own} {ALL6} router fe80::66 ff02::1"),
            format!("{own} {ALL} offer {four} 10.0.2.77"),
        ] {
            let sent = sending::send(&mut console, "eth0", &frames)?;
            ensure!(sent == 1, "frames eth0 {frames} says {sent}");
        }
        is_answered_by(&mut console, &near)?;

        for frames in [
            format!("{own} {ALL} options 0.0.0.0 255.255.255.255"),
            format!("{own} {router} udp {four} {near4}"),
            format!("{own} {router} udp {six} {near6}"),
        ] {
            sending::flood(&mut console, "eth0", &frames)?;
            held_connection::goes_on(namespace, "held")?;
        }
        sending::flood_ipv6(&mut console, "eth0", &own, [SERVERS6, ROUTERS6])?;
        held_connection::goes_on(namespace, "held")?;
        sending::is_given_addresses(&mut console, "eth0")?;
        is_answered_by(&mut console, &near)?;

        ensure_none_of(
            &["mac", "ipv4", "ipv6", "arp", "neighbour", "router", "offer", "broadcast"],
            &came_out.counted()?,
        )?;
        for name in ["hostile", "victim"] {
            let conditions = namespace.need("vmi", name)?["status"]["conditions"].to_string();
            ensure!(!conditions.contains("PasstEnded"), "{name}: {conditions}");
        }
        console.leave()?;
        victim.leave().map(drop)
    });
}

/// The pod of that server answers the guest, at both of its addresses.
fn is_answered_by(console: &mut Console, server: &[String; 2]) -> Result<()> {
    for address in server {
        let url = format!("http://{}:8080/", pods::host(address));
        wait::until_true(&format!("{url} to answer the guest"), SOON, || {
            let (said, code) = console.run(&format!("timeout 5 wget -qO- {url}"), SOON)?;
            Ok(code == 0 && said.contains("hello from a pod"))
        })?;
    }
    Ok(())
}
