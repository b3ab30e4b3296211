//! The steps of a plan, and why there may be no plan.

use std::net::IpAddr;

use barevirt_protocol::names::NetworkDescriptor;

use crate::network::addresses::MacAddress;
use crate::network::nft::rules::Ruleset;
use crate::network::state::Route;

/// Services for addresses. The launcher serves each one on its own socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// DHCPv4, on UDP port 67 of the bridge.
    Dhcp4 {
        /// The guest's MAC address, where other hosts are on the bridge's network: only frames from it are received.
        only_from: Option<MacAddress>,
    },
    /// DHCPv6, on UDP port 547 of the bridge, as a member of `ff02::1:2`.
    Dhcp6,
    /// Router advertisements, on raw ICMPv6 of the bridge, as a member of `ff02::2`.
    RouterAdvertisement,
    /// Router advertisements and DHCPv6 in frames on the tap, where other hosts are on the bridge's network.
    Frames,
    /// None: what the guest tells its neighbours on the tap, where it gets no address. Older launchers do nothing with the
    /// descriptor, which has a name that they know.
    Neighbours,
}

impl Service {
    /// The descriptor's name at the launcher.
    pub fn descriptor(self) -> NetworkDescriptor {
        match self {
            Service::Dhcp4 { .. } => NetworkDescriptor::Dhcp4,
            Service::Dhcp6 => NetworkDescriptor::Dhcp6,
            Service::RouterAdvertisement | Service::Frames | Service::Neighbours => {
                NetworkDescriptor::RouterAdvertisement
            }
        }
    }
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create a bridge, which is down at first.
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
        /// Path beneath `/proc/sys`, for example `net/ipv4/ip_forward`.
        path: String,
        /// The value.
        value: &'static str,
        /// A missing setting is not an error.
        optional: bool,
    },
    /// Give an interface an address that is usable at once (without duplicate address detection).
    Address {
        /// The interface.
        link: String,
        /// The address.
        address: IpAddr,
        /// Length of the prefix, in bits.
        prefix: u8,
        /// Whether the kernel makes a route to its network.
        routed: bool,
    },
    /// Remove an address from an interface.
    RemoveAddress {
        /// The interface.
        link: String,
        /// The address.
        address: IpAddr,
        /// Length of the prefix, in bits.
        prefix: u8,
    },
    /// Set the MTU of an interface.
    Mtu {
        /// The interface.
        link: String,
        /// The MTU, in bytes.
        mtu: u32,
    },
    /// Set the MAC address of an interface.
    Mac {
        /// The interface.
        link: String,
        /// The address.
        mac: MacAddress,
    },
    /// Rename an interface that is down.
    Rename {
        /// The interface.
        link: String,
        /// Its new name.
        to: String,
    },
    /// Open a queue of the tap, which creates the tap if needed.
    OpenTap {
        /// Its name.
        name: String,
        /// User id that may open it.
        owner: u32,
        /// Whether it has more than one queue.
        multi_queue: bool,
        /// The name by which the launcher knows the descriptor.
        descriptor: String,
    },
    /// Open a queue of an existing macvtap.
    OpenMacvtap {
        /// Its name.
        name: String,
        /// Its index.
        index: u32,
        /// Whether it will have more than one queue.
        multi_queue: bool,
        /// The name by which the launcher knows the descriptor.
        descriptor: String,
    },
    /// Make an interface a port of a bridge.
    Attach {
        /// The port.
        link: String,
        /// The bridge.
        bridge: String,
    },
    /// Stop a bridge from learning addresses behind a port.
    NoLearning {
        /// The port.
        link: String,
    },
    /// Let a bridge forget that a MAC address is its own port's: packets for it go to the port behind which it is.
    Forget {
        /// The port.
        link: String,
        /// The address.
        mac: MacAddress,
    },
    /// Remove a port from its bridge.
    Detach {
        /// The port.
        link: String,
    },
    /// Let an interface receive packets to all multicast addresses.
    AllMulticast {
        /// The interface.
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
    /// Delete an interface, if it exists.
    Delete {
        /// The interface.
        link: String,
    },
    /// Save a route with a bridge: see [`KEPT_TABLE`](crate::network::state::KEPT_TABLE).
    KeepRoute {
        /// The bridge.
        bridge: String,
        /// The route.
        route: Route,
    },
    /// Add a route over an interface, if it does not exist.
    Route {
        /// The interface.
        link: String,
        /// The route.
        route: Route,
    },
    /// Let packets from an interface reach `::1`, by a route of type local. IPv4 has a setting for this
    /// (`route_localnet`); in IPv6 the kernel looks for such a route on that interface. A packet with `::1`
    /// in its header on the wire is dropped long before: the route only serves packets that connection
    /// tracking translates back.
    LoopbackRoute {
        /// The interface.
        link: String,
    },
    /// Create the handler's table of one family, which does not exist.
    CreateRules(Ruleset),
    /// Replace the handler's table of one family.
    ReplaceRules(Ruleset),
    /// Open a socket bound to an interface.
    Open {
        /// The service.
        service: Service,
        /// The interface.
        link: String,
        /// The name by which the launcher knows the descriptor.
        descriptor: String,
    },
}

/// Why there is no plan.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The pod has no such interface, or it has no address: the pod's network is not ready.
    #[error("the pod has no interface {0} with an address")]
    NoPodInterface(String),
    /// The pod has no such interface: it is not attached to that network.
    #[error("the pod has no interface {0}")]
    NoLink(String),
    /// The pod's interface is of a kind that cannot be bridged to a guest.
    #[error("the pod's interface {0} has no MAC address")]
    NotEthernet(String),
    /// The network plugin has not created a tap.
    #[error("the pod has no tap {0}, and no tap or macvtap {1}")]
    NoTap(String, String),
    /// The tap was created for one queue.
    #[error("the pod's tap {tap} has one queue, and {wanted} are wanted")]
    OneQueue {
        /// Its name.
        tap: String,
        /// Number of queues that the card needs.
        wanted: u32,
    },
}
