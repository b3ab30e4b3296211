//! Router advertisements (RFC 4861, options RFC 8106). Pure: a guest in, a message out.
//!
//! The advertisement makes the bridge the guest's default router and tells the guest to use DHCPv6 for its
//! address (managed flag) and other settings (other flag). The prefix is on the link but not for
//! autoconfiguration: the guest has exactly one address.

use super::guest::Guest;
use super::{Mac, SERVER_MAC, domain};

/// Interval of unsolicited advertisements, in seconds.
pub const INTERVAL: u64 = 600;

/// Lifetime of an advertisement, in seconds: the longest that RFC 4861 allows, so that a slow launcher does
/// not harm the guest.
const LIFETIME: u16 = 9000;

const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;

/// Whether the ICMPv6 message is a router solicitation.
pub fn is_solicitation(message: &[u8]) -> bool {
    // Type, code 0, checksum (checked by the kernel), four reserved bytes.
    message.len() >= 8 && message[..2] == [SOLICITATION, 0]
}

/// The advertisement for a guest, whose checksum the kernel fills in; `None` if the guest has no IPv6.
pub fn advertisement(guest: &Guest) -> Option<Vec<u8>> {
    let ipv6 = guest.ipv6?;
    let mut message = vec![ADVERTISEMENT, 0, 0, 0];
    message.push(64); // hop limit for the guest's packets
    message.push(0b1100_0000); // managed, other
    message.extend(LIFETIME.to_be_bytes());
    message.extend([0; 8]); // reachable and retransmission times: the guest's own

    let Mac(mac) = SERVER_MAC;
    push(&mut message, 1, &mac); // source link-layer address
    let mut mtu = vec![0, 0];
    mtu.extend(u32::from(guest.mtu).to_be_bytes());
    push(&mut message, 5, &mtu);

    let mut prefix = vec![ipv6.prefix, 0b1000_0000]; // on link, not autonomous
    prefix.extend([0xff; 8]); // valid and preferred forever
    prefix.extend([0; 4]);
    let mask = u128::MAX.checked_shl(128 - u32::from(ipv6.prefix)).unwrap_or(0);
    prefix.extend((ipv6.address.to_bits() & mask).to_be_bytes());
    push(&mut message, 3, &prefix);

    let servers: Vec<u8> = guest.dns6().take(8).flat_map(|server| server.octets()).collect();
    if !servers.is_empty() {
        push(&mut message, 25, &with_lifetime(&servers));
    }
    let search = domain::list(&guest.search, 512);
    if !search.is_empty() {
        push(&mut message, 31, &with_lifetime(&search));
    }
    Some(message)
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
    use super::super::guest::tests::guest;
    use super::*;

    #[test]
    fn golden_advertisement() {
        let message = advertisement(&guest()).unwrap();
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
    fn a_guest_without_ipv6_or_resolvers_is_told_less() {
        let mut guest = guest();
        guest.dns.clear();
        guest.search.clear();
        assert_eq!(advertisement(&guest).unwrap().len(), 16 + 8 + 8 + 32);
        guest.ipv6 = None;
        assert_eq!(advertisement(&guest), None);
    }

    #[test]
    fn solicitations_are_told_from_other_messages() {
        assert!(is_solicitation(&[133, 0, 1, 2, 0, 0, 0, 0]));
        assert!(is_solicitation(&[133, 0, 1, 2, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7]));
        for other in [&[134, 0, 1, 2, 0, 0, 0, 0][..], &[133, 1, 0, 0, 0, 0, 0, 0], &[133, 0, 0, 0], &[]] {
            assert!(!is_solicitation(other));
        }
    }
}
