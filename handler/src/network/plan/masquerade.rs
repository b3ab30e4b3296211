//! The masquerade binding: the guest has a private address behind a bridge, and uses the pod's address by
//! network address translation.
//!
//! ```text
//! eth0 (pod address) -- nat --> k6t-eth0 (10.0.2.1, fd10:0:2::1) -- tap0 --> guest (10.0.2.2, fd10:0:2::2)
//! ```
//!
//! The guest has an address of each family of which the pod's link has one.

use std::net::IpAddr;

use super::bridge::tap_sysctls;
use super::common::{Setting, plan_sockets, plan_sysctls, plan_tap};
use super::step::{PlanError, Service, Step};
use crate::network::addresses::BRIDGE_MAC;
use crate::network::links::Names;
use crate::network::nft::rules::{Action, Chain, Family, Match, Rule, Ruleset, masquerade};
use crate::network::nft::{neighbours, outside};
use crate::network::state::{Link, Masquerade, Observed, Wanted, network};

/// Settings that the binding needs, in the order in which to write them.
pub fn sysctls(bridge: &str, ipv6: bool) -> Vec<Setting> {
    let mut all = vec![
        Setting::needed("net/ipv4/ip_forward".to_owned(), "1"),
        // The guest's answers to connections from 127.0.0.1 arrive by the bridge. No other interface may send
        // packets in its name.
        Setting::needed(format!("net/ipv4/conf/{bridge}/route_localnet"), "1"),
    ];
    if ipv6 {
        all.push(Setting::needed(format!("net/ipv6/conf/{bridge}/disable_ipv6"), "0"));
        all.push(Setting::needed(format!("net/ipv6/conf/{bridge}/accept_dad"), "0"));
        all.push(Setting::needed(format!("net/ipv6/conf/{bridge}/accept_ra"), "0"));
        all.push(Setting::needed("net/ipv6/conf/all/forwarding".to_owned(), "1"));
    } else {
        // The pod would take an address and a default route from a guest that advertises itself as a router.
        all.push(Setting::optional(format!("net/ipv6/conf/{bridge}/disable_ipv6"), "1"));
    }
    // With br_netfilter the bridge would translate addresses back too early, before the packet belongs to the
    // bridge interface, and the kernel then drops packets for ::1 that come from outside. The settings belong
    // to the namespace: those of the node do not change.
    for family in ["iptables", "ip6tables"] {
        all.push(Setting::optional(format!("net/bridge/bridge-nf-call-{family}"), "0"));
    }
    all
}

/// The missing steps, in the order in which to do them.
pub(super) fn plan(
    wanted: &Wanted,
    binding: &Masquerade,
    names: &Names,
    observed: &Observed,
) -> Result<Vec<Step>, PlanError> {
    let no_interface = || PlanError::NoPodInterface(names.pod.clone());
    let pod = observed.links.get(&names.pod).ok_or_else(no_interface)?;
    let ipv6 = pod.has_ipv6();
    if !pod.has_ipv4() && !ipv6 {
        return Err(no_interface());
    }
    let mut steps = Vec::new();
    plan_bridge(binding, &names.bridge, observed, pod, &mut steps);
    plan_tap(wanted, names, observed, pod.mtu, &mut steps);
    plan_sysctls(tap_sysctls(names), observed, &mut steps);
    let bridge = observed.links.get(&names.bridge);
    if !bridge.is_some_and(|bridge| bridge.up) {
        steps.push(Step::Up { link: names.bridge.clone() });
    }
    if ipv6 && !bridge.is_some_and(|bridge| observed.loopback_routes.contains(&bridge.index)) {
        steps.push(Step::LoopbackRoute { link: names.bridge.clone() });
    }
    for rules in rulesets(binding, names, pod) {
        match observed.rules.get(&rules.family) {
            None => steps.push(Step::CreateRules(rules)),
            Some(fingerprint) if *fingerprint != rules.fingerprint() => steps.push(Step::ReplaceRules(rules)),
            Some(_) => {}
        }
    }
    let mut services = Vec::new();
    if pod.has_ipv4() {
        services.push(Service::Dhcp4 { only_from: None });
    }
    if ipv6 {
        services.extend([Service::Dhcp6, Service::RouterAdvertisement]);
    }
    plan_sockets(wanted, names, observed, &services, &mut steps);
    Ok(steps)
}

fn plan_bridge(binding: &Masquerade, name: &str, observed: &Observed, pod: &Link, steps: &mut Vec<Step>) {
    let (mtu, ipv6) = (pod.mtu, pod.has_ipv6());
    let bridge = observed.links.get(name);
    match bridge {
        None => steps.push(Step::CreateBridge { name: name.to_owned(), mac: BRIDGE_MAC, mtu }),
        Some(link) if link.mtu != mtu => steps.push(Step::Mtu { link: name.to_owned(), mtu }),
        Some(_) => {}
    }
    plan_sysctls(sysctls(name, ipv6), observed, steps);
    let mut addresses = Vec::new();
    if pod.has_ipv4() {
        addresses.push((IpAddr::V4(binding.ipv4.gateway), binding.ipv4.prefix));
    }
    if ipv6 {
        addresses.push((IpAddr::V6(binding.ipv6.gateway), binding.ipv6.prefix));
        // Router advertisements are sent from this address. The kernel would generate the same one, but only
        // once a port has a carrier.
        addresses.push((IpAddr::V6(BRIDGE_MAC.link_local()), 64));
    }
    for (address, prefix) in addresses {
        if !bridge.is_some_and(|link| link.addresses.contains(&(address, prefix))) {
            steps.push(Step::Address { link: name.to_owned(), address, prefix, routed: true });
        }
    }
}

/// The tables, each with the rules that keep others from the guest's own address, and the guest from filling the
/// neighbour tables, before those that accept something. IPv6 only if the pod has it. If it has no IPv4, the guest is given
/// none, and what it sends by IPv4 all the same is dropped.
pub fn rulesets(binding: &Masquerade, names: &Names, pod: &Link) -> Vec<Ruleset> {
    let rules = |gateway: IpAddr, prefix: u8, guest: IpAddr, first: Vec<Rule>| {
        let own = || {
            let addresses = pod.global().map(|(address, _)| address);
            addresses.filter(move |address| address.is_ipv4() == gateway.is_ipv4())
        };
        let in_range = own().filter(|address| network(*address, prefix) == network(gateway, prefix));
        let closed = outside::closed(&names.bridge, (gateway, prefix), in_range);
        let behind_sidecar = own().next().filter(|_| binding.has_sidecar);
        let Ruleset { family, rules } =
            masquerade(&names.pod, &names.bridge, gateway, guest, &binding.ports, behind_sidecar);
        Ruleset { family, rules: [vec![closed], first, rules].concat() }
    };
    let (four, six) = (binding.ipv4, binding.ipv6);
    let ipv4 = if pod.has_ipv4() {
        let first = neighbours::ipv4(&names.bridge, &names.tap, four.guest);
        rules(four.gateway.into(), four.prefix, four.guest.into(), first)
    } else {
        let from = |link: &String| vec![Match::Input(link.clone())];
        let dropped = |matches| Rule { chain: Chain::Guest, matches, action: Action::Drop };
        Ruleset { family: Family::V4, rules: [&names.tap, &names.bridge].map(from).map(dropped).to_vec() }
    };
    let mut all = vec![ipv4, neighbours::arp(&names.bridge, four.guest)];
    if pod.has_ipv6() {
        let first = neighbours::ipv6(&names.bridge, six, BRIDGE_MAC.link_local());
        all.push(rules(six.gateway.into(), six.prefix, six.guest.into(), first));
    }
    all
}
