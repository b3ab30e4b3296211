//! Guests that are hosts on the networks of their pods.
//!
//! ```text
//! node: peer (10.244.9.1) == pod: eth0-nic -- k6t-eth0 -- tap0 == guest (10.244.9.7);  pod: eth0, a stand-in (10.244.9.7)
//! node: red  (192.168.7.1) == pod: b1f51a511f1-nic -- k6t-b1f51a511f1 -- tapb1f51a511f1 == guest (192.168.7.2)
//! ```

use super::cuts::{Scene, next_handler_completes};
use super::*;

pub(super) const RED: &str = "podb1f51a511f1";
pub(super) const RED_NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);
pub(super) const RED_GUEST: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
/// A network to which the pod has a route.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 0);

pub(super) fn on_pod_network() -> Wanted {
    Wanted { mac: None, binding: Binding::Bridge, ..wanted(Vec::new()) }
}

pub(super) fn on_red() -> Wanted {
    Wanted {
        interface: "red".to_owned(),
        network: "red".to_owned(),
        index: 1,
        candidates: vec![RED.to_owned(), "net1".to_owned()],
        ..on_pod_network()
    }
}

/// Gives the pod a link to a second network.
pub(crate) fn attach_red(node: &OwnedFd, pod: &OwnedFd, addresses: Vec<(IpAddr, u8)>) {
    let there = pod.try_clone().unwrap();
    with_netlink(node, move |netlink| async move {
        netlink.link().add(LinkVeth::new("red", RED).build()).execute().await.unwrap();
        let red = index(&netlink, RED).await;
        change(&netlink, LinkUnspec::new_with_index(red).mtu(1300).setns_by_fd(there.as_raw_fd()).build())
            .await;
        configure(&netlink, "red", &[(RED_NODE.into(), 24)], &[]).await;
    });
    with_netlink(pod, move |netlink| async move { configure(&netlink, RED, &addresses, &[]).await });
}

/// Gives the pod a link to a second network, on which other links can be made.
pub(super) fn attach_lower(node: &OwnedFd, pod: &OwnedFd) {
    let there = pod.try_clone().unwrap();
    with_netlink(node, move |netlink| async move {
        netlink.link().add(LinkVeth::new("red", "lower").build()).execute().await.unwrap();
        let lower = index(&netlink, "lower").await;
        change(&netlink, LinkUnspec::new_with_index(lower).setns_by_fd(there.as_raw_fd()).build()).await;
        configure(&netlink, "red", &[(RED_NODE.into(), 24)], &[]).await;
    });
    with_netlink(pod, |netlink| async move { configure(&netlink, "lower", &[], &[]).await });
}

/// Checks that node and guest reach each other on the second network.
pub(super) fn speaks_on_red(node: &OwnedFd, guest: &OwnedFd) {
    serve(guest, (Ipv4Addr::UNSPECIFIED, 8081).into());
    serve(node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(node, (RED_GUEST, 8081)), Some(RED_NODE.to_string()));
    assert_eq!(ask(guest, (RED_NODE, 9090)), Some(RED_GUEST.to_string()));
}

pub(super) fn links(netns: &OwnedFd) -> std::collections::BTreeMap<String, Link> {
    with_netlink(netns, |netlink| async move {
        let cards = [on_pod_network(), on_red()];
        observe::observe(&netlink, None, &cards, &BTreeSet::new()).await.unwrap().links
    })
}

/// Names of the links of a namespace.
pub(crate) fn link_names(netns: &OwnedFd) -> BTreeSet<String> {
    links(netns).into_keys().collect()
}

fn far_route(pod: &OwnedFd) {
    with_netlink(pod, |netlink| async move {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(FAR, 12).gateway(NODE4).build();
        netlink.route().add(route).execute().await.unwrap();
    });
}

/// Checks that node and guest reach each other, with the pod's address for the guest.
pub(super) fn speaks(node: &OwnedFd, guest: &OwnedFd) {
    serve(guest, (Ipv4Addr::UNSPECIFIED, 8080).into());
    serve(node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(node, (POD4, 8080)), Some(NODE4.to_string()));
    assert_eq!(ask(guest, (NODE4, 9090)), Some(POD4.to_string()));
}

#[test]
fn the_guest_is_the_pods_station_on_its_network() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    far_route(&pod);
    let before = links(&pod)["eth0"].clone();
    let mac = MacAddress::read(&before.mac).unwrap();
    let card = on_pod_network();
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!(names(&descriptors), ["net/default/tap", "net/default/dhcp4"]);
    let far = Route { destination: FAR.into(), prefix: 12, gateway: Some(NODE4.into()) };
    let told = Ipv4 {
        address: POD4,
        prefix: 24,
        gateway: Some(NODE4),
        server: Ipv4Addr::new(169, 254, 75, 10),
        routes: vec![far],
    };
    assert_eq!((prepared.mac, prepared.mtu, prepared.ipv4.as_ref()), (mac, 1400, Some(&told)));
    assert_eq!((prepared.ipv6.as_ref(), prepared.link_local), (None, None));
    let held: BTreeSet<String> = descriptors.iter().map(|(name, _)| name.clone()).collect();
    let tap = take(&mut descriptors, "net/default/tap");
    let guest = station(tap, mac, vec![(POD4.into(), 24)], vec![NODE4.into()]);
    speaks(&node, &guest);

    // The pod still shows its address, and a second handler has nothing to do.
    let after = links(&pod);
    assert_eq!((after["eth0"].kind, &after["eth0"].mac), (state::Kind::Bridge, &before.mac));
    assert!(after["eth0"].addresses.contains(&(POD4.into(), 24)));
    assert!(!after["eth0-nic"].learning && after["eth0-nic"].mac != before.mac);
    let (steps, second, opened) = prepare_blocking(&pod, &card, &held);
    assert_eq!((steps, names(&opened), second), (0, vec![], prepared));
}

#[test]
fn requests_of_dhcp_reach_the_launcher_from_the_guest_and_from_no_other_host_of_its_network() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &on_pod_network(), &BTreeSet::new());
    let server = UdpSocket::from(take(&mut descriptors, "net/default/dhcp4"));
    server.set_nonblocking(false).unwrap();
    let guest = station(take(&mut descriptors, "net/default/tap"), prepared.mac, Vec::new(), Vec::new());
    // A host that asks for its address has none yet.
    run_in(&node, "ip", "-4 address flush dev peer");
    // What a request says about its sender does not count: the other host may write the guest's address there.
    request(&node, "peer", "by another host");
    request(&guest, "nic", "by the guest");
    request(&node, "peer", "by another host");
    assert_eq!(received(&server), ["by the guest"]);
    // The other host's frames do arrive on the bridge, and a host that sends from the guest's address is taken for it.
    let mac = prepared.mac;
    with_netlink(&node, move |netlink| async move {
        let index = index(&netlink, "peer").await;
        change(&netlink, LinkUnspec::new_with_index(index).address(mac.0.to_vec()).build()).await;
    });
    request(&node, "peer", "by another host");
    assert_eq!(received(&server), ["by another host"]);
}

#[test]
fn a_handler_that_ends_between_any_two_steps_is_followed_by_one_that_completes_them() {
    let scene = || {
        let (node, pod) = node_and_pod(true)?;
        far_route(&pod);
        let noted = (links(&pod)["eth0"].clone(), bridge_ipv6::router(&node));
        Some(Scene { node, pod, noted })
    };
    let check = |Scene { node, pod, noted: (before, router) }: Scene<(Link, Ipv6Addr)>, outcome: Outcome| {
        let (prepared, mut opened) = only_card(outcome);
        assert_eq!(prepared.mac.0.to_vec(), before.mac);
        let ipv4 = prepared.ipv4.unwrap();
        assert_eq!((ipv4.address, ipv4.gateway, ipv4.routes.len()), (POD4, Some(NODE4), 1));
        assert_eq!(prepared.ipv6, Some(bridge_ipv6::told(Some(router))));
        assert_eq!(Vec::from_iter(links(&pod)["eth0"].global()), Vec::from_iter(before.global()));
        let tap = take(&mut opened, "net/default/tap");
        let addresses = vec![(POD4.into(), 24), (POD6.into(), 128)];
        let guest = station(tap, prepared.mac, addresses, vec![NODE4.into(), router.into()]);
        speaks(&node, &guest);
        bridge_ipv6::speaks(&node, &guest);
    };
    next_handler_completes(&on_pod_network(), scene, check);
}

#[test]
fn a_guest_with_two_cards_is_behind_translation_on_one_and_a_station_on_the_other() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    attach_red(&node, &pod, Vec::new());
    let cards = vec![on_red(), wanted(Vec::new())];
    let Outcome { cards: there, mut opened, .. } = prepare_all(&pod, cards.clone(), &BTreeSet::new());
    let [(_, first), (card, red)] = there.as_slice() else { panic!("{there:?}") };
    assert_eq!((first.pod_interface.as_str(), first.mtu), ("eth0", 1400));
    assert_eq!((card.network.as_str(), red.pod_interface.as_str(), red.mtu), ("red", RED, 1300));
    // The link has no address there, so the guest gets none.
    assert_eq!((red.ipv4.as_ref(), red.pod_addresses.len()), (None, 0));
    let all: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
    assert!(all.contains("net/red/tap") && !all.contains("net/red/dhcp4"));
    let guest = guest(take(&mut opened, "net/default/tap"), MAC);
    let tap = take(&mut opened, "net/red/tap");
    let station = station(tap, red.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
    serve(&guest, (Ipv6Addr::UNSPECIFIED, 8080).into());
    serve(&station, (Ipv4Addr::UNSPECIFIED, 8081).into());
    serve(&node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(&node, (POD4, 8080)), Some(format!("::ffff:{NODE4}")));
    assert_eq!(ask(&node, (RED_GUEST, 8081)), Some(RED_NODE.to_string()));
    assert_eq!(ask(&guest, (NODE4, 9090)), Some(POD4.to_string()));
    assert_eq!(ask(&station, (RED_NODE, 9090)), Some(RED_GUEST.to_string()));
    let again = prepare_all(&pod, cards, &all);
    assert_eq!((again.steps, again.opened.len()), (0, 0));
}

#[test]
fn a_missing_link_of_one_card_does_not_delay_others() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let card = |alone| Wanted { alone, ..on_red() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (netns, both) = (pod.try_clone().unwrap(), vec![card(false), wanted(Vec::new())]);
    let together = runtime.block_on(prepare(netns, both, BTreeSet::new()));
    assert!(matches!(together, Err(NetworkError::Plan(PlanError::NoLink(_)))), "{together:?}");
    let cards = vec![wanted(Vec::new()), card(true)];
    let first = prepare_all(&pod, cards.clone(), &BTreeSet::new());
    let [(failed, NetworkError::Plan(PlanError::NoLink(link)))] = first.failed.as_slice() else {
        panic!("{first:?}")
    };
    assert_eq!((failed.network.as_str(), link.as_str(), first.cards.len()), ("red", RED, 1));
    let mut held: BTreeSet<String> = first.opened.iter().map(|(name, _)| name.clone()).collect();
    // A card is added, and the other one does not change.
    attach_red(&node, &pod, Vec::new());
    let mut second = prepare_all(&pod, cards.clone(), &held);
    let opened = vec!["net/red/tap", "net/red/ra"];
    assert_eq!((names(&second.opened), second.cards.len(), second.failed.len()), (opened, 2, 0));
    held.extend(second.opened.iter().map(|(name, _)| name.clone()));
    let tap = take(&mut second.opened, "net/red/tap");
    let station = station(tap, second.cards[1].1.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
    serve(&station, (Ipv4Addr::UNSPECIFIED, 8081).into());
    assert_eq!(ask(&node, (RED_GUEST, 8081)), Some(RED_NODE.to_string()));
    assert_eq!(prepare_all(&pod, cards, &held).steps, 0);
}

#[test]
fn a_card_that_has_left_leaves_its_link_as_it_was() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    attach_red(&node, &pod, vec![(RED_GUEST.into(), 24)]);
    let before = links(&pod);
    let cards = vec![wanted(Vec::new()), on_red()];
    let first = prepare_all(&pod, cards, &BTreeSet::new());
    assert_eq!(first.cards[1].1.ipv4.as_ref().map(|ipv4| ipv4.address), Some(RED_GUEST));
    let held = first.opened.iter().map(|(name, _)| name.clone()).filter(|name| !name.contains("/red/"));
    let held: BTreeSet<String> = held.collect();
    let gone = vec![wanted(Vec::new()), Wanted { binding: Binding::Gone, ..on_red() }];
    let second = prepare_all(&pod, gone.clone(), &held);
    assert_eq!(second.cards.len(), 1);
    let after = links(&pod);
    let added: Vec<_> = after.keys().filter(|name| !before.contains_key(*name)).collect();
    assert_eq!(added, ["k6t-eth0", "tap0"]);
    let global = |links: &std::collections::BTreeMap<String, Link>| Vec::from_iter(links[RED].global());
    assert_eq!(
        (&after[RED].mac, after[RED].index, after[RED].up, global(&after)),
        (&before[RED].mac, before[RED].index, true, global(&before))
    );
    assert_eq!(prepare_all(&pod, gone, &held).steps, 0);
    serve(&node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(&pod, (RED_NODE, 9090)), Some(RED_GUEST.to_string()));
}

#[test]
fn only_announced_addresses_of_a_guest_without_a_given_address_are_received() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    attach_red(&node, &pod, Vec::new());
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &on_red(), &BTreeSet::new());
    assert_eq!(names(&descriptors), ["net/red/tap", "net/red/ra"]);
    let heard = std::net::UdpSocket::from(take(&mut descriptors, "net/red/ra"));
    heard.set_nonblocking(false).unwrap();
    let tap = take(&mut descriptors, "net/red/tap");
    let guest = station(tap, prepared.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
    speaks_on_red(&node, &guest);
    let frames = bridge_ipv6::frames_of(&heard);
    let is_arp = |frame: &&Vec<u8>| frame[12..14] == [8, 6] && frame[28..32] == RED_GUEST.octets();
    assert!(frames.iter().any(|frame| is_arp(&frame)), "{frames:x?}");
    let is_discovery = |frame: &Vec<u8>| frame[12..14] == [0x86, 0xdd] && [135, 136].contains(&frame[54]);
    let others: Vec<_> =
        frames.iter().filter(|frame| frame[12..14] != [8, 6] && !is_discovery(frame)).collect();
    assert!(others.is_empty() && frames.iter().all(|frame| frame[6..12] == prepared.mac.0), "{frames:x?}");
}
