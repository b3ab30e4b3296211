//! The rules of a masquerade binding, as data.
//!
//! ```text
//! table kubevirt (once for IPv4, once for IPv6 where the pod has it)
//!   prerouting   in eth0 [tcp|udp port]                  -> dnat guest         what reaches the pod reaches the guest
//!   output       to 127.0.0.1 or ::1 [tcp|udp port]      -> dnat guest         kubectl port-forward
//!   postrouting  from 127.0.0.1 or ::1, out of the bridge -> snat gateway      so that the guest can answer it
//!   postrouting  from the guest                          -> masquerade         the guest speaks as the pod
//!   guest        in k6t-eth0, to 127.0.0.0/8 or ::1      -> drop               the pod's own loopback is not the guest's
//!                in k6t-eth0, DHCP from 0.0.0.0          -> accept             it asks for its address
//!                in k6t-eth0, ICMPv6 or DHCPv6 from fe80::/10, ICMPv6 from ::  -> accept   and for its neighbours
//!                in k6t-eth0, from elsewhere than the guest's address          -> drop     it speaks for itself alone
//! ```
//!
//! The first three chains are of type nat: the kernel asks them for the first packet of a connection only, so what returns on a
//! connection of the guest's own is never redirected, whatever the first rule says. Neighbour discovery is not tracked
//! by the kernel at all and so passes by.
//!
//! The last one is a filter, and asked for every packet of the guest before anything is translated back: there an answer to what
//! came from the pod's loopback is still one to the gateway. `route_localnet`, which such answers need, would let a packet that
//! the guest itself addresses to 127.0.0.1 reach what listens there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// Name of the table. It is ours alone: it is replaced as a whole.
pub const TABLE: &str = "kubevirt";

/// Ports that servers of addresses listen on.
const DHCP4: u16 = 67;
const DHCP6: u16 = 547;

/// One of the two IP versions: nat tables are made for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A base chain: of type nat, named like the hook it is on, or the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Packets that come in, before routing.
    Prerouting,
    /// Packets that processes of the pod send.
    Output,
    /// Packets that go out, after routing.
    Postrouting,
    /// Packets that come in, before all else: the filter of what the guest sends.
    Guest,
}

impl Chain {
    /// All of them, in the order they are made.
    pub const ALL: [Chain; 4] = [Chain::Prerouting, Chain::Output, Chain::Postrouting, Chain::Guest];

    /// Name of the chain.
    pub fn name(self) -> &'static str {
        match self {
            Chain::Prerouting => "prerouting",
            Chain::Output => "output",
            Chain::Postrouting => "postrouting",
            Chain::Guest => "guest",
        }
    }
}

/// Protocols that a port of an interface may be of.
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

/// A port of the guest that is reached at the pod's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Number of the port, in the pod and in the guest.
    pub number: u16,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Came in by this interface.
    Input(String),
    /// Goes out by this interface.
    Output(String),
    /// Has this source address.
    Source(IpAddr),
    /// Has this destination address.
    Destination(IpAddr),
    /// Goes to this port.
    Port(Port),
    /// Has another source address.
    SourceIsNot(IpAddr),
    /// Has a source address of the link alone, IPv6.
    SourceIsOfLink,
    /// Goes to an address of the loopback.
    ToLoopback(Family),
    /// Is of ICMPv6.
    Icmp6,
}

/// What happens to a connection whose first packet meets all conditions, or in the filter to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Its destination becomes this address.
    Dnat(IpAddr),
    /// Its source becomes this address.
    Snat(IpAddr),
    /// Its source becomes the address of the interface it leaves by.
    Masquerade,
    /// It goes on.
    Accept,
    /// It goes no further, and nobody is told.
    Drop,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain it is in.
    pub chain: Chain,
    /// All have to hold.
    pub matches: Vec<Match>,
    /// What to do then.
    pub action: Action,
}

/// One table, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// IPv4 or IPv6.
    pub family: Family,
    /// In order.
    pub rules: Vec<Rule>,
}

impl Ruleset {
    /// A hash of everything in it. The table carries it as user data, so that a later handler sees at a glance whether
    /// the rules in the kernel are the ones it would write.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(format!("{self:?}")).into()
    }
}

/// The rules that join `guest` behind `gateway` to the pod's interface.
pub fn masquerade(
    pod_interface: &str,
    bridge: &str,
    gateway: IpAddr,
    guest: IpAddr,
    ports: &[Port],
) -> Ruleset {
    let (family, loopback) = match guest {
        IpAddr::V4(_) => (Family::V4, IpAddr::V4(Ipv4Addr::LOCALHOST)),
        IpAddr::V6(_) => (Family::V6, IpAddr::V6(Ipv6Addr::LOCALHOST)),
    };
    let inbound = |chain: Chain, condition: Match| -> Vec<Rule> {
        let rule = |matches| Rule { chain, matches, action: Action::Dnat(guest) };
        if ports.is_empty() {
            return vec![rule(vec![condition])];
        }
        ports.iter().map(|port| rule(vec![condition.clone(), Match::Port(*port)])).collect()
    };
    let mut rules = inbound(Chain::Prerouting, Match::Input(pod_interface.to_owned()));
    rules.extend(inbound(Chain::Output, Match::Destination(loopback)));
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

/// What the guest may send: nothing to the pod's loopback, and nothing in another's name. Without an address it may ask for one,
/// and on its link it may look for its neighbours.
fn filter(bridge: &str, guest: IpAddr) -> Vec<Rule> {
    let rule = |conditions: Vec<Match>, action| {
        let matches = [Match::Input(bridge.to_owned())].into_iter().chain(conditions).collect();
        Rule { chain: Chain::Guest, matches, action }
    };
    let udp = |number| Match::Port(Port { protocol: Protocol::Udp, number });
    let (family, asks) = match guest {
        IpAddr::V4(_) => {
            let nobody = Match::Source(Ipv4Addr::UNSPECIFIED.into());
            (Family::V4, vec![vec![nobody, udp(DHCP4)]])
        }
        IpAddr::V6(_) => {
            let nobody = Match::Source(Ipv6Addr::UNSPECIFIED.into());
            let of_link = Match::SourceIsOfLink;
            let asks = vec![
                vec![nobody, Match::Icmp6],
                vec![of_link.clone(), Match::Icmp6],
                vec![of_link, udp(DHCP6)],
            ];
            (Family::V6, asks)
        }
    };
    let mut rules = vec![rule(vec![Match::ToLoopback(family)], Action::Drop)];
    rules.extend(asks.into_iter().map(|conditions| rule(conditions, Action::Accept)));
    rules.push(rule(vec![Match::SourceIsNot(guest)], Action::Drop));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
    const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));

    #[test]
    fn without_ports_everything_is_forwarded() {
        let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[]).rules;
        assert_eq!(rules.len(), 7);
        assert_eq!(rules[0].matches, [Match::Input("eth0".to_owned())]);
        assert_eq!(rules[0].action, Action::Dnat(GUEST));
        assert_eq!(rules[3].action, Action::Masquerade);
    }

    #[test]
    fn with_ports_only_these_are() {
        let ports =
            [Port { protocol: Protocol::Tcp, number: 22 }, Port { protocol: Protocol::Udp, number: 53 }];
        let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &ports).rules;
        assert_eq!(rules.len(), 9);
        for rule in rules.iter().filter(|rule| matches!(rule.action, Action::Dnat(_))) {
            assert!(rule.matches.iter().any(|one| matches!(one, Match::Port(_))), "{rule:?}");
        }
    }

    #[test]
    fn what_the_guest_sends_is_dropped_unless_it_is_its_own() {
        let six = |last| IpAddr::V6(Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, last));
        for (gateway, guest, count) in [(GATEWAY, GUEST, 3), (six(1), six(2), 5)] {
            let rules = masquerade("eth0", "k6t-eth0", gateway, guest, &[]).rules;
            let filter: Vec<&Rule> = rules.iter().filter(|rule| rule.chain == Chain::Guest).collect();
            assert!(filter.iter().all(|rule| rule.matches[0] == Match::Input("k6t-eth0".to_owned())));
            assert_eq!((filter.len(), filter[0].action), (count, Action::Drop));
            assert_eq!(filter[count - 1].matches[1..], [Match::SourceIsNot(guest)]);
            assert_eq!(filter[count - 1].action, Action::Drop);
        }
    }

    #[test]
    fn fingerprint_changes_with_any_rule() {
        let all = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[]);
        let one =
            masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[Port { protocol: Protocol::Tcp, number: 22 }]);
        assert_eq!(all.fingerprint(), all.clone().fingerprint());
        assert_ne!(all.fingerprint(), one.fingerprint());
    }
}
