//! Guests that claim to be routers: what a guest advertises changes no address and no route of its pod, and with
//! masquerade none of its node.
//!
//! The pods here accept advertisements from any link, even while they forward (`accept_ra` is 2): a network plugin may
//! have set that.

use std::net::SocketAddrV6;
use std::time::Instant;

use futures::TryStreamExt;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::route::RouteAttribute;

use super::bridge::{RED_GUEST, on_pod_network, speaks_on_red};
use super::plan::Service;
use super::tap::{attach_macvtap, attach_tap, on_tap};
use super::*;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0);

/// A node and a pod whose new links accept advertisements.
fn node_and_trusting_pod() -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = (namespace()?, namespace()?);
    accept(&pod, "default");
    connect(&node, &pod, true);
    Some((node, pod))
}

/// Lets a link accept advertisements, whether or not its namespace forwards.
fn accept(netns: &OwnedFd, link: &'static str) {
    inside(netns, move || std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/accept_ra"), "2").unwrap());
}

/// Sends an advertisement from the guest: it is the default router, and hosts give themselves addresses.
fn advertise(guest: &OwnedFd) {
    let mut message = vec![134, 0, 0, 0, 64, 0];
    message.extend(1800_u16.to_be_bytes()); // lifetime as the default router
    message.extend([0; 8]);
    message.extend([3, 4, 64, 0b1100_0000]); // a prefix: on the link, for autoconfiguration
    message.extend([3600_u32.to_be_bytes(), 3600_u32.to_be_bytes(), [0; 4]].concat());
    message.extend(PREFIX.octets());
    let nic = with_netlink(guest, |netlink| async move { index(&netlink, "nic").await });
    inside(guest, move || {
        // The socket from which a launcher advertises.
        let socket = services::open(Service::RouterAdvertisement, "nic", nic).unwrap();
        UdpSocket::from(socket).send_to(&message, SocketAddrV6::new(ALL_NODES, 0, 0, nic)).unwrap();
    });
}

/// The IPv6 addresses and routes of a namespace.
fn addresses_and_routes(netns: &OwnedFd) -> BTreeSet<String> {
    with_netlink(netns, |netlink| async move {
        let addresses: Vec<_> = netlink.address().get().execute().try_collect().await.unwrap();
        let addresses = addresses.into_iter().map(|message| {
            let is = |one: &AddressAttribute| matches!(one, AddressAttribute::Address(_));
            format!(
                "{} {:?}",
                message.header.index,
                message.attributes.into_iter().filter(is).collect::<Vec<_>>()
            )
        });
        let all = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let routes: Vec<_> = netlink.route().get(all).execute().try_collect().await.unwrap();
        let routes = routes.into_iter().map(|message| {
            let is = |one: &RouteAttribute| {
                matches!(
                    one,
                    RouteAttribute::Destination(_) | RouteAttribute::Gateway(_) | RouteAttribute::Oif(_)
                )
            };
            let attributes: Vec<_> = message.attributes.into_iter().filter(is).collect();
            format!("{} {:?} {attributes:?}", message.header.destination_prefix_length, message.header.kind)
        });
        addresses.chain(routes).collect()
    })
}

/// The address and the default route that the guest advertises have come to this namespace.
fn has_taken(netns: &OwnedFd, before: &BTreeSet<String>) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < WAIT {
        let new: Vec<_> = addresses_and_routes(netns).difference(before).cloned().collect();
        let of_prefix = new.iter().any(|one| one.contains("Address") && one.contains("2001:db8:bad:"));
        let default = new.iter().any(|one| one.starts_with("0 ") && one.contains("Gateway"));
        if of_prefix && default {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_guest_behind_masquerade_is_no_router_for_its_pod_and_the_node() {
    let Some((node, pod)) = node_and_trusting_pod() else { return };
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted(Vec::new()), &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    is_joined(&node, &pod, &guest);
    let before = [&node, &pod].map(addresses_and_routes);
    advertise(&guest);
    // What the guest sends next arrives after the advertisement.
    assert!(ask(&guest, (NODE6, 9090)).is_some());
    assert_eq!([&node, &pod].map(addresses_and_routes), before);

    // The advertisement was one that takes effect.
    accept(&pod, "k6t-eth0");
    advertise(&guest);
    assert!(has_taken(&pod, &before[1]));
}

#[test]
fn a_guest_behind_masquerade_is_no_router_for_a_pod_without_ipv6() {
    let (Some(node), Some(pod)) = (namespace(), namespace()) else { return };
    accept(&pod, "default");
    connect(&node, &pod, false);
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted(Vec::new()), &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    serve(&node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert!(ask(&guest, (NODE4, 9090)).is_some());
    let before = addresses_and_routes(&pod);
    advertise(&guest);
    // What the guest sends next arrives after the advertisement.
    assert!(ask(&guest, (NODE4, 9090)).is_some());
    assert_eq!(addresses_and_routes(&pod), before);
}

#[test]
fn a_guest_with_a_bridge_is_no_router_for_its_pod() {
    let Some((node, pod)) = node_and_trusting_pod() else { return };
    accept(&node, "peer");
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    let tap = take(&mut descriptors, "net/default/tap");
    let addresses = vec![(POD4.into(), 24), (POD6.into(), 128)];
    let guest = station(tap, prepared.mac, addresses, vec![NODE4.into()]);
    let before = [&node, &pod].map(addresses_and_routes);
    // It reaches the other hosts of the network, as from any host: here the node, which takes what is advertised. The first one may
    // be sent before the guest's link is there.
    assert!((0..3).any(|_| {
        advertise(&guest);
        has_taken(&node, &before[0])
    }));
    assert_eq!(addresses_and_routes(&pod), before[1]);
}

/// The addresses and routes of a namespace, once they do not change any more.
fn settled(netns: &OwnedFd) -> BTreeSet<String> {
    let mut before = addresses_and_routes(netns);
    for _ in 0..5 {
        // The kernel looks at the state of links once in a second.
        thread::sleep(Duration::from_millis(1200));
        let now = addresses_and_routes(netns);
        if now == before {
            return now;
        }
        before = now;
    }
    panic!("addresses or routes change all the time: {before:?}")
}

/// Connects a guest to the tap or macvtap that the pod has on the second network, and checks that its pod does not take it for
/// a router. Returns the guest, and the addresses and routes of the pod.
fn is_no_router_on_red(node: &OwnedFd, pod: &OwnedFd) -> (OwnedFd, BTreeSet<String>) {
    accept(node, "red");
    let card = Wanted { mac: Some(MAC), ..on_tap() };
    let (_, _, mut opened) = prepare_blocking(pod, &card, &BTreeSet::new());
    let guest = station(take(&mut opened, "net/red/tap"), MAC, vec![(RED_GUEST.into(), 24)], Vec::new());
    speaks_on_red(node, &guest);
    let [of_node, of_pod] = [node, pod].map(settled);
    // It reaches the other hosts of the network: here the node, which takes what is advertised.
    assert!((0..3).any(|_| {
        advertise(&guest);
        has_taken(node, &of_node)
    }));
    assert_eq!(addresses_and_routes(pod), of_pod);
    (guest, of_pod)
}

#[test]
fn a_guest_on_a_macvtap_is_no_router_for_its_pod() {
    let Some((node, pod)) = node_and_trusting_pod() else { return };
    if attach_macvtap(&node, &pod) {
        is_no_router_on_red(&node, &pod);
    }
}

#[test]
fn a_guest_on_a_tap_is_no_router_for_its_pod() {
    let Some((node, pod)) = node_and_trusting_pod() else { return };
    attach_tap(&node, &pod);
    let (guest, before) = is_no_router_on_red(&node, &pod);
    // What comes by the tap comes to its bridge, too.
    accept(&pod, "plugin");
    advertise(&guest);
    assert!(has_taken(&pod, &before));
}
