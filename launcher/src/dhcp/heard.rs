//! Addresses that the guest has on a network where neither the pod nor the launcher gives it one: heard in what the guest
//! tells its neighbours by ARP and neighbour discovery. The handler opened a packet socket on the guest's tap for that.
//!
//! The guest may tell anything. So what was heard is shown, and nothing is decided by it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use barevirt_protocol::pace::Bucket;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

use super::errors::{ERROR_PAUSE, note};
use super::frame::{self, PROTOCOL_ICMP6, Packet};
use super::guest::Mac;

/// Most addresses that are kept; of more, the latest ones.
const MOST: usize = 4;
/// Addresses that may be heard first at once, and the time until the next one may. Each one changes the status.
const AT_ONCE: u32 = 8;
const EVERY: Duration = Duration::from_secs(5);

const ETHERTYPE_ARP: [u8; 2] = [8, 6];
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_FOR_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// The address that the guest says it has in this frame.
#[must_use]
pub fn address(frame: &[u8], guest: Mac) -> Option<IpAddr> {
    by_arp(frame, guest).map(IpAddr::V4).or_else(|| by_discovery(frame, guest).map(IpAddr::V6))
}

fn by_arp(frame: &[u8], guest: Mac) -> Option<Ipv4Addr> {
    let (ethernet, message) = frame.split_at_checked(14)?;
    let message = message.get(..28)?;
    if ethernet[6..12] != guest.0 || ethernet[12..14] != ETHERTYPE_ARP || message[..6] != ARP_FOR_IPV4 {
        return None;
    }
    let sender = <[u8; 4]>::try_from(&message[14..18]).ok().filter(|_| message[8..14] == guest.0)?;
    let address = Ipv4Addr::from(sender);
    // A guest that only asks whether somebody has an address has none yet.
    let is_one = !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast();
    (is_one && !address.is_loopback()).then_some(address)
}

fn by_discovery(frame: &[u8], guest: Mac) -> Option<Ipv6Addr> {
    let Packet { protocol, hops, from, payload } = frame::packet_of(frame, guest)?;
    if protocol != PROTOCOL_ICMP6 || hops != frame::NEIGHBOUR_DISCOVERY_HOPS {
        return None;
    }
    let address = match payload.first_chunk::<24>()? {
        [NEIGHBOUR_SOLICITATION, 0, ..] => from,
        [NEIGHBOUR_ADVERTISEMENT, 0, _, _, _, _, _, _, target @ ..] => Ipv6Addr::from(*target),
        _ => return None,
    };
    let is_one = !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
    // Every guest has a link-local one, which says little.
    (is_one && !address.is_unicast_link_local()).then_some(address)
}

/// What was heard, the latest first.
#[derive(Debug)]
struct Heard {
    addresses: Vec<IpAddr>,
    pace: Bucket,
}

impl Heard {
    fn new() -> Self {
        Self { addresses: Vec::new(), pace: Bucket::new(AT_ONCE, EVERY) }
    }

    /// Records an address. Returns whether it is another one.
    fn add(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.addresses.contains(&address) || !self.pace.take(now) {
            return false;
        }
        self.addresses.insert(0, address);
        self.addresses.truncate(MOST);
        true
    }
}

/// Listens, and tells all addresses whenever there is another one.
pub(super) async fn listen(guest: Mac, socket: &UdpSocket, tell: &impl Fn(Vec<IpAddr>)) {
    let mut heard = Heard::new();
    let mut buffer = [0; frame::LARGEST];
    loop {
        let received = socket.recv(&mut buffer).await;
        let Ok(length) = received.inspect_err(|error| note("tap", error)) else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        if let Some(address) = address(&buffer[..length], guest)
            && heard.add(address, Instant::now())
        {
            tell(heard.addresses.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::tests::{CLIENT, GUEST, from_guest};
    use super::*;

    /// A message of ARP from the guest.
    fn arp(sender: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend(GUEST.0);
        frame.extend(ETHERTYPE_ARP);
        frame.extend(ARP_FOR_IPV4);
        frame.extend([0, 1]);
        frame.extend(GUEST.0);
        frame.extend(sender);
        frame.extend([0; 6]);
        frame.extend([10, 9, 0, 1]);
        frame
    }

    /// A message of neighbour discovery from the guest.
    fn discovery(kind: u8, from: &str, target: &str) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.parse::<Ipv6Addr>().unwrap().octets());
        from_guest(from.parse().unwrap(), PROTOCOL_ICMP6, 255, &message)
    }

    fn said(frame: &[u8]) -> Option<String> {
        address(frame, GUEST).map(|address| address.to_string())
    }

    #[test]
    fn the_guests_own_address_is_heard() {
        assert_eq!(said(&arp([10, 9, 0, 7])).as_deref(), Some("10.9.0.7"));
        assert_eq!(said(&discovery(135, "fd00::7", "fd00::1")).as_deref(), Some("fd00::7"));
        assert_eq!(said(&discovery(136, &CLIENT.to_string(), "fd00::7")).as_deref(), Some("fd00::7"));
    }

    #[test]
    fn what_says_nothing_about_the_guests_address_is_ignored() {
        let with = |mut frame: Vec<u8>, at: usize, value: u8| {
            frame[at] = value;
            frame
        };
        let advertisement = || discovery(136, "fd00::7", "fd00::7");
        let cases = [
            ("a probe", arp([0; 4])),
            ("a group", arp([224, 0, 0, 1])),
            ("everybody", arp([255; 4])),
            ("the loopback", arp([127, 0, 0, 1])),
            ("from another host", with(arp([10, 9, 0, 7]), 11, 1)),
            ("about another host", with(arp([10, 9, 0, 7]), 27, 1)),
            ("not IPv4", with(arp([10, 9, 0, 7]), 17, 6)),
            ("another protocol", with(arp([10, 9, 0, 7]), 13, 0)),
            ("a short message", arp([10, 9, 0, 7])[..41].to_vec()),
            ("detection of duplicates", discovery(135, "::", "fd00::7")),
            ("of the link", discovery(135, "fe80::7", "fd00::1")),
            ("a group of IPv6", discovery(136, "fd00::7", "ff02::1")),
            ("forwarded", with(advertisement(), 21, 254)),
            ("a router's advertisement", with(advertisement(), 54, 134)),
            ("nothing", Vec::new()),
        ];
        for (name, frame) in cases {
            assert_eq!(said(&frame), None, "{name}");
        }
    }

    #[test]
    fn the_examples_of_the_fuzz_target_are_heard() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/dhcp6");
        let cases = [
            ("frame-arp-reply", Some("10.9.0.7")),
            ("frame-arp-announcement", Some("10.9.0.7")),
            ("frame-arp-probe", None),
            ("frame-neighbour-advertisement", Some("fd00::7")),
            ("frame-neighbour-solicitation", Some("fd00::7")),
            ("frame-router-solicitation-options", None),
        ];
        for (name, expected) in cases {
            let frame = std::fs::read(format!("{folder}/{name}")).unwrap();
            // The target's guest has a MAC address of zeroes.
            let heard = address(&frame, Mac([0; 6])).map(|address| address.to_string());
            assert_eq!(heard.as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn the_latest_addresses_are_kept_and_a_flood_of_them_is_not() {
        let (mut heard, begun) = (Heard::new(), Instant::now());
        let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a09_0000 + number));
        assert!(heard.add(address(1), begun) && !heard.add(address(1), begun));
        let taken = (2..1000).filter(|number| heard.add(address(*number), begun)).count();
        assert_eq!((taken, heard.addresses.len()), (7, MOST));
        assert_eq!(heard.addresses[0], address(8));
        assert!(heard.add(address(9), begun + EVERY));
        assert_eq!(heard.addresses, [9, 8, 7, 6].map(address));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = address(&bytes, GUEST);
            for mut frame in [arp([10, 9, 0, 7]), discovery(136, "fd00::7", "fd00::7")] {
                frame.truncate(14);
                frame.extend(&bytes);
                let _ = address(&frame, GUEST);
            }
        }
    }
}
