//! From what is in the pod's network namespace to what should be there: pure.
//!
//! ```text
//! eth0 (pod address) -- nat --> k6t-eth0 (10.0.2.1, fd10:0:2::1) -- tap0 --> guest (10.0.2.2, fd10:0:2::2)
//! ```
//!
//! [`plan`] compares [`Observed`] with [`Wanted`] and lists what is missing, in the order to do it. A handler that comes
//! back to a pod that is complete gets an empty plan. Nothing is ever torn down: the namespace goes with its pod.

use std::net::IpAddr;

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::addresses::{BRIDGE_MAC, MacAddress};
use super::nft::rules::{Ruleset, masquerade};
use super::state::{Observed, Wanted};

/// Sockets that the launcher serves addresses on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// UDP port 67 on the bridge.
    Dhcp4,
    /// UDP port 547 on the bridge, member of `ff02::1:2`.
    Dhcp6,
    /// Raw ICMPv6 on the bridge, member of `ff02::2`.
    RouterAdvertisement,
}

impl Service {
    /// What the launcher knows its socket as.
    pub fn descriptor(self) -> NetworkDescriptor {
        match self {
            Service::Dhcp4 => NetworkDescriptor::Dhcp4,
            Service::Dhcp6 => NetworkDescriptor::Dhcp6,
            Service::RouterAdvertisement => NetworkDescriptor::RouterAdvertisement,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make a bridge, still down.
    CreateBridge {
        /// Its name.
        name: String,
        /// Its MAC address.
        mac: MacAddress,
        /// Its MTU.
        mtu: u32,
    },
    /// Write a setting beneath `/proc/sys`.
    Sysctl {
        /// Path beneath `/proc/sys`, `net/ipv4/ip_forward`.
        path: String,
        /// What to write.
        value: &'static str,
    },
    /// Give an interface an address, at once usable (no duplicate-address detection).
    Address {
        /// The interface.
        link: String,
        /// The address.
        address: IpAddr,
        /// Length of the prefix, bits.
        prefix: u8,
    },
    /// Set the MTU of an interface.
    Mtu {
        /// The interface.
        link: String,
        /// Bytes.
        mtu: u32,
    },
    /// Open a queue of the tap, making it.
    OpenTap {
        /// Its name.
        name: String,
        /// Who may open it.
        owner: u32,
        /// It has more than one queue.
        multi_queue: bool,
        /// The name that the launcher knows the descriptor by.
        descriptor: String,
    },
    /// Make an interface a port of a bridge.
    Attach {
        /// The port.
        link: String,
        /// The bridge.
        bridge: String,
    },
    /// Set an interface up.
    Up {
        /// The interface.
        link: String,
    },
    /// Let what comes from an interface reach `::1`, by a route of type local. For IPv4 there is a setting
    /// (`route_localnet`); in IPv6 the kernel looks for such a route on the very interface. A packet that has `::1` in
    /// its header on the wire is dropped long before: this is only for what connection tracking translates back.
    LoopbackRoute {
        /// The interface.
        link: String,
    },
    /// Replace our table of one family.
    Rules(Ruleset),
    /// Open a socket bound to an interface.
    Open {
        /// Which.
        service: Service,
        /// The interface.
        link: String,
        /// The name that the launcher knows the descriptor by.
        descriptor: String,
    },
}

/// Why there can be no plan.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The pod has no such interface, or none with an address: its network is not ready.
    #[error("the pod has no interface {0} with an address")]
    NoPodInterface(String),
}

/// A setting beneath `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Path beneath `/proc/sys`.
    pub path: String,
    /// The value it should have.
    pub value: &'static str,
    /// Not every kernel has it; where it is missing there is nothing to set.
    pub optional: bool,
}

/// Settings that the binding needs, in the order to write them.
pub fn sysctls(wanted: &Wanted, ipv6: bool) -> Vec<Setting> {
    let bridge = &wanted.bridge;
    let needed = |path: String, value| Setting { path, value, optional: false };
    let mut all = vec![
        needed("net/ipv4/ip_forward".to_owned(), "1"),
        // Answers of the guest to what came from 127.0.0.1 arrive by the bridge; no other interface may claim to be it.
        needed(format!("net/ipv4/conf/{bridge}/route_localnet"), "1"),
    ];
    if ipv6 {
        all.push(needed(format!("net/ipv6/conf/{bridge}/disable_ipv6"), "0"));
        all.push(needed(format!("net/ipv6/conf/{bridge}/accept_dad"), "0"));
        all.push(needed(format!("net/ipv6/conf/{bridge}/accept_ra"), "0"));
        all.push(needed("net/ipv6/conf/all/forwarding".to_owned(), "1"));
    }
    // With br_netfilter the bridge would translate addresses back before the packet is the bridge's own, and the kernel
    // drops what then comes from outside for ::1. The settings are the namespace's: the node keeps its own.
    for family in ["iptables", "ip6tables"] {
        all.push(Setting { path: format!("net/bridge/bridge-nf-call-{family}"), value: "0", optional: true });
    }
    all
}

/// What is missing, in the order to do it.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let no_interface = || PlanError::NoPodInterface(wanted.pod_interface.clone());
    let pod = observed.links.get(&wanted.pod_interface).ok_or_else(no_interface)?;
    let ipv6 = pod.has_ipv6();
    if !pod.has_ipv4() && !ipv6 {
        return Err(no_interface());
    }
    let mut steps = Vec::new();
    plan_bridge(wanted, observed, pod.mtu, ipv6, &mut steps);
    plan_tap(wanted, observed, pod.mtu, &mut steps);
    if !observed.links.get(&wanted.bridge).is_some_and(|bridge| bridge.up) {
        steps.push(Step::Up { link: wanted.bridge.clone() });
    }
    if ipv6 && !observed.loopback_route {
        steps.push(Step::LoopbackRoute { link: wanted.bridge.clone() });
    }
    for rules in rulesets(wanted, ipv6) {
        if observed.rules.get(&rules.family).map(Vec::as_slice) != Some(&rules.fingerprint()[..]) {
            steps.push(Step::Rules(rules));
        }
    }
    let mut services = vec![Service::Dhcp4];
    if ipv6 {
        services.extend([Service::Dhcp6, Service::RouterAdvertisement]);
    }
    for service in services {
        let descriptor = service.descriptor().of(&wanted.network);
        if !observed.held.contains(&descriptor) {
            steps.push(Step::Open { service, link: wanted.bridge.clone(), descriptor });
        }
    }
    Ok(steps)
}

fn plan_bridge(wanted: &Wanted, observed: &Observed, mtu: u32, ipv6: bool, steps: &mut Vec<Step>) {
    let name = &wanted.bridge;
    let bridge = observed.links.get(name);
    match bridge {
        None => steps.push(Step::CreateBridge { name: name.clone(), mac: BRIDGE_MAC, mtu }),
        Some(link) if link.mtu != mtu => steps.push(Step::Mtu { link: name.clone(), mtu }),
        Some(_) => {}
    }
    for Setting { path, value, optional } in sysctls(wanted, ipv6) {
        let present = observed.sysctls.get(&path).map(String::as_str);
        if present != Some(value) && (present.is_some() || !optional) {
            steps.push(Step::Sysctl { path, value });
        }
    }
    // IPv4 is always there: the guest may have it even where the pod has none, for what it does with the gateway.
    let mut addresses = vec![(IpAddr::V4(wanted.ipv4.gateway), wanted.ipv4.prefix)];
    if ipv6 {
        addresses.push((IpAddr::V6(wanted.ipv6.gateway), wanted.ipv6.prefix));
        // Router advertisements come from it. The kernel would make the same one, but only once a port has a carrier.
        addresses.push((IpAddr::V6(BRIDGE_MAC.link_local()), 64));
    }
    for (address, prefix) in addresses {
        if !bridge.is_some_and(|link| link.addresses.contains(&(address, prefix))) {
            steps.push(Step::Address { link: name.clone(), address, prefix });
        }
    }
}

fn plan_tap(wanted: &Wanted, observed: &Observed, mtu: u32, steps: &mut Vec<Step>) {
    let tap = observed.links.get(&wanted.tap);
    // The first queue comes last: where it is held all are, and there are as many as there were virtual CPUs then.
    if !observed.held.contains(&NetworkDescriptor::Tap.of(&wanted.network)) {
        let names: Vec<String> = tap_queues(&wanted.network, wanted.queues).collect();
        let multi_queue = names.len() > 1;
        for descriptor in names.into_iter().rev().filter(|name| !observed.held.contains(name)) {
            let (name, owner) = (wanted.tap.clone(), wanted.tap_owner);
            steps.push(Step::OpenTap { name, owner, multi_queue, descriptor });
        }
    }
    if tap.is_none_or(|link| link.mtu != mtu) {
        steps.push(Step::Mtu { link: wanted.tap.clone(), mtu });
    }
    let bridge = observed.links.get(&wanted.bridge).map(|bridge| bridge.index);
    if tap.is_none_or(|link| link.controller.is_none() || link.controller != bridge) {
        steps.push(Step::Attach { link: wanted.tap.clone(), bridge: wanted.bridge.clone() });
    }
    if tap.is_none_or(|link| !link.up) {
        steps.push(Step::Up { link: wanted.tap.clone() });
    }
}

/// The tables: IPv6 where the pod has it; IPv4 always, since the guest always has it and `kubectl port-forward` tries
/// 127.0.0.1 first.
pub fn rulesets(wanted: &Wanted, ipv6: bool) -> Vec<Ruleset> {
    let rules =
        |gateway, guest| masquerade(&wanted.pod_interface, &wanted.bridge, gateway, guest, &wanted.ports);
    let mut all = vec![rules(IpAddr::V4(wanted.ipv4.gateway), IpAddr::V4(wanted.ipv4.guest))];
    if ipv6 {
        all.push(rules(IpAddr::V6(wanted.ipv6.gateway), IpAddr::V6(wanted.ipv6.guest)));
    }
    all
}

#[cfg(test)]
mod tests;
