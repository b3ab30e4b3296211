//! What a pod's network should be like, and what it is like.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barevirt_api::masquerade::Pair;

use super::addresses::MacAddress;
use super::links::Names;
use super::nft::rules::{Family, Port};

/// A card as the spec asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the interface in the spec.
    pub interface: String,
    /// Name of its network in the spec.
    pub network: String,
    /// Its place among the interfaces of the spec.
    pub index: usize,
    /// Names that the pod's link may have: the first one that is there counts.
    pub candidates: Vec<String>,
    /// Who may open the tap.
    pub tap_owner: u32,
    /// Queues of the tap, at least one.
    pub queues: u32,
    /// The guest's MAC address. With a bridge binding none: the pod's link gives it its own.
    pub mac: Option<MacAddress>,
    /// How it is joined to the pod's link.
    pub binding: Binding,
    /// The others do not depend on it: it comes, stays or goes while the guest runs.
    pub alone: bool,
}

/// How a guest is joined to a link of its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// By translation of addresses.
    Masquerade(Masquerade),
    /// As a station on the network, with the addresses of the pod's link.
    Bridge,
    /// The same, but that nobody hands it the addresses.
    ManagedTap,
    /// By the tap or macvtap that is in the pod.
    Tap,
    /// By passt, which has sockets in the pod's network namespace and nothing else there.
    Passt,
    /// No more: what was made is taken away, and the pod's link is as it was.
    Gone,
}

/// Addresses and ports of a masquerade binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// Gateway and guest in IPv4.
    pub ipv4: Pair<Ipv4Addr>,
    /// Gateway and guest in IPv6; used where the pod has IPv6.
    pub ipv6: Pair<Ipv6Addr>,
    /// The only ports that are forwarded. None: all of them.
    pub ports: Vec<Port>,
}

impl Wanted {
    /// The links that it is made of.
    pub fn names(&self, links: &BTreeMap<String, Link>) -> Names {
        Names::find(&self.candidates, links)
    }
}

/// What a link is, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Leads somewhere: a veth, a macvlan, or another link that was given to the pod.
    #[default]
    Other,
    /// A bridge: what we make of links. One without ports has a pod's addresses while the guest has them.
    Bridge,
    /// A tap.
    Tap {
        /// It may have more than one queue, and each descriptor has to say so.
        multi_queue: bool,
    },
    /// A macvtap.
    Macvtap,
}

/// What one interface is like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// What it is.
    pub kind: Kind,
    /// MAC address.
    pub mac: Vec<u8>,
    /// Maximum transmission unit, bytes.
    pub mtu: u32,
    /// Set up by its owner (not: has a carrier).
    pub up: bool,
    /// Index of the bridge that it is a port of.
    pub controller: Option<u32>,
    /// As a port it learns who is behind it.
    pub learning: bool,
    /// Its addresses with their prefixes, link-local ones included.
    pub addresses: BTreeSet<(IpAddr, u8)>,
    /// Its routes in IPv4 that somebody has set.
    pub routes: BTreeSet<Route>,
    /// Routes of another link that are kept at this one: see [`KEPT_TABLE`].
    pub kept_routes: BTreeSet<Route>,
}

/// A route in IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Where it leads to.
    pub destination: Ipv4Addr,
    /// Length of the prefix, bits.
    pub prefix: u8,
    /// Who is next; nobody where the destination is on the link.
    pub gateway: Option<Ipv4Addr>,
}

impl Route {
    /// Leads to everywhere.
    pub fn is_default(&self) -> bool {
        self.prefix == 0
    }
}

/// Routing table, to which a bridge's index is added, that nothing looks into: the pod's routes are kept there while the
/// guest has them. They go with the bridge.
pub const KEPT_TABLE: u32 = 0x6b36_0000;

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

    /// Its addresses that are good beyond the link.
    pub fn global(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let global = |(address, _): &(IpAddr, u8)| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        self.addresses.iter().copied().filter(global)
    }
}

/// What is in the pod's network namespace and at the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// All links, by name.
    pub links: BTreeMap<String, Link>,
    /// Fingerprints that our tables carry.
    pub rules: BTreeMap<Family, Vec<u8>>,
    /// Values of the settings beneath `/proc/sys` that could be read.
    pub sysctls: BTreeMap<String, String>,
    /// Indexes of links from which answers to `::1` are taken: see
    /// [`Step::LoopbackRoute`](super::plan::Step::LoopbackRoute).
    pub loopback_routes: BTreeSet<u32>,
    /// Names of the descriptors that the launcher has.
    pub held: BTreeSet<String>,
}
