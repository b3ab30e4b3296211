//! Plans for pods in which nothing, a part or everything is set up.

use std::collections::{BTreeMap, BTreeSet};

use barevirt_protocol::names::NetworkDescriptor;

use super::*;
use crate::network::addresses::MacAddress;
use crate::network::nft::rules::{Action, Chain, Family, Match, Rule, Ruleset};
use crate::network::state::{Kind, Link, Masquerade, Route};
use barevirt_api::masquerade::{IPV4, IPV6, Pair};

mod ipv6;

fn wanted() -> Wanted {
    Wanted {
        interface: "default".to_owned(),
        network: "default".to_owned(),
        index: 0,
        candidates: vec!["eth0".to_owned()],
        tap_owner: 107,
        queues: 1,
        mac: Some(MacAddress([0x02, 0, 0, 0, 0, 7])),
        binding: Binding::Masquerade(Masquerade {
            ipv4: IPV4,
            ipv6: IPV6,
            ports: Vec::new(),
            has_sidecar: false,
        }),
        alone: false,
    }
}

fn pod(addresses: &[(&str, u8)]) -> Observed {
    let addresses = addresses.iter().map(|(address, prefix)| (address.parse().unwrap(), *prefix)).collect();
    let eth0 = Link { index: 2, mtu: 1450, up: true, addresses, ..Link::default() };
    Observed { links: BTreeMap::from([("eth0".to_owned(), eth0)]), ..Observed::default() }
}

/// What an observation would show after these steps.
fn carry_out(observed: &Observed, steps: &[Step]) -> Observed {
    let mut after = observed.clone();
    for step in steps {
        carry_out_one(&mut after, step);
    }
    after
}

fn carry_out_one(after: &mut Observed, step: &Step) {
    let index = 1 + after.links.values().map(|link| link.index).max().unwrap_or_default();
    match step {
        Step::CreateBridge { name, mac, mtu } => {
            let (kind, mac) = (Kind::Bridge, mac.0.to_vec());
            let link = Link { index, kind, mac, mtu: *mtu, ..Link::default() };
            assert!(after.links.insert(name.clone(), link).is_none());
        }
        Step::Sysctl { path, value, .. } => {
            after.sysctls.insert(path.clone(), (*value).to_owned());
        }
        Step::Address { link: name, address, prefix, .. } => {
            assert!(at(after, name).addresses.insert((*address, *prefix)));
        }
        Step::RemoveAddress { link: name, address, prefix } => {
            assert!(at(after, name).addresses.remove(&(*address, *prefix)));
        }
        Step::Mtu { link: name, mtu } => at(after, name).mtu = *mtu,
        Step::Mac { link: name, mac } => at(after, name).mac = mac.0.to_vec(),
        Step::Rename { link: name, to } => {
            let link = after.links.remove(name).unwrap_or_else(|| panic!("{step:?}"));
            assert!(!link.up, "{step:?}");
            assert!(after.links.insert(to.clone(), link).is_none());
        }
        Step::OpenTap { name, descriptor, .. } => {
            after.links.entry(name.clone()).or_insert(Link { index, mtu: 1500, ..Link::default() });
            after.held.insert(descriptor.clone());
        }
        Step::OpenMacvtap { descriptor, .. } => drop(after.held.insert(descriptor.clone())),
        Step::Attach { link: name, bridge } => {
            let index = at(after, bridge).index;
            let port = at(after, name);
            (port.controller, port.learning) = (Some(index), true);
        }
        Step::NoLearning { link: name } => {
            assert!(at(after, name).controller.is_some());
            at(after, name).learning = false;
        }
        Step::Forget { link: name, .. } => assert!(at(after, name).controller.is_some()),
        Step::Detach { link: name } => at(after, name).controller = None,
        Step::LoopbackRoute { link: name } => {
            assert!(at(after, name).up);
            let index = at(after, name).index;
            after.loopback_routes.insert(index);
        }
        Step::AllMulticast { link: name } => at(after, name).all_multicast = true,
        Step::Up { link: name } => at(after, name).up = true,
        Step::Down { link: name } => {
            // The kernel forgets routes and IPv6 addresses.
            let link = at(after, name);
            link.up = false;
            link.routes.clear();
            link.addresses.retain(|(address, _)| address.is_ipv4());
        }
        Step::Delete { link: name } => {
            if let Some(gone) = after.links.remove(name) {
                let ports = after.links.values_mut().filter(|link| link.controller == Some(gone.index));
                ports.for_each(|port| port.controller = None);
            }
        }
        Step::KeepRoute { bridge, route } => {
            assert!(at(after, bridge).up);
            at(after, bridge).kept_routes.insert(*route);
        }
        Step::Route { link: name, route } => {
            assert!(at(after, name).up);
            at(after, name).routes.insert(*route);
        }
        Step::CreateRules(rules) => {
            assert!(after.rules.insert(rules.family, rules.fingerprint().to_vec()).is_none());
        }
        Step::ReplaceRules(rules) => {
            after.rules.insert(rules.family, rules.fingerprint().to_vec());
        }
        Step::Open { descriptor, .. } => {
            after.held.insert(descriptor.clone());
        }
    }
}

fn at<'a>(after: &'a mut Observed, name: &str) -> &'a mut Link {
    after.links.get_mut(name).unwrap_or_else(|| panic!("there is no link {name}"))
}

const DUAL: &[(&str, u8)] = &[("10.244.1.7", 24), ("fd00:10:244:1::7", 64), ("fe80::1", 64)];

#[test]
fn a_second_plan_is_empty() {
    let observed = pod(DUAL);
    let steps = plan(&wanted(), &observed).unwrap();
    assert!(steps.len() > 10);
    assert_eq!(plan(&wanted(), &carry_out(&observed, &steps)).unwrap(), []);
}

#[test]
fn descriptors_that_the_launcher_holds_are_not_opened_again() {
    let mut observed = pod(DUAL);
    observed.held = NetworkDescriptor::ALL.map(|kind| kind.of("default")).into();
    let steps = plan(&wanted(), &observed).unwrap();
    assert!(!steps.iter().any(|step| matches!(step, Step::OpenTap { .. } | Step::Open { .. })), "{steps:?}");
}

#[test]
fn a_tap_has_its_queues_the_first_one_last() {
    let opened = |queues, held: &[&str]| -> Vec<_> {
        let mut observed = pod(DUAL);
        observed.held = held.iter().map(|name| (*name).to_owned()).collect();
        let steps = plan(&Wanted { queues, ..wanted() }, &observed).unwrap();
        let opened = steps.into_iter().filter_map(|step| match step {
            Step::OpenTap { multi_queue, descriptor, .. } => Some((descriptor, multi_queue)),
            _ => None,
        });
        opened.collect()
    };
    let queue = |name: &str, many| (format!("net/default/{name}"), many);
    assert_eq!(opened(1, &[]), [queue("tap", false)]);
    assert_eq!(opened(3, &[]), [queue("tap.2", true), queue("tap.1", true), queue("tap", true)]);
    // The previous handler ended before it was done.
    assert_eq!(opened(3, &["net/default/tap.2"]), [queue("tap.1", true), queue("tap", true)]);
    // CPUs that were added later bring no queues.
    assert_eq!(opened(4, &["net/default/tap", "net/default/tap.1"]), []);
}

#[test]
fn a_pod_without_ipv6_gets_ipv4_only() {
    let steps = plan(&wanted(), &pod(&[("10.244.1.7", 24), ("fe80::1", 64)])).unwrap();
    for step in &steps {
        match step {
            Step::Address { address, .. } => assert!(address.is_ipv4()),
            Step::CreateRules(rules) => assert_ne!(rules.family, Family::V6),
            Step::Open { service, .. } => assert_eq!(*service, Service::Dhcp4 { only_from: None }),
            Step::LoopbackRoute { .. } => panic!("{step:?}"),
            Step::Sysctl { path, value, .. } => {
                let off = ["k6t-eth0", "tap0"].map(|link| format!("net/ipv6/conf/{link}/disable_ipv6"));
                let is_off = off.contains(path) && *value == "1";
                assert!(is_off || path.starts_with("net/ipv4/"), "{path}");
            }
            _ => {}
        }
    }
    assert_eq!(steps.iter().filter(|step| matches!(step, Step::CreateRules(_))).count(), 2);
    // It comes back with an address of the pod.
    let mut made = carry_out(&pod(&[("10.244.1.7", 24)]), &steps);
    assert_eq!(made.sysctls["net/ipv6/conf/k6t-eth0/disable_ipv6"], "1");
    assert_eq!(plan(&wanted(), &made).unwrap(), []);
    made.links.get_mut("eth0").unwrap().addresses.insert(("fd00::7".parse().unwrap(), 64));
    let is_on = |step: &Step| match step {
        Step::Sysctl { path, value, .. } => path.ends_with("/k6t-eth0/disable_ipv6") && *value == "0",
        _ => false,
    };
    assert!(plan(&wanted(), &made).unwrap().iter().any(is_on));
}

#[test]
fn a_pod_without_ipv4_gets_ipv6_only_and_drops_what_its_guest_sends_by_ipv4() {
    let observed = pod(&[("fd00:10:244:1::7", 64), ("fe80::1", 64)]);
    let steps = plan(&wanted(), &observed).unwrap();
    let mut tables = Vec::new();
    for step in &steps {
        match step {
            Step::Address { address, .. } => assert!(address.is_ipv6(), "{address}"),
            Step::CreateRules(rules) => tables.push(rules),
            Step::Open { service, .. } => assert!(!matches!(service, Service::Dhcp4 { .. }), "{service:?}"),
            _ => {}
        }
    }
    let families: Vec<Family> = tables.iter().map(|rules| rules.family).collect();
    assert_eq!(families, [Family::V4, Family::Arp, Family::V6]);
    let from = |link: &str| Rule {
        chain: Chain::Guest,
        matches: vec![Match::Input(link.to_owned())],
        action: Action::Drop,
    };
    assert_eq!(tables[0].rules, [from("tap0"), from("k6t-eth0")]);
    let made = carry_out(&observed, &steps);
    assert!(made.held.contains("net/default/dhcp6") && made.held.contains("net/default/ra"));
    assert_eq!(plan(&wanted(), &made).unwrap(), []);
}

#[test]
fn other_rules_are_replaced_and_missing_ones_are_created() {
    let made = carry_out(&pod(DUAL), &plan(&wanted(), &pod(DUAL)).unwrap());
    let due = |change: &dyn Fn(&mut Observed)| {
        let mut observed = made.clone();
        change(&mut observed);
        plan(&wanted(), &observed).unwrap()
    };
    // A table without a fingerprint is another one, too.
    for other in [vec![7; 32], Vec::new()] {
        let steps = due(&|observed| drop(observed.rules.insert(Family::V6, other.clone())));
        assert!(matches!(&steps[..], [Step::ReplaceRules(rules)] if rules.family == Family::V6), "{steps:?}");
    }
    let steps = due(&|observed| drop(observed.rules.remove(&Family::V4)));
    assert!(matches!(&steps[..], [Step::CreateRules(rules)] if rules.family == Family::V4), "{steps:?}");
}

/// The tables of a new pod.
fn tables(card: &Wanted, observed: &Observed) -> Vec<Ruleset> {
    let tables = plan(card, observed).unwrap().into_iter().filter_map(|step| match step {
        Step::CreateRules(rules) => Some(rules),
        _ => None,
    });
    tables.collect()
}

#[test]
fn what_others_send_to_the_guests_range_is_dropped_first_and_the_pod_keeps_its_own_address() {
    let first = |card: &Wanted, addresses: &[(&str, u8)]| -> Vec<Rule> {
        let tables = tables(card, &pod(addresses)).into_iter();
        let ip = tables.filter(|rules| rules.family != Family::Arp);
        ip.map(|rules| rules.rules[0].clone()).collect()
    };
    let rule = |range: &str, prefix, own: &[&str]| {
        let own = own.iter().map(|address| Match::DestinationIsNot(address.parse().unwrap()));
        let links = ["k6t-eth0", "lo"].map(|link| Match::InputIsNot(link.to_owned()));
        let range = Match::DestinationIn(range.parse().unwrap(), prefix);
        let matches = links.into_iter().chain([range]).chain(own).collect();
        Rule { chain: Chain::Guest, matches, action: Action::Drop }
    };
    assert_eq!(first(&wanted(), DUAL), [rule("10.0.2.1", 24, &[]), rule("fd10:0:2::1", 120, &[])]);
    // The network of the pods holds the range.
    let within = [("10.0.2.15", 16), ("10.0.3.15", 16), ("fd10:0:2::f", 64), ("fd10:0:2::1:f", 64)];
    let own = [rule("10.0.2.1", 24, &["10.0.2.15"]), rule("fd10:0:2::1", 120, &["fd10:0:2::f"])];
    assert_eq!(first(&wanted(), &within), own);
    let (ipv4, ipv6) = (
        Pair { gateway: [10, 8, 0, 1].into(), guest: [10, 8, 0, 2].into(), prefix: 16 },
        Pair { gateway: "fd08::1".parse().unwrap(), guest: "fd08::2".parse().unwrap(), prefix: 64 },
    );
    for has_sidecar in [false, true] {
        let binding = Masquerade { ipv4, ipv6, ports: Vec::new(), has_sidecar };
        let card = Wanted { binding: Binding::Masquerade(binding), ..wanted() };
        assert_eq!(first(&card, DUAL), [rule("10.8.0.1", 16, &[]), rule("fd08::1", 64, &[])]);
    }
}

#[test]
fn rules_about_neighbours_come_before_those_that_accept_what_the_guest_sends() {
    let tables = tables(&wanted(), &pod(DUAL));
    let families: Vec<Family> = tables.iter().map(|rules| rules.family).collect();
    assert_eq!(families, [Family::V4, Family::Arp, Family::V6]);
    // From outside, and by the tap; from another sender; from outside, to another link-local address, and to another one of the
    // range.
    for (rules, dropped) in tables.into_iter().zip([2, 1, 3]) {
        let first: Vec<_> =
            rules.rules.iter().filter(|rule| rule.chain == Chain::Guest).take(dropped).collect();
        assert!(first.iter().all(|rule| rule.action == Action::Drop) && first.len() == dropped, "{first:?}");
        assert_eq!(rules.few().is_some(), rules.family == Family::V6);
    }
}

#[test]
fn a_pod_without_addresses_is_not_ready() {
    let error = PlanError::NoPodInterface("eth0".to_owned());
    assert_eq!(plan(&wanted(), &Observed::default()), Err(error.clone()));
    assert_eq!(plan(&wanted(), &pod(&[("fe80::1", 64)])), Err(error));
}

#[test]
fn settings_that_the_kernel_lacks_are_left_out() {
    let path = "net/bridge/bridge-nf-call-ip6tables".to_owned();
    let step = Step::Sysctl { path: path.clone(), value: "0", optional: true };
    let mut observed = pod(DUAL);
    assert!(!plan(&wanted(), &observed).unwrap().contains(&step));
    observed.sysctls.insert(path, "1".to_owned());
    assert!(plan(&wanted(), &observed).unwrap().contains(&step));
}

#[test]
fn everything_follows_the_mtu_of_the_pod() {
    let steps = plan(&wanted(), &pod(DUAL)).unwrap();
    assert!(steps.contains(&Step::Mtu { link: "tap0".to_owned(), mtu: 1450 }));
    assert!(steps.iter().any(|step| matches!(step, Step::CreateBridge { mtu: 1450, .. })));
}

#[test]
fn a_lost_tap_is_made_again_and_nothing_else() {
    let observed = pod(DUAL);
    let mut after = carry_out(&observed, &plan(&wanted(), &observed).unwrap());
    after.links.remove("tap0");
    after.held.remove("net/default/tap");
    let steps = plan(&wanted(), &after).unwrap();
    assert!(matches!(
        steps.as_slice(),
        [
            Step::OpenTap { .. },
            Step::Mtu { .. },
            Step::Attach { .. },
            Step::NoLearning { .. },
            Step::Up { .. }
        ]
    ));
}

#[test]
fn the_bridge_learns_behind_no_port_and_a_tap_of_an_earlier_version_is_made_so() {
    for (card, ports) in [(wanted(), vec!["tap0"]), (bridged("default", "eth0"), vec!["tap0", "eth0-nic"])] {
        let observed = pod_with_routes();
        let steps = plan(&card, &observed).unwrap();
        // Nothing comes before that: the tap is still down.
        let place = |one: &Step| steps.iter().position(|step| step == one).unwrap();
        let tap = || "tap0".to_owned();
        assert!(place(&Step::NoLearning { link: tap() }) < place(&Step::Up { link: tap() }));
        let after = carry_out(&observed, &steps);
        let of_bridge = |link: &&String| after.links[*link].controller.is_some();
        let there: BTreeSet<&str> = after.links.keys().filter(of_bridge).map(String::as_str).collect();
        assert_eq!(there, BTreeSet::from_iter(ports.iter().copied()));
        assert!(after.links.values().all(|link| !link.learning));
        for port in ports {
            let mut earlier = after.clone();
            at(&mut earlier, port).learning = true;
            let step = Step::NoLearning { link: port.to_owned() };
            assert_eq!(plan(&card, &earlier), Ok(vec![step]), "{port}");
        }
    }
}

const RED: &str = "podb1f51a511f1";

fn bridged(network: &str, pod: &str) -> Wanted {
    Wanted {
        interface: network.to_owned(),
        network: network.to_owned(),
        index: 1,
        candidates: vec![pod.to_owned()],
        mac: None,
        binding: Binding::Bridge,
        ..wanted()
    }
}

/// A pod with an address and routes on its first link, and another link without addresses.
fn pod_with_routes() -> Observed {
    let mut observed = pod(DUAL);
    let route = |destination: &str, prefix, gateway: Option<&str>| Route {
        destination: destination.parse().unwrap(),
        prefix,
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
    };
    let eth0 = observed.links.get_mut("eth0").unwrap();
    eth0.mac = vec![0x0a, 0x58, 0, 0, 0, 1];
    eth0.routes = [
        route("0.0.0.0", 0, Some("10.244.1.1")),
        route("10.96.0.0", 12, Some("10.244.1.1")),
        route("10.244.1.1", 32, None),
    ]
    .into();
    let red = Link { index: 3, mtu: 9000, up: true, mac: vec![0x0a, 0x58, 0, 0, 0, 2], ..Link::default() };
    observed.links.insert(RED.to_owned(), red);
    observed
}

#[test]
fn a_bridge_takes_everything_over_and_gives_it_back() {
    for (network, pod) in [("default", "eth0"), ("red", RED)] {
        let (observed, card) = (pod_with_routes(), bridged(network, pod));
        let before = observed.links[pod].clone();
        let names = card.names(&observed.links);
        let steps = plan(&card, &observed).unwrap();
        let to_nowhere = |step: &Step| match step {
            Step::Address { link, address, routed, .. } => {
                *link == names.kept && address.is_ipv4() && *routed
            }
            _ => false,
        };
        let after = carry_out(&observed, &steps);
        assert_eq!(plan(&card, &after).unwrap(), []);
        let (stand_in, port, bridge) =
            (&after.links[pod], &after.links[&names.port], &after.links[&names.bridge]);
        assert_eq!((stand_in.kind, &stand_in.mac, stand_in.up), (Kind::Bridge, &before.mac, true));
        assert_eq!(Vec::from_iter(stand_in.global()), Vec::from_iter(before.global()));
        assert!(!steps.iter().any(to_nowhere), "{steps:?}");
        assert_eq!((port.index, port.addresses.len(), port.learning), (before.index, 0, false));
        assert_eq!((&port.mac, port.mtu, bridge.mtu), (&bridge.mac, before.mtu, before.mtu));
        assert_ne!(port.mac, before.mac);
        assert_eq!(bridge.kept_routes, before.routes);
        let descriptor = NetworkDescriptor::Dhcp4.of(network);
        assert_eq!(after.held.contains(&descriptor), before.has_ipv4(), "{network}");
        assert_eq!(after.links[&names.tap].controller, Some(bridge.index));

        let gone = Wanted { binding: Binding::Gone, ..card };
        let back = carry_out(&after, &plan(&gone, &after).unwrap());
        assert_eq!(Vec::from_iter(back.links.keys()), Vec::from_iter(observed.links.keys()));
        let mut restored = back.links[pod].clone();
        restored.addresses.extend(before.addresses.iter().filter(|(address, _)| address.is_ipv6()));
        restored.learning = before.learning;
        assert_eq!(restored, before);
        assert_eq!(plan(&gone, &back).unwrap(), []);
    }
}

/// A card that is unplugged and plugged again at once: the network plugin deletes the link of that name, which is the stand-in,
/// and makes another one before the former link was given back.
#[test]
fn a_network_that_is_attached_again_gets_its_new_link_and_leaves_nothing_of_the_former() {
    let (observed, card) = (pod_with_routes(), bridged("red", RED));
    let names = card.names(&observed.links);
    let mut anew = carry_out(&observed, &plan(&card, &observed).unwrap());
    let new = Link { index: 90, mtu: 9000, up: true, mac: vec![0x0a, 0x58, 0, 0, 0, 9], ..Link::default() };
    anew.links.insert(RED.to_owned(), new.clone());
    // The stand-in of a plan that was cut.
    let kept = Link { index: 91, kind: Kind::Bridge, mac: vec![2; 6], ..Link::default() };
    for cut in [false, true] {
        let mut anew = anew.clone();
        if cut {
            anew.links.insert(names.kept.clone(), kept.clone());
        }
        let after = carry_out(&anew, &plan(&card, &anew).unwrap());
        assert_eq!(plan(&card, &after).unwrap(), []);
        let (stand_in, port) = (&after.links[RED], &after.links[&names.port]);
        assert_eq!((stand_in.kind, &stand_in.mac, port.index), (Kind::Bridge, &new.mac, new.index));
        assert!(!after.links.contains_key(&names.kept));

        let gone = Wanted { binding: Binding::Gone, ..card.clone() };
        let back = carry_out(&anew, &plan(&gone, &anew).unwrap());
        assert_eq!(Vec::from_iter(back.links.keys()), Vec::from_iter(observed.links.keys()));
        assert_eq!(back.links[RED], new);
    }
}

#[test]
fn where_other_hosts_are_on_its_network_requests_are_received_from_the_guests_own_address_only() {
    let only_from = |card: &Wanted, observed: &Observed| {
        let steps = plan(card, observed).unwrap();
        let mut found = steps.into_iter().filter_map(|step| match step {
            Step::Open { service: Service::Dhcp4 { only_from }, .. } => Some(only_from),
            _ => None,
        });
        found.next().unwrap()
    };
    let (observed, card) = (pod_with_routes(), bridged("default", "eth0"));
    let of_link = Some(MacAddress([0x0a, 0x58, 0, 0, 0, 1]));
    assert_eq!(only_from(&card, &observed), of_link);
    // The link has another address after that, and the socket may have to be opened again.
    let mut after = carry_out(&observed, &plan(&card, &observed).unwrap());
    after.held.clear();
    assert_eq!(only_from(&card, &after), of_link);
    let given = wanted().mac;
    assert_eq!(only_from(&Wanted { mac: given, ..card }, &after), given);
}

#[test]
fn a_plan_that_is_cut_anywhere_is_completed_by_the_next_one() {
    let observed = pod_with_routes();
    let card = bridged("default", "eth0");
    let gone = Wanted { binding: Binding::Gone, ..card.clone() };
    let before = &observed.links["eth0"];
    let whole = plan(&card, &observed).unwrap();
    let there = carry_out(&observed, &whole);
    for cut in 0..whole.len() {
        let part = carry_out(&observed, &whole[..cut]);
        // The handler ends, and descriptors that were not handed over are lost.
        let lost = Observed { held: BTreeSet::new(), ..part };
        let done = carry_out(&lost, &plan(&card, &lost).unwrap());
        let eth0 = &done.links["eth0"];
        assert_eq!((eth0.kind, &eth0.mac), (Kind::Bridge, &before.mac), "{cut}");
        assert_eq!(Vec::from_iter(eth0.global()), Vec::from_iter(before.global()), "{cut}");
        assert_eq!(done.links["k6t-eth0"].kept_routes, before.routes, "{cut}");
        assert_eq!(plan(&card, &done).unwrap(), [], "{cut}");
        let back = carry_out(&lost, &plan(&gone, &lost).unwrap());
        assert_eq!(Vec::from_iter(back.links.keys()), Vec::from_iter(observed.links.keys()), "{cut}");
        let eth0 = &back.links["eth0"];
        assert_eq!((&eth0.mac, &eth0.routes), (&before.mac, &before.routes), "{cut}");
        assert_eq!(Vec::from_iter(eth0.global()), Vec::from_iter(before.global()), "{cut}");
    }
    let whole = plan(&gone, &there).unwrap();
    for cut in 0..whole.len() {
        let part = carry_out(&there, &whole[..cut]);
        let back = carry_out(&part, &plan(&gone, &part).unwrap());
        let eth0 = &back.links["eth0"];
        assert_eq!((&eth0.mac, &eth0.routes, eth0.up), (&before.mac, &before.routes, true), "{cut}");
        assert_eq!(back.links.len(), observed.links.len(), "{cut}");
        // The card is wanted again while it is being removed.
        let part = Observed { held: BTreeSet::new(), ..part };
        let again = carry_out(&part, &plan(&card, &part).unwrap());
        assert_eq!(plan(&card, &again).unwrap(), [], "{cut}");
        let eth0 = &again.links["eth0"];
        assert_eq!((eth0.kind, &eth0.mac, eth0.has_ipv4()), (Kind::Bridge, &before.mac, true), "{cut}");
    }
}

#[test]
fn a_link_that_is_not_there_is_named_and_one_to_be_given_back_is_not_missed() {
    let observed = pod(DUAL);
    let card = bridged("red", RED);
    assert_eq!(plan(&card, &observed), Err(PlanError::NoLink(RED.to_owned())));
    assert_eq!(plan(&Wanted { binding: Binding::Gone, ..card }, &observed), Ok(vec![]));
    let mut tunnel = pod(DUAL);
    tunnel.links.get_mut("eth0").unwrap().mac = vec![10, 0, 0, 1];
    let error = PlanError::NotEthernet("eth0".to_owned());
    assert_eq!(plan(&bridged("default", "eth0"), &tunnel), Err(error));
}

#[test]
fn a_bridge_is_no_way_into_the_pod_and_only_the_guest_answers_for_its_address() {
    let observed = pod_with_routes();
    let settings = |card: &Wanted| -> Vec<String> {
        let steps = plan(card, &observed).unwrap();
        let one = |step: Step| match step {
            Step::Sysctl { path, value, .. } => Some(format!("{path}={value}")),
            _ => None,
        };
        steps.into_iter().filter_map(one).collect()
    };
    let red = settings(&bridged("red", RED));
    assert_eq!(
        red,
        [
            "net/ipv6/conf/k6t-b1f51a511f1/disable_ipv6=1",
            "net/ipv4/conf/k6t-b1f51a511f1/forwarding=0",
            "net/ipv4/conf/k6t-b1f51a511f1/arp_ignore=8",
            "net/ipv6/conf/b1f51a511f1-nic/disable_ipv6=1",
            "net/ipv4/conf/b1f51a511f1-nic/arp_ignore=8",
            "net/ipv6/conf/tapb1f51a511f1/disable_ipv6=1",
            "net/ipv4/conf/tapb1f51a511f1/arp_ignore=8",
        ]
    );
    assert!(settings(&bridged("default", "eth0")).contains(&"net/ipv4/conf/all/arp_ignore=1".to_owned()));
}

#[test]
fn a_tap_of_the_pod_is_opened_and_nothing_is_made() {
    let tap =
        |kind, up| Link { index: 9, kind, mtu: 1400, up, mac: vec![2, 0, 0, 0, 0, 9], ..Link::default() };
    let card = |queues, mac: Option<MacAddress>| Wanted {
        binding: Binding::Tap,
        queues,
        mac,
        ..bridged("red", RED)
    };
    let with = |links: &[(&str, Link)]| {
        let mut observed = pod(DUAL);
        observed.links.extend(links.iter().map(|(name, link)| ((*name).to_owned(), link.clone())));
        observed
    };
    let (one, many) = (Kind::Tap { multi_queue: false }, Kind::Tap { multi_queue: true });
    let opened = |steps: &[Step]| {
        let names = steps.iter().filter_map(|step| match step {
            Step::OpenTap { name, multi_queue, .. } => Some((name.clone(), *multi_queue)),
            Step::OpenMacvtap { name, multi_queue, .. } => Some((format!("{name}@9"), *multi_queue)),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    let (taps, pods) = ("tapb1f51a511f1", RED);
    // A link with the tap's own name is preferred to the pod's link, which may then be anything.
    let observed = with(&[(taps, tap(one, true)), (pods, tap(Kind::Other, true))]);
    let steps = plan(&card(1, None), &observed).unwrap();
    assert_eq!((opened(&steps), steps.len()), (vec![(taps.to_owned(), false)], 1));
    let after = carry_out(&observed, &steps);
    assert_eq!(plan(&card(1, None), &after), Ok(vec![]));
    let refused = PlanError::OneQueue { tap: taps.to_owned(), wanted: 2 };
    assert_eq!(plan(&card(2, None), &observed), Err(refused));
    let observed = with(&[(pods, tap(many, true))]);
    assert_eq!(opened(&plan(&card(2, None), &observed).unwrap()), vec![(pods.to_owned(), true); 2]);
    // A macvtap receives packets for one address only, and of multicast what the pod listens to.
    let observed = with(&[(pods, tap(Kind::Macvtap, false))]);
    let mac = MacAddress([2, 0, 0, 0, 0, 7]);
    let steps = plan(&card(1, Some(mac)), &observed).unwrap();
    let link = || RED.to_owned();
    let all = Step::AllMulticast { link: link() };
    assert_eq!(steps[..3], [Step::Mac { link: link(), mac }, all, Step::Up { link: link() }]);
    assert_eq!(opened(&steps), [(format!("{RED}@9"), false)]);
    assert_eq!(plan(&card(1, Some(mac)), &carry_out(&observed, &steps)), Ok(vec![]));
    let nothing = with(&[(pods, tap(Kind::Other, true))]);
    assert_eq!(plan(&card(1, None), &nothing), Err(PlanError::NoTap(taps.to_owned(), link())));
}

#[test]
fn a_pod_believes_no_router_on_the_tap_of_its_guest_and_on_the_bridge_of_the_tap() {
    let card = Wanted { binding: Binding::Tap, ..bridged("red", RED) };
    let path = |link: &str| format!("net/ipv6/conf/{link}/accept_ra");
    let settings = |kind, controller| -> Vec<(String, &str)> {
        let link = |index, kind, controller| Link { index, kind, controller, up: true, ..Link::default() };
        let mut observed = pod(DUAL);
        for (name, link) in [(RED, link(9, kind, controller)), ("plugin", link(8, Kind::Bridge, None))] {
            observed.links.insert(name.to_owned(), link);
            observed.sysctls.insert(path(name), "1".to_owned());
        }
        let steps = plan(&card, &observed).unwrap();
        assert_eq!(plan(&card, &carry_out(&observed, &steps)), Ok(vec![]));
        let settings = steps.into_iter().filter_map(|step| match step {
            Step::Sysctl { path, value, .. } => Some((path, value)),
            _ => None,
        });
        settings.collect()
    };
    let tap = Kind::Tap { multi_queue: false };
    assert_eq!(settings(tap, None), [(path(RED), "0")]);
    assert_eq!(settings(tap, Some(8)), [(path(RED), "0"), (path("plugin"), "0")]);
    // Nothing of the guest comes into the pod.
    assert_eq!(settings(Kind::Macvtap, None), []);
}

#[test]
fn a_card_that_is_kept_is_left_as_it_is() {
    let observed = pod_with_routes();
    let managed = Wanted { binding: Binding::ManagedTap, ..bridged("red", RED) };
    let kept = Wanted { binding: Binding::Kept, ..managed.clone() };
    let there = carry_out(&observed, &plan(&managed, &observed).unwrap());
    for observed in [observed, there] {
        assert_eq!(plan(&kept, &observed), Ok(vec![]));
        assert_eq!(sysctls(&kept, &kept.names(&observed.links), &observed.links), []);
        assert_eq!(gateways(std::slice::from_ref(&kept), &observed), BTreeSet::new());
    }
}

#[test]
fn a_managed_tap_is_planned_as_a_bridge_without_dhcp() {
    let (observed, bridge) = (pod_with_routes(), bridged("default", "eth0"));
    let managed = Wanted { binding: Binding::ManagedTap, ..bridge.clone() };
    let steps = plan(&managed, &observed).unwrap();
    let names = bridge.names(&observed.links);
    let serves = |step: &Step| match step {
        Step::Open { .. } => true,
        Step::Address { link, .. } => *link == names.bridge,
        _ => false,
    };
    assert!(!steps.iter().any(serves), "{steps:?}");
    let expected: Vec<Step> =
        plan(&bridge, &observed).unwrap().into_iter().filter(|step| !serves(step)).collect();
    assert_eq!(steps, expected);
    assert_eq!(plan(&managed, &carry_out(&observed, &steps)), Ok(vec![]));
}

#[test]
fn passt_needs_settings_of_a_pod_with_an_address_and_nothing_else() {
    let wanted = Wanted { binding: Binding::Passt, ..wanted() };
    let fresh = pod(&[("10.244.9.7", 24)]);
    let steps = plan(&wanted, &fresh).unwrap();
    let set = |path: &str, value| Step::Sysctl { path: path.to_owned(), value, optional: false };
    let expected =
        [set("net/ipv4/ip_unprivileged_port_start", "0"), set("net/ipv4/ping_group_range", "107\t107")];
    assert_eq!(steps, expected);
    assert_eq!(plan(&wanted, &carry_out(&fresh, &steps)), Ok(Vec::new()));
    let none = PlanError::NoPodInterface("eth0".to_owned());
    assert_eq!(plan(&wanted, &pod(&[("fe80::1", 64)])), Err(none));
}
