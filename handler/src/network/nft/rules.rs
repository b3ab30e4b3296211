//! The rules of a masquerade binding, as data.
//!
//! ```text
//! table kubevirt (once for IPv4, once for IPv6 where the pod has it)
//!   prerouting   in eth0 [tcp|udp ports]                 -> dnat guest         what reaches the pod reaches the guest
//!   output       to 127.0.0.1 or ::1 [tcp|udp ports]     -> dnat guest         kubectl port-forward
//!   postrouting  from 127.0.0.1 or ::1, out of the bridge -> snat gateway      so that the guest can answer it
//!   postrouting  from the guest                          -> masquerade         the guest uses the pod's address
//!   guest        in k6t-eth0, to 127.0.0.0/8 or ::1      -> drop               the pod's own loopback is not the guest's
//!                in k6t-eth0, DHCP from 0.0.0.0          -> accept             DHCP requests
//!                in k6t-eth0, ICMPv6 from ::             -> accept             neighbour discovery
//!                in k6t-eth0, ICMPv6 or DHCPv6 from one of few in fe80::/10    -> accept   the kernel remembers each of them
//!                in k6t-eth0, from elsewhere than the guest's address          -> drop     no other source address
//! ```
//!
//! Where the pod has the sidecar of a mesh, the mesh redirects connections to it at the usual priority of such chains. What
//! reaches the pod then reaches the guest in a later chain, so the mesh decides first: a rule that came before would let
//! connections pass by the sidecar, and by what it enforces. Only SSH does, as in KubeVirt: there the server speaks first, and a
//! proxy waits for the client. The first rules of the other chains are:
//!
//! ```text
//!   prerouting   in eth0, tcp port 22, if it is the guest's          -> dnat guest
//!   behind_mesh  in eth0, tcp port of the sidecar                    -> accept         it reaches the sidecar
//!   behind_mesh  in eth0 [tcp|udp ports]                             -> dnat guest     what the mesh leaves
//!   output       to 127.0.0.1 or ::1, tcp port of the sidecar        -> accept         kubectl port-forward to the sidecar
//!   output       from 127.0.0.6 or ::6, to the pod [tcp|udp ports]   -> dnat guest     the sidecar connects to the guest
//!   postrouting  from 127.0.0.6 or ::6, out of the bridge            -> snat gateway   so that the guest can answer it
//! ```
//!
//! All chains but the last have the type nat: the kernel consults them for the first packet of a connection
//! only. So packets that return on a connection of the guest are never redirected, whatever the first rule
//! says. The kernel does not track neighbour discovery at all, so these chains do not affect it.
//!
//! The last chain is a filter that sees every packet of the guest before any address is translated back. At
//! that point, an answer to a connection from the pod's loopback is still addressed to the gateway. Such
//! answers need `route_localnet`, and without the filter that setting would let packets that the guest itself
//! sends to 127.0.0.1 reach services that listen there. What others send [to the guest's own address](super::outside)
//! is dropped there, too.
//!
//! A guest chooses its link-local address itself. The first eight from which it sends are remembered, each until it has not
//! been used for a minute. That is longer than the kernel keeps a neighbour that answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use barevirt_api::mesh;
use sha2::{Digest, Sha256};

/// Name of the table. Only the handler uses it, and it is replaced as a whole.
pub const TABLE: &str = "kubevirt";

/// Port of SSH.
const SSH: Port = Port { protocol: Protocol::Tcp, number: 22 };
/// The link-local addresses that a guest may use at a time.
const LINK_LOCAL: Few = Few { most: 8, forgotten_after: Duration::from_secs(60) };
/// The loopback addresses of IPv4.
const LOOPBACK: (Ipv4Addr, u8) = (Ipv4Addr::new(127, 0, 0, 0), 8);
/// Ports of DHCP servers.
const DHCP4: u16 = 67;
const DHCP6: u16 = 547;

/// The packets that a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// ARP.
    Arp,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::V4, Family::V6, Family::Arp];

    /// Name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
            Family::Arp => "ARP",
        }
    }
}

/// A base chain: a filter, or a chain of type nat that is named like its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Incoming packets, before routing.
    Prerouting,
    /// The same, after the chains of a mesh.
    BehindMesh,
    /// Packets that processes of the pod send.
    Output,
    /// Outgoing packets, after routing.
    Postrouting,
    /// Incoming packets, before everything else: the filter for what the guest sends, and for what others send to it.
    Guest,
    /// Outgoing packets, after routing: the filter for what goes to the guest.
    ToGuest,
}

impl Chain {
    /// All chains, in the order in which they are created.
    pub const ALL: [Chain; 6] = [
        Chain::Prerouting,
        Chain::BehindMesh,
        Chain::Output,
        Chain::Postrouting,
        Chain::Guest,
        Chain::ToGuest,
    ];

    /// Name of the chain.
    pub fn name(self) -> &'static str {
        match self {
            Chain::Prerouting => "prerouting",
            Chain::BehindMesh => "behind_mesh",
            Chain::Output => "output",
            Chain::Postrouting => "postrouting",
            Chain::Guest => "guest",
            Chain::ToGuest => "to_guest",
        }
    }
}

/// Protocols of an interface's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// IANA number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }
}

/// A port of the guest that can be reached at the pod's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Number of the port, in the pod and in the guest.
    pub number: u16,
}

/// Ports of the guest that can be reached at the pod's address: one, or all from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Number of the first port.
    pub first: u16,
    /// Number of the last port.
    pub last: u16,
}

impl Ports {
    /// Whether a port is one of them.
    pub fn hold(self, port: Port) -> bool {
        self.protocol == port.protocol && (self.first..=self.last).contains(&port.number)
    }

    fn condition(self) -> Match {
        let Self { protocol, first, last } = self;
        if first == last { Match::Port(Port { protocol, number: first }) } else { Match::Ports(self) }
    }
}

impl From<Port> for Ports {
    fn from(Port { protocol, number }: Port) -> Self {
        Self { protocol, first: number, last: number }
    }
}

/// How many addresses are remembered, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Few {
    /// Most addresses at a time.
    pub most: u32,
    /// An address is forgotten when it has not been used for that time.
    pub forgotten_after: Duration,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// The packet came in by this interface.
    Input(String),
    /// The packet came in by another interface.
    InputIsNot(String),
    /// The packet goes out by this interface.
    Output(String),
    /// The packet has this source address.
    Source(IpAddr),
    /// The packet has this destination address.
    Destination(IpAddr),
    /// The packet goes to this port.
    Port(Port),
    /// The packet goes to one of these ports.
    Ports(Ports),
    /// The packet has another source address.
    SourceIsNot(IpAddr),
    /// The packet has a link-local source address, IPv6.
    SourceIsOfLink,
    /// The packet's source address, IPv6, is one of those that are remembered, or there is room to remember it.
    SourceIsOneOfFew(Few),
    /// The packet goes to an address of the range that has this address and a prefix of this length.
    DestinationIn(IpAddr, u8),
    /// The packet goes to another address.
    DestinationIsNot(IpAddr),
    /// The packet is of ARP, and names another sender.
    SenderIsNot(Ipv4Addr),
    /// The packet is ICMPv6.
    Icmp6,
}

/// What happens to a connection whose first packet meets all conditions, or in the filter to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Its destination becomes this address.
    Dnat(IpAddr),
    /// Its source becomes this address.
    Snat(IpAddr),
    /// Its source becomes the address of the interface by which it leaves.
    Masquerade,
    /// The packet is accepted.
    Accept,
    /// The packet is dropped without an answer.
    Drop,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain it is in.
    pub chain: Chain,
    /// All of these conditions have to hold.
    pub matches: Vec<Match>,
    /// The action for matching packets.
    pub action: Action,
}

/// One complete table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// IPv4 or IPv6.
    pub family: Family,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

impl Ruleset {
    /// The chains that have rules.
    pub fn chains(&self) -> impl Iterator<Item = Chain> {
        Chain::ALL.into_iter().filter(|chain| self.rules.iter().any(|rule| rule.chain == *chain))
    }

    /// How many addresses the table remembers, if it does.
    pub fn few(&self) -> Option<Few> {
        let few = |one: &Match| if let Match::SourceIsOneOfFew(few) = one { Some(*few) } else { None };
        self.rules.iter().flat_map(|rule| &rule.matches).find_map(few)
    }

    /// A hash of the whole table. The table carries it as user data, so that a later handler sees at once
    /// whether the rules in the kernel are the ones it would write.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(format!("{self:?}")).into()
    }
}

/// The rules that connect `guest` behind `gateway` to the pod's interface. `behind_sidecar` is the pod's address of that
/// family, if the pod has the sidecar of a mesh.
pub fn masquerade(
    pod_interface: &str,
    bridge: &str,
    gateway: IpAddr,
    guest: IpAddr,
    ports: &[Ports],
    behind_sidecar: Option<IpAddr>,
) -> Ruleset {
    let (family, loopback, sidecar) = match guest {
        IpAddr::V4(_) => (Family::V4, IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(mesh::SIDECAR.0)),
        IpAddr::V6(_) => (Family::V6, IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(mesh::SIDECAR.1)),
    };
    let inbound = |chain: Chain, conditions: &[Match]| -> Vec<Rule> {
        let rule = |matches| Rule { chain, matches, action: Action::Dnat(guest) };
        if ports.is_empty() {
            return vec![rule(conditions.to_vec())];
        }
        ports.iter().map(|ports| rule([conditions, &[ports.condition()]].concat())).collect()
    };
    let of_the_sidecar = |chain: Chain, condition: &Match| {
        let port = |number: &u16| Match::Port(Port { protocol: Protocol::Tcp, number: *number });
        let rule = |port| Rule { chain, matches: vec![condition.clone(), port], action: Action::Accept };
        mesh::PORTS.iter().map(port).map(rule).collect::<Vec<_>>()
    };
    let (from_outside, from_inside) = (Match::Input(pod_interface.to_owned()), Match::Destination(loopback));
    let entrance = if behind_sidecar.is_some() { Chain::BehindMesh } else { Chain::Prerouting };
    let mut rules = Vec::new();
    if let Some(pod) = behind_sidecar {
        if ports.is_empty() || ports.iter().any(|ports| ports.hold(SSH)) {
            let matches = vec![from_outside.clone(), Match::Port(SSH)];
            rules.push(Rule { chain: Chain::Prerouting, matches, action: Action::Dnat(guest) });
        }
        rules.extend(of_the_sidecar(Chain::BehindMesh, &from_outside));
        rules.extend(of_the_sidecar(Chain::Output, &from_inside));
        rules.extend(inbound(Chain::Output, &[Match::Source(sidecar), Match::Destination(pod)]));
        rules.push(Rule {
            chain: Chain::Postrouting,
            matches: vec![Match::Source(sidecar), Match::Output(bridge.to_owned())],
            action: Action::Snat(gateway),
        });
    }
    rules.extend(inbound(entrance, &[from_outside]));
    rules.extend(inbound(Chain::Output, &[from_inside]));
    rules.push(Rule {
        chain: Chain::Postrouting,
        matches: vec![Match::Source(loopback), Match::Output(bridge.to_owned())],
        action: Action::Snat(gateway),
    });
    rules.push(Rule {
        chain: Chain::Postrouting,
        matches: vec![Match::Source(guest)],
        action: Action::Masquerade,
    });
    rules.extend(filter(bridge, guest));
    Ruleset { family, rules }
}

/// What the guest may send: nothing to the pod's loopback, and nothing with another source address. Without
/// an address it may request one, and it may do neighbour discovery on its link.
fn filter(bridge: &str, guest: IpAddr) -> Vec<Rule> {
    let rule = |conditions: Vec<Match>, action| {
        let matches = [Match::Input(bridge.to_owned())].into_iter().chain(conditions).collect();
        Rule { chain: Chain::Guest, matches, action }
    };
    let udp = |number| Match::Port(Port { protocol: Protocol::Udp, number });
    let (loopback, asks) = match guest {
        IpAddr::V4(_) => {
            let (first, prefix) = LOOPBACK;
            let nobody = Match::Source(Ipv4Addr::UNSPECIFIED.into());
            (Match::DestinationIn(first.into(), prefix), vec![vec![nobody, udp(DHCP4)]])
        }
        IpAddr::V6(_) => {
            let nobody = Match::Source(Ipv6Addr::UNSPECIFIED.into());
            // The last condition remembers, so it comes after the others.
            let of_link = |what| vec![Match::SourceIsOfLink, what, Match::SourceIsOneOfFew(LINK_LOCAL)];
            let asks = vec![vec![nobody, Match::Icmp6], of_link(Match::Icmp6), of_link(udp(DHCP6))];
            (Match::Destination(Ipv6Addr::LOCALHOST.into()), asks)
        }
    };
    let mut rules = vec![rule(vec![loopback], Action::Drop)];
    rules.extend(asks.into_iter().map(|conditions| rule(conditions, Action::Accept)));
    rules.push(rule(vec![Match::SourceIsNot(guest)], Action::Drop));
    rules
}

#[cfg(test)]
mod tests;
