//! Handlers that end between any two steps of a plan, on the real kernel: with each kind of card, and with several in one pod,
//! the next handler completes what the one before has begun. Tests of bridges, macvlans and VLANs are in the files of these
//! kinds.

use std::collections::BTreeMap;

use super::bridge::{
    RED, RED_GUEST, RED_NODE, attach_red, link_names, links, on_pod_network, on_red, speaks_on_red,
};
use super::tap::{attach_macvtap, attach_tap, on_tap};
use super::*;

/// Address of the pod on the second network.
const RED_GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 2);
/// The pod's link to a third network, and addresses there.
const GREEN: &str = "net2";
const GREEN_NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 8, 1);
const GREEN_GUEST: Ipv4Addr = Ipv4Addr::new(192, 168, 8, 2);
/// A port of a mesh's sidecar.
const OF_SIDECAR: u16 = 15021;

/// A node and a pod, and what a test has noted about them.
pub(super) struct Scene<T> {
    pub(super) node: OwnedFd,
    pub(super) pod: OwnedFd,
    pub(super) noted: T,
}

/// Lets a handler end before its first step for `card`, after each step, and after the last one, each time in a new
/// scene. The descriptors that it has opened are lost. `check` gets the result of the next handler. After that one,
/// nothing is left to do.
pub(super) fn next_handler_completes<T>(
    card: &Wanted,
    scene: impl Fn() -> Option<Scene<T>>,
    check: impl Fn(Scene<T>, Outcome),
) {
    next_handler_completes_all(std::slice::from_ref(card), scene, check);
}

/// The same for all cards of a pod, those with masquerade first.
fn next_handler_completes_all<T>(
    cards: &[Wanted],
    scene: impl Fn() -> Option<Scene<T>>,
    check: impl Fn(Scene<T>, Outcome),
) {
    let Some(first) = scene() else { return };
    let none = BTreeSet::new();
    let count = plan_for(&first.pod, cards, &none).len();
    for done in 0..=count {
        // Shown if the test fails.
        eprintln!("a handler ends after {done} of {count} steps");
        let scene = scene().unwrap();
        do_first(done, &scene.pod, cards, &none);
        let outcome = prepare_all(&scene.pod, cards.to_vec(), &none);
        let held = outcome.opened.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(prepare_all(&scene.pod, cards.to_vec(), &held).steps, 0);
        check(scene, outcome);
    }
}

/// The steps for `cards` in a pod whose launcher holds these descriptors. All are planned before the first is done.
fn plan_for(pod: &OwnedFd, cards: &[Wanted], held: &BTreeSet<String>) -> Vec<Step> {
    let (cards, held) = (cards.to_vec(), held.clone());
    with_netlink(pod, move |netlink| async move {
        let translates = cards.iter().any(|card| matches!(card.binding, Binding::Masquerade(_)));
        let nftables = translates.then(|| Nftables::open().unwrap());
        let seen = observe::observe(&netlink, nftables.as_ref(), &cards, &held).await.unwrap();
        cards.iter().flat_map(|card| plan::plan(card, &seen).unwrap()).collect()
    })
}

/// Does that many of these steps. The descriptors that are opened are lost.
fn do_first(done: usize, pod: &OwnedFd, cards: &[Wanted], held: &BTreeSet<String>) {
    let part: Vec<_> = plan_for(pod, cards, held).into_iter().take(done).collect();
    with_netlink(pod, |netlink| async move {
        drop(apply::apply(&netlink, None, part).await.unwrap());
    });
}

#[test]
fn masquerade_is_completed() {
    let scene = || node_and_pod(true).map(|(node, pod)| Scene { node, pod, noted: () });
    next_handler_completes(&wanted(Vec::new()), scene, |Scene { node, pod, noted: () }, outcome| {
        let (prepared, mut opened) = only_card(outcome);
        assert_eq!(
            names(&opened),
            ["net/default/tap", "net/default/dhcp4", "net/default/dhcp6", "net/default/ra"]
        );
        assert_eq!(prepared.link_local, Some(addresses::BRIDGE_MAC.link_local()));
        let guest = guest(take(&mut opened, "net/default/tap"), MAC);
        is_joined(&node, &pod, &guest);
    });
}

#[test]
fn a_managed_tap_is_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(true)?;
        let noted = links(&pod)["eth0"].clone();
        Some(Scene { node, pod, noted })
    };
    let card = Wanted { binding: Binding::ManagedTap, ..on_pod_network() };
    next_handler_completes(&card, scene, |Scene { node, noted: before, .. }, outcome| {
        let (prepared, mut opened) = only_card(outcome);
        assert_eq!((names(&opened), prepared.ipv4.as_ref()), (vec!["net/default/tap"], None));
        assert_eq!(prepared.mac.0.to_vec(), before.mac);
        assert_eq!(prepared.pod_addresses, [IpAddr::from(POD4), IpAddr::from(POD6)]);
        let router = bridge_ipv6::router(&node);
        let addresses = vec![(POD4.into(), 24), (POD6.into(), 128)];
        let tap = take(&mut opened, "net/default/tap");
        let guest = station(tap, prepared.mac, addresses, vec![NODE4.into(), router.into()]);
        bridge::speaks(&node, &guest);
        bridge_ipv6::speaks(&node, &guest);
    });
}

#[test]
fn a_tap_is_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        attach_tap(&node, &pod);
        let noted = link_names(&pod);
        Some(Scene { node, pod, noted })
    };
    next_handler_completes(&Wanted { mac: Some(MAC), ..on_tap() }, scene, on_its_tap);
}

#[test]
fn a_macvtap_is_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        let noted = attach_macvtap(&node, &pod).then(|| link_names(&pod))?;
        Some(Scene { node, pod, noted })
    };
    next_handler_completes(&Wanted { mac: Some(MAC), ..on_tap() }, scene, on_its_tap);
}

/// Checks that the guest is on the tap or macvtap that the pod had, and that the handler has made no link.
fn on_its_tap(Scene { node, pod, noted: before }: Scene<BTreeSet<String>>, outcome: Outcome) {
    let (prepared, mut opened) = only_card(outcome);
    assert_eq!((names(&opened), prepared.mac), (vec!["net/red/tap"], MAC));
    assert_eq!(link_names(&pod), before);
    let guest = station(take(&mut opened, "net/red/tap"), MAC, vec![(RED_GUEST.into(), 24)], Vec::new());
    speaks_on_red(&node, &guest);
}

#[test]
fn the_settings_of_passt_are_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(true)?;
        let noted = link_names(&pod);
        Some(Scene { node, pod, noted })
    };
    let card = Wanted { binding: Binding::Passt, ..wanted(Vec::new()) };
    next_handler_completes(&card, scene, |Scene { pod, noted: before, .. }, outcome| {
        let (prepared, opened) = only_card(outcome);
        assert_eq!((names(&opened), prepared.pod_addresses.len()), (vec![], 2));
        passt::has_its_settings(&pod);
        assert_eq!(link_names(&pod), before);
    });
}

/// Gives the pod a link to a third network.
fn attach_green(node: &OwnedFd, pod: &OwnedFd) {
    let there = pod.try_clone().unwrap();
    with_netlink(node, move |netlink| async move {
        netlink.link().add(LinkVeth::new("green", GREEN).build()).execute().await.unwrap();
        let green = index(&netlink, GREEN).await;
        change(&netlink, LinkUnspec::new_with_index(green).setns_by_fd(there.as_raw_fd()).build()).await;
        configure(&netlink, "green", &[(GREEN_NODE.into(), 24)], &[]).await;
    });
    with_netlink(pod, |netlink| async move { configure(&netlink, GREEN, &[], &[]).await });
}

#[test]
fn several_cards_of_a_pod_are_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(true)?;
        attach_red(&node, &pod, vec![(RED_GUEST.into(), 24)]);
        attach_green(&node, &pod);
        Some(Scene { node, pod, noted: () })
    };
    let green = Wanted {
        interface: "green".to_owned(),
        network: "green".to_owned(),
        index: 2,
        candidates: vec![GREEN.to_owned()],
        binding: Binding::ManagedTap,
        ..on_red()
    };
    let cards = [wanted(Vec::new()), on_red(), green];
    next_handler_completes_all(&cards, scene, |Scene { node, pod, noted: () }, outcome| {
        let Outcome { cards: there, mut opened, .. } = outcome;
        let default = ["net/default/tap", "net/default/dhcp4", "net/default/dhcp6", "net/default/ra"];
        let others = ["net/red/tap", "net/red/dhcp4", "net/green/tap", "net/green/ra"];
        assert_eq!((names(&opened), there.len()), ([default, others].concat(), 3));
        let first = guest(take(&mut opened, "net/default/tap"), MAC);
        is_joined(&node, &pod, &first);
        let networks = [(RED_GUEST, RED_NODE), (GREEN_GUEST, GREEN_NODE)];
        for ((card, prepared), (address, of_node)) in there[1..].iter().zip(networks) {
            let tap = take(&mut opened, &format!("net/{}/tap", card.network));
            let guest = station(tap, prepared.mac, vec![(address.into(), 24)], Vec::new());
            serve(&guest, (Ipv4Addr::UNSPECIFIED, 8081).into());
            assert_eq!(ask(&node, (address, 8081)), Some(of_node.to_string()), "{}", card.network);
            assert_eq!(ask(&guest, (of_node, 9090)), Some(format!("::ffff:{address}")), "{}", card.network);
        }
    });
}

#[test]
fn a_change_of_rules_is_completed() {
    let card = |ports: &[u16], has_sidecar| {
        let port = |number: &u16| Ports::from(Port { protocol: Protocol::Tcp, number: *number });
        let ports = ports.iter().map(port).collect();
        let binding = Masquerade { ipv4: IPV4, ipv6: IPV6, ports, has_sidecar };
        Wanted { binding: Binding::Masquerade(binding), ..wanted(Vec::new()) }
    };
    // Each card, whether its guest is reached at another port, and its pod at one of the sidecar.
    let open = (card(&[], false), true, false);
    let listed = (card(&[8080], false), false, true);
    let in_mesh = (card(&[], true), true, true);
    for ((from, ..), (to, is_guest, is_pod)) in [(&open, &listed), (&listed, &in_mesh), (&in_mesh, &open)] {
        let to = std::slice::from_ref(to);
        for done in 0..=2 {
            // Shown if the test fails.
            eprintln!("a handler ends after {done} of 2 steps to {:?}", to[0].binding);
            let Some((node, pod)) = node_and_pod(true) else { return };
            let (_, _, mut opened) = prepare_blocking(&pod, from, &BTreeSet::new());
            let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
            let guest = guest(take(&mut opened, "net/default/tap"), MAC);
            for (netns, port) in [(&guest, 8080), (&guest, 8081), (&pod, OF_SIDECAR)] {
                serve(netns, (Ipv6Addr::UNSPECIFIED, port).into());
            }
            // One table for each IP version. That of ARP does not change.
            let steps = plan_for(&pod, to, &held);
            let replaces = |step: &Step| matches!(step, Step::ReplaceRules(_));
            assert!(steps.len() == 2 && steps.iter().all(replaces), "{steps:?}");
            do_first(done, &pod, to, &held);
            let is_reached = |port: u16| {
                [IpAddr::from(POD4), POD6.into()].map(|address| ask(&node, (address, port)).is_some())
            };
            assert_eq!(is_reached(8080), [true; 2], "each table is the former one or the new one");
            let outcome = prepare_all(&pod, to.to_vec(), &held);
            assert_eq!((outcome.steps, outcome.opened.len()), (2 - done, 0));
            assert_eq!(prepare_all(&pod, to.to_vec(), &held).steps, 0);
            let reached = [8080, 8081, OF_SIDECAR].map(is_reached);
            assert_eq!(reached, [[true; 2], [*is_guest; 2], [*is_pod; 2]]);
        }
    }
}

/// The links of a pod before it got a card, and the descriptors of the card.
type Noted = (BTreeMap<String, Link>, Descriptors);

fn gone() -> Wanted {
    Wanted { binding: Binding::Gone, ..on_red() }
}

/// A pod with an address of both families on the second network.
fn pod_on_red() -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = node_and_pod(true)?;
    attach_red(&node, &pod, vec![(RED_GUEST.into(), 24), (RED_GUEST6.into(), 64)]);
    Some((node, pod))
}

/// Checks that the pod is again on the second network as it was before it got the card there.
fn is_given_back(Scene { node, pod, noted: (before, _held) }: Scene<Noted>, outcome: Outcome) {
    assert_eq!((outcome.cards.len(), names(&outcome.opened)), (0, vec![]));
    let after = links(&pod);
    assert_eq!(Vec::from_iter(after.keys()), Vec::from_iter(before.keys()));
    let (red, former) = (&after[RED], &before[RED]);
    assert_eq!((&red.mac, red.index, red.up), (&former.mac, former.index, true));
    assert_eq!(Vec::from_iter(red.global()), Vec::from_iter(former.global()));
    assert_eq!(red.routes, former.routes);
    serve(&node, (Ipv4Addr::UNSPECIFIED, 9090).into());
    assert_eq!(ask(&pod, (RED_NODE, 9090)), Some(RED_GUEST.to_string()));
}

#[test]
fn the_removal_of_a_card_is_completed() {
    let scene = || {
        let (node, pod) = pod_on_red()?;
        let before = links(&pod);
        let made = prepare_all(&pod, vec![on_red()], &BTreeSet::new());
        assert_eq!(names(&made.opened), ["net/red/tap", "net/red/dhcp4", "net/red/ra"]);
        Some(Scene { node, pod, noted: (before, made.opened) })
    };
    next_handler_completes(&gone(), scene, is_given_back);
}

#[test]
fn the_removal_of_a_card_on_a_macvlan_is_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        if !macvlan::attach(&node, &pod) {
            return None;
        }
        with_netlink(&pod, |netlink| async move {
            configure(&netlink, RED, &[(RED_GUEST.into(), 24)], &[]).await;
        });
        Some(with_a_card(node, pod))
    };
    next_handler_completes(&gone(), scene, is_given_back);
}

#[test]
fn the_removal_of_a_card_on_a_vlan_is_completed() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        vlan::attach(&node, &pod).then(|| with_a_card(node, pod))
    };
    next_handler_completes(&gone(), scene, is_given_back);
}

/// The pod after it got the card on the second network, where it has an IPv4 address.
fn with_a_card(node: OwnedFd, pod: OwnedFd) -> Scene<Noted> {
    let before = links(&pod);
    let made = prepare_all(&pod, vec![on_red()], &BTreeSet::new());
    assert_eq!(names(&made.opened), ["net/red/tap", "net/red/dhcp4"]);
    Scene { node, pod, noted: (before, made.opened) }
}

#[test]
fn a_card_that_is_made_in_part_is_removed() {
    let Some((_node, pod)) = pod_on_red() else { return };
    let (card, none) = ([on_red()], BTreeSet::new());
    let count = plan_for(&pod, &card, &none).len();
    for done in 0..=count {
        // Shown if the test fails.
        eprintln!("the card is to go after {done} of {count} steps");
        let (node, pod) = pod_on_red().unwrap();
        let before = links(&pod);
        do_first(done, &pod, &card, &none);
        let outcome = prepare_all(&pod, vec![gone()], &BTreeSet::new());
        assert_eq!(prepare_all(&pod, vec![gone()], &BTreeSet::new()).steps, 0);
        is_given_back(Scene { node, pod, noted: (before, Descriptors::new()) }, outcome);
    }
}
