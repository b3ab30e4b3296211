//! Pods that come and go, and cards that are plugged and unplugged: after a hundred rounds there are as many links, addresses, routes, rules,
//! descriptors and threads as before.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use rtnetlink::packet_route::link::{MacVlanMode, MacVtapMode};
use rtnetlink::{LinkMacVlan, LinkMacVtap};

use super::bridge::{RED_GUEST, attach_red, link_names, on_red};
use super::*;

const ROUNDS: usize = 100;
/// Rounds after which everything is there that stays.
const FIRST_ROUNDS: usize = 2;
/// Set in a process that runs one of these tests alone.
const ALONE: &str = "BAREVIRT_TEST_ALONE";
/// Address of a pod on the network of passt.
const OF_PASST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

/// Runs `work` in a process of its own, since other tests open descriptors and start threads. It runs on a thread in a
/// new namespace, which stands for the node's. `test` is the name of the calling test.
fn alone(test: &str, work: fn(&OwnedFd)) {
    if std::env::var_os(ALONE).is_some() {
        if let Some(node) = namespace() {
            let there = node.try_clone().unwrap();
            inside(&node, move || work(&there));
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("network::tests::rounds::{test}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    eprint!("{errors}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// How much there is of everything that a network is made of, in a namespace and in this process.
fn counts(netns: &OwnedFd) -> BTreeMap<&'static str, usize> {
    let lines = |program, arguments| run_in(netns, program, arguments).lines().count();
    let entries = |folder| std::fs::read_dir(folder).unwrap().count();
    BTreeMap::from([
        ("links", lines("ip", "-o link")),
        ("addresses", lines("ip", "-o address")),
        ("routes", lines("ip", "route show table all")),
        ("IPv6 routes", lines("ip", "-6 route show table all")),
        ("lines of rules", lines("nft", "list ruleset")),
        ("descriptors", entries("/proc/self/fd")),
        ("threads", entries("/proc/self/task")),
    ])
}

/// Runs the rounds, and checks that what `counts` finds afterwards is what there was after the first ones.
fn leaves_nothing(netns: &OwnedFd, mut round: impl FnMut(usize)) {
    (0..FIRST_ROUNDS).for_each(&mut round);
    // Threads that have done their work may take a moment to end.
    thread::sleep(Duration::from_millis(200));
    let before = counts(netns);
    (0..ROUNDS).for_each(&mut round);
    let begun = Instant::now();
    let mut after = counts(netns);
    while after != before && begun.elapsed() < WAIT {
        thread::sleep(Duration::from_millis(100));
        after = counts(netns);
    }
    assert_eq!(after, before);
}

/// A pod with links for every kind of card, as network plugins create them, and the cards.
fn pod_of_all_kinds(node: &OwnedFd) -> (OwnedFd, Vec<Wanted>) {
    let pod = namespace().unwrap();
    connect(node, &pod, true);
    attach_red(node, &pod, vec![(RED_GUEST.into(), 24)]);
    with_netlink(&pod, |netlink| async move {
        let passt = (IpAddr::from(OF_PASST), 24);
        for (link, addresses) in [("net2", vec![]), ("net3", vec![passt]), ("lower", vec![])] {
            let end = format!("{link}-end");
            netlink.link().add(LinkVeth::new(&end, link).build()).execute().await.unwrap();
            configure(&netlink, &end, &[], &[]).await;
            configure(&netlink, link, &addresses, &[]).await;
        }
        let lower = index(&netlink, "lower").await;
        let macvlan = LinkMacVlan::new("net4", lower, MacVlanMode::Bridge).build();
        let macvtap = LinkMacVtap::new("net5", lower, MacVtapMode::Bridge).build();
        for link in [macvlan, macvtap] {
            let made = netlink.link().add(link).execute().await;
            made.unwrap_or_else(|error| eprintln!("one kind less: {error}"));
        }
    });
    run_in(&pod, "ip", "tuntap add dev tapnet6 mode tap");
    let there = link_names(&pod);
    let card = |number: usize, binding| Wanted {
        interface: format!("card{number}"),
        network: format!("card{number}"),
        index: number,
        candidates: vec![format!("net{number}")],
        binding,
        ..on_red()
    };
    let mut cards = vec![wanted(Vec::new()), on_red()];
    cards.extend(
        [Binding::ManagedTap, Binding::Passt, Binding::Bridge, Binding::Tap, Binding::Tap]
            .into_iter()
            .zip(2..)
            .map(|(binding, number)| card(number, binding))
            .filter(|card| {
                there.contains(&card.candidates[0]) || there.contains(&format!("tapnet{}", card.index))
            }),
    );
    (pod, cards)
}

#[test]
fn a_hundred_pods_with_every_kind_of_card_leave_nothing() {
    alone("a_hundred_pods_with_every_kind_of_card_leave_nothing", |node| {
        let empty = link_names(node);
        leaves_nothing(node, |_| {
            let (pod, cards) = pod_of_all_kinds(node);
            let first = prepare_all(&pod, cards.clone(), &BTreeSet::new());
            assert_eq!((first.cards.len(), first.failed.len()), (cards.len(), 0));
            let held = first.opened.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(prepare_all(&pod, cards, &held).steps, 0);
            drop((first, pod));
            // The kernel removes the namespace, and with it the other ends of its links.
            let begun = Instant::now();
            while link_names(node) != empty {
                assert!(begun.elapsed() < WAIT, "links are left: {:?}", link_names(node));
                thread::sleep(Duration::from_millis(1));
            }
        });
    });
}

#[test]
fn a_hundred_cards_that_come_and_go_leave_nothing_in_their_pod() {
    alone("a_hundred_cards_that_come_and_go_leave_nothing_in_their_pod", |node| {
        let (pod, mut cards) = pod_of_all_kinds(node);
        // A bridge, and a macvlan as its port, beside a card that stays.
        cards.retain(|card| matches!(card.binding, Binding::Masquerade(_) | Binding::Bridge));
        let stays = prepare_all(&pod, vec![cards[0].clone()], &BTreeSet::new());
        let held: BTreeSet<String> = stays.opened.iter().map(|(name, _)| name.clone()).collect();
        leaves_nothing(&pod, |number| {
            // The rules change each time, and each time they are replaced.
            let port = Port { protocol: Protocol::Tcp, number: if number % 2 == 0 { 22 } else { 80 } };
            let with = |binding: Option<Binding>| -> Vec<Wanted> {
                let mut all = cards.clone();
                all[0] = wanted(vec![port]);
                for card in &mut all[1..] {
                    card.binding = binding.clone().unwrap_or(Binding::Bridge);
                }
                all
            };
            let come = prepare_all(&pod, with(None), &held);
            assert_eq!((come.cards.len(), come.failed.len()), (cards.len(), 0));
            drop(come);
            let gone = prepare_all(&pod, with(Some(Binding::Gone)), &held);
            assert_eq!((gone.cards.len(), gone.failed.len(), gone.opened.len()), (1, 0, 0));
        });
    });
}
