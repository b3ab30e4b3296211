//! Messages between guest and launcher in Ethernet frames, where other hosts are on the guest's network. Pure.
//!
//! A frame of the guest contains IPv6 without extension headers. Checksums of the guest's messages are not
//! verified, since a virtual card may leave them out; they never leave the node.

use std::net::Ipv6Addr;

use super::guest::Mac;
use super::router::ALL_NODES;
use super::{SERVER_LINK_LOCAL, SERVER_MAC, router, v6};

/// Largest frame that is read, in bytes.
pub const LARGEST: usize = 2048;

const ETHERNET: usize = 14;
const IPV6: usize = 40;
const UDP: usize = 8;
const ETHERTYPE: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_UDP: u8 = 17;
pub(super) const PROTOCOL_ICMP6: u8 = 58;
const SERVER_PORT: u16 = 547;
/// Hop limit that neighbour discovery requires: it proves that no router forwarded the message.
pub(super) const NEIGHBOUR_DISCOVERY_HOPS: u8 = 255;
/// Hop limit of messages to a neighbour.
const HOPS: u8 = 64;
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// A message of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// It looks for a router.
    Solicitation,
    /// It sends a message to a DHCPv6 server.
    Dhcp {
        /// Its link-local address.
        from: Ipv6Addr,
        /// The message.
        bytes: &'a [u8],
    },
}

/// A packet of IPv6.
pub(super) struct Packet<'a> {
    pub(super) protocol: u8,
    pub(super) hops: u8,
    pub(super) from: Ipv6Addr,
    pub(super) payload: &'a [u8],
}

/// The packet in a frame; `None` if the frame is another one, or not from the MAC address of the guest.
pub(super) fn packet_of(frame: &[u8], guest: Mac) -> Option<Packet<'_>> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET)?;
    let (header, rest) = packet.split_at_checked(IPV6)?;
    if ethernet[6..12] != guest.0 || ethernet[12..14] != ETHERTYPE || header[0] >> 4 != 6 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let payload = rest.get(..length)?;
    let from = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?);
    Some(Packet { protocol: header[6], hops: header[7], from, payload })
}

/// The message in a frame; `None` if the frame is another one, or not from the MAC address of the guest.
pub fn read(frame: &[u8], guest: Mac) -> Option<Message<'_>> {
    let Packet { protocol, hops, from, payload } = packet_of(frame, guest)?;
    match protocol {
        PROTOCOL_ICMP6 if hops == NEIGHBOUR_DISCOVERY_HOPS && router::is_solicitation(payload) => {
            Some(Message::Solicitation)
        }
        PROTOCOL_UDP if from.is_unicast_link_local() => {
            let (udp, bytes) = payload.split_at_checked(UDP)?;
            let to = u16::from_be_bytes([udp[2], udp[3]]);
            let length = usize::from(u16::from_be_bytes([udp[4], udp[5]])).checked_sub(UDP)?;
            let bytes = bytes.get(..length)?;
            (to == SERVER_PORT).then_some(Message::Dhcp { from, bytes })
        }
        _ => None,
    }
}

/// The frame with an advertisement in the name of that router.
pub fn advertisement(router: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let (to, hops) = ((ALL_NODES_MAC, ALL_NODES), NEIGHBOUR_DISCOVERY_HOPS);
    packet(to, router, PROTOCOL_ICMP6, hops, message.to_vec(), 2)
}

/// The frame with an answer of the DHCPv6 server.
pub fn dhcp(guest: Mac, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(UDP + message.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(UDP + message.len());
    for field in [SERVER_PORT, v6::CLIENT_PORT, length, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(message);
    packet((guest, to), SERVER_LINK_LOCAL, PROTOCOL_UDP, HOPS, bytes, 6)
}

/// The frame of a packet whose payload has its checksum at that place, where it still is zero.
fn packet(
    (mac, to): (Mac, Ipv6Addr),
    from: Ipv6Addr,
    protocol: u8,
    hops: u8,
    mut payload: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let sum = checksum(from, to, protocol, &payload).to_be_bytes();
    payload[checksum_at..checksum_at + 2].copy_from_slice(&sum);
    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + payload.len());
    frame.extend(mac.0);
    frame.extend(SERVER_MAC.0);
    frame.extend(ETHERTYPE);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([protocol, hops]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    frame
}

/// The checksum of ICMPv6 and UDP (RFC 8200, section 8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> u16 {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut all = Vec::with_capacity(IPV6 + payload.len());
    all.extend(from.octets());
    all.extend(to.octets());
    all.extend(length.to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(payload);
    let words = all.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Zero would mean that there is no checksum.
    match !u16::try_from(sum).unwrap_or_default() {
        0 => u16::MAX,
        sum => sum,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::dhcp) const GUEST: Mac = Mac([2, 0x12, 0x34, 0x56, 0x78, 0x9a]);
    pub(in crate::dhcp) const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x12, 0x34ff, 0xfe56, 0x789a);

    /// A frame from the guest.
    pub(in crate::dhcp) fn from_guest(from: Ipv6Addr, protocol: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = packet((ALL_NODES_MAC, ALL_NODES), from, protocol, hops, payload.to_vec(), 2);
        frame[6..12].copy_from_slice(&GUEST.0);
        frame
    }

    fn solicitation() -> Vec<u8> {
        from_guest(CLIENT, PROTOCOL_ICMP6, 255, &[133, 0, 0, 0, 0, 0, 0, 0])
    }

    fn request() -> Vec<u8> {
        from_guest(CLIENT, PROTOCOL_UDP, 1, &[0x02, 0x22, 0x02, 0x23, 0, 11, 0, 0, 1, 2, 3])
    }

    #[test]
    fn solicitations_and_requests_of_the_guest_are_read() {
        assert_eq!(read(&solicitation(), GUEST), Some(Message::Solicitation));
        // The test's checksum went to the place of the port.
        let mut frame = request();
        frame[56..58].copy_from_slice(&SERVER_PORT.to_be_bytes());
        assert_eq!(read(&frame, GUEST), Some(Message::Dhcp { from: CLIENT, bytes: &[1, 2, 3] }));
        frame.extend([0; 6]); // Ethernet pads short frames
        assert_eq!(read(&frame, GUEST), Some(Message::Dhcp { from: CLIENT, bytes: &[1, 2, 3] }));
    }

    #[test]
    fn other_frames_are_ignored() {
        let change = |frame: Vec<u8>, at: usize, value: u8| {
            let mut frame = frame;
            frame[at] = value;
            frame
        };
        let mut request = request();
        request[56..58].copy_from_slice(&SERVER_PORT.to_be_bytes());
        let cases = [
            ("another MAC address", change(solicitation(), 11, 1)),
            ("no IPv6", change(solicitation(), 13, 0)),
            ("version 4", change(solicitation(), 14, 0x40)),
            ("forwarded", change(solicitation(), 21, 254)),
            ("an advertisement", change(solicitation(), 54, 134)),
            ("a shorter packet", change(solicitation(), 19, 9)),
            ("TCP", change(request.clone(), 20, 6)),
            ("another port", change(request.clone(), 57, 1)),
            ("not from the link", change(request.clone(), 22, 0xfd)),
            ("a longer message", change(request.clone(), 59, 12)),
            ("a message without its header", change(request, 59, 7)),
            ("nothing", Vec::new()),
        ];
        for (name, frame) in cases {
            assert_eq!(read(&frame, GUEST), None, "{name}");
        }
    }

    /// The sum over a packet with a valid checksum.
    fn sum_of(frame: &[u8]) -> u16 {
        let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
        checksum(address(22), address(38), frame[20], &frame[54..])
    }

    #[test]
    fn golden_frames() {
        let frame = advertisement("fe80::1".parse().unwrap(), &[134, 0, 0, 0, 64, 0xc0, 0, 0]);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "333300000001 020000000000 86dd
            60000000 0008 3a ff fe800000000000000000000000000001 ff020000000000000000000000000001
            8600 BBBB 40c0 0000";
        let sum = format!("{:02x}{:02x}", frame[56], frame[57]);
        assert_eq!(hex, expected.split_whitespace().collect::<String>().replace("BBBB", &sum));
        // RFC 1071: over a message with its checksum the sum is zero, which is written as all ones.
        assert_eq!(sum_of(&frame), u16::MAX);
        let frame = dhcp(GUEST, CLIENT, &[7, 1, 2]);
        assert_eq!(
            (&frame[..6], &frame[6..12], frame.len()),
            (&GUEST.0[..], &SERVER_MAC.0[..], 14 + 40 + 11)
        );
        assert_eq!(frame[54..60], [0x02, 0x23, 0x02, 0x22, 0, 11]);
        assert_eq!((sum_of(&frame), &frame[62..]), (u16::MAX, &[7, 1, 2][..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = read(&bytes, GUEST);
            let mut frame = solicitation();
            frame.truncate(ETHERNET);
            frame.extend(bytes);
            let _ = read(&frame, GUEST);
        }
    }
}
