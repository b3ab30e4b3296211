//! From what is in the pod's network namespace to what should be there: pure.
//!
//! ```text
//! eth0 (pod address) -- nat --> k6t-eth0 (10.0.2.1, fd10:0:2::1) -- tap0 --> guest (10.0.2.2, fd10:0:2::2)
//! ```
//!
//! [`plan`] compares [`Observed`] with [`Wanted`] and lists what is missing, in the order to do it. A handler that comes
//! back to a pod that is complete gets an empty plan. Nothing is ever torn down: the namespace goes with its pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barevirt_protocol::names::{NetworkDescriptor, tap_queues};

use super::addresses::{BRIDGE_MAC, MacAddress, Pair};
use super::nft::rules::{Family, Port, Ruleset, masquerade};

/// A masquerade binding as the spec asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the interface in the spec.
    pub interface: String,
    /// Name of its network in the spec.
    pub network: String,
    /// The pod's interface that the guest is joined to.
    pub pod_interface: String,
    /// The bridge that the tap is a port of.
    pub bridge: String,
    /// The tap that QEMU reads and writes.
    pub tap: String,
    /// Who may open the tap.
    pub tap_owner: u32,
    /// Queues of the tap, at least one.
    pub queues: u32,
    /// The guest's MAC address.
    pub mac: MacAddress,
    /// Gateway and guest in IPv4.
    pub ipv4: Pair<Ipv4Addr>,
    /// Gateway and guest in IPv6; used where the pod has IPv6.
    pub ipv6: Pair<Ipv6Addr>,
    /// The only ports that are forwarded. None: all of them.
    pub ports: Vec<Port>,
}

/// What one interface is like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// MAC address.
    pub mac: Vec<u8>,
    /// Maximum transmission unit, bytes.
    pub mtu: u32,
    /// Set up by its owner (not: has a carrier).
    pub up: bool,
    /// Index of the bridge that it is a port of.
    pub controller: Option<u32>,
    /// Its addresses with their prefixes, link-local ones included.
    pub addresses: BTreeSet<(IpAddr, u8)>,
}

impl Link {
    /// Has an IPv4 address.
    pub fn has_ipv4(&self) -> bool {
        self.addresses.iter().any(|(address, _)| address.is_ipv4())
    }

    /// Has an IPv6 address that is good beyond the link.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|(address, _)| match address {
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
            IpAddr::V4(_) => false,
        })
    }
}

/// What is in the pod's network namespace and at the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The interfaces of the binding that are there, by name.
    pub links: BTreeMap<String, Link>,
    /// Fingerprints that our tables carry.
    pub rules: BTreeMap<Family, Vec<u8>>,
    /// Values of the settings beneath `/proc/sys` that could be read.
    pub sysctls: BTreeMap<String, String>,
    /// Answers to `::1` are taken from the bridge: see [`Step::LoopbackRoute`].
    pub loopback_route: bool,
    /// Names of the descriptors that the launcher has.
    pub held: BTreeSet<String>,
}

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
mod tests {
    use super::super::addresses::{IPV4, IPV6};
    use super::*;

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
        let addresses =
            addresses.iter().map(|(address, prefix)| (address.parse().unwrap(), *prefix)).collect();
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
                    after.links.entry(name.clone()).or_insert(Link {
                        index: 4,
                        mtu: 1500,
                        ..Link::default()
                    });
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
        assert!(
            !steps.iter().any(|step| matches!(step, Step::OpenTap { .. } | Step::Open { .. })),
            "{steps:?}"
        );
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
}
