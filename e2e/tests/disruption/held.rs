//! Connections to guests, which are held while daemons are killed.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::binding_plugins::{self, BESIDE, FIRST, MACVTAP, MANAGED};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::networks::Left;
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::MOVED;
use barevirt_e2e::{
    Console, Namespace, alone, guest, held_connection, in_namespace, installation, networks, pods,
};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The bindings of the pod's network, with the names of their guests. Guests of binding plugins are named like them.
const BINDINGS: [(&str, &str); 5] = [
    ("masquerade", "masquerade"),
    ("bridge", "bridge"),
    ("passtBinding", "passt"),
    (PLUGIN, MANAGED),
    (PLUGIN, MACVTAP),
];
const PLUGIN: &str = "binding";
/// The guest with a second card, a bridge on a network beside that of the pods. Its connections go there.
const SECOND: &str = "second";
/// The node of the plugins' guests.
const NODE: &str = "node01";
/// The families of IP, as the names of the pods at the other ends have them, in the order of [`pods::both_addresses`].
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];
/// How long connections are held.
const HELD: Duration = Duration::from_secs(60);

/// The pod with a connection of that family to a guest.
fn peer(guest: &str, family: &str) -> String {
    format!("{family}-to-{guest}")
}

/// The guest of a binding.
fn bound(binding: &str, name: &str) -> Value {
    if binding == PLUGIN {
        return binding_plugins::on_pod_network(name, name, NODE, "#!/bin/sh\n");
    }
    let mut manifest = guest::instance(name);
    let ports = json!([{ "port": held_connection::PORT }]);
    guest::spec_of(&mut manifest)["domain"]["devices"]["interfaces"] =
        json!([{ "name": "default", binding: {}, "ports": ports }]);
    manifest
}

/// Starts a connection of each family to the guest of a binding, once the guest has its addresses.
fn begin_connections(namespace: &Namespace, binding: &str, name: &str) -> Result<()> {
    let mut console = Console::booted(namespace, name)?;
    let addresses = pods::both_addresses(&namespace.launcher(name)?)?;
    if binding == PLUGIN {
        let beside = format!("beside-{name}");
        let beside = pods::client_on(namespace, &beside, NODE)?;
        binding_plugins::take_addresses(&mut console, &addresses, &beside)?;
    }
    let inside = match binding {
        "masquerade" => ["10.0.2.2/", "fd10:0:2::2/"].map(str::to_owned),
        _ => addresses.each_ref().map(|address| format!("{address}/")),
    };
    networks::wait_inside(&mut console, &inside)?;
    for (family, address) in FAMILIES.into_iter().zip(&addresses) {
        held_connection::begin_at(namespace, &peer(name, family), &mut console, address)?;
    }
    console.leave().map(drop)
}

/// The same to the second card of the guest that has one.
fn begin_on_card(namespace: &Namespace) -> Result<()> {
    let mut console = Console::booted(namespace, SECOND)?;
    let pods = FAMILIES.map(|family| peer(SECOND, family));
    held_connection::begin_on_card(namespace, &pods.each_ref().map(String::as_str), &mut console)?;
    console.leave().map(drop)
}

#[test]
fn connections_to_guests_of_every_binding_are_held_for_a_minute_while_handlers_and_controllers_die() {
    in_namespace("killheld", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        for (binding, name) in BINDINGS {
            namespace.apply(&bound(binding, name))?;
        }
        let mut second = guest::instance(SECOND);
        held_connection::with_card(namespace, &mut second)?;
        namespace.apply(&second)?;
        binding_plugins::make_macvtap(namespace, MACVTAP, FIRST)?;
        for (binding, name) in BINDINGS {
            begin_connections(namespace, binding, name)?;
        }
        begin_on_card(namespace)?;
        let begun = Instant::now();
        installation::kill("virt-handler")?;
        installation::kill("virt-controller")?;
        component_is_ready("virt-handler")?;
        component_is_ready("virt-controller")?;
        thread::sleep(HELD.saturating_sub(begun.elapsed()));
        let guests = BINDINGS.iter().map(|(_, name)| *name).chain([SECOND]);
        for pod in guests.flat_map(|guest| FAMILIES.map(|family| peer(guest, family))) {
            held_connection::goes_on(namespace, &pod)?;
            let received = held_connection::received_by(namespace, &pod)?;
            println!("{pod}: {} numbers, the longest gap: {:?}", received.numbers, received.longest_gap);
            received.has_no_long_gap().context(pod)?;
        }
        Ok(())
    });
}

/// MAC address of the card of the guest that moves.
const MOVES: &str = "02:00:00:79:00:11";

#[test]
fn a_connection_to_a_guest_on_a_macvtap_goes_on_though_the_handlers_die_while_it_moves() {
    in_namespace("killmacvtap", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let mut console = binding_plugins::start_movable(namespace, MOVES)?;
        held_connection::begin(namespace, &mut console)?;
        console.leave()?;
        let left = Left::of(&namespace.launcher("vm")?)?;
        // At this rate the guest's memory takes a quarter of a minute.
        let _slow = SlowMoves::begin(namespace, "2Mi")?;
        let home = binding_plugins::begin_migration_to_macvtap(namespace, "vm", BESIDE)?;
        namespace.wait("vmi", "vm", "to be on its way", MOVED, |vmi| {
            vmi["status"]["migrationState"]["startTimestamp"].is_string()
        })?;
        installation::kill("virt-handler")?;
        let state = &namespace.need("vmi", "vm")?["status"]["migrationState"];
        ensure!(state["completed"].is_null(), "it has moved before the handlers died: {state}");
        component_is_ready("virt-handler")?;
        namespace.wait_moved("vm", &home)?;
        held_connection::goes_on(namespace, held_connection::POD)?;
        let received = held_connection::received(namespace)?;
        println!("the longest gap while the guest moved: {:?}", received.longest_gap);
        received.has_no_long_gap()?;
        left.wait_gone()
    });
}
