//! Guests that try to fill the neighbour tables, whose size the kernel limits for all pods of a node together. The guest is
//! here a program that writes frames.

use barevirt_api::masquerade::Pair;

use super::addresses::BRIDGE_MAC;
use super::bridge::on_pod_network;
use super::frames::End;
use super::*;

/// A range with many addresses.
const RANGE: Pair<Ipv4Addr> =
    Pair { gateway: Ipv4Addr::new(10, 8, 0, 1), guest: Ipv4Addr::new(10, 8, 0, 2), prefix: 16 };
const MANY: u16 = 2000;
/// More neighbours than a pod has, with the multicast groups that the kernel counts among them.
const FEW: usize = 40;
pub(super) const ALL: MacAddress = MacAddress([0xff; 6]);
/// A bridge passes frames to this address to its port.
pub(super) const TO_PORT: MacAddress = MacAddress([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
/// A datagram without contents and checksum, and a ping.
const DATAGRAM: [u8; 8] = [0x27, 0x0f, 0x27, 0x0f, 0, 8, 0, 0];
const PING: [u8; 8] = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
/// Numbers of protocols.
const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMP6: u8 = 58;

/// The checksum of the internet protocols.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

fn asks_arp(from: MacAddress, to: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from.0);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

fn packet4(macs: [MacAddress; 2], protocol: u8, addresses: [Ipv4Addr; 2], payload: [u8; 8]) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0];
    header.extend(addresses.map(|address| address.octets()).concat());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    let [from, to] = macs;
    let mut frame = [to.0, from.0].concat();
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend(payload);
    frame
}

/// A packet from the guest to its router.
fn packet6(protocol: u8, addresses: [Ipv6Addr; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = [BRIDGE_MAC.0, MAC.0].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend([protocol, 255]);
    frame.extend(addresses.map(|address| address.octets()).concat());
    frame.extend(payload);
    frame
}

/// A neighbour solicitation to the address that it asks about.
fn solicits(source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([1, 1]);
    message.extend(MAC.0);
    let mut summed = [source.octets(), target.octets()].concat();
    summed.extend([0, 0, 0, 32, 0, 0, 0, ICMP6]);
    summed.extend(&message);
    let sum = checksum(&summed);
    message[2..4].copy_from_slice(&sum);
    packet6(ICMP6, [source, target], &message)
}

/// Whether the host with the second address answers this request. The first one may be sent before the links are ready.
pub(super) fn answers_arp(end: &mut End, mac: MacAddress, [own, other]: [Ipv4Addr; 2]) -> bool {
    let is_answer =
        |frame: &[u8]| frame[12..14] == [8, 6] && frame[21] == 2 && frame[28..32] == other.octets();
    (0..3).any(|_| {
        end.send(&asks_arp(mac, ALL, own, other));
        end.receives_one(is_answer)
    })
}

fn answers_solicitation(end: &mut End, source: Ipv6Addr, target: Ipv6Addr) -> bool {
    let is_answer = |frame: &[u8]| {
        let is = frame[12..14] == [0x86, 0xdd] && frame[20] == ICMP6 && frame[54] == 136;
        is && frame[38..54] == source.octets() && frame[62..78] == target.octets()
    };
    (0..3).any(|_| {
        end.send(&solicits(source, target));
        end.receives_one(is_answer)
    })
}

/// Checks that a pod has few neighbours.
fn has_few_neighbours(pod: &OwnedFd) {
    let listed = run_in(pod, "ip", "neigh show nud all");
    assert!(listed.lines().count() < FEW, "{listed}");
}

/// A pod that accepts packets whose sender it would look for elsewhere, like one of a node that does not check this.
fn node_and_trusting_pod(ipv6: bool) -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = node_and_pod(ipv6)?;
    inside(&pod, || {
        for link in ["all", "default", "eth0"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter"), "0").unwrap();
        }
    });
    Some((node, pod))
}

#[test]
fn a_guest_behind_masquerade_cannot_fill_the_neighbour_tables() {
    let Some((_node, pod)) = node_and_trusting_pod(true) else { return };
    let ports = Vec::new();
    let binding = Binding::Masquerade(Masquerade { ipv4: RANGE, ipv6: IPV6, ports, has_sidecar: false });
    let card = Wanted { binding, ..wanted(Vec::new()) };
    let (_, _, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    let mut guest = End::new(take(&mut opened, "net/default/tap"));
    let (own, router) = (MAC.link_local(), BRIDGE_MAC.link_local());
    let is_served = |guest: &mut End| {
        assert!(answers_arp(guest, MAC, [RANGE.guest, RANGE.gateway]));
        for (source, target) in [(own, router), (own, IPV6.gateway), (IPV6.guest, IPV6.gateway)] {
            assert!(answers_solicitation(guest, source, target), "{source} {target}");
        }
    };
    is_served(&mut guest);

    for number in 1000..1000 + MANY {
        let [high, low] = number.to_be_bytes();
        let other4 = Ipv4Addr::new(10, 8, high, low);
        let other6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, number);
        let in_range = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, low.max(3).into());
        for to in [ALL, BRIDGE_MAC, TO_PORT] {
            guest.send(&asks_arp(MAC, to, other4, RANGE.gateway));
        }
        guest.send(&packet4([MAC, BRIDGE_MAC], UDP, [RANGE.guest, other4], DATAGRAM));
        guest.send(&packet4([MAC, TO_PORT], ICMP, [other4, RANGE.gateway], PING));
        guest.send(&solicits(other6, router));
        for to in [other6, in_range] {
            guest.send(&packet6(UDP, [IPV6.guest, to], &DATAGRAM));
        }
    }
    has_few_neighbours(&pod);
    is_served(&mut guest);
}

#[test]
fn no_host_outside_has_the_pod_of_a_guest_behind_masquerade_look_for_many_of_its_range() {
    let Some((node, pod)) = node_and_trusting_pod(true) else { return };
    // Without a list of ports all of it would go to the guest.
    let card = wanted(vec![Port { protocol: Protocol::Tcp, number: 22 }]);
    let (_, _, opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    run_in(&node, "ip", "route add 10.0.2.0/24 via 10.244.9.7");
    run_in(&node, "ip", "-6 route add fd10:0:2::/120 via fd00:10:244:9::7");
    let send = |from: IpAddr, to: IpAddr| {
        UdpSocket::bind((from, 0)).unwrap().send_to(b"to nobody", (to, 9999)).unwrap();
    };
    let of_range = |last: u8| {
        let six = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, last.into());
        [IpAddr::from(Ipv4Addr::new(10, 0, 2, last)), six.into()]
    };
    inside(&node, move || {
        for last in 3..=254 {
            let [four, six] = of_range(last);
            send(Ipv4Addr::UNSPECIFIED.into(), four);
            send(Ipv6Addr::UNSPECIFIED.into(), six);
        }
    });
    has_few_neighbours(&pod);

    // The node sends from every address of the range, and its pod says that nobody listens.
    run_in(&node, "ip", "route add local 10.0.2.0/24 dev lo");
    inside(&node, move || {
        std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
        for last in 3..=254 {
            let [four, six] = of_range(last);
            send(four, POD4.into());
            send(six, POD6.into());
            // The kernel sends a thousand such answers in a second.
            thread::sleep(Duration::from_millis(3));
        }
    });
    has_few_neighbours(&pod);
    drop(opened);
}

#[test]
fn a_guest_with_a_bridge_cannot_fill_the_neighbour_tables_of_its_pod() {
    let Some((_node, pod)) = node_and_trusting_pod(false) else { return };
    let (_, prepared, mut opened) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    let mut guest = End::new(take(&mut opened, "net/default/tap"));
    let (mac, server) = (prepared.mac, prepared.ipv4.unwrap().server);
    assert!(answers_arp(&mut guest, mac, [POD4, NODE4]));
    let bridge = mac.other();
    for last in 10..250 {
        let other = Ipv4Addr::new(10, 244, 9, last);
        for to in [ALL, bridge, TO_PORT] {
            guest.send(&asks_arp(mac, to, other, server));
        }
        for to in [server, POD4] {
            guest.send(&packet4([mac, bridge], ICMP, [other, to], PING));
        }
    }
    has_few_neighbours(&pod);
    assert!(answers_arp(&mut guest, mac, [POD4, NODE4]));
}
