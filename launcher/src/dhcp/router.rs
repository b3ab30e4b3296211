//! Router advertisements (RFC 4861, options RFC 8106 and RFC 4191). Pure: a guest in, messages out.
//!
//! An advertisement makes its sender the guest's default router, if it is one, and tells the guest to use
//! DHCPv6 for its address (managed flag) and other settings (other flag). Prefixes are on the link but not for
//! autoconfiguration: the guest has exactly one address.

use std::net::Ipv6Addr;

use super::domain;
use super::guest::{Guest, Mac};
use super::ipv6::{Prefix, Router};

/// All nodes on the link, to which advertisements are sent.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Interval of unsolicited advertisements, in seconds.
pub const INTERVAL: u64 = 600;

/// Lifetime of an advertisement, in seconds: the longest that RFC 4861 allows, so that a slow launcher does
/// not harm the guest.
const LIFETIME: u16 = 9000;

/// Most prefixes, and most routes, in one message: it must fit into the smallest MTU.
const MOST: usize = 8;

const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;

/// Whether the ICMPv6 message is a router solicitation.
pub fn is_solicitation(message: &[u8]) -> bool {
    // Type, code 0, checksum (checked by the kernel), four reserved bytes.
    message.len() >= 8 && message[..2] == [SOLICITATION, 0]
}

/// An advertisement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// The address from which it is sent; the kernel chooses one if it is unknown.
    pub from: Option<Ipv6Addr>,
    /// The ICMPv6 message without its checksum.
    pub message: Vec<u8>,
}

/// The advertisements for a guest, at least one for each of its routers; none if the guest has no IPv6.
pub fn advertisements(guest: &Guest) -> Vec<Advertisement> {
    let Some(ipv6) = &guest.ipv6 else { return Vec::new() };
    let all = ipv6.routers.iter().flat_map(|router| {
        let messages = ipv6.on_link.len().max(router.routes.len()).div_ceil(MOST).max(1);
        (0..messages).map(|number| {
            let on_link = ipv6.on_link.chunks(MOST).nth(number).unwrap_or_default();
            let routes = router.routes.chunks(MOST).nth(number).unwrap_or_default();
            let message = message(guest, router, on_link, routes);
            Advertisement { from: router.address, message }
        })
    });
    all.collect()
}

fn message(guest: &Guest, router: &Router, on_link: &[Prefix], routes: &[Prefix]) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0];
    message.push(64); // hop limit for the guest's packets
    message.push(0b1100_0000); // managed, other
    message.extend(if router.is_default { LIFETIME } else { 0 }.to_be_bytes());
    message.extend([0; 8]); // reachable and retransmission times: the guest's own

    if let Some(Mac(mac)) = router.mac {
        push(&mut message, 1, &mac); // source link-layer address
    }
    let mut mtu = vec![0, 0];
    mtu.extend(u32::from(guest.mtu).to_be_bytes());
    push(&mut message, 5, &mtu);

    for prefix in on_link {
        let mut value = vec![prefix.length, 0b1000_0000]; // on link, not autonomous
        value.extend([0xff; 8]); // valid and preferred forever
        value.extend([0; 4]);
        value.extend(prefix.address.octets());
        push(&mut message, 3, &value);
    }
    for route in routes {
        let mut value = vec![route.length, 0]; // medium preference
        value.extend(u32::from(LIFETIME).to_be_bytes());
        value.extend(route.address.octets());
        push(&mut message, 24, &value);
    }

    let servers: Vec<u8> = guest.dns6().take(8).flat_map(|server| server.octets()).collect();
    if !servers.is_empty() {
        push(&mut message, 25, &with_lifetime(&servers));
    }
    let search = domain::list(&guest.search, 512);
    if !search.is_empty() {
        push(&mut message, 31, &with_lifetime(&search));
    }
    message
}

fn with_lifetime(value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    bytes.extend(u32::from(LIFETIME).to_be_bytes());
    bytes.extend(value);
    bytes
}

/// Writes an option: type, length in units of eight bytes, value, zeroes up to the next unit.
fn push(message: &mut Vec<u8>, option: u8, value: &[u8]) {
    let length = (value.len() + 2).next_multiple_of(8);
    // Every value above is bounded far below 255 units.
    message.extend([option, u8::try_from(length / 8).unwrap_or(u8::MAX)]);
    message.extend(value);
    message.resize(message.len() + length - value.len() - 2, 0);
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::v1;

    use super::super::guest::tests::guest;
    use super::super::ipv6::tests::on_network;
    use super::*;

    #[test]
    fn golden_advertisement() {
        let all = advertisements(&guest());
        let [Advertisement { from, message }] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(*from, Some("fe80::ff:fe00:0".parse().unwrap()));
        let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "86000000 40c02328 00000000 00000000
            0101 020000000000
            0501 0000 000005aa
            0304 7880 ffffffff ffffffff 00000000 fd100000000200000000000000000000
            1903 0000 00002328 fd10009600000000000000000000000a
            1f07 0000 00002328 0473686f7003737663 07636c7573746572 056c6f63616c00 03737663 07636c7573746572 056c6f63616c00
                0000000000";
        assert_eq!(hex, expected.split_whitespace().collect::<String>());
    }

    #[test]
    fn a_guest_without_ipv6_gets_no_advertisement_and_one_without_resolvers_a_shorter_one() {
        let mut guest = guest();
        guest.dns.clear();
        guest.search.clear();
        assert_eq!(advertisements(&guest)[0].message.len(), 16 + 8 + 8 + 32);
        guest.ipv6 = None;
        assert_eq!(advertisements(&guest), []);
    }

    #[test]
    fn golden_advertisements_in_the_names_of_a_networks_routers() {
        let mut guest = Guest::new(&on_network(), None, None).unwrap();
        guest.dns.clear();
        guest.search.clear();
        let all = advertisements(&guest);
        let hex = |one: &Advertisement| -> String {
            let bytes = one.message.iter().map(|byte| format!("{byte:02x}"));
            format!("{} {}", one.from.unwrap(), bytes.collect::<String>())
        };
        let same = "0501 0000 000005aa
            0304 4080 ffffffff ffffffff 00000000 fd000010024400010000000000000000";
        let expected = [
            ("fe80::1", format!("86000000 40c02328 00000000 00000000 {same}")),
            (
                "fe80::2",
                format!(
                    "86000000 40c00000 00000000 00000000 {same}
                    1803 4000 00002328 fd000097000000000000000000000000"
                ),
            ),
        ];
        let expected = expected
            .map(|(from, message)| format!("{from} {}", message.split_whitespace().collect::<String>()));
        assert_eq!(all.iter().map(hex).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn many_prefixes_and_routes_go_into_several_messages_that_fit_the_smallest_mtu() {
        let mut interface = on_network();
        let route = |number: usize, gateway: &str| v1::Route {
            destination: format!("fd00:{number:x}::"),
            prefix: 64,
            gateway: gateway.to_owned(),
        };
        interface.ipv6_routes =
            (0..20).flat_map(|number| [route(number, ""), route(0x100 + number, "fe80::2")]).collect();
        interface.dns_servers = vec!["fd10:96::a".to_owned(); 9];
        interface.dns_search = (0..40).map(|number| format!("{number}.svc.cluster.local")).collect();
        let all = advertisements(&Guest::new(&interface, None, None).unwrap());
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|one| one.message.len() <= 1280 - 40), "{all:?}");
        let options = |of: &str, option: u8| -> usize {
            let from: Ipv6Addr = of.parse().unwrap();
            let messages = all.iter().filter(|one| one.from == Some(from));
            messages.map(|one| count(&one.message[16..], option)).sum()
        };
        assert_eq!((options("fe80::1", 3), options("fe80::2", 3), options("fe80::2", 24)), (20, 20, 20));
    }

    fn count(mut options: &[u8], wanted: u8) -> usize {
        let mut found = 0;
        while let [option, length, ..] = *options {
            found += usize::from(option == wanted);
            options = &options[8 * usize::from(length)..];
        }
        found
    }

    #[test]
    fn solicitations_are_distinguished_from_other_messages() {
        assert!(is_solicitation(&[133, 0, 1, 2, 0, 0, 0, 0]));
        assert!(is_solicitation(&[133, 0, 1, 2, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7]));
        for other in [&[134, 0, 1, 2, 0, 0, 0, 0][..], &[133, 1, 0, 0, 0, 0, 0, 0], &[133, 0, 0, 0], &[]] {
            assert!(!is_solicitation(other));
        }
    }
}
