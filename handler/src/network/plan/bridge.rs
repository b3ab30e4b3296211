//! The bridge binding: the guest is a host on the network, with the MAC address and the addresses of the
//! pod's link.
//!
//! ```text
//! before:  eth0 (pod address, MAC a) == network
//! after:   eth0 (bridge without ports: pod address, MAC a)      k6t-eth0 (MAC b) --+-- eth0-nic (MAC b) == network
//!                                                                                  +-- tap0 --> guest (MAC a, pod address by DHCP)
//! ```
//!
//! The configuration of the pod's link is saved in the kernel before it is removed. Addresses and MAC address
//! go to a stand-in, a bridge that has another name and is down at first. Routes go to a routing table that
//! belongs to the bridge and that no rule uses. After the step `Down`, the stand-in and the table are
//! authoritative. So a plan can be interrupted after any step, and the next plan continues from there.
//!
//! IPv6 routes have a link of their own for this, the note: a bridge without ports. The bridge itself has no
//! IPv6, so that the pod is no host there. The gateway of a saved IPv6 route is the router's link-local
//! address, because a router advertisement can name no other ([`routers`](crate::network::routers)).
//!
//! A macvlan receives packets for its own MAC address only, and can be given no further one. So as a port it keeps address a,
//! and the handler removes this address of the port from the bridge's table.
//!
//! The bridge learns behind neither of its two ports: what comes in by one goes out by the other.
//!
//! A managed tap works the same way, but no DHCP server answers the guest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::common::{Setting, plan_sockets, plan_sysctls, plan_tap};
use super::step::{PlanError, Service, Step};
use crate::network::addresses::MacAddress;
use crate::network::links::Names;
use crate::network::state::{Binding, Kind, Link, Observed, Route, Wanted};

/// First address of the DHCP servers on such bridges, as in KubeVirt. Each interface of the spec has the next
/// one.
const SERVERS: Ipv4Addr = Ipv4Addr::new(169, 254, 75, 10);
/// Prefix length of a server's address.
const SERVER_PREFIX: u8 = 32;

/// Address of the DHCP server for the interface at this position in the spec.
pub fn server(index: usize) -> Ipv4Addr {
    let last = u32::try_from(index).unwrap_or(u32::MAX).min(200);
    Ipv4Addr::from_bits(SERVERS.to_bits() + last)
}

/// The links in the pod that belong to such a card.
#[derive(Debug, Clone, Copy)]
pub(super) struct There<'a> {
    /// The pod's link under its original name.
    pub(super) pod: Option<&'a Link>,
    /// The pod's link as a port.
    pub(super) port: Option<&'a Link>,
    /// The stand-in that has its name, or will get it.
    pub(super) stand_in: Option<(&'a Link, &'a str)>,
    /// The bridge.
    pub(super) bridge: Option<&'a Link>,
    /// The link with the saved IPv6 routes.
    pub(super) note: Option<&'a Link>,
}

impl<'a> There<'a> {
    pub(super) fn of(names: &'a Names, observed: &'a Observed) -> Self {
        let link = |name: &str| observed.links.get(name);
        let is_bridge = |link: &&Link| link.kind == Kind::Bridge;
        let port = link(&names.port);
        let kept = link(&names.kept).map(|link| (link, names.kept.as_str()));
        // A pod's link may itself be a bridge. The bridge with its name is the handler's stand-in only if the
        // original link is a port.
        let ours = link(&names.pod).filter(is_bridge).filter(|_| port.is_some());
        Self {
            pod: link(&names.pod).filter(|_| ours.is_none()),
            port,
            stand_in: ours.map(|link| (link, names.pod.as_str())).or(kept),
            bridge: link(&names.bridge),
            note: link(&names.note),
        }
    }

    /// Whether the network was attached to the pod again before its former link was given back. The plugin that detached it has
    /// deleted what had the link's name, which was the stand-in; the former link is a port that leads nowhere.
    pub(super) fn is_attached_again(&self) -> bool {
        self.pod.is_some() && self.port.is_some()
    }

    /// All routes that are saved.
    pub(super) fn kept_routes(&self) -> impl Iterator<Item = &'a Route> {
        [self.bridge, self.note].into_iter().flatten().flat_map(|link| &link.kept_routes)
    }
}

/// The IPv6 gateways of the pod's link, while it still has its routes, with the link's name and index.
pub(super) fn gateways(names: &Names, observed: &Observed) -> Vec<(String, u32, Ipv6Addr)> {
    let there = There::of(names, observed);
    let Some(pod) = there.pod.filter(|pod| pod.up && there.port.is_none()) else { return Vec::new() };
    let gateways = pod.routes.iter().filter_map(|route| match route.gateway {
        Some(IpAddr::V6(gateway)) if !gateway.is_unicast_link_local() => Some(gateway),
        _ => None,
    });
    gateways.map(|gateway| (names.pod.clone(), pod.index, gateway)).collect()
}

/// The setting of a link that has saved addresses or routes of IPv6. Where a pod's links have no IPv6 at first,
/// the network plugin enabled it at the pod's link only.
pub fn saved_sysctl(link: &str) -> Setting {
    Setting::optional(format!("net/ipv6/conf/{link}/disable_ipv6"), "0")
}

/// The setting of a link by which the pod answers no ARP at all, since the kernel remembers who asks. The kernel limits the
/// neighbours of all pods of a node together.
fn silent(link: &str) -> Setting {
    Setting::needed(format!("net/ipv4/conf/{link}/arp_ignore"), "8")
}

/// Settings of the links that are not hosts on the network.
pub fn sysctls(names: &Names, has_ipv4: bool) -> Vec<Setting> {
    let mut all = vec![
        Setting::optional(format!("net/ipv6/conf/{}/disable_ipv6", names.bridge), "1"),
        // Another card may make the pod a router, but packets of this card stay on its network.
        Setting::needed(format!("net/ipv4/conf/{}/forwarding", names.bridge), "0"),
        // The guest asks the DHCP server by broadcast.
        silent(&names.bridge),
    ];
    if has_ipv4 {
        // The stand-in has the guest's address, and only the guest may answer ARP requests for it.
        all.push(Setting::needed("net/ipv4/conf/all/arp_ignore".to_owned(), "1"));
    }
    all
}

/// Settings of the pod's link after it has become a port.
pub fn port_sysctls(names: &Names) -> Vec<Setting> {
    vec![Setting::optional(format!("net/ipv6/conf/{}/disable_ipv6", names.port), "1"), silent(&names.port)]
}

/// Settings of the tap. The pod sends nothing of its own to the guest, and is no host for it there: a bridge passes
/// frames to some addresses (01:80:c2:00:00:0e, for example) to its port instead of itself.
pub fn tap_sysctls(names: &Names) -> Vec<Setting> {
    vec![Setting::optional(format!("net/ipv6/conf/{}/disable_ipv6", names.tap), "1"), silent(&names.tap)]
}

/// The missing steps, in the order in which to do them.
pub(super) fn plan(wanted: &Wanted, names: &Names, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let mut there = There::of(names, observed);
    let mut steps = Vec::new();
    if there.is_attached_again() {
        let left = [Some(names.port.as_str()), there.stand_in.map(|(_, name)| name)];
        steps.extend(left.into_iter().flatten().map(|link| Step::Delete { link: link.to_owned() }));
        (there.port, there.stand_in) = (None, None);
    }
    let source = there.port.or(there.pod).ok_or_else(|| PlanError::NoLink(names.pod.clone()))?;
    let mac = there.stand_in.map_or(source, |(stand_in, _)| stand_in).mac.clone();
    let mac = MacAddress::read(&mac).ok_or_else(|| PlanError::NotEthernet(names.pod.clone()))?;
    let other = mac.other();
    let mtu = source.mtu;
    let is_v4 = |link: &Link| {
        let is = |address| matches!(address, IpAddr::V4(address) if !address.is_link_local());
        link.addresses.iter().any(|(address, _)| is(*address))
    };
    let has_ipv4 = is_v4(source) || there.stand_in.is_some_and(|(stand_in, _)| is_v4(stand_in));

    let bridge = &names.bridge;
    match there.bridge {
        None => steps.push(Step::CreateBridge { name: bridge.clone(), mac: other, mtu }),
        Some(link) if link.mtu != mtu => steps.push(Step::Mtu { link: bridge.clone(), mtu }),
        Some(_) => {}
    }
    plan_sysctls(sysctls(names, has_ipv4), observed, &mut steps);
    let server = (IpAddr::V4(server(wanted.index)), SERVER_PREFIX);
    let serves = has_ipv4 && wanted.binding == Binding::Bridge;
    if serves && !there.bridge.is_some_and(|link| link.addresses.contains(&server)) {
        let (address, prefix) = server;
        steps.push(Step::Address { link: bridge.clone(), address, prefix, routed: true });
    }
    if !there.bridge.is_some_and(|link| link.up) {
        steps.push(Step::Up { link: bridge.clone() });
    }
    let is_whole = there.stand_in.is_some_and(|(_, name)| name == names.pod);
    if !is_whole {
        write_down(source, mac, names, there, observed, &mut steps);
        save_ipv6_routes(source, other, names, there, observed, &mut steps);
    }
    if let Some(pod) = there.pod.filter(|_| there.port.is_none()) {
        if pod.up {
            steps.push(Step::Down { link: names.pod.clone() });
        }
        steps.push(Step::Rename { link: names.pod.clone(), to: names.port.clone() });
    }
    if !is_whole {
        steps.push(Step::Rename { link: names.kept.clone(), to: names.pod.clone() });
    }
    plan_port(source, mac, names, there, observed, &mut steps);
    plan_tap(wanted, names, observed, mtu, &mut steps);
    plan_sysctls(tap_sysctls(names), observed, &mut steps);
    if !there.stand_in.is_some_and(|(stand_in, name)| stand_in.up && name == names.pod) {
        steps.push(Step::Up { link: names.pod.clone() });
    }
    let has_ipv6 = [Some(source), there.stand_in.map(|(stand_in, _)| stand_in)];
    let has_ipv6 = has_ipv6.into_iter().flatten().any(|link| link.lasting_ipv6().is_some());
    let mut services = Vec::new();
    if serves {
        // The guest has the address of the pod's link, unless the manifest names another one.
        services.push(Service::Dhcp4 { only_from: Some(wanted.mac.unwrap_or(mac)) });
    }
    if has_ipv6 && wanted.binding == Binding::Bridge {
        services.push(Service::Frames);
    }
    if !has_ipv4 && !has_ipv6 {
        services.push(Service::Neighbours);
    }
    plan_sockets(wanted, names, observed, &services, &mut steps);
    Ok(steps)
}

/// Saves the configuration of the pod's link. The link keeps it until the stand-in gets its name.
fn write_down(
    pod: &Link,
    mac: MacAddress,
    names: &Names,
    there: There<'_>,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    let stand_in = there.stand_in.map(|(stand_in, _)| stand_in);
    if stand_in.is_none() {
        steps.push(Step::CreateBridge { name: names.kept.clone(), mac, mtu: pod.mtu });
    }
    if pod.lasting_ipv6().is_some() {
        plan_sysctls([saved_sysctl(&names.kept)], observed, steps);
    }
    for (address, prefix) in pod.lasting() {
        if !stand_in.is_some_and(|stand_in| stand_in.addresses.contains(&(address, prefix))) {
            // The stand-in leads nowhere. With a route over it, the pod would look there for whoever a packet says it is from.
            let routed = address.is_ipv6();
            steps.push(Step::Address { link: names.kept.clone(), address, prefix, routed });
        }
    }
    for route in pod.routes.iter().filter(|route| route.destination.is_ipv4()) {
        if !there.bridge.is_some_and(|bridge| bridge.kept_routes.contains(route)) {
            steps.push(Step::KeepRoute { bridge: names.bridge.clone(), route: *route });
        }
    }
}

/// Saves the IPv6 routes of the pod's link, except those whose router has no known link-local address.
fn save_ipv6_routes(
    pod: &Link,
    mac: MacAddress,
    names: &Names,
    there: There<'_>,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    let routes = pod.routes.iter().filter(|route| route.destination.is_ipv6());
    let routes = routes.filter_map(|route| route.over_router(pod.index, &observed.routers));
    let saved = |route: &Route| there.note.is_some_and(|note| note.kept_routes.contains(route));
    let missing: Vec<Route> = routes.filter(|route| !saved(route)).collect();
    if missing.is_empty() {
        return;
    }
    let link = &names.note;
    if there.note.is_none() {
        steps.push(Step::CreateBridge { name: link.clone(), mac, mtu: pod.mtu });
    }
    plan_sysctls([saved_sysctl(link)], observed, steps);
    if !there.note.is_some_and(|note| note.up) {
        steps.push(Step::Up { link: link.clone() });
    }
    for route in missing {
        steps.push(Step::KeepRoute { bridge: link.clone(), route });
    }
}

/// Makes the pod's link a port of the bridge. It is no host itself, and it does not learn addresses, so that
/// the bridge never looks for the guest's address behind it.
fn plan_port(
    source: &Link,
    mac: MacAddress,
    names: &Names,
    there: There<'_>,
    observed: &Observed,
    steps: &mut Vec<Step>,
) {
    let link = &names.port;
    let is_macvlan = source.kind == Kind::Macvlan;
    let own = if is_macvlan { mac } else { mac.other() };
    plan_sysctls(port_sysctls(names), observed, steps);
    for (address, prefix) in source.addresses.iter().filter(|(address, _)| address.is_ipv4()) {
        steps.push(Step::RemoveAddress { link: link.clone(), address: *address, prefix: *prefix });
    }
    let renamed = source.mac != own.0;
    if renamed {
        steps.push(Step::Mac { link: link.clone(), mac: own });
    }
    let bridge = there.bridge.map(|bridge| bridge.index);
    let attach = source.controller.is_none() || source.controller != bridge;
    if attach {
        steps.push(Step::Attach { link: link.clone(), bridge: names.bridge.clone() });
    }
    // What a bridge knows is not observed. So this comes before the step that is: if learning is off, it was done.
    if is_macvlan && (renamed || attach || source.learning) {
        steps.push(Step::Forget { link: link.clone(), mac });
    }
    if attach || source.learning {
        steps.push(Step::NoLearning { link: link.clone() });
    }
    if there.port.is_none_or(|port| !port.up) {
        steps.push(Step::Up { link: link.clone() });
    }
}
