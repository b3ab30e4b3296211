//! Guests that have their pods' IPv6 addresses.
//!
//! ```text
//! node: peer (fd00:10:244:9::1, fe80::a) == pod: eth0-nic -- k6t-eth0 -- tap0 == guest (fd00:10:244:9::7, default via fe80::a)
//! ```

use super::bridge::{attach_red, link_names, links, on_pod_network, on_red};
use super::*;
use crate::kernel;

const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x244, 9, 0, 0, 0, 0);
const RED_NODE: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 1);
const RED_GUEST: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 2);
const FAR: Ipv6Addr = Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, 0);

/// A filter that accepts every frame.
const EVERYTHING: [libc::sock_filter; 1] = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 2048 }];

/// The link-local address of the node's end of a pod's link.
pub(super) fn router(node: &OwnedFd) -> Ipv6Addr {
    MacAddress::read(&links(node)["peer"].mac).unwrap().link_local()
}

/// The settings of a guest on the pod network with that router.
pub(super) fn told(gateway: Option<Ipv6Addr>) -> Ipv6 {
    let near = Route { destination: PREFIX.into(), prefix: 64, gateway: None };
    Ipv6 { address: POD6, prefix: 64, gateway, routes: vec![near] }
}

/// Checks that node and guest reach each other, with the pod's address for the guest.
pub(super) fn speaks(node: &OwnedFd, guest: &OwnedFd) {
    serve(guest, (Ipv6Addr::UNSPECIFIED, 8086).into());
    serve(node, (Ipv6Addr::UNSPECIFIED, 9096).into());
    assert_eq!(ask(node, (POD6, 8086)), Some(NODE6.to_string()));
    assert_eq!(ask(guest, (NODE6, 9096)), Some(POD6.to_string()));
}

/// A node, and a pod whose link has this address and gateway of IPv6 only.
fn pod_with(
    address: (Ipv6Addr, u8),
    gateway: impl FnOnce(&OwnedFd) -> Ipv6Addr,
) -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = node_and_pod(false)?;
    let gateway = gateway(&node);
    with_netlink(&pod, move |netlink| async move {
        let eth0 = index(&netlink, "eth0").await;
        use futures::TryStreamExt;
        let mut addresses = netlink.address().get().execute();
        while let Some(message) = addresses.try_next().await.unwrap() {
            let ipv4 = message.header.family == netlink_packet_route::AddressFamily::Inet;
            if message.header.index == eth0 && ipv4 {
                netlink.address().del(message).execute().await.unwrap();
            }
        }
        configure(&netlink, "eth0", &[(address.0.into(), address.1)], &[gateway.into()]).await;
    });
    Some((node, pod))
}

/// Gives a link of a namespace an address by the kernel's detection of duplicates, and returns whether it
/// found none.
fn is_unique(netns: &OwnedFd, link: &'static str, address: Ipv6Addr) -> bool {
    inside(netns, move || std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/accept_dad"), "1").unwrap());
    with_netlink(netns, move |netlink| async move {
        use futures::TryStreamExt;
        use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags};
        let index = index(&netlink, link).await;
        netlink.address().add(index, address.into(), 128).execute().await.unwrap();
        let begun = std::time::Instant::now();
        while begun.elapsed() < WAIT {
            let all: Vec<_> = netlink.address().get().execute().try_collect().await.unwrap();
            let is = AddressAttribute::Address(address.into());
            let found = all.into_iter().find(|message| message.attributes.contains(&is)).unwrap();
            let flags = found.header.flags;
            if flags.contains(AddressHeaderFlags::Dadfailed) {
                return false;
            }
            if !flags.contains(AddressHeaderFlags::Tentative) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the detection of duplicates did not end");
    })
}

#[test]
fn the_guest_is_the_pods_station_in_ipv6_too_and_the_pod_does_not_defend_its_address() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let card = on_pod_network();
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!(names(&descriptors), ["net/default/tap", "net/default/dhcp4", "net/default/ra"]);
    assert_eq!((prepared.ipv6.as_ref(), prepared.link_local), (Some(&told(Some(router(&node)))), None));
    assert_eq!(prepared.pod_addresses, [IpAddr::from(POD4), IpAddr::from(POD6)]);
    let held = descriptors.iter().map(|(name, _)| name.clone()).collect();
    let tap = take(&mut descriptors, "net/default/tap");
    let guest = station(tap, prepared.mac, Vec::new(), Vec::new());
    assert!(is_unique(&guest, "nic", POD6));
    with_netlink(&guest, {
        let router = router(&node);
        move |netlink| async move { configure(&netlink, "nic", &[], &[router.into()]).await }
    });
    speaks(&node, &guest);
    // Nothing of the pod has IPv6 on the guest's network, and the pod still shows the address.
    for link in ["k6t-eth0", "eth0-nic", "tap0"] {
        let path = format!("net/ipv6/conf/{link}/disable_ipv6");
        assert_eq!(inside(&pod, move || observe::sysctl(&path).unwrap()), "1", "{link}");
    }
    assert!(links(&pod)["eth0"].addresses.contains(&(POD6.into(), 64)));
    let (steps, second, opened) = prepare_blocking(&pod, &card, &held);
    assert_eq!((steps, names(&opened), second), (0, vec![], prepared));
}

#[test]
fn frames_come_from_the_guest_only_and_go_to_the_guest_only() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    let frames = UdpSocket::from(take(&mut descriptors, "net/default/ra"));
    frames.set_nonblocking(false).unwrap();
    let guest = station(take(&mut descriptors, "net/default/tap"), prepared.mac, Vec::new(), Vec::new());
    let watch = |netns: &OwnedFd, link: &'static str| {
        let index = links(netns)[link].index;
        let socket = inside(netns, move || kernel::receive_frames(index, &EVERYTHING).unwrap());
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        socket
    };
    let (at_node, at_guest) = (watch(&node, "peer"), watch(&guest, "nic"));
    let solicit = |netns: &OwnedFd, link: &'static str| {
        let index = links(netns)[link].index;
        inside(netns, move || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 546)).unwrap();
            for (port, text) in [(547, "request"), (5353, "other")] {
                let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
                let to = std::net::SocketAddrV6::new(servers, port, 0, index);
                let begun = std::time::Instant::now();
                // The kernel has no source for it until the link's address is known to be unique.
                while let Err(error) = socket.send_to(text.as_bytes(), to) {
                    let waits =
                        error.kind() == std::io::ErrorKind::AddrNotAvailable && begun.elapsed() < WAIT;
                    assert!(waits, "{error}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
    };
    solicit(&node, "peer");
    solicit(&guest, "nic");
    // The guest's kernel also asks for a router.
    let all: Vec<Vec<u8>> = frames_of(&frames);
    let requests = all.iter().filter(|frame| frame.ends_with(b"request")).count();
    let solicitations = all.iter().filter(|frame| frame[20] == 58 && frame[54] == 133).count();
    assert_eq!((requests, all.len()), (1, 1 + solicitations), "{all:x?}");
    assert!(all.iter().all(|frame| frame[6..12] == prepared.mac.0), "{all:x?}");

    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0x86, 0xdd];
    frame.extend(b"advertisement");
    frames.send(&frame).unwrap();
    let has = |socket: &UdpSocket| frames_of(socket).iter().any(|frame| frame.ends_with(b"advertisement"));
    assert!(has(&at_guest) && !has(&at_node));
}

/// The frames that a socket receives within a moment.
pub(super) fn frames_of(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let (mut buffer, mut all) = ([0; 2048], Vec::new());
    let begun = std::time::Instant::now();
    while begun.elapsed() < WAIT
        && let Ok(length) = socket.recv(&mut buffer)
    {
        all.push(buffer[..length].to_vec());
    }
    all
}

#[test]
fn a_gateway_with_a_link_local_address_is_the_router_itself() {
    let Some((node, pod)) = pod_with((POD6, 128), router) else { return };
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    assert_eq!(names(&descriptors), ["net/default/tap", "net/default/ra"]);
    let gateway = Some(router(&node));
    let told = Ipv6 { address: POD6, prefix: 128, gateway, routes: Vec::new() };
    assert_eq!((prepared.ipv4, prepared.ipv6), (None, Some(told)));
    let tap = take(&mut descriptors, "net/default/tap");
    let guest = station(tap, prepared.mac, vec![(POD6.into(), 128)], vec![router(&node).into()]);
    speaks(&node, &guest);
}

#[test]
fn a_gateway_without_a_link_local_address_gives_no_route() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    with_netlink(&node, {
        let router = router(&node);
        move |netlink| async move {
            let index = index(&netlink, "peer").await;
            let message =
                rtnetlink::AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(router, 64);
            netlink.address().del(message.build()).execute().await.unwrap();
        }
    });
    let (_, prepared, descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    assert_eq!(prepared.ipv6, Some(told(None)));
    assert!(names(&descriptors).contains(&"net/default/ra"));
}

#[test]
fn gateways_that_do_not_answer_are_waited_for_together() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    // One after the other they would take longer than the whole preparation may.
    with_netlink(&pod, |netlink| async move {
        let index = index(&netlink, "eth0").await;
        for number in 1..=10 {
            let silent = Ipv6Addr::from_bits(PREFIX.to_bits() + 0x100 + number);
            let far = Ipv6Addr::from_bits(FAR.to_bits() + (number << 64));
            let route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(far, 64).gateway(silent);
            netlink.route().add(route.output_interface(index).build()).execute().await.unwrap();
        }
    });
    let (_, prepared, _descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    assert_eq!(prepared.ipv6, Some(told(Some(router(&node)))));
}

#[test]
fn a_card_that_has_left_leaves_its_links_ipv6_as_it_was() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    attach_red(&node, &pod, vec![(RED_GUEST.into(), 64)]);
    let gateway = MacAddress::read(&links(&node)["red"].mac).unwrap().link_local();
    with_netlink(&node, |netlink| async move {
        configure(&netlink, "red", &[(RED_NODE.into(), 64)], &[]).await;
    });
    with_netlink(&pod, |netlink| async move {
        let index = index(&netlink, bridge::RED).await;
        let route = RouteMessageBuilder::<Ipv6Addr>::new();
        let route = route.destination_prefix(FAR, 32).gateway(RED_NODE).output_interface(index).build();
        netlink.route().add(route).execute().await.unwrap();
    });
    let before = links(&pod);
    let cards = vec![wanted(Vec::new()), on_red()];
    let first = prepare_all(&pod, cards, &BTreeSet::new());
    let near =
        Route { destination: Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 0).into(), prefix: 64, gateway: None };
    let far = Route { destination: FAR.into(), prefix: 32, gateway: Some(gateway.into()) };
    let told = Ipv6 { address: RED_GUEST, prefix: 64, gateway: None, routes: vec![near, far] };
    assert_eq!((first.cards[1].1.ipv4.as_ref(), first.cards[1].1.ipv6.as_ref()), (None, Some(&told)));
    let held = first.opened.iter().map(|(name, _)| name.clone()).filter(|name| !name.contains("/red/"));
    let held: BTreeSet<String> = held.collect();
    let gone = vec![wanted(Vec::new()), Wanted { binding: Binding::Gone, ..on_red() }];
    prepare_all(&pod, gone.clone(), &held);
    let added = link_names(&pod);
    let added: Vec<_> = added.iter().filter(|name| !before.contains_key(*name)).collect();
    assert_eq!(added, ["k6t-eth0", "tap0"]);
    let after = links(&pod);
    let (red, former) = (&after[bridge::RED], &before[bridge::RED]);
    assert_eq!((Vec::from_iter(red.global()), red.up), (Vec::from_iter(former.global()), true));
    assert_eq!(red.routes, [near, far].into());
    assert_eq!(prepare_all(&pod, gone, &held).steps, 0);
    serve(&node, (Ipv6Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(&pod, (RED_NODE, 9090)), Some(RED_GUEST.to_string()));
}
