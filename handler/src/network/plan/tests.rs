//! Plans for pods with nothing, with some and with all of it.

use std::collections::BTreeMap;

use super::*;
use crate::network::nft::rules::Family;
use crate::network::state::Link;
use barevirt_api::masquerade::{IPV4, IPV6};

fn wanted() -> Wanted {
    Wanted {
        interface: "default".to_owned(),
        network: "default".to_owned(),
        pod_interface: "eth0".to_owned(),
        bridge: "k6t-eth0".to_owned(),
        tap: "tap0".to_owned(),
        tap_owner: 107,
        queues: 1,
        mac: MacAddress([0x02, 0, 0, 0, 0, 7]),
        ipv4: IPV4,
        ipv6: IPV6,
        ports: Vec::new(),
    }
}

fn pod(addresses: &[(&str, u8)]) -> Observed {
    let addresses = addresses.iter().map(|(address, prefix)| (address.parse().unwrap(), *prefix)).collect();
    let eth0 = Link { index: 2, mtu: 1450, up: true, addresses, ..Link::default() };
    Observed { links: BTreeMap::from([("eth0".to_owned(), eth0)]), ..Observed::default() }
}

/// What an observation would show after the plan was carried out.
fn carry_out(observed: &Observed, steps: &[Step]) -> Observed {
    let mut after = observed.clone();
    for step in steps {
        match step {
            Step::CreateBridge { name, mac, mtu } => {
                let link = Link { index: 3, mac: mac.0.to_vec(), mtu: *mtu, ..Link::default() };
                assert!(after.links.insert(name.clone(), link).is_none());
            }
            Step::Sysctl { path, value } => {
                after.sysctls.insert(path.clone(), (*value).to_owned());
            }
            Step::Address { link, address, prefix } => {
                assert!(after.links.get_mut(link).unwrap().addresses.insert((*address, *prefix)));
            }
            Step::Mtu { link, mtu } => after.links.get_mut(link).unwrap().mtu = *mtu,
            Step::OpenTap { name, descriptor, .. } => {
                after.links.entry(name.clone()).or_insert(Link { index: 4, mtu: 1500, ..Link::default() });
                after.held.insert(descriptor.clone());
            }
            Step::Attach { link, bridge } => {
                let index = after.links[bridge].index;
                after.links.get_mut(link).unwrap().controller = Some(index);
            }
            Step::LoopbackRoute { link } => {
                assert!(after.links[link].up);
                after.loopback_route = true;
            }
            Step::Up { link } => after.links.get_mut(link).unwrap().up = true,
            Step::Rules(rules) => {
                after.rules.insert(rules.family, rules.fingerprint().to_vec());
            }
            Step::Open { descriptor, .. } => {
                after.held.insert(descriptor.clone());
            }
        }
    }
    after
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
    // A handler that ended half way.
    assert_eq!(opened(3, &["net/default/tap.2"]), [queue("tap.1", true), queue("tap", true)]);
    // CPUs that came later bring no queues.
    assert_eq!(opened(4, &["net/default/tap", "net/default/tap.1"]), []);
}

#[test]
fn a_pod_without_ipv6_gets_ipv4_only() {
    let steps = plan(&wanted(), &pod(&[("10.244.1.7", 24), ("fe80::1", 64)])).unwrap();
    for step in &steps {
        match step {
            Step::Address { address, .. } => assert!(address.is_ipv4()),
            Step::Rules(rules) => assert_eq!(rules.family, Family::V4),
            Step::Open { service, .. } => assert_eq!(*service, Service::Dhcp4),
            Step::LoopbackRoute { .. } => panic!("{step:?}"),
            Step::Sysctl { path, .. } => assert!(path.starts_with("net/ipv4/"), "{path}"),
            _ => {}
        }
    }
    assert_eq!(steps.iter().filter(|step| matches!(step, Step::Rules(_))).count(), 1);
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
    let step = Step::Sysctl { path: path.clone(), value: "0" };
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
        [Step::OpenTap { .. }, Step::Mtu { .. }, Step::Attach { .. }, Step::Up { .. }]
    ));
}
