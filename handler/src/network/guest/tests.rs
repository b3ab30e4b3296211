//! Tests of which cards are set up, and under which names.

use barevirt_api::settings::NO_BINDINGS;
use serde_json::{Value, json};

use super::*;

/// A guest on the pod network and two other networks. The last one is not attached yet.
fn vmi(phase: &str, statuses: &Value) -> VirtualMachineInstance {
    let object = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [
                {"name": "default", "masquerade": {}}, {"name": "red", "bridge": {}},
                {"name": "blue", "bridge": {}, "state": "up"},
            ]}},
            "networks": [
                {"name": "red", "multus": {"networkName": "red"}}, {"name": "default", "pod": {}},
                {"name": "blue", "multus": {"networkName": "blue"}},
            ],
        },
        "status": {"phase": phase, "interfaces": statuses},
    });
    serde_json::from_value(object).unwrap()
}

fn held(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("net/{name}/tap")).collect()
}

fn of(vmi: &VirtualMachineInstance, held: &BTreeSet<String>, here: bool) -> Vec<Due> {
    due(vmi, held, here).into_iter().map(|(_, due)| due).collect()
}

#[test]
fn a_guest_starts_with_all_cards_and_gets_others_once_its_pod_is_attached() {
    use Due::{Gone, Later, There};
    let start = vmi("Scheduled", &json!([]));
    assert_eq!(of(&start, &held(&[]), true), [There, There, There]);
    let running = vmi("Running", &json!([{"name": "red", "podInterfaceName": "podred"}]));
    assert_eq!(of(&running, &held(&["default"]), true), [There, There, Later]);
    assert_eq!(of(&running, &held(&["default", "blue"]), true), [There, There, There]);
    // A guest that arrives has the cards of its machine, and no others.
    let coming = vmi(
        "Running",
        &json!([
            {"name": "red", "podInterfaceName": "podred", "infoSource": "domain, multus-status"},
            {"name": "blue", "podInterfaceName": "podblue", "infoSource": "multus-status"},
        ]),
    );
    assert_eq!(of(&coming, &held(&[]), false), [There, There, Later]);
    let leaves = |name: usize| {
        let mut vmi = coming.clone();
        vmi.spec.domain.devices.interfaces[name].state = Some("absent".to_owned());
        of(&vmi, &held(&[]), false)[name]
    };
    assert_eq!((leaves(1), leaves(2)), (There, Gone));
    let mut leaving = running;
    leaving.spec.domain.devices.interfaces[1].state = Some("absent".to_owned());
    assert_eq!(of(&leaving, &held(&["red"]), true)[1], There);
    assert_eq!(of(&leaving, &held(&[]), true)[1], Gone);
}

#[test]
fn only_cards_plugged_into_a_running_guest_are_prepared_alone() {
    let alone = |phase: &str, here: bool| {
        let told = json!({"name": "red", "podInterfaceName": "podred", "infoSource": "domain"});
        let valid = ValidVmi::new(vmi(phase, &json!([told]))).unwrap();
        let cards = wanted(&valid, &held(&[]), here, &NO_BINDINGS).unwrap();
        cards.into_iter().filter(|card| card.alone).map(|card| card.interface).collect::<Vec<_>>()
    };
    assert_eq!(alone("Running", true), ["red"]);
    assert!(alone("Scheduled", true).is_empty() && alone("Running", false).is_empty());
}

#[test]
fn a_guest_arrives_with_the_queues_that_its_cards_have() {
    let queues = |sockets: u32, [default, red]: [u32; 2]| {
        let told = json!([
            {"name": "default", "infoSource": "domain, guest-agent", "queueCount": default},
            {"name": "red", "infoSource": "domain, multus-status", "queueCount": red},
        ]);
        let mut vmi = vmi("Running", &told);
        vmi.spec.domain.devices.network_interface_multiqueue = Some(true);
        let cpu = json!({"sockets": sockets, "maxSockets": 4});
        vmi.spec.domain.cpu = serde_json::from_value(cpu).unwrap();
        let valid = ValidVmi::new(vmi).unwrap();
        let cards = wanted(&valid, &held(&[]), false, &NO_BINDINGS).unwrap();
        cards.into_iter().map(|card| card.queues).collect::<Vec<_>>()
    };
    assert_eq!(queues(4, [1, 1]), [1, 1], "it has grown");
    assert_eq!(queues(2, [4, 4]), [4, 4], "it has shrunk");
    assert_eq!(queues(4, [1, 4]), [1, 4], "a card came after it had grown");
}

#[test]
fn a_guest_keeps_a_card_whose_plugin_was_removed_and_a_new_card_with_it_is_refused() {
    let told = json!([
        {"name": "red", "podInterfaceName": "podred", "mac": "02:00:00:00:00:09", "infoSource": "domain"},
        {"name": "blue", "podInterfaceName": "podblue", "infoSource": "multus-status"},
    ]);
    let mut vmi = vmi("Running", &told);
    vmi.spec.domain.devices.interfaces[1] =
        serde_json::from_value(json!({"name": "red", "binding": {"name": "mine"}})).unwrap();
    let valid = ValidVmi::new(vmi).unwrap();
    let of = |names: &[&str]| wanted(&valid, &held(names), true, &NO_BINDINGS);
    // A card that was added to the guest meanwhile does not wait.
    let cards = of(&["default", "red"]).unwrap();
    let names: Vec<&str> = cards.iter().map(|card| card.interface.as_str()).collect();
    assert_eq!(names, ["default", "red", "blue"]);
    let mac = crate::network::addresses::MacAddress([2, 0, 0, 0, 0, 9]);
    assert_eq!((&cards[1].binding, cards[1].mac, cards[1].alone), (&Binding::Kept, Some(mac), true));
    let missing = InterfaceError::Plugin("red".to_owned(), "mine".to_owned());
    assert_eq!(of(&["default"]), Err(missing));
}

#[test]
fn single_ports_or_ranges_of_ports_are_forwarded() {
    let forwarded = |field: &str, list: Value| {
        let mut interface = json!({"name": "default", "masquerade": {}});
        interface[field] = list;
        let mut vmi = vmi("Scheduled", &json!([]));
        vmi.spec.domain.devices.interfaces[0] = serde_json::from_value(interface).unwrap();
        let valid = ValidVmi::new(vmi).unwrap();
        let card = wanted(&valid, &held(&[]), true, &NO_BINDINGS).unwrap().remove(0);
        match card.binding {
            Binding::Masquerade(masquerade) => masquerade.ports,
            other => panic!("{other:?}"),
        }
    };
    let ports = |protocol, first, last| Ports { protocol, first, last };
    // No protocol, and an empty one, are TCP.
    let list = json!([{"port": 80}, {"port": 22, "protocol": ""}, {"port": 53, "protocol": "UDP"}]);
    let expected = [ports(Protocol::Tcp, 80, 80), ports(Protocol::Tcp, 22, 22), ports(Protocol::Udp, 53, 53)];
    assert_eq!(forwarded("ports", list), expected);
    let list = json!([
        {"protocol": "TCP", "start": 8000, "end": 8100}, {"protocol": "UDP", "start": 1, "end": 65535},
    ]);
    let expected = [ports(Protocol::Tcp, 8000, 8100), ports(Protocol::Udp, 1, 65535)];
    assert_eq!(forwarded("portRanges", list), expected);
}

#[test]
fn links_are_named_by_the_status_then_by_hash_then_by_number() {
    let names = |told: &str| {
        let status = json!([{"name": "red", "podInterfaceName": told}]);
        let vmi = vmi("Scheduled", &status);
        let interfaces = vmi.spec.domain.devices.interfaces.iter().zip([1, 0, 2]);
        let valid = |(interface, network): (&api::Interface, usize)| ValidInterface {
            interface: interface.clone(),
            network: vmi.spec.networks[network].clone(),
            mac: "02:00:00:00:00:01".to_owned(),
        };
        let valid: Vec<_> = interfaces.map(valid).collect();
        let mut plain = vmi.clone();
        plain.spec.domain.devices.interfaces.truncate(1);
        plain.spec.networks = vec![vmi.spec.networks[1].clone()];
        let mut whole = ValidVmi::new(plain).unwrap().into_inner();
        whole.spec.networks = vmi.spec.networks.clone();
        (whole, valid)
    };
    let (whole, valid) = names("eth7");
    let candidates = |valid: &ValidInterface| super::candidates_of(&whole, valid);
    assert_eq!(candidates(&valid[0]), ["eth0"]);
    assert_eq!(candidates(&valid[1]), ["eth7", "podb1f51a511f1", "net1"]);
    let blue = candidates(&valid[2]);
    assert_eq!((blue.len(), blue[1].as_str()), (2, "net2"));
    // A name that is invalid, or that is another network's link, is ignored.
    for bad in ["../x", "eth0", "lo", "a name"] {
        let (whole, valid) = names(bad);
        assert_eq!(super::candidates_of(&whole, &valid[1])[0], "podb1f51a511f1", "{bad}");
    }
}

#[test]
fn a_guest_with_its_pods_ipv6_address_gets_the_networks_router() {
    let wanted = Wanted {
        interface: "red".to_owned(),
        network: "red".to_owned(),
        index: 0,
        candidates: vec!["eth0".to_owned()],
        tap_owner: 107,
        queues: 1,
        mac: None,
        binding: Binding::Bridge,
        alone: false,
    };
    let route = |destination: &str, gateway: Option<&str>| Route {
        destination: destination.parse().unwrap(),
        prefix: 64,
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
    };
    let ipv6 = crate::network::Ipv6 {
        address: "fd00::7".parse().unwrap(),
        prefix: 64,
        gateway: Some("fe80::1".parse().unwrap()),
        routes: vec![route("fd00::", None), route("fd96::", Some("fe80::2"))],
    };
    let prepared = Prepared {
        pod_interface: "eth0".to_owned(),
        mac: crate::network::addresses::MacAddress([2, 0, 0, 0, 0, 7]),
        mtu: 1400,
        bridge_index: 3,
        pod_addresses: Vec::new(),
        ipv4: None,
        ipv6: Some(ipv6),
        link_local: None,
    };
    let facts = facts(&wanted, &prepared, &Resolver::parse(""));
    assert_eq!((facts.ipv6.as_str(), facts.ipv6_prefix, facts.ipv4.as_str()), ("fd00::7", 64, ""));
    assert_eq!((facts.ipv6_gateway.as_str(), facts.ipv6_link_local.as_str()), ("fe80::1", ""));
    let told = |destination: &str, gateway: &str| v1::Route {
        destination: destination.to_owned(),
        prefix: 64,
        gateway: gateway.to_owned(),
    };
    assert_eq!(facts.ipv6_routes, [told("fd00::", ""), told("fd96::", "fe80::2")]);
}
