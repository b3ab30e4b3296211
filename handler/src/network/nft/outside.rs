//! The rule that keeps everybody outside from sending to a guest behind masquerade by the guest's own address, as data.
//!
//! The pod forwards packets between its links. So whoever is on a network with the pod, a host with a route over it or another
//! guest with a bridge, could send packets to the guest's own address: to ports that the interface does not list, and past
//! policies that know a pod by its address.
//!
//! ```text
//! ip table and ip6 table kubevirt
//!   guest   in neither k6t-eth0 nor lo, to the guest's range [, but not to the pod's own address]   -> drop
//! ```
//!
//! The chain comes before connection tracking, so every packet still has the addresses that it had on the network. There,
//! whatever belongs to a connection that is translated is addressed to the pod: also an answer, and an ICMP error. What the
//! pod itself sends to the guest comes in by no link, and what it sends to its own address of the range comes in by lo.
//!
//! A user chooses the range, and the installation the addresses of pods: a pod's own address can be in it. The pod keeps it.

use std::net::IpAddr;

use super::rules::{Action, Chain, Match, Rule};

/// The link by which the pod reaches itself.
const LOOPBACK: &str = "lo";

/// The rule for a range that has this address and a prefix of this length. The guest is on the link `bridge`; `own` are the
/// pod's addresses in the range.
pub fn closed(bridge: &str, (address, prefix): (IpAddr, u8), own: impl IntoIterator<Item = IpAddr>) -> Rule {
    let links = [bridge, LOOPBACK].map(|link| Match::InputIsNot(link.to_owned()));
    let own = own.into_iter().map(Match::DestinationIsNot);
    let matches = links.into_iter().chain([Match::DestinationIn(address, prefix)]).chain(own).collect();
    Rule { chain: Chain::Guest, matches, action: Action::Drop }
}
