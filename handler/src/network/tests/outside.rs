//! Hosts that have a route over a pod to the own addresses of the guest behind masquerade: on the pod's network, and on another
//! network with the pod. The handler has made nothing of the pod's link there: the card has left, or is yet to come.
//!
//! ```text
//! node: peer (10.244.9.1)  ==veth== pod: eth0 (10.244.9.7), k6t-eth0 -- tap0 == guest (10.0.2.2)
//!       red (192.168.7.1)  ==veth== pod: podb1f51a511f1 (192.168.7.2)
//! ```

use std::io::ErrorKind;

use barevirt_api::masquerade::Pair;

use super::bridge::{RED_GUEST, RED_NODE, attach_red};
use super::*;

/// Addresses of the node and of the pod on the second network.
const RED_NODE6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 1);
const RED_POD6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 2);
/// A port of the pod, and one at which nobody listens.
const OF_POD: u16 = 7070;
const CLOSED: u16 = 9;

/// Whether the sender of a datagram hears that nobody listens at that port.
fn is_refused(netns: &OwnedFd, any: IpAddr, address: IpAddr) -> bool {
    inside(netns, move || {
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        socket.connect((address, CLOSED)).unwrap();
        socket.send(b"to nobody").unwrap();
        socket.recv(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}

#[test]
fn no_host_outside_reaches_a_guest_behind_masquerade_by_its_own_address() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    attach_red(&node, &pod, vec![(RED_GUEST.into(), 24), (RED_POD6.into(), 64)]);
    with_netlink(&node, |netlink| async move {
        configure(&netlink, "red", &[(RED_NODE6.into(), 64)], &[]).await;
    });
    let (_, _, mut opened) = prepare_blocking(&pod, &wanted(Vec::new()), &BTreeSet::new());
    let guest = guest(take(&mut opened, "net/default/tap"), MAC);
    is_joined(&node, &pod, &guest);
    serve(&pod, (Ipv6Addr::UNSPECIFIED, OF_POD).into());
    for routes in [
        ["route replace 10.0.2.0/24 via 10.244.9.7", "-6 route replace fd10:0:2::/120 via fd00:10:244:9::7"],
        ["route replace 10.0.2.0/24 via 192.168.7.2", "-6 route replace fd10:0:2::/120 via fd07::2"],
    ] {
        routes.into_iter().for_each(|arguments| drop(run_in(&node, "ip", arguments)));
        nobody_answers(
            &node,
            &[
                (IPV4.guest.into(), 8080),
                (IPV6.guest.into(), 8080),
                (IPV4.gateway.into(), OF_POD),
                (IPV6.gateway.into(), OF_POD),
            ],
        );
    }
    // What belongs to the guest's connections comes back by every link, and so do errors.
    assert!(ask(&node, (POD4, 8080)).is_some() && ask(&node, (POD6, 8080)).is_some());
    assert_eq!(ask(&guest, (RED_NODE, 9090)), Some(format!("::ffff:{RED_GUEST}")));
    assert_eq!(ask(&guest, (RED_NODE6, 9090)), Some(RED_POD6.to_string()));
    assert!(is_refused(&guest, Ipv4Addr::UNSPECIFIED.into(), NODE4.into()));
    assert!(is_refused(&guest, Ipv6Addr::UNSPECIFIED.into(), NODE6.into()));
    // The pod reaches its own addresses of the range, and the guest its gateway.
    assert!(ask(&pod, (IPV4.gateway, OF_POD)).is_some() && ask(&pod, (IPV6.gateway, OF_POD)).is_some());
    assert!(ask(&guest, (IPV4.gateway, OF_POD)).is_some() && ask(&guest, (IPV6.gateway, OF_POD)).is_some());
}

#[test]
fn a_pod_whose_own_address_is_in_the_range_of_its_guest_keeps_it() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let address = |last| Ipv6Addr::new(0xfd00, 0x10, 0x244, 9, 0, 0, 0, last);
    let ipv6 = Pair { gateway: address(5), guest: address(6), prefix: 126 };
    let binding = Masquerade { ipv4: IPV4, ipv6, ports: Vec::new(), has_sidecar: false };
    let card = Wanted { binding: Binding::Masquerade(binding), ..wanted(Vec::new()) };
    let (_, _, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
    let tap = take(&mut opened, "net/default/tap");
    let guest = station(tap, MAC, vec![(ipv6.guest.into(), 126)], vec![ipv6.gateway.into()]);
    serve(&guest, (Ipv6Addr::UNSPECIFIED, 8080).into());
    serve(&node, (Ipv6Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(&node, (POD6, 8080)), Some(NODE6.to_string()));
    assert_eq!(ask(&guest, (NODE6, 9090)), Some(POD6.to_string()));
    assert_eq!(prepare_blocking(&pod, &card, &held).0, 0);
    run_in(&node, "ip", "-6 route add fd00:10:244:9::6/128 via fd00:10:244:9::7");
    nobody_answers(&node, &[(ipv6.guest.into(), 8080)]);
}
