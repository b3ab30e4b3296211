//! What a pod's network should be like, and what it is like.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barevirt_api::masquerade::Pair;

use super::addresses::MacAddress;
use super::nft::rules::{Family, Port};

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
    /// Answers to `::1` are taken from the bridge: see [`Step::LoopbackRoute`](super::plan::Step::LoopbackRoute).
    pub loopback_route: bool,
    /// Names of the descriptors that the launcher has.
    pub held: BTreeSet<String>,
}
