//! A card of the node, which stays behind when its guest moves. No machine of ours has one: a USB device takes its place, which
//! QEMU unplugs at once, and a card behind a root port, which a guest without a system never gives back.

use barevirt_machine::{Command, HostCard, Step};
use barevirt_protocol::v1::{Facts, SyncRequest};
use barevirt_qmp::qapi::qmp::{qom_list, system_reset};
use serde_json::json;
use virt_launcher::pod::host_cards::Functions;
use virt_launcher::pod::wanted::{Wanted, judge};

use super::*;

const CARD: &str = "card";
/// What both ends have: places for either card.
const PLACES: [&str; 4] = ["-device", "qemu-xhci,id=usb", "-device", "pcie-root-port,id=root1,chassis=1"];

fn card(id: &str, driver: &str, bus: &str) -> HostCard {
    let arguments = json!({ "driver": driver, "id": id, "bus": bus });
    let step = Step {
        forward: Command { execute: "device_add", arguments },
        inverse: Command { execute: "device_del", arguments: json!({ "id": id }) },
        awaits_device: Some(id.to_owned()),
    };
    HostCard { name: id.to_owned(), id: id.to_owned(), step }
}

/// Both ends of a guest with that card, with a monitor of each.
async fn start(driver: &str, bus: &str) -> (Pair, [Qmp; 2]) {
    let cards = || HostCards::new(vec![card(CARD, driver, bus)]);
    let there = format!("{driver},id={CARD},bus={bus}");
    let (pair, monitors) = start_with(&["-device", &there], cards(), cards()).await;
    assert_eq!([has_card(&monitors[0]).await, has_card(&monitors[1]).await], [true, false]);
    (pair, monitors)
}

/// Both ends of a guest whose source has further devices, with the cards of either.
async fn start_with(more: &[&str], at_source: HostCards, at_target: HostCards) -> (Pair, [Qmp; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let more = [&PLACES[..], more].concat();
    let end = |incoming, more: &[&str], cards| {
        End::start_more(directory.path(), incoming, None, false, (more, cards))
    };
    let (mut source, mut target) = (end(false, &more, at_source), end(true, &PLACES, at_target));
    source.until("running", |status| status.stage == Stage::Running).await;
    target.until("ready", |status| status.ready).await;
    target.reaches(State::Awaited).await;
    source.count().await;
    let monitors = [monitor(&mut source).await, monitor(&mut target).await];
    (Pair { source, target, _directory: directory }, monitors)
}

async fn monitor(end: &mut End) -> Qmp {
    let people = end.people.take().unwrap();
    Qmp::open(people, Options::default(), Deadline::after(SOON)).await.unwrap().0
}

async fn has_card(monitor: &Qmp) -> bool {
    has(monitor, CARD).await
}

async fn has(monitor: &Qmp, id: &str) -> bool {
    let list = qom_list { path: "/machine/peripheral".to_owned() };
    let all = monitor.execute(list, Deadline::after(SOON)).await.unwrap();
    all.iter().any(|one| one.name == id)
}

async fn gets_card(monitor: &Qmp) {
    gets(monitor, CARD).await;
}

async fn gets(monitor: &Qmp, id: &str) {
    let gets = async {
        while !has(monitor, id).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, gets).await.expect("it never has the card");
}

#[test]
fn a_guest_releases_its_card_on_the_source_and_gets_another_one_on_the_target() {
    for hold in [false, true] {
        local(async {
            let (mut pair, [source, target]) = start("usb-kbd", "usb.0").await;
            pair.begin(limits(), [7, 7]).await;
            pair.source.reaches(State::Sent).await;
            pair.target.reaches(State::Received).await;
            assert_eq!([has_card(&source).await, has_card(&target).await], [false, false]);
            pair.target.order(MigrationOrder::Go { hold }).await.unwrap();
            gets_card(&target).await;
            assert!(!has_card(&source).await);
            if !hold {
                pair.target.count().await;
            }
        });
    }
}

#[test]
fn a_guest_that_stays_has_its_card_again() {
    local(async {
        let (mut pair, [source, _]) = start("usb-kbd", "usb.0").await;
        pair.begin(slow(), [7, 7]).await;
        let sends = |status: &Status| status.migration.as_ref().is_some_and(|told| told.progress.total > 0);
        pair.source.until("sends", sends).await;
        assert!(!has_card(&source).await);
        pair.source.order(MigrationOrder::Abort).await.unwrap();
        pair.source.reaches(State::Over).await;
        gets_card(&source).await;
        pair.is_at_source().await;
    });
}

#[test]
fn a_guest_that_keeps_its_card_stays_and_has_it_whenever_it_gives_it_back() {
    local(async {
        let (mut pair, [source, _]) = start("virtio-rng-pci", "root1").await;
        pair.begin(limits(), [7, 7]).await;
        let over = pair.source.reaches(State::Over).await;
        assert_eq!(over.reason, "the guest has not given back card within 30 s");
        assert!(has_card(&source).await);
        pair.is_at_source().await;
        // A reset ends what the guest was asked for: QEMU takes the card out.
        source.execute(system_reset {}, Deadline::after(SOON)).await.unwrap();
        gets_card(&source).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has_card(&source).await);
    });
}

#[test]
fn a_card_that_is_given_back_for_the_next_migration_stays_away() {
    local(async {
        let (mut pair, [source, _]) = start("virtio-rng-pci", "root1").await;
        pair.begin(limits(), [7, 7]).await;
        pair.source.reaches(State::Over).await;
        // QEMU waits for the other end of an encrypted connection, and answers nothing meanwhile.
        let (ours, _theirs) = connection();
        let transport = Some(Transport {
            memory: ours,
            channels: vec![],
            compression: false,
            key: None,
            disks: BTreeMap::new(),
        });
        let order = MigrationOrder::Send { transport, limits: slow() };
        let (reply, replied) = oneshot::channel();
        pair.source
            .requests
            .send(Request::Migrate { uid: "migration-2".to_owned(), order, reply })
            .await
            .unwrap();
        timeout(SOON, replied).await.expect("no reply").unwrap().unwrap();
        source.execute(system_reset {}, Deadline::after(SOON)).await.unwrap();
        let goes = async {
            while has_card(&source).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, goes).await.expect("it keeps the card");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!has_card(&source).await, "it was plugged in for the migration before");
    });
}

#[test]
fn a_guest_gets_a_card_that_it_never_had_where_it_moves_to() {
    local(async {
        let cards = vec![card("none", "no-such-device", "usb.0"), card(CARD, "usb-kbd", "usb.0")];
        let at_target = HostCards::new(cards);
        let (mut pair, [source, target]) = start_with(&[], HostCards::default(), at_target.clone()).await;
        assert_eq!([has_card(&source).await, has_card(&target).await], [false, false]);
        pair.begin(limits(), [7, 7]).await;
        pair.source.reaches(State::Sent).await;
        pair.target.reaches(State::Received).await;
        assert!(!has_card(&target).await);
        pair.target.order(MigrationOrder::Go { hold: false }).await.unwrap();
        gets_card(&target).await;
        pair.target.count().await;
        // A card that QEMU refuses does not keep others away, and is reported.
        let mut functions = Functions::of(at_target);
        functions.turn(&target, &wanted(&["none", CARD], "")).await.unwrap();
        let told: Vec<_> = functions.status().map(|card| (card.name, card.plugged, card.trouble)).collect();
        let (name, plugged, why) = &told[0];
        assert_eq!((name.as_str(), *plugged), ("none", false));
        assert!(why.starts_with("QEMU refuses device_add: ") && why.contains("no-such-device"), "{why}");
        assert_eq!(told[1], (CARD.to_owned(), true, String::new()));
    });
}

/// An instance with cards on these networks, of which one is absent.
fn wanted(cards: &[&str], absent: &str) -> Wanted {
    let interface = |name: &&str| {
        let state = (*name == absent).then_some("absent");
        json!({ "name": name, "sriov": {}, "state": state })
    };
    let network = |name: &&str| json!({ "name": name, "multus": { "networkName": name } });
    let vmi = json!({
        "metadata": { "name": "vm", "namespace": "ns", "uid": "u" },
        "spec": {
            "domain": {
                "memory": { "guest": "64Mi" },
                "devices": { "interfaces": cards.iter().map(interface).collect::<Vec<_>>() },
            },
            "networks": cards.iter().map(network).collect::<Vec<_>>(),
        },
    });
    let facts = Some(Facts::default());
    let request = SyncRequest { vmi: vmi.to_string().into_bytes(), facts, ..SyncRequest::default() };
    judge("u", None, request).unwrap()
}

#[test]
fn a_card_that_is_not_wanted_leaves_the_guest_and_does_not_come_back() {
    local(async {
        let more = ["-device", "usb-kbd,id=card,bus=usb.0", "-device", "usb-kbd,id=other,bus=usb.0"];
        let cards = ["card", "other"].map(|id| card(id, "usb-kbd", "usb.0"));
        let at_source = HostCards::new(cards.to_vec());
        let (mut pair, [source, _]) = start_with(&more, at_source.clone(), HostCards::default()).await;
        let mut functions = Functions::of(at_source);
        let status = |functions: &Functions| functions.status().map(|card| card.plugged).collect::<Vec<_>>();
        functions.turn(&source, &wanted(&["card", "other"], "")).await.unwrap();
        assert_eq!(status(&functions), [true, true]);
        assert!(has_card(&source).await && !functions.is_leaving());
        functions.turn(&source, &wanted(&["card", "other"], "card")).await.unwrap();
        assert!(functions.is_leaving());
        functions.turn(&source, &wanted(&["card", "other"], "card")).await.unwrap();
        assert_eq!(status(&functions), [false, true]);
        assert!(!has_card(&source).await && !functions.is_leaving());
        // A guest that stays after all gets the other one again, and a card of the same name comes only elsewhere.
        pair.begin(slow(), [7, 7]).await;
        let sends = |status: &Status| status.migration.as_ref().is_some_and(|told| told.progress.total > 0);
        pair.source.until("sends", sends).await;
        pair.source.order(MigrationOrder::Abort).await.unwrap();
        pair.source.reaches(State::Over).await;
        gets(&source, "other").await;
        functions.turn(&source, &wanted(&["card", "other"], "")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!has_card(&source).await);
        assert_eq!(status(&functions), [false, true]);
    });
}
