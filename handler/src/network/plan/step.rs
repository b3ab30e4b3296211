//! What plans are made of, and why there can be none.

use std::net::IpAddr;

use barevirt_protocol::names::NetworkDescriptor;

use crate::network::addresses::MacAddress;
use crate::network::nft::rules::Ruleset;
use crate::network::state::Route;

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
    /// Open a queue of a macvtap that is there.
    OpenMacvtap {
        /// Its name.
        name: String,
        /// Its index.
        index: u32,
        /// It is to have more than one queue.
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
    /// Keep a route with a bridge: see [`KEPT_TABLE`](crate::network::state::KEPT_TABLE).
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
    /// Nothing that attaches networks has made one.
    #[error("the pod has no tap {0}, and no tap or macvtap {1}")]
    NoTap(String, String),
    /// The tap was made for one queue.
    #[error("the pod's tap {tap} has one queue, and {wanted} are wanted")]
    OneQueue {
        /// Its name.
        tap: String,
        /// Queues that the card is to have.
        wanted: u32,
    },
}
