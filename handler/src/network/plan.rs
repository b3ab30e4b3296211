//! From what is in the pod's network namespace to what should be there: pure.
//!
//! [`plan`] compares [`Observed`] with a card that is [`Wanted`] and lists what is missing, in the order to do it. A handler
//! that comes back to a pod that is complete gets an empty plan. What is made goes with the namespace, or with its card
//! where that leaves before.

pub mod bridge;
mod gone;
pub mod masquerade;

use std::net::IpAddr;

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::addresses::MacAddress;
use super::links::Names;
use super::nft::rules::Ruleset;
use super::state::{Binding, Observed, Route, Wanted};

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
        /// Where there is no such setting, nothing is to be set.
        optional: bool,
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
    /// Take an address from an interface.
    RemoveAddress {
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
    /// Set the MAC address of an interface.
    Mac {
        /// The interface.
        link: String,
        /// The address.
        mac: MacAddress,
    },
    /// Give an interface that is down another name.
    Rename {
        /// The interface.
        link: String,
        /// Its name from now on.
        to: String,
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
    /// Let the bridge of a port not learn who is behind it.
    NoLearning {
        /// The port.
        link: String,
    },
    /// Make an interface no port any more.
    Detach {
        /// The port.
        link: String,
    },
    /// Set an interface up.
    Up {
        /// The interface.
        link: String,
    },
    /// Set an interface down.
    Down {
        /// The interface.
        link: String,
    },
    /// Take an interface away, if it is there.
    Delete {
        /// The interface.
        link: String,
    },
    /// Keep a route with a bridge: see [`KEPT_TABLE`](super::state::KEPT_TABLE).
    KeepRoute {
        /// The bridge.
        bridge: String,
        /// The route.
        route: Route,
    },
    /// Route over an interface, if that is not so yet.
    Route {
        /// The interface.
        link: String,
        /// The route.
        route: Route,
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
    /// The pod has no such interface: nothing has attached it to that network.
    #[error("the pod has no interface {0}")]
    NoLink(String),
    /// What the pod has is not of a kind that a guest could be bridged to.
    #[error("the pod's interface {0} has no MAC address")]
    NotEthernet(String),
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

impl Setting {
    fn needed(path: String, value: &'static str) -> Self {
        Self { path, value, optional: false }
    }

    fn optional(path: String, value: &'static str) -> Self {
        Self { path, value, optional: true }
    }

    fn back_to(self, value: &'static str) -> Self {
        Self { value, ..self }
    }
}

/// All settings that a card depends on.
pub fn sysctls(wanted: &Wanted, names: &Names) -> Vec<Setting> {
    match &wanted.binding {
        Binding::Masquerade(_) => masquerade::sysctls(&names.bridge, true),
        Binding::Bridge | Binding::Gone => {
            let port = bridge::port_sysctls(names);
            bridge::sysctls(names, true).into_iter().chain(port).collect()
        }
    }
}

/// What is missing, in the order to do it.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let names = wanted.names(&observed.links);
    match &wanted.binding {
        Binding::Masquerade(binding) => masquerade::plan(wanted, binding, &names, observed),
        Binding::Bridge => bridge::plan(wanted, &names, observed),
        Binding::Gone => Ok(gone::plan(&names, observed)),
    }
}

fn plan_sysctls(settings: impl IntoIterator<Item = Setting>, observed: &Observed, steps: &mut Vec<Step>) {
    for Setting { path, value, optional } in settings {
        let present = observed.sysctls.get(&path).map(String::as_str);
        // Whether a link that is still to be made has it is seen once it is there.
        let may_come = path.split('/').nth(3).is_some_and(|link| !observed.links.contains_key(link));
        if present != Some(value) && (present.is_some() || !optional || may_come) {
            steps.push(Step::Sysctl { path, value, optional });
        }
    }
}

fn plan_tap(wanted: &Wanted, names: &Names, observed: &Observed, mtu: u32, steps: &mut Vec<Step>) {
    let tap = observed.links.get(&names.tap);
    // The first queue comes last: where it is held all are, and there are as many as there were virtual CPUs then.
    if !observed.held.contains(&NetworkDescriptor::Tap.of(&wanted.network)) {
        let queues: Vec<String> = tap_queues(&wanted.network, wanted.queues).collect();
        let multi_queue = queues.len() > 1;
        for descriptor in queues.into_iter().rev().filter(|name| !observed.held.contains(name)) {
            let (name, owner) = (names.tap.clone(), wanted.tap_owner);
            steps.push(Step::OpenTap { name, owner, multi_queue, descriptor });
        }
    }
    if tap.is_none_or(|link| link.mtu != mtu) {
        steps.push(Step::Mtu { link: names.tap.clone(), mtu });
    }
    let bridge = observed.links.get(&names.bridge).map(|bridge| bridge.index);
    if tap.is_none_or(|link| link.controller.is_none() || link.controller != bridge) {
        steps.push(Step::Attach { link: names.tap.clone(), bridge: names.bridge.clone() });
    }
    if tap.is_none_or(|link| !link.up) {
        steps.push(Step::Up { link: names.tap.clone() });
    }
}

fn plan_sockets(
    wanted: &Wanted,
    names: &Names,
    observed: &Observed,
    services: &[Service],
    steps: &mut Vec<Step>,
) {
    for service in services {
        let descriptor = service.descriptor().of(&wanted.network);
        if !observed.held.contains(&descriptor) {
            steps.push(Step::Open { service: *service, link: names.bridge.clone(), descriptor });
        }
    }
}

#[cfg(test)]
mod tests;
