//! Further cards, on networks that the test bed's own delegate attaches in place of Multus
//! (`cluster-up/go/networks`): one network over all nodes, to which the reference plugin `bridge` connects
//! pods.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::moving_guest::{self, Guest};
use barevirt_e2e::networks::{self, Left, MTU};
use barevirt_e2e::questions::{self, Answering};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, in_namespace};
use serde_json::{Value, json};

/// MAC address of the first guest's card.
const MAC: &str = "02:00:00:77:00:01";
/// MTU of the network that gives addresses, in bytes: its frames are jumbo frames.
const JUMBO: u32 = 9000;
/// MAC address of a card that both guests have.
const TWICE: &str = "02:00:00:77:00:02";

/// A guest with further cards, each on the network of its name or of its definition.
fn with_cards(name: &str, cards: &[(Value, &str)]) -> Value {
    let mut manifest = guest::instance(name);
    for (card, definition) in cards {
        let spec = guest::spec_of(&mut manifest);
        let network = json!({ "name": card["name"], "multus": { "networkName": definition } });
        guest::push(&mut spec["domain"]["devices"]["interfaces"], card.clone());
        guest::push(&mut spec["networks"], network);
    }
    manifest
}

/// The addresses of a guest's second card, which the network does not give it.
fn own(number: u8) -> [String; 2] {
    [format!("10.77.0.{number}"), format!("fd77::{number}")]
}

/// The same on that node, with these addresses on its second card, and DHCP on its first and fourth ones.
fn placed(mut manifest: Value, node: &str, [four, six]: &[String; 2]) -> Value {
    manifest["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    let mut manifest = guest::with_user_data(manifest, "#!/bin/sh\n");
    manifest["spec"]["volumes"][1]["cloudInitNoCloud"]["networkData"] = json!(format!(
        "version: 2\nethernets:\n  eth0:\n    dhcp4: true\n  eth1:\n    addresses: [{four}/24, {six}/64]\n  eth3:\n    dhcp4: true\n"
    ));
    manifest
}

/// Checks the first guest: its cards match its instance.
fn look_at_first(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let inside = console.ok("ip -o link show dev eth1", SOON)?;
    ensure!(inside.contains(MAC) && inside.contains(&format!("mtu {MTU} ")), "{inside}");
    console.ok("ip link set eth2 up", SOON)?;
    let carrier = console.ok("cat /sys/class/net/eth2/carrier", SOON)?;
    ensure!(carrier == "0", "the link that is down at the start is {carrier}");
    let card = networks::card_status(namespace, "first", "lan")?;
    let source = card["infoSource"].as_str().unwrap_or_default();
    ensure!(source.contains("domain") && source.contains("multus-status"), "{card}");
    ensure!(card["mac"] == MAC && card["linkState"] == "up" && card["queueCount"] == 1, "{card}");
    ensure!(card["podInterfaceName"].as_str().is_some_and(|link| link.starts_with("pod")), "{card}");
    ensure!(networks::card_status(namespace, "first", "quiet")?["linkState"] == "down");
    Ok(())
}

/// Each guest asks the other on the network without addresses.
fn ask_each_other(guests: &mut [(&str, Console); 2]) -> Result<()> {
    let mut all = Vec::new();
    for ((name, console), number) in guests.iter_mut().zip(1..) {
        // Its cards are on one link: each answers for its own address only, or frames for the large MTU come to the card with the
        // small one.
        console.ok("echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore", SOON)?;
        all.push(Answering::begin(console, name, own(number))?.with_mtu(MTU));
    }
    for (name, console) in guests {
        questions::ask_all(console, name, &all)?;
    }
    Ok(())
}

/// A ping of the MTU's size on the network with jumbo frames, where the other guest has the address `jumbo`.
fn reach_with_jumbo_frames(console: &mut Console, jumbo: &str) -> Result<()> {
    let longest = JUMBO - 28;
    let has = console.ok("ip -o address show dev eth3", SOON)?;
    ensure!(has.contains("inet 10.78.0."), "the launcher hands out no address: {has}");
    // The kernel does not fragment a packet of up to the MTU.
    let mtu = console.ok("cat /sys/class/net/eth3/mtu", SOON)?;
    ensure!(mtu == JUMBO.to_string(), "the guest's MTU is {mtu}");
    // One answer is enough: an emulated guest on a busy machine loses some.
    console.ok(&format!("ping -c 3 -W 5 -s {longest} {jumbo}"), SOON).map(drop)
}

/// The definition forbids sending from another MAC address.
fn no_other_mac_address_is_answered(console: &mut Console, other: &str) -> Result<()> {
    console.ok("ip link set eth1 address 02:00:00:77:00:99", SOON)?;
    let (said, code) = console.run(&format!("ping -c 1 -W 2 {other}"), SOON)?;
    ensure!(code != 0, "a guest with another MAC address than its own is answered: {said}");
    console.ok(&format!("ip link set eth1 address {MAC} && ping -c 3 -W 5 {other}"), SOON).map(drop)
}

#[test]
fn guests_whose_second_cards_the_test_beds_delegate_attaches_reach_each_other_across_nodes() {
    in_namespace("lan", |namespace| {
        // The second one is the same network under another name.
        for definition in ["lan", "twin"] {
            networks::define(namespace, definition, &json!({}))?;
        }
        // Each node has a list of its own of the addresses in use, so each guest gets one from its own part of the range.
        for (definition, from) in [("leased-first", "10.78.0.100"), ("leased-second", "10.78.0.200")] {
            let range = json!([[{ "subnet": "10.78.0.0/24", "rangeStart": from }]]);
            let ipam = json!({ "type": "host-local", "ranges": range });
            networks::define(namespace, definition, &json!({ "ipam": ipam, "mtu": JUMBO }))?;
        }
        let card = |name: &str| json!({ "name": name, "bridge": {} });
        let quiet = json!({ "name": "quiet", "bridge": {}, "macAddress": TWICE, "state": "down" });
        let mine = json!({ "name": "lan", "bridge": {}, "macAddress": MAC });
        let first =
            with_cards("first", &[(mine, "lan"), (quiet.clone(), "lan"), (card("leased"), "leased-first")]);
        let second =
            with_cards("second", &[(card("lan"), "lan"), (quiet, "twin"), (card("leased"), "leased-second")]);
        namespace.apply(&placed(first, "node01", &own(1)))?;
        namespace.wait("vmi", "first", "to have a pod", SOON, |vmi| {
            vmi["status"]["phase"] == "Scheduling"
                || vmi["status"]["phase"] == "Scheduled"
                || vmi["status"]["phase"] == "Running"
        })?;
        namespace.apply(&placed(second, "node02", &own(2)))?;
        let twins = namespace.wait_event("second", "SameMACAddress")?;
        ensure!(twins.contains("quiet") && twins.contains("/first on network"), "{twins}");
        let one = format!("/lan, which has the same bridge or link as {}/twin", namespace.name());
        ensure!(twins.contains(&one), "{twins}");
        for guest in ["first", "second"] {
            namespace.wait_phase(guest, "Running", RUNNING)?;
        }
        let mut second = Console::open(namespace, "second")?;
        second.login(BOOT)?;
        // If the network assigns addresses, the launcher hands the pod's own to the guest.
        let leased = networks::card_status(namespace, "second", "leased")?;
        let address = leased["ipAddress"].as_str().context("no address of the network that has some")?;
        let inside = second.ok("ip -4 -o address show dev eth3", SOON)?;
        ensure!(inside.contains(&format!("inet {address}/24")), "the pod has {address}, the guest {inside}");
        let mut first = Console::open(namespace, "first")?;
        first.login(BOOT)?;
        look_at_first(namespace, &mut first)?;
        let mut guests = [("first", first), ("second", second)];
        ask_each_other(&mut guests)?;
        let [(_, mut first), (_, second)] = guests;
        second.leave()?;
        reach_with_jumbo_frames(&mut first, address)?;
        no_other_mac_address_is_answered(&mut first, &own(2)[0])?;
        first.leave()?;
        // Neither the network nor an agent says which address the guest has: it has announced it to its neighbours.
        wait::until_true("the addresses that the guest gave itself", SOON, || {
            let shown = networks::card_status(namespace, "first", "lan")?;
            let all = shown["ipAddresses"].as_array().cloned().unwrap_or_default();
            let has_all = own(1).iter().all(|address| all.contains(&json!(address)));
            Ok(has_all && shown["ipAddress"] == own(1)[0])
        })?;
        let left = [Left::of(&namespace.launcher("first")?)?, Left::of(&namespace.launcher("second")?)?];
        for before in &left {
            let links = before.links.len();
            let there = before.now()?;
            ensure!(
                links >= 3 && there.len() > 2 * links,
                "too little is found before: {links} links, {there:?}"
            );
        }
        namespace.kubectl(&["delete", "vmi", "first", "second"])?;
        for before in &left {
            before.wait_gone()?;
        }
        Ok(())
    });
}

#[test]
fn a_guest_whose_network_is_not_defined_says_so_and_starts_once_the_test_beds_delegate_has_it() {
    in_namespace("undefined", |namespace| {
        let card = json!({ "name": "late", "bridge": {} });
        namespace.apply(&guest::without_system(with_cards("vm", &[(card, "later")])))?;
        let wanted = format!("{}/later", namespace.name());
        namespace.wait("vmi", "vm", "to say what is missing", SOON, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "Synchronized"
                    && condition["status"] == "False"
                    && condition["reason"] == "FailedCreate"
                    && condition["message"].as_str().is_some_and(|message| message.contains(&wanted))
            })
        })?;
        let event = namespace.wait_event("vm", "FailedCreate")?;
        ensure!(event.contains(&wanted), "{event}");
        networks::define(namespace, "later", &json!({}))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        wait::until_true("the card's link", SOON, || {
            Ok(networks::card_status(namespace, "vm", "late")
                .is_ok_and(|card| card["podInterfaceName"].is_string()))
        })
    });
}

#[test]
fn a_card_comes_and_goes_while_the_guest_runs_and_the_test_beds_delegate_attaches_its_network() {
    in_namespace("plugged", |namespace| {
        let range = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.79.0.0/24" }]] });
        networks::define(namespace, "leased", &json!({ "ipam": range }))?;
        let address = networks::neighbour(namespace, "leased")?;
        let mut machine = guest::machine("vm", "Always");
        guest::spec_of(&mut machine)["nodeSelector"] = json!({ "kubernetes.io/hostname": "node01" });
        namespace.apply(&machine)?;
        let uid = namespace.wait_phase("vm", "Running", RUNNING)?["metadata"]["uid"].clone();
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        networks::plug(namespace, "vm", ("red", "leased"), Some(MAC))?;
        wait::until_true("the guest to have the card", SOON, || {
            Ok(networks::card_status(namespace, "vm", "red")
                .is_ok_and(|card| card["infoSource"] == "domain, multus-status"))
        })?;
        console.ok(&format!("grep -q {MAC} /sys/class/net/eth1/address && ip link set eth1 up"), SOON)?;
        console.ok("udhcpc -i eth1 -q -n -t 10 -T 1 -s /etc/udhcpc.script", SOON)?;
        let answer = console.ok(&format!("timeout 20 wget -qO- http://{address}:8080/"), SOON)?;
        ensure!(answer == "neighbour", "{answer}");
        networks::set_state(namespace, "vm", 1, "down")?;
        wait::until_true("the card's link to be down", SOON, || {
            Ok(networks::card_status(namespace, "vm", "red")?["linkState"] == "down")
        })?;
        let carrier = console.ok("cat /sys/class/net/eth1/carrier", SOON)?;
        ensure!(carrier == "0", "the link is {carrier}");
        networks::set_state(namespace, "vm", 1, "absent")?;
        namespace.wait("vmi", "vm", "to have one card", SOON, |vmi| {
            let cards = |list: &Value| list.as_array().map_or(0, Vec::len);
            cards(&vmi["status"]["interfaces"]) == 1
                && cards(&vmi["spec"]["domain"]["devices"]["interfaces"]) == 1
        })?;
        let (inside, code) = console.run("ip link show eth1", SOON)?;
        ensure!(code != 0, "the guest has the card still: {inside}");
        console.leave()?;
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == uid, "another instance");
        let pod = namespace.launcher("vm")?;
        let left = Left::of(&pod)?;
        ensure!(left.links.len() == 1, "the pod is attached still: {:?}", left.links);
        // The loopback link, and those of the first card.
        let links = left.links_of_pod()?;
        ensure!(links.lines().count() == 4, "the card has left something in the pod: {links}");
        Ok(())
    });
}

#[test]
fn a_plugged_card_is_named_and_its_migration_waits_until_the_test_beds_delegate_has_its_network() {
    in_namespace("undefinedplug", |namespace| {
        let guest = Guest::start(namespace, &moving_guest::machine("vm"), "vm")?;
        networks::plug(namespace, "vm", ("late", "later"), None)?;
        let missing = format!("network attachment definition {}/later", namespace.name());
        let says = |told: &Value| {
            told["status"] == "True" && told["message"].as_str().is_some_and(|text| text.contains(&missing))
        };
        namespace.wait("vmi", "vm", "to say what its card lacks", SOON, |vmi| {
            says(&condition(vmi, "MigrationRequired"))
        })?;
        namespace.apply(&moving_guest::migration("move", "vm"))?;
        let waits = namespace.wait("vmim", "move", "to say what its pod lacks", SOON, |migration| {
            says(&condition(migration, "migrationTargetPodNotCreated"))
        })?;
        ensure!(waits["status"]["phase"] == "Pending", "{}", waits["status"]);
        let event = namespace.wait_event("vm", "FailedCreate")?;
        ensure!(event.contains(&missing), "{event}");
        networks::define(namespace, "later", &json!({}))?;
        let moved = guest.wait_migration("Succeeded")?;
        ensure!(condition(&moved, "migrationTargetPodNotCreated").is_null(), "{}", moved["status"]);
        guest.count()?;
        wait::until_true("the guest to have the card", SOON, || {
            Ok(networks::card_status(namespace, "vm", "late")
                .is_ok_and(|card| card["infoSource"] == "domain, multus-status"))
        })?;
        namespace.wait("vmi", "vm", "to need no other pod", SOON, |vmi| {
            condition(vmi, "MigrationRequired").is_null()
        })?;
        Ok(())
    });
}
