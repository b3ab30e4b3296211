//! Rules that keep a guest behind masquerade from filling the neighbour tables, as data.
//!
//! The kernel limits the neighbours of all network namespaces of a node together (`gc_thresh3`, 1024 for each IP version). If
//! one guest could make its pod's kernel remember as many addresses as it likes, no pod of the node would find a new neighbour.
//! The kernel remembers who asks it by ARP or neighbour discovery, and whom it looks for itself, because a packet goes there.
//!
//! ```text
//! arp table kubevirt
//!   guest     in k6t-eth0, the sender is neither the guest nor 0.0.0.0      -> drop   only the guest asks
//! ip table kubevirt
//!   guest     in tap0                                                       -> drop   the bridge is the only way in
//!   to_guest  out k6t-eth0, to neither the guest nor 255.255.255.255        -> drop   nobody else is looked for
//! ip6 table kubevirt
//!   guest     in k6t-eth0, to fe80::/10, but not to the router              -> drop   nobody else is looked for
//!             in k6t-eth0, to the range, but not to the gateway             -> drop
//!   to_guest  out k6t-eth0, to the range, but not to the guest              -> drop   nor to answer a sender outside of the pod
//! ```
//!
//! Nobody outside can send [to the range](super::outside). But a sender outside can say that it has an address of the range, and the
//! pod answers it.
//!
//! Who asks by neighbour discovery is limited in the [rules](super::rules) about sources: by the guest's own address, and by
//! few link-local ones, since a guest chooses those itself.
//!
//! A bridge passes frames to some addresses (01:80:c2:00:00:0e, for example) to its port instead of itself. So the tap is a way
//! into the pod, too. It has no IPv6 and answers no ARP; other packets of IPv4 are dropped here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barevirt_api::masquerade::Pair;

use super::rules::{Action, Chain, Family, Match, Rule, Ruleset};

/// All link-local addresses of IPv6.
const LINK_LOCAL: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// The table for ARP of the link `bridge`, on which `guest` is.
pub fn arp(bridge: &str, guest: Ipv4Addr) -> Ruleset {
    let others = [guest, Ipv4Addr::UNSPECIFIED].map(Match::SenderIsNot);
    Ruleset { family: Family::Arp, rules: vec![drop_from(bridge, others)] }
}

/// The rules for IPv4. They belong before those of [`masquerade`](super::rules::masquerade).
pub fn ipv4(bridge: &str, tap: &str, guest: Ipv4Addr) -> Vec<Rule> {
    // The launcher answers by broadcast a guest that has no address yet.
    let others = [guest, Ipv4Addr::BROADCAST].map(|address| Match::DestinationIsNot(address.into()));
    vec![drop_from(tap, []), drop_to(bridge, others)]
}

/// The rules for IPv6. They belong before those of [`masquerade`](super::rules::masquerade). `router` is the link-local address
/// of the bridge.
pub fn ipv6(bridge: &str, range: Pair<Ipv6Addr>, router: Ipv6Addr) -> Vec<Rule> {
    let only = |within: IpAddr, prefix, address: Ipv6Addr| {
        drop_from(bridge, [Match::DestinationIn(within, prefix), Match::DestinationIsNot(address.into())])
    };
    let (first, prefix) = LINK_LOCAL;
    let others = [
        Match::DestinationIn(range.gateway.into(), range.prefix),
        Match::DestinationIsNot(range.guest.into()),
    ];
    vec![
        only(first.into(), prefix, router),
        // The kernel would look for those already to tell the guest of the shorter way.
        only(range.gateway.into(), range.prefix, range.gateway),
        drop_to(bridge, others),
    ]
}

fn drop_to<const N: usize>(link: &str, conditions: [Match; N]) -> Rule {
    let matches = [Match::Output(link.to_owned())].into_iter().chain(conditions).collect();
    Rule { chain: Chain::ToGuest, matches, action: Action::Drop }
}

fn drop_from<const N: usize>(link: &str, conditions: [Match; N]) -> Rule {
    let matches = [Match::Input(link.to_owned())].into_iter().chain(conditions).collect();
    Rule { chain: Chain::Guest, matches, action: Action::Drop }
}

#[cfg(test)]
mod tests {
    use barevirt_api::masquerade::{IPV4, IPV6};

    use super::*;

    #[test]
    fn only_the_guest_asks_by_arp_and_is_looked_for() {
        let input = |link: &str| Match::Input(link.to_owned());
        let Ruleset { family, rules } = arp("k6t-eth0", IPV4.guest);
        let nobody = Match::SenderIsNot(Ipv4Addr::UNSPECIFIED);
        let matches = vec![input("k6t-eth0"), Match::SenderIsNot(IPV4.guest), nobody];
        let other = Rule { chain: Chain::Guest, matches, action: Action::Drop };
        assert_eq!((family, rules), (Family::Arp, vec![other]));
        let rules = ipv4("k6t-eth0", "tap0", IPV4.guest);
        let by_tap = Rule { chain: Chain::Guest, matches: vec![input("tap0")], action: Action::Drop };
        let to = |address: Ipv4Addr| Match::DestinationIsNot(address.into());
        let matches = vec![Match::Output("k6t-eth0".to_owned()), to(IPV4.guest), to(Ipv4Addr::BROADCAST)];
        assert_eq!(rules, [by_tap, Rule { chain: Chain::ToGuest, matches, action: Action::Drop }]);
    }

    #[test]
    fn a_guest_reaches_its_router_and_gateway_and_nobody_else_on_its_link() {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0);
        let rules = ipv6("k6t-eth0", IPV6, router);
        let (link, prefix) = LINK_LOCAL;
        let only = [(link, prefix, router), (IPV6.gateway, IPV6.prefix, IPV6.gateway)];
        let expected = only.map(|(within, prefix, address)| Rule {
            chain: Chain::Guest,
            matches: vec![
                Match::Input("k6t-eth0".to_owned()),
                Match::DestinationIn(within.into(), prefix),
                Match::DestinationIsNot(address.into()),
            ],
            action: Action::Drop,
        });
        assert_eq!(rules[..2], expected);
        let matches = vec![
            Match::Output("k6t-eth0".to_owned()),
            Match::DestinationIn(IPV6.gateway.into(), IPV6.prefix),
            Match::DestinationIsNot(IPV6.guest.into()),
        ];
        assert_eq!(rules[2..], [Rule { chain: Chain::ToGuest, matches, action: Action::Drop }]);
    }
}
