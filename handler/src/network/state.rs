//! The wanted and the observed state of a pod's network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barevirt_api::masquerade::Pair;

use super::addresses::MacAddress;
use super::links::Names;
use super::nft::rules::{Family, Ports};

/// A card as the spec requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the interface in the spec.
    pub interface: String,
    /// Name of its network in the spec.
    pub network: String,
    /// Its position among the interfaces of the spec.
    pub index: usize,
    /// Possible names of the pod's link: the first one that exists counts.
    pub candidates: Vec<String>,
    /// User id that may open the tap.
    pub tap_owner: u32,
    /// Number of queues of the tap, at least one.
    pub queues: u32,
    /// The guest's MAC address. `None`: the guest gets that of the pod's link. So it is with a bridge or a plugin if the spec
    /// names no address, until the status has the one with which the guest started.
    pub mac: Option<MacAddress>,
    /// How it is connected to the pod's link.
    pub binding: Binding,
    /// Whether no other card depends on it: it may be added, kept or removed while the guest runs.
    pub alone: bool,
}

/// How a guest is connected to a link of its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// By network address translation.
    Masquerade(Masquerade),
    /// As a host on the network, with the addresses of the pod's link.
    Bridge,
    /// As [`Binding::Bridge`], but without a DHCP server for the guest.
    ManagedTap,
    /// By a tap or macvtap in the pod.
    Tap,
    /// By passt, which has only sockets in the pod's network namespace.
    Passt,
    /// As it is already, by [`Binding::Tap`] or [`Binding::ManagedTap`]: the plugin that says which was removed from the
    /// configuration while the guest had the card. Nothing is changed.
    Kept,
    /// Not at all: what was created is removed, and the pod's link gets its original configuration.
    Gone,
}

/// Addresses and ports of a masquerade binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// Addresses of the gateway and of the guest in IPv4, used if the pod has IPv4.
    pub ipv4: Pair<Ipv4Addr>,
    /// Addresses of the gateway and of the guest in IPv6, used if the pod has IPv6.
    pub ipv6: Pair<Ipv6Addr>,
    /// The only ports that are forwarded. Empty means all ports.
    pub ports: Vec<Ports>,
    /// Whether the pod has the sidecar of a mesh.
    pub has_sidecar: bool,
}

impl Wanted {
    /// The names of the links for this card.
    pub fn names(&self, links: &BTreeMap<String, Link>) -> Names {
        Names::find(&self.candidates, links)
    }
}

/// The kind of a link, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A veth, or another link that leads out of the pod.
    #[default]
    Other,
    /// A bridge. The handler creates them; one without ports holds a pod's addresses while the guest uses
    /// them.
    Bridge,
    /// A tap.
    Tap {
        /// Whether it may have more than one queue. Each descriptor has to be opened accordingly.
        multi_queue: bool,
    },
    /// A macvlan. It leads out of the pod, and receives packets for its own MAC address only.
    Macvlan,
    /// A macvtap.
    Macvtap,
}

/// The state of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Its kind.
    pub kind: Kind,
    /// MAC address.
    pub mac: Vec<u8>,
    /// Maximum transmission unit, in bytes.
    pub mtu: u32,
    /// Whether it is set up by its owner (not: whether it has a carrier).
    pub up: bool,
    /// Index of the bridge whose port it is.
    pub controller: Option<u32>,
    /// Whether it receives packets to all multicast addresses, and not only to those that its namespace listens to.
    pub all_multicast: bool,
    /// Whether the bridge learns addresses behind this port.
    pub learning: bool,
    /// Its addresses with their prefix lengths, including link-local ones.
    pub addresses: BTreeSet<(IpAddr, u8)>,
    /// Its IPv6 addresses that expire: the network's own router advertises them.
    pub expiring: BTreeSet<IpAddr>,
    /// Its routes, without those that expire. IPv4 routes that the kernel made follow from addresses and are
    /// left out.
    pub routes: BTreeSet<Route>,
    /// Routes of another link that are saved at this one: see [`KEPT_TABLE`].
    pub kept_routes: BTreeSet<Route>,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Its destination.
    pub destination: IpAddr,
    /// Length of the prefix, in bits.
    pub prefix: u8,
    /// The next hop; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

impl Route {
    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.prefix == 0
    }

    /// Whether the kernel makes this route when a link gets that address.
    pub fn follows_from(&self, address: IpAddr, prefix: u8) -> bool {
        self.gateway.is_none() && self.prefix == prefix && network(address, prefix) == self.destination
    }

    /// The same route with the router's link-local address as its gateway. `None` if that is unknown.
    pub fn over_router(&self, link: u32, routers: &Routers) -> Option<Self> {
        let gateway = match self.gateway {
            Some(IpAddr::V6(gateway)) if !gateway.is_unicast_link_local() => {
                Some(IpAddr::V6(*routers.get(&(link, gateway))?))
            }
            gateway => gateway,
        };
        Some(Self { gateway, ..*self })
    }
}

/// The first address of the network with this prefix length that contains `address`.
pub fn network(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & !host).into()
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & !host).into()
        }
    }
}

/// Link-local addresses of gateways, by a link's index and the gateway's address there.
pub type Routers = BTreeMap<(u32, Ipv6Addr), Ipv6Addr>;

/// Number of a routing table that no rule uses, to which a bridge's index is added. The pod's routes are
/// saved there while the guest uses them. They go away with the bridge.
pub const KEPT_TABLE: u32 = 0x6b36_0000;

impl Link {
    /// Whether the link has an IPv4 address.
    pub fn has_ipv4(&self) -> bool {
        self.addresses.iter().any(|(address, _)| address.is_ipv4())
    }

    /// Its IPv6 address that a guest gets, with its prefix length: the first one that is valid beyond the link
    /// and does not expire.
    pub fn lasting_ipv6(&self) -> Option<(Ipv6Addr, u8)> {
        self.lasting().find_map(|(address, prefix)| match address {
            IpAddr::V6(address) => Some((address, prefix)),
            IpAddr::V4(_) => None,
        })
    }

    /// Its addresses that are valid beyond the link and do not expire.
    pub fn lasting(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.global().filter(|(address, _)| !self.expiring.contains(address))
    }

    /// Whether the link has an IPv6 address that is valid beyond the link.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|(address, _)| match address {
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
            IpAddr::V4(_) => false,
        })
    }

    /// Its addresses that are valid beyond the link.
    pub fn global(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let global = |(address, _): &(IpAddr, u8)| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        self.addresses.iter().copied().filter(global)
    }
}

/// The state of the pod's network namespace, and the launcher's descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// All links, by name.
    pub links: BTreeMap<String, Link>,
    /// Fingerprints in the handler's tables, empty for a table without one.
    pub rules: BTreeMap<Family, Vec<u8>>,
    /// Link-local addresses of the IPv6 gateways of links that are about to become ports.
    pub routers: Routers,
    /// The settings beneath `/proc/sys` that could be read.
    pub sysctls: BTreeMap<String, String>,
    /// Indexes of links from which answers to `::1` are accepted: see
    /// [`Step::LoopbackRoute`](super::plan::Step::LoopbackRoute).
    pub loopback_routes: BTreeSet<u32>,
    /// Names of the descriptors that the launcher holds.
    pub held: BTreeSet<String>,
}
