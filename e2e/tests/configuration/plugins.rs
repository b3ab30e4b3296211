//! Guests whose cards are connected as binding plugins say: managed taps, and taps that are in the pod, which are macvtaps here.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::binding_plugins::{self, BESIDE, FIRST, MACVTAP, MANAGED};
use barevirt_e2e::components::{RUNNING_COMPONENTS, lives, wait_in_force};
use barevirt_e2e::exposed::{self, Exposed};
use barevirt_e2e::installation::{Changed, wait_available};
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::policies::{Guarded, Others};
use barevirt_e2e::questions::{self, Answering};
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, alone, guest, held_connection, in_namespace, pods, sandboxes};
use serde_json::{Value, json};

/// MTU of the network between the nodes, whose frames are jumbo frames, and that of the pods' network.
const JUMBO: usize = 9000;
const MTU: usize = 1500;

/// The addresses of a guest on the network between the nodes.
fn on_lan(number: u8) -> [String; 2] {
    [format!("10.79.0.{number}"), format!("fd79::{number}")]
}

/// A guest with a second card by a binding plugin, on the network between the nodes.
fn by_plugin(name: &str, plugin: &str, node: &str, number: u8) -> Value {
    let mut manifest = guest::with_user_data(guest::instance(name), "#!/bin/sh\n");
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    guest::push(
        &mut spec["domain"]["devices"]["interfaces"],
        json!({"name": "lan", "binding": {"name": plugin}}),
    );
    guest::push(&mut spec["networks"], json!({"name": "lan", "multus": {"networkName": "lan"}}));
    let [four, six] = on_lan(number);
    spec["volumes"][1]["cloudInitNoCloud"]["networkData"] = json!(format!(
        "version: 2\nethernets:\n  eth0:\n    dhcp4: true\n  eth1:\n    addresses: [{four}/24, {six}/64]\n"
    ));
    manifest
}

#[test]
fn guests_that_binding_plugins_join_to_the_test_beds_delegates_network_reach_each_other() {
    in_namespace("plugin", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let config = json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "lan0", "mtu": JUMBO});
        namespace.apply(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "lan"}, "spec": {"config": config.to_string()},
        }))?;
        namespace.apply(&by_plugin("stranger", "other", "node01", 9))?;
        namespace.apply(&by_plugin("first", MANAGED, "node01", 1))?;
        let mut second = by_plugin("second", MACVTAP, "node02", 2);
        second["spec"]["domain"]["devices"]["interfaces"][1]["macAddress"] = json!("02:00:00:79:00:02");
        namespace.apply(&second)?;
        binding_plugins::make_macvtap(namespace, "second", BESIDE)?;
        let mut guests = Vec::new();
        for (guest, number) in [("first", 1), ("second", 2)] {
            let mut console = Console::booted(namespace, guest)?;
            guests.push((Answering::begin(&mut console, guest, on_lan(number))?, console));
        }
        let all: Vec<Answering> = guests.iter().map(|(guest, _)| guest.clone()).collect();
        for (guest, console) in &mut guests {
            questions::ask_all(console, &guest.name, &all)?;
        }
        // Both have the address of their instance: the guest, and the macvtap, which receives packets for no other.
        let (_, first) = &mut guests[0];
        let neighbour = first.ok("arp -n 10.79.0.2", SOON)?;
        ensure!(neighbour.contains("02:00:00:79:00:02"), "{neighbour}");
        // The kernel does not fragment a packet of up to the MTU.
        let mtu = first.ok("cat /sys/class/net/eth1/mtu", SOON)?;
        ensure!(mtu == JUMBO.to_string(), "the guest's MTU is {mtu}");
        for address in on_lan(2) {
            let longest = pods::largest_payload(&address) + JUMBO - MTU;
            first.ok(&format!("ping -c 3 -W 5 -s {longest} {address}"), SOON)?;
        }
        for (_, console) in guests {
            console.leave()?;
        }
        let left = Left::of(&namespace.launcher("second")?)?;
        ensure!(left.links.len() == 2, "the pod has the links {:?}", left.links);
        namespace.kubectl(&["delete", "vmi", "second"])?;
        left.wait_gone()?;
        let event = namespace.wait_event("stranger", "FailedCreate")?;
        ensure!(event.contains("unable to find the network binding plugin 'other'"), "{event}");
        Ok(())
    });
}

/// The guests on the pods' network: one of each plugin, named like it.
const PLUGINS: [&str; 2] = [MANAGED, MACVTAP];

/// Starts a guest of each plugin on the pods' network, on these nodes, with a pod beside each. The consoles are logged in, and
/// the guests have their pods' addresses.
fn start(
    namespace: &Namespace,
    nodes: [&str; 2],
    manifest: impl Fn(&str, &str) -> Value,
) -> Result<[Console; 2]> {
    for (plugin, node) in PLUGINS.into_iter().zip(nodes) {
        namespace.apply(&manifest(plugin, node))?;
    }
    binding_plugins::make_macvtap(namespace, MACVTAP, FIRST)?;
    let start = |plugin: &str, node: &str| {
        let beside = format!("beside-{plugin}");
        let beside = pods::client_on(namespace, &beside, node)?;
        let mut console = Console::booted(namespace, plugin)?;
        let addresses = pods::both_addresses(&namespace.launcher(plugin)?)?;
        binding_plugins::take_addresses(&mut console, &addresses, &beside)?;
        // From a pod of its own node.
        for address in &addresses {
            let url = format!("http://{}/hostname", pods::host(address));
            beside.wait_answer(&url, Some(plugin), SOON)?;
        }
        Ok::<_, anyhow::Error>(console)
    };
    Ok([start(PLUGINS[0], nodes[0])?, start(PLUGINS[1], nodes[1])?])
}

#[test]
fn guests_that_binding_plugins_join_to_the_pod_network_are_exposed_and_reach_each_other_on_a_node() {
    in_namespace("pluginpods", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let key = Key::make()?;
        pods::server(namespace, "greeter", "hello from a pod")?;
        let manifest = |plugin: &str, node: &str| {
            let mut manifest =
                binding_plugins::on_pod_network(plugin, plugin, node, &exposed::user_data(&key));
            exposed::with_record(guest::spec_of(&mut manifest), plugin);
            manifest
        };
        let mut consoles = start(namespace, ["node01"; 2], manifest)?;
        let mut all = Vec::new();
        for (plugin, console) in PLUGINS.into_iter().zip(&mut consoles) {
            let addresses = pods::both_addresses(&namespace.launcher(plugin)?)?;
            namespace.wait("vmi", plugin, &format!("to show {addresses:?}"), SOON, |vmi| {
                let shown = vmi["status"]["interfaces"][0]["ipAddresses"].as_array();
                shown.is_some_and(|shown| addresses.iter().all(|address| shown.contains(&json!(address))))
            })?;
            all.push(Answering::begin(console, plugin, addresses)?);
        }
        for (plugin, mut console) in PLUGINS.into_iter().zip(consoles) {
            questions::ask_all(&mut console, plugin, &all)?;
            let answer = console.ok("timeout 20 wget -qO- http://greeter/", SOON)?;
            ensure!(answer == "hello from a pod", "the service answers {plugin} with {answer}");
            questions::ask_service(&mut console, namespace, "greeter", "hello from a pod")?;
            console.leave()?;
        }
        let client = pods::client_on(namespace, "client", "node02")?;
        for guest in PLUGINS {
            let exposed = Exposed { namespace, guest, key: &key, client: &client };
            exposed.is_reached_in_every_way()?;
        }
        Ok(())
    });
}

#[test]
fn policies_hold_for_guests_that_binding_plugins_join_to_the_pod_network() {
    in_namespace("pluginpolicies", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let manifest = |plugin: &str, node: &str| {
            let mut manifest = binding_plugins::on_pod_network(plugin, plugin, node, "#!/bin/sh\n");
            manifest["metadata"]["labels"]["policy"] = json!("yes");
            manifest
        };
        let consoles = start(namespace, ["node01", "node02"], manifest)?;
        let others = Others::start(namespace)?;
        for (plugin, mut console) in PLUGINS.into_iter().zip(consoles) {
            let pod = namespace.launcher(plugin)?;
            questions::answer_datagrams(&mut console)?;
            let mut guest = Guarded { pod: &pod, console: &mut console, answer: plugin };
            others.policy_holds(namespace, &mut guest)?;
            console.leave()?;
        }
        Ok(())
    });
}

#[test]
fn machines_that_binding_plugins_join_to_the_pod_network_start_in_another_pod_when_their_sandboxes_end() {
    in_namespace("pluginsandbox", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        for plugin in PLUGINS {
            let mut machine = guest::without_system(guest::machine(plugin, "Always"));
            guest::spec_of(&mut machine)["domain"]["devices"]["interfaces"] =
                json!([{"name": "default", "binding": {"name": plugin}}]);
            namespace.apply(&machine)?;
        }
        binding_plugins::make_macvtap(namespace, MACVTAP, FIRST)?;
        let managed = sandboxes::end(namespace, MANAGED, 1)?;
        let macvtap = sandboxes::end(namespace, MACVTAP, 1)?;
        macvtap.wait_instance()?;
        binding_plugins::make_macvtap(namespace, MACVTAP, FIRST)?;
        managed.runs_in_another_pod()?;
        macvtap.runs_in_another_pod()
    });
}

/// MAC address of the card of the guest that moves.
const MOVES: &str = "02:00:00:79:00:10";

#[test]
fn a_guest_on_a_macvtap_moves_on_the_test_beds_delegates_network_and_a_connection_to_it_loses_nothing() {
    in_namespace("pluginmoves", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let mut console = binding_plugins::start_movable(namespace, MOVES)?;
        held_connection::begin(namespace, &mut console)?;
        let refreshed = changes_of_link(&mut console, MOVES)? + 2;
        console.leave()?;
        let left = Left::of(&namespace.launcher("vm")?)?;

        binding_plugins::migrate_to_macvtap(namespace, "vm", BESIDE)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        wait::until_true("the link to have gone down and up", SOON, || {
            Ok(changes_of_link(&mut console, MOVES)? >= refreshed)
        })?;
        console.leave()?;
        held_connection::goes_on(namespace, held_connection::POD)?;
        let received = held_connection::received(namespace)?;
        println!("the longest gap while the guest moved: {:?}", received.longest_gap);
        received.has_no_long_gap()?;
        left.wait_gone()
    });
}

#[test]
fn a_guest_on_a_macvtap_of_the_pod_network_moves_and_policies_hold_for_its_new_pod() {
    in_namespace("pluginpodmoves", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        let mut machine = guest::machine("vm", "Always");
        let spec = guest::spec_of(&mut machine);
        spec["domain"]["devices"]["interfaces"] = json!([{"name": "default", "binding": {"name": MACVTAP}}]);
        machine["spec"]["template"]["metadata"]["labels"]["policy"] = json!("yes");
        namespace.apply(&machine)?;
        binding_plugins::make_macvtap(namespace, "vm", FIRST)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let vmi = binding_plugins::migrate_to_macvtap(namespace, "vm", FIRST)?;
        let node = vmi["status"]["nodeName"].as_str().context("it has no node")?;
        let beside = pods::client_on(namespace, "beside", node)?;
        let pod = namespace.launcher("vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        binding_plugins::take_addresses(&mut console, &pods::both_addresses(&pod)?, &beside)?;
        questions::answer_datagrams(&mut console)?;
        let mut guest = Guarded { pod: &pod, console: &mut console, answer: "guest-tiny" };
        Others::start(namespace)?.policy_holds(namespace, &mut guest)?;
        console.leave().map(drop)
    });
}

/// How often the link of the card with that MAC address went down or up, as the guest saw it.
fn changes_of_link(console: &mut Console, mac: &str) -> Result<u32> {
    let line = format!("cat $(dirname $(grep -l {mac} /sys/class/net/eth*/address))/carrier_changes");
    let said = console.ok(&line, SOON)?;
    said.trim().parse().with_context(|| format!("the guest says {said}"))
}

#[test]
fn a_link_to_the_test_beds_delegates_network_goes_down_and_up_after_a_move_where_its_plugin_says_so() {
    in_namespace("refresh", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let _changed = Changed::begin(&json!({"configuration": {"network": {"binding": {
            "renewed": {"domainAttachmentType": "managedTap", "migration": {"method": "link-refresh"}},
            "kept": {"domainAttachmentType": "managedTap"},
        }}}}))?;
        wait_in_force(components.keys())?;
        networks::define(namespace, "lan", &json!({"macspoofchk": false}))?;
        let mut machine = guest::movable(guest::machine("vm", "Always"));
        let spec = guest::spec_of(&mut machine);
        let (renewed, kept) = ("02:00:00:77:00:21", "02:00:00:77:00:22");
        for (plugin, mac) in [("renewed", renewed), ("kept", kept)] {
            let card = json!({"name": plugin, "binding": {"name": plugin}, "macAddress": mac});
            guest::push(&mut spec["domain"]["devices"]["interfaces"], card);
            let network = json!({"name": plugin, "multus": {"networkName": "lan"}});
            guest::push(&mut spec["networks"], network);
        }
        let mut console = Console::boot(namespace, &machine)?;
        console.ok("ip link set eth1 up && ip link set eth2 up", SOON)?;
        let before = [changes_of_link(&mut console, renewed)?, changes_of_link(&mut console, kept)?];
        console.leave()?;
        namespace.migrate("vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        wait::until_true("the link to have gone down and up", SOON, || {
            Ok(changes_of_link(&mut console, renewed)? >= before[0] + 2)
        })?;
        let after = changes_of_link(&mut console, kept)?;
        ensure!(after == before[1], "the other link changed {after} times, {} before", before[1]);
        console.leave().map(drop)
    });
}
